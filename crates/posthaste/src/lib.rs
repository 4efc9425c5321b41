#![doc = include_str!("../README.md")]

pub use posthaste_core::{
    dispatcher, event, hook, inflight, interceptor, listener, memory, metrics, options, outbox, poller, registry,
    retry, signal, store, time, wake,
};

pub use posthaste_core::{
    AggregateType, BatchListener, Closed, CommitError, Delivery, Dispatcher, Event, EventBuilder, EventId, EventType,
    Failure, FanOut, Interceptor, IntoEvent, Listener, MemoryStore, Metrics, Options, Outbox, OutboxBuilder, Outcome,
    Poller, Receipt, Registry, RetryPolicy, Status, Timestamp, Transaction, Verdict, WriteError, WriteHook,
};

#[cfg(feature = "mysql")]
pub use posthaste_sql::{MySqlStore, MySqlTx};
#[cfg(feature = "postgres")]
pub use posthaste_sql::{Partitions, PgStore};
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub use posthaste_sql::{Scheme, TableName, detect};
#[cfg(feature = "sqlite")]
pub use posthaste_sql::{SqliteStore, SqliteTx};
