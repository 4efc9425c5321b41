//! The connection that a publisher keeps.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, RwLock, RwLockReadGuard};
use tokio::time::{Instant, timeout};

use crate::publisher::PublishError;

/// How long batches on their way are waited for when it is closed.
const FINISHING: Duration = Duration::from_secs(5);

/// One connection at a time: it is made when it is needed, and made anew when it was lost. Who needs it meanwhile waits.
pub(crate) struct Slot<C> {
    /// Where it leads, for people to read.
    to: String,
    state: Mutex<State<C>>,
    /// Held by those who send, and taken by who closes.
    under_way: RwLock<()>,
}

enum State<C> {
    /// When it was last tried in vain, and why.
    Apart(Option<(Instant, String)>),
    Together(Arc<C>),
    Closed,
}

impl<C> Slot<C> {
    pub(crate) fn new(to: String) -> Self {
        Self { to, state: Mutex::new(State::Apart(None)), under_way: RwLock::default() }
    }

    /// The connection, while it stands; otherwise another. What keeps it from being made is an outage.
    pub(crate) async fn get(
        &self,
        stands: impl FnOnce(&C) -> bool,
        dial: impl Future<Output = Result<C, PublishError>>,
    ) -> Result<Arc<C>, PublishError> {
        let asked_at = Instant::now();
        let mut state = self.state.lock().await;
        match &*state {
            State::Together(connection) if stands(connection) => return Ok(Arc::clone(connection)),
            State::Closed => return Err(PublishError::outage(format!("the connection to {} is closed", self.to))),
            // Who waited for somebody's attempt does not begin another.
            State::Apart(Some((failed_at, reason))) if *failed_at >= asked_at => {
                return Err(PublishError::outage(reason.clone()));
            }
            State::Together(_) | State::Apart(_) => *state = State::Apart(None),
        }
        match dial.await {
            Ok(connection) => {
                let connection = Arc::new(connection);
                *state = State::Together(Arc::clone(&connection));
                Ok(connection)
            }
            Err(error) => {
                *state = State::Apart(Some((Instant::now(), error.to_string())));
                Err(error)
            }
        }
    }

    /// Has another made for whoever needs one next.
    pub(crate) async fn leave(&self, connection: &Arc<C>) {
        let mut state = self.state.lock().await;
        if matches!(&*state, State::Together(current) if Arc::ptr_eq(current, connection)) {
            *state = State::Apart(None);
        }
    }

    /// Says that somebody sends, until it is dropped.
    pub(crate) async fn under_way(&self) -> RwLockReadGuard<'_, ()> {
        self.under_way.read().await
    }

    /// Waits for those who send, for 5 s at most, and makes none any more. Gives the last.
    pub(crate) async fn close(&self) -> Option<Arc<C>> {
        let _nobody = timeout(FINISHING, self.under_way.write()).await;
        match std::mem::replace(&mut *self.state.lock().await, State::Closed) {
            State::Together(connection) => Some(connection),
            State::Apart(_) | State::Closed => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_waited_for_an_attempt_in_vain_does_not_begin_another() {
        let (slot, dialled) = (Slot::<u8>::new("x".to_owned()), AtomicUsize::new(0));
        let dial = async || {
            dialled.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_secs(5)).await;
            Err(PublishError::outage("away"))
        };
        let begun_at = Instant::now();
        let ask = || slot.get(|_| true, dial());
        let (first, second, third) = tokio::join!(ask(), ask(), ask());
        for answer in [first, second, third] {
            assert_eq!(answer.unwrap_err().to_string(), "away");
        }
        assert_eq!((dialled.load(Ordering::Relaxed), begun_at.elapsed()), (1, Duration::from_secs(5)));
        tokio::time::sleep(Duration::from_millis(1)).await;
        ask().await.unwrap_err();
        assert_eq!(dialled.load(Ordering::Relaxed), 2, "who comes later tries it");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_kept_while_it_stands_and_closed_behind_those_who_send() {
        let slot = Slot::new("x".to_owned());
        let get = async |stands: bool, number: u8| slot.get(|_| stands, async move { Ok(number) }).await;
        let first = get(true, 1).await.unwrap();
        assert_eq!((*first, *get(true, 2).await.unwrap()), (1, 1));
        assert_eq!(*get(false, 3).await.unwrap(), 3);
        slot.leave(&first).await;
        let third = get(true, 4).await.unwrap();
        assert_eq!(*third, 3, "another than the one that was left");
        slot.leave(&third).await;
        assert_eq!(*get(true, 5).await.unwrap(), 5);
        let sending = slot.under_way().await;
        let begun_at = Instant::now();
        let sent = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(sending);
        };
        let (closed, ()) = tokio::join!(slot.close(), sent);
        assert_eq!((closed.as_deref(), begun_at.elapsed()), (Some(&5), Duration::from_secs(1)));
        assert!(get(true, 6).await.unwrap_err().to_string().contains("the connection to x is closed"));
    }
}
