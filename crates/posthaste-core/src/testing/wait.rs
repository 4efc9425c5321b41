//! Waiting for something to happen, and holding it up until it may.

use std::future::Future;
use std::time::Duration;

use tokio::sync::watch;

/// How long a test waits before it gives up. Long, because it is only ever waited for by a test that fails.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// The output of a future that should end soon; after 30 s the test fails, and says what it waited for.
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// # use posthaste::testing;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let (sender, receiver) = tokio::sync::oneshot::channel();
/// tokio::spawn(async { sender.send("sent") });
/// assert_eq!(testing::within("the mail is sent", receiver).await, Ok("sent"));
/// # }
/// ```
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(output) => output,
        Err(_) => panic!("waited in vain until {what}"),
    }
}

/// Something to wait at until it is opened. Clones are the same gate.
///
/// [`Recorder::block`](super::Recorder::block) puts one before a listener, [`Fault::Wait`](super::Fault::Wait) before a
/// call of the store.
#[derive(Clone, Debug)]
pub struct Gate(watch::Sender<bool>);

impl Gate {
    /// A closed gate.
    pub fn new() -> Self {
        Self(watch::Sender::new(false))
    }

    /// Lets everybody through, now and later.
    pub fn open(&self) {
        self.0.send_replace(true);
    }

    /// Waits until it is open.
    pub async fn pass(&self) {
        self.0.subscribe().wait_for(|open| *open).await.expect("the sender is in this very value");
    }
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}
