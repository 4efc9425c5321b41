//! The connection that a publisher keeps.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Mutex;

use crate::publisher::PublishError;

/// One connection at a time: it is made when it is needed, and made anew when it was lost. Who needs it meanwhile waits.
pub(crate) struct Slot<C> {
    /// Where it leads, for people to read.
    to: String,
    current: Mutex<Option<Arc<C>>>,
    closed: AtomicBool,
}

impl<C> Slot<C> {
    pub(crate) fn new(to: String) -> Self {
        Self { to, current: Mutex::new(None), closed: AtomicBool::new(false) }
    }

    /// The connection, while it stands; otherwise another.
    pub(crate) async fn get(
        &self,
        stands: impl FnOnce(&C) -> bool,
        dial: impl Future<Output = Result<C, PublishError>>,
    ) -> Result<Arc<C>, PublishError> {
        let mut current = self.current.lock().await;
        if self.closed.load(Ordering::Acquire) {
            return Err(PublishError::outage(format!("the connection to {} is closed", self.to)));
        }
        if let Some(connection) = current.take().filter(|connection| stands(connection)) {
            *current = Some(Arc::clone(&connection));
            return Ok(connection);
        }
        let connection = Arc::new(dial.await?);
        *current = Some(Arc::clone(&connection));
        Ok(connection)
    }

    /// Has another made for whoever needs one next.
    pub(crate) async fn leave(&self, connection: &Arc<C>) {
        self.current.lock().await.take_if(|current| Arc::ptr_eq(current, connection));
    }

    /// Makes none any more. Gives the last.
    pub(crate) async fn close(&self) -> Option<Arc<C>> {
        self.closed.store(true, Ordering::Release);
        self.current.lock().await.take()
    }
}
