//! The layer that begins and ends transactions.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum_core::response::{IntoResponse, Response};
use http::{Request, StatusCode};
use posthaste_core::Outbox;
use posthaste_core::store::WriteStore;
use tower_layer::Layer;
use tower_service::Service;

use crate::error::{Error, OnError};
use crate::slot::{Open, Slot};

/// Gives every request a transaction of the outbox, which handlers take as a [`Tx`](crate::Tx).
///
/// It is begun for the first [`Tx`](crate::Tx); requests that take none never touch the database. A response of 2xx or 3xx
/// commits it, every other one rolls it back, and so does a request that ends without one. The response goes out after that.
///
/// [`Tx`](crate::Tx) finds the layer by the type of the store. Of two layers with the same type of store around a route, the
/// inner one counts.
pub struct TxLayer<S: WriteStore> {
    outbox: Outbox<S>,
    on_error: OnError,
}

impl<S: WriteStore> TxLayer<S> {
    /// Transactions of this outbox.
    pub fn new(outbox: Outbox<S>) -> Self {
        Self { outbox, on_error: Arc::new(Error::response) }
    }

    /// What clients are told when a transaction cannot be taken, begun or committed. Default: [`Error::response`]. The error has
    /// been logged by then.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use axum::Json;
    /// use axum::response::IntoResponse;
    /// use posthaste::{MemoryStore, Outbox};
    /// use posthaste_axum::TxLayer;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let outbox = Outbox::writer_only(MemoryStore::new()).start().await?;
    /// let layer = TxLayer::new(outbox).on_error(|error| {
    ///     let problem = Json(serde_json::json!({ "try_again": error.is_transient() }));
    ///     (error.response().status(), problem).into_response()
    /// });
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_error(mut self, respond: impl Fn(&Error) -> Response + Send + Sync + 'static) -> Self {
        self.on_error = Arc::new(respond);
        self
    }
}

/// Whether what was done for a response is to stay.
pub(crate) fn keeps(status: StatusCode) -> bool {
    status.is_success() || status.is_redirection()
}

impl<S: WriteStore> Clone for TxLayer<S> {
    fn clone(&self) -> Self {
        Self { outbox: self.outbox.clone(), on_error: Arc::clone(&self.on_error) }
    }
}

impl<S: WriteStore> fmt::Debug for TxLayer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TxLayer").field("outbox", &self.outbox).finish_non_exhaustive()
    }
}

impl<S: WriteStore, V> Layer<V> for TxLayer<S> {
    type Service = TxService<S, V>;

    fn layer(&self, inner: V) -> TxService<S, V> {
        TxService { layer: self.clone(), inner }
    }
}

/// A service with a [`TxLayer`] around it.
#[derive(Debug)]
pub struct TxService<S: WriteStore, V> {
    layer: TxLayer<S>,
    inner: V,
}

impl<S: WriteStore, V: Clone> Clone for TxService<S, V> {
    fn clone(&self) -> Self {
        Self { layer: self.layer.clone(), inner: self.inner.clone() }
    }
}

impl<S, V, B> Service<Request<B>> for TxService<S, V>
where
    S: WriteStore,
    V: Service<Request<B>, Response: IntoResponse, Future: Send + 'static>,
{
    type Response = Response;
    type Error = V::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response, V::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), V::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let slot = Arc::new(Slot::new(self.layer.outbox.clone(), Arc::clone(&self.layer.on_error)));
        request.extensions_mut().insert(Arc::clone(&slot));
        let open = Open(slot);
        let response = self.inner.call(request);
        Box::pin(async move {
            let response = response.await?.into_response();
            let ended = open.0.end(keeps(response.status())).await;
            Ok(ended.map_or_else(|error| open.0.answer(&error), |()| response))
        })
    }
}
