//! Workload B on a real broker: scripts/test has it in its step `brokers`.

mod redis;
