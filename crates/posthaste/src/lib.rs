#![doc = include_str!("../README.md")]

pub use posthaste_core::{
    dispatcher, event, hook, inflight, interceptor, listener, memory, metrics, options, outbox, poller, registry,
    retry, signal, store, time, wake,
};

#[cfg(feature = "testing")]
pub mod testing;

pub use posthaste_core::{
    AggregateType, BatchListener, Closed, CommitError, Delivery, Dispatcher, Event, EventBuilder, EventId, EventType,
    Failure, FanOut, Handle, Interceptor, IntoEvent, Listener, MemoryStore, Metrics, Options, Outbox, OutboxBuilder,
    Outcome, Poller, Receipt, Registry, RetryPolicy, Status, Timestamp, Transaction, TypedEvent, Verdict, WriteError,
    WriteHook,
};

// The derive beside the type of the same name, as with serde's traits: one import brings both.
#[cfg(feature = "derive")]
pub use posthaste_macros::Event;

#[cfg(feature = "mysql")]
pub use posthaste_sql::{MySqlStore, MySqlTx};
#[cfg(feature = "postgres")]
pub use posthaste_sql::{Partitions, PgStore};
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub use posthaste_sql::{Scheme, TableName, detect};
#[cfg(feature = "sqlite")]
pub use posthaste_sql::{SqliteStore, SqliteTx};
