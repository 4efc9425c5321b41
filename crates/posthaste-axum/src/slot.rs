//! Where the transaction of a request is while nobody uses it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum_core::response::Response;
use posthaste_core::store::WriteStore;
use posthaste_core::{Outbox, Transaction};
use tracing::warn;

use crate::error::{Error, OnError, Rejection, chain};
use crate::tx::Tx;

/// Goes with a request, among its extensions.
pub(crate) struct Slot<S: WriteStore> {
    outbox: Outbox<S>,
    on_error: OnError,
    place: Mutex<Place<S>>,
    rollback: AtomicBool,
}

enum Place<S: WriteStore> {
    /// Nobody has asked for it yet.
    NotBegun,
    Here(Transaction<S>),
    InUse,
    /// The handler has answered, or will not.
    Ended,
}

impl<S: WriteStore> Slot<S> {
    pub(crate) fn new(outbox: Outbox<S>, on_error: OnError) -> Self {
        Self { outbox, on_error, place: Mutex::new(Place::NotBegun), rollback: AtomicBool::new(false) }
    }

    /// Gives the transaction, begun if it is the first time.
    ///
    /// # Cancellation
    /// Safe: the next one begins it.
    pub(crate) async fn take(self: &Arc<Self>) -> Result<Tx<S>, Error> {
        let tx = {
            let mut place = self.place();
            match &mut *place {
                Place::InUse => return Err(Error::InUse),
                Place::Ended => return Err(Error::Ended),
                free => match std::mem::replace(free, Place::InUse) {
                    Place::Here(tx) => Some(tx),
                    _ => None,
                },
            }
        };
        Tx::new(Arc::clone(self), tx).begun().await
    }

    pub(crate) async fn begin(&self) -> Result<Transaction<S>, Error> {
        self.outbox.begin().await.map_err(Error::Begin)
    }

    /// Brings it back. After the end it is dropped, and so rolled back.
    pub(crate) fn give_back(&self, tx: Option<Transaction<S>>) {
        let mut place = self.place();
        if matches!(*place, Place::InUse) {
            *place = tx.map_or(Place::NotBegun, Place::Here);
        }
    }

    pub(crate) fn set_rollback(&self) {
        self.rollback.store(true, Ordering::Relaxed);
    }

    /// Ends it, as the response says.
    ///
    /// # Cancellation
    /// Safe: a commit that was begun goes on to its end.
    pub(crate) async fn end(&self, keep: bool) -> Result<(), Error> {
        let keep = keep && !self.rollback.load(Ordering::Relaxed);
        match self.replace(Place::Ended) {
            Place::Here(tx) if keep => tx.commit().await.map_err(Error::Commit),
            Place::Here(tx) => {
                // It is rolled back in any case, if only by the end of its connection.
                if let Err(error) = tx.rollback().await {
                    warn!(error = chain(&error), "the rollback of a request's transaction was not confirmed");
                }
                Ok(())
            }
            Place::InUse if keep => Err(Error::StillInUse),
            Place::InUse | Place::NotBegun | Place::Ended => Ok(()),
        }
    }

    /// The response to what went wrong.
    pub(crate) fn answer(&self, error: &Error) -> Response {
        error.log();
        (self.on_error)(error)
    }

    pub(crate) fn reject(&self, error: Error) -> Rejection {
        error.log();
        Rejection::new(error, Arc::clone(&self.on_error))
    }

    fn replace(&self, place: Place<S>) -> Place<S> {
        std::mem::replace(&mut *self.place(), place)
    }

    fn place(&self) -> MutexGuard<'_, Place<S>> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request under way. Dropped, its transaction is rolled back, also where something has kept the request.
pub(crate) struct Open<S: WriteStore>(pub(crate) Arc<Slot<S>>);

impl<S: WriteStore> Drop for Open<S> {
    fn drop(&mut self) {
        drop(self.0.replace(Place::Ended));
    }
}
