//! The core of Posthaste, a transactional outbox: events, listeners, the dispatcher, the poller, the store traits, and a
//! store in memory. It knows no SQL; `posthaste-sql` does, and the crate `posthaste` brings both together.

// First, since the others use its macro.
#[macro_use]
mod kill_point;

// In reading order: what is written, who receives it, where it is kept, how it gets from there to them.
pub mod event;
pub mod time;

pub mod instrument;
pub mod interceptor;
pub mod listener;
pub mod order;
pub mod registry;
pub mod retry;

pub mod hook;
pub mod memory;
pub mod store;

pub mod dispatcher;
mod handback;
pub mod inflight;
mod keeper;
mod keys;
mod lanes;
pub mod poller;
mod queue;
mod settle;
pub mod signal;
pub mod wake;

mod finish;
#[cfg(feature = "failpoints")]
pub mod kill;
pub mod metrics;
pub mod options;
pub mod outbox;
mod retention;
mod sync;
#[cfg(feature = "testing")]
pub mod testing;

pub use dispatcher::{Closed, Dispatcher};
pub use event::{AggregateType, Event, EventBuilder, EventId, EventType, IntoEvent, TypedEvent};
pub use hook::WriteHook;
pub use instrument::Instrument;
pub use interceptor::Interceptor;
pub use listener::{BatchListener, Delivery, Failure, FanOut, Handle, Listener, Outcome, Verdict};
pub use memory::MemoryStore;
pub use metrics::Metrics;
pub use options::Options;
pub use order::{OnDead, Ordered};
pub use outbox::{
    Current, NoTransaction, Outbox, OutboxBuilder, Receipt, Savepoint, Transaction, TransactionError, WriteError,
};
pub use poller::Poller;
pub use registry::Registry;
pub use retry::RetryPolicy;
pub use store::{CommitError, Status};
pub use time::Timestamp;
