//! Workload B on real brokers, which scripts/test starts.

mod brokers;
