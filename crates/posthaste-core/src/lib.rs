//! core
pub mod event;
pub mod interceptor;
pub mod listener;
pub mod registry;
pub mod retry;
pub mod store;
pub mod time;

pub use event::{AggregateType, Event, EventBuilder, EventId, EventType, IntoEvent};
pub use interceptor::Interceptor;
pub use listener::{BatchListener, Delivery, Failure, Listener, Outcome, Verdict};
pub use registry::Registry;
pub use retry::RetryPolicy;
pub use time::Timestamp;
