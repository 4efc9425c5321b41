//! Databases for tests of programs that use an outbox (feature `testing`). The rest of it is in [`posthaste_core::testing`].

#[cfg(feature = "sqlite")]
pub use crate::sqlite::testing::sqlite;
