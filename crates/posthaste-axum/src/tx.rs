//! The extractors.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use axum_core::extract::FromRequestParts;
use http::request::Parts;
use posthaste_core::Transaction;
use posthaste_core::store::WriteStore;

use crate::error::{Error, Rejection};
use crate::slot::Slot;

/// The transaction of this request, as an argument of a handler or of middleware below a [`TxLayer`](crate::TxLayer).
///
/// It is used as a [`Transaction`]: `tx.write(event)` writes an event, and your own statements run on `&mut **tx`. Only the
/// layer ends it, by what the handler answers.
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// use axum::Router;
/// use axum::body::Body;
/// use axum::http::{Request, StatusCode};
/// use axum::routing::post;
/// use posthaste::{Delivery, Event, MemoryStore, Outbox};
/// use posthaste_axum::{Tx, TxLayer};
/// use tower::ServiceExt;
///
/// async fn place(mut tx: Tx<MemoryStore>, total: String) -> Result<StatusCode, StatusCode> {
///     tx.write(Event::of_json("OrderPlaced", "{}")).await.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
///     match total.parse::<u32>() {
///         Ok(_) => Ok(StatusCode::CREATED),               // commits
///         Err(_) => Err(StatusCode::UNPROCESSABLE_ENTITY), // rolls back
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let outbox = Outbox::builder(MemoryStore::new()).listen_all(|_: Delivery| async {}).start().await?;
/// let app = Router::new().route("/orders", post(place)).layer(TxLayer::new(outbox.clone()));
///
/// for (total, status) in [("1990", StatusCode::CREATED), ("much", StatusCode::UNPROCESSABLE_ENTITY)] {
///     let response = app.clone().oneshot(Request::post("/orders").body(Body::from(total))?).await?;
///     assert_eq!(response.status(), status);
/// }
/// assert_eq!(outbox.admin().counts().await?.total(), 1);
/// # outbox.shutdown().await;
/// # Ok(())
/// # }
/// ```
///
/// It is begun before the body of the request is read; [`LazyTx`] is begun later.
///
/// One at a time has it. A handler that asks for it twice, or whose middleware still has it, is refused with
/// [`Error::InUse`]; nobody waits. What is dropped is there for the next one, who finds the same transaction.
///
/// It is not for tasks that outlive the handler, nor for the body of a response: what still has it when the handler has
/// answered makes the request fail, with [`Error::StillInUse`].
///
/// It cannot be committed or rolled back under the layer's feet:
/// ```compile_fail,E0507
/// # use posthaste_axum::Tx;
/// # use posthaste_core::MemoryStore;
/// async fn place(tx: Tx<MemoryStore>) {
///     tx.commit().await;
/// }
/// ```
pub struct Tx<S: WriteStore> {
    slot: Arc<Slot<S>>,
    /// Nothing while it is begun, and once it was given back.
    tx: Option<Transaction<S>>,
}

impl<S: WriteStore> Tx<S> {
    /// Who has taken it from its slot, where there is none yet if it is to be begun.
    pub(crate) fn new(slot: Arc<Slot<S>>, tx: Option<Transaction<S>>) -> Self {
        Self { slot, tx }
    }

    pub(crate) async fn begun(mut self) -> Result<Self, Error> {
        if self.tx.is_none() {
            self.tx = Some(self.slot.begin().await?);
        }
        Ok(self)
    }

    /// Has the transaction rolled back, whatever the response: for a 2xx that must leave nothing behind, as that of a dry run.
    /// What is done in it before and after this is undone.
    pub fn set_rollback(&mut self) {
        self.slot.set_rollback();
    }
}

impl<S: WriteStore, State: Sync> FromRequestParts<State> for Tx<S> {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, state: &State) -> Result<Self, Rejection> {
        LazyTx::from_request_parts(parts, state).await?.begin().await
    }
}

/// The transaction of this request, which is begun when the handler says so.
///
/// A [`Tx`] is begun before the body of the request is read, which may take as long as the client likes. A handler that reads a
/// body, or has something else to do first, takes this one, and needs no connection until then.
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// use axum::http::StatusCode;
/// use axum::response::{IntoResponse, Response};
/// use posthaste::{Event, MemoryStore};
/// use posthaste_axum::LazyTx;
///
/// async fn place(tx: LazyTx<MemoryStore>, body: String) -> Result<StatusCode, Response> {
///     let total: u32 = body.parse().map_err(|_| StatusCode::UNPROCESSABLE_ENTITY.into_response())?;
///     let mut tx = tx.begin().await.map_err(IntoResponse::into_response)?;
///     let written = tx.write(Event::builder("OrderPlaced").json(&total)).await;
///     written.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())?;
///     Ok(StatusCode::CREATED)
/// }
/// # axum::Router::<()>::new().route("/orders", axum::routing::post(place));
/// ```
pub struct LazyTx<S: WriteStore>(Arc<Slot<S>>);

impl<S: WriteStore> LazyTx<S> {
    /// Begins the transaction, or gives the one that was begun in this request before.
    ///
    /// # Errors
    /// When it cannot be begun, when something has it, and after the end of the request. As a response the error is what the
    /// layer makes of it.
    ///
    /// # Cancellation
    /// Safe: the next one begins it.
    pub async fn begin(&self) -> Result<Tx<S>, Rejection> {
        self.0.take().await.map_err(|error| self.0.reject(error))
    }
}

impl<S: WriteStore, State: Sync> FromRequestParts<State> for LazyTx<S> {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, _state: &State) -> Result<Self, Rejection> {
        let slot = parts.extensions.get::<Arc<Slot<S>>>().cloned();
        slot.map(Self).ok_or_else(Rejection::without_layer::<S>)
    }
}

impl<S: WriteStore> fmt::Debug for LazyTx<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LazyTx").finish_non_exhaustive()
    }
}

const HELD: &str = "it is held until the end";

impl<S: WriteStore> Deref for Tx<S> {
    type Target = Transaction<S>;

    fn deref(&self) -> &Transaction<S> {
        self.tx.as_ref().expect(HELD)
    }
}

impl<S: WriteStore> DerefMut for Tx<S> {
    fn deref_mut(&mut self) -> &mut Transaction<S> {
        self.tx.as_mut().expect(HELD)
    }
}

impl<S: WriteStore> Drop for Tx<S> {
    fn drop(&mut self) {
        // Somebody around the handler may make a 2xx of its panic.
        if std::thread::panicking() {
            self.slot.set_rollback();
        }
        self.slot.give_back(self.tx.take());
    }
}

impl<S: WriteStore> fmt::Debug for Tx<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tx").field(&self.tx).finish()
    }
}
