//! The adapter on a real PostgreSQL. The names of the tests are those of the conformance cases that they are about.

#![allow(clippy::unwrap_used, reason = "a test that meets an error has failed, and says where")]

mod cancel;
mod ending;
mod insert;
mod partition;
mod pool;
mod role;
mod savepoint;
mod support;
mod write;
