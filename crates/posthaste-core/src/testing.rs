//! For tests of programs that use an outbox (feature `testing`, for `dev-dependencies`).
//!
//! The crate `posthaste` has all of it as `posthaste::testing`, with a database on SQLite and a page that explains it. In
//! short:
//!
//! ```
//! # extern crate posthaste_core as posthaste;
//! use std::time::Duration;
//! use posthaste::testing::{self, Recorder};
//! # use posthaste::event::{Kind, TypedEvent};
//! # #[derive(serde::Serialize, serde::Deserialize)]
//! # struct OrderPlaced { id: u64, total: u32 }
//! # impl TypedEvent for OrderPlaced { const KINDS: &'static [Kind] = &[Kind::new("OrderPlaced", 1)]; }
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mailer = Recorder::new();
//! let outbox = testing::outbox().listen_for::<OrderPlaced>(mailer.clone()).start_test().await;
//!
//! mailer.fail_next(1);
//! let mut tx = outbox.begin().await?;
//! tx.write(OrderPlaced { id: 2, total: 3 }).await?;
//! tx.commit().await?;
//! outbox.assert_written::<OrderPlaced>(|order| order.total == 3).await;
//! assert_eq!(outbox.drain_now().await.retry, 1);
//!
//! outbox.advance(Duration::from_millis(200)).await;
//! assert_eq!(outbox.drain_now().await.done, 1);
//! # Ok(())
//! # }
//! ```

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
/// # extern crate posthaste_core as posthaste;
/// use posthaste::{Delivery, testing};
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
/// # extern crate posthaste_core as posthaste;
/// use posthaste::{Delivery, MemoryStore, testing};
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
/// # extern crate posthaste_core as posthaste;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let outbox = posthaste::testing::writer().await;
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
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::{Delivery, MemoryStore, OutboxBuilder, testing};
    ///
    /// // The listeners of the program, on any store.
    /// fn listeners<S: posthaste::store::Store>(outbox: OutboxBuilder<S>) -> OutboxBuilder<S> {
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
