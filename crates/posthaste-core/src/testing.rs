//! For tests of programs that use an outbox (feature `testing`, for `dev-dependencies`).
//!
//! Say a shop places orders, each with an event, and a listener mails the customer. Its first test needs no database and no
//! listener, only something to write to:
//!
//! ```
//! use posthaste_core::store::Store;
//! use posthaste_core::{Outbox, testing};
//! # use posthaste_core::event::{Kind, TypedEvent};
//! # #[derive(serde::Serialize, serde::Deserialize)]
//! # struct OrderPlaced { id: u64, total: u32 }
//! # impl TypedEvent for OrderPlaced { const KINDS: &'static [Kind] = &[Kind::new("OrderPlaced", 1)]; }
//!
//! // The code under test.
//! async fn place<S: Store>(outbox: &Outbox<S>, id: u64, total: u32) -> Result<(), Box<dyn std::error::Error>> {
//!     let mut tx = outbox.begin().await?;
//!     tx.write(OrderPlaced { id, total }).await?;
//!     if total == 0 {
//!         tx.rollback().await?;
//!         return Err("an order of nothing".into());
//!     }
//!     tx.commit().await?;
//!     Ok(())
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let outbox = testing::writer().await;
//! place(&outbox, 1, 0).await.unwrap_err();
//! outbox.assert_nothing_written().await;
//!
//! place(&outbox, 2, 3).await.unwrap();
//! outbox.assert_written::<OrderPlaced>(|order| order.total == 3).await;
//! # }
//! ```
//!
//! When an assertion fails, it tells what is in the table instead:
//!
//! ```text
//! OrderPlaced with a payload that fits was not written; the table holds 1 event:
//!   01M6RB8WHRVK6F2SH2Y9GXJZC1 OrderPlaced of Order 2, NEW
//!     {"id":2,"total":4}
//! asked at tests/it/orders.rs:14:12
//! ```
//!
//! # Deliveries
//!
//! [`outbox`] delivers to listeners, yours or a [`Recorder`] in their place. The clock of the memory store is tokio's: in
//! paused time a retry of next week is due at once, and [`advance`](TestOutbox::advance) says when.
//!
//! ```
//! use std::time::Duration;
//! use posthaste_core::testing::{self, Recorder};
//! # use posthaste_core::event::{Kind, TypedEvent};
//! # #[derive(serde::Serialize, serde::Deserialize)]
//! # struct OrderPlaced { id: u64, total: u32 }
//! # impl TypedEvent for OrderPlaced { const KINDS: &'static [Kind] = &[Kind::new("OrderPlaced", 1)]; }
//!
//! // In a test: #[tokio::test(start_paused = true)]
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mailer = Recorder::new();
//! let outbox = testing::outbox().listen_for::<OrderPlaced>(mailer.clone()).start_test().await;
//!
//! mailer.fail_next(1);
//! let mut tx = outbox.begin().await?;
//! tx.write(OrderPlaced { id: 2, total: 3 }).await?;
//! tx.commit().await?;
//! assert_eq!(outbox.drain_now().await.retry, 1);
//!
//! // The first retry comes after 200 ms, exactly: outboxes for tests do not spread them.
//! outbox.advance(Duration::from_millis(200)).await;
//! assert_eq!(outbox.drain_now().await.done, 1);
//! assert_eq!(mailer.deliveries()[1].attempt(), 2);
//! # Ok(())
//! # }
//! ```
//!
//! # On a database
//!
//! Code with statements of its own needs its database. `testing::sqlite()` of the crate `posthaste` is one in a file of its
//! own, which goes with the test; any other store is handed to [`outbox_on`], and an outbox that the program has started
//! itself becomes a [`TestOutbox`] with `from`. What a test asks is the same on every store. Only
//! [`advance`](TestOutbox::advance) is not for all: on SQLite it makes the rows older, on database servers there is none. Do
//! not pause tokio's clock beside a database: while a test waits for the database, that clock runs ahead.
//!
//! # When things go wrong
//!
//! [`Faulty`] is a store around another that fails, waits or loses an answer when it is told to: the one way to see what a
//! program does when a commit has an unknown end. A [`Recorder`] does the same for listeners.

mod faulty;
mod listing;
mod outbox;
mod passing;
mod recorder;
mod wait;
mod wanted;

use crate::memory::MemoryStore;
use crate::outbox::{Outbox, OutboxBuilder};
use crate::retry::Jitter;
use crate::store::Store;

pub use faulty::{Call, Fault, Faults, Faulty};
pub use outbox::TestOutbox;
pub use passing::PassTime;
pub use recorder::Recorder;
pub use wait::{Gate, within};
pub use wanted::Wanted;

/// An outbox in memory, to be given listeners and started with [`start_test`](OutboxBuilder::start_test).
///
/// ```
/// use posthaste_core::{Delivery, testing};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let outbox = testing::outbox().listen_all(|_: Delivery| async {}).start_test().await;
/// # }
/// ```
pub fn outbox() -> OutboxBuilder<MemoryStore> {
    outbox_on(MemoryStore::new())
}

/// An outbox on a store of yours: like [`Outbox::builder`], but retries come exactly when they are due, instead of being
/// spread.
///
/// ```
/// use posthaste_core::{Delivery, MemoryStore, testing};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let store = MemoryStore::new().deleting_done();
/// let outbox = testing::outbox_on(store).listen_all(|_: Delivery| async {}).start_test().await;
/// # }
/// ```
pub fn outbox_on<S: Store>(store: S) -> OutboxBuilder<S> {
    Outbox::builder(store).jitter(Jitter::none())
}

/// An outbox in memory that nobody delivers from, for tests of what is written.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let outbox = posthaste_core::testing::writer().await;
/// outbox.assert_nothing_written().await;
/// # }
/// ```
pub async fn writer() -> TestOutbox<MemoryStore> {
    TestOutbox::over(MemoryStore::new()).await
}

impl<S: Store> OutboxBuilder<S> {
    /// Starts the outbox for a test (feature `testing`). What cannot start fails the test.
    ///
    /// ```
    /// use posthaste_core::{Delivery, MemoryStore, OutboxBuilder, testing};
    ///
    /// // The listeners of the program, on any store.
    /// fn listeners<S: posthaste_core::store::Store>(outbox: OutboxBuilder<S>) -> OutboxBuilder<S> {
    ///     outbox.listen("Order", "*", |_: Delivery| async {})
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let outbox = listeners(testing::outbox()).start_test().await;
    /// # }
    /// ```
    pub async fn start_test(self) -> TestOutbox<S> {
        match self.start().await {
            Ok(outbox) => outbox.into(),
            Err(error) => panic!("the outbox did not start: {}", crate::listener::chain(&error)),
        }
    }
}
