//! What is particular to the PostgreSQL store.

mod cancel;
mod fault;
mod migration;
mod outage;
mod partition;
mod plan;
mod relay;
mod roles;
mod signal;
mod support;
mod write;
