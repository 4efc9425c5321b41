//! A store that fails, waits and counts on demand: the one that users have for their tests.

pub use posthaste_core::testing::{Call, Fault, Faults, Faulty};
