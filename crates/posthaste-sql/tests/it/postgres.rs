//! What is particular to the PostgreSQL store.

mod admin;
mod cancel;
mod driver;
mod fault;
mod function;
mod lanes;
mod migration;
mod outage;
mod partition;
mod plan;
mod relay;
mod roles;
mod signal;
mod support;
#[cfg(feature = "tls")]
mod tls;
mod undone;
mod warm;
#[cfg(not(feature = "tls"))]
mod without_tls;
mod write;
