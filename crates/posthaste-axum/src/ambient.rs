//! The layer for transactions that need not be handed on.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum_core::response::{IntoResponse, Response};
use http::Request;
use posthaste_core::store::WriteStore;
use posthaste_core::{Outbox, TransactionError};
use tower_layer::Layer;
use tower_service::Service;

use crate::error::{Error, OnError};
use crate::layer::keeps;

/// Runs every request inside [`Outbox::transaction`], so that the handler and everything it calls has the transaction at hand:
/// [`Outbox::write_current`] writes an event, and [`Outbox::current`] gives the connection.
///
/// It ends as that of a [`TxLayer`](crate::TxLayer) does, but is begun before the handler, whether it is used or not. So put
/// this layer around the routes that write, and no others. What is inside of it and turns a panic into a success has half a
/// handler committed; with a [`Tx`](crate::Tx) it has not.
///
/// The body of a request is read inside of it, at the pace of the client, who so holds a connection; on SQLite he keeps everybody
/// else from writing. Where clients are not trusted, or far away, take a [`LazyTx`](crate::LazyTx). A transaction that is begun
/// beside this one, by [`Outbox::begin`] or a [`Tx`](crate::Tx), is another one, and may wait for it.
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// use axum::Router;
/// use axum::body::Body;
/// use axum::extract::State;
/// use axum::http::{Request, StatusCode};
/// use axum::routing::{get, post};
/// use posthaste::{Delivery, Event, MemoryStore, Outbox, WriteError};
/// use posthaste_axum::AmbientTxLayer;
/// use tower::ServiceExt;
///
/// async fn place(State(outbox): State<Outbox<MemoryStore>>) -> StatusCode {
///     match bill(&outbox).await {
///         Ok(()) => StatusCode::CREATED,
///         Err(_) => StatusCode::INTERNAL_SERVER_ERROR,
///     }
/// }
///
/// async fn bill(outbox: &Outbox<MemoryStore>) -> Result<(), WriteError> {
///     outbox.write_current(Event::of_json("OrderBilled", "{}")).await?;
///     Ok(())
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let outbox = Outbox::builder(MemoryStore::new()).listen_all(|_: Delivery| async {}).start().await?;
/// let app = Router::new()
///     .route("/orders", post(place))
///     .layer(AmbientTxLayer::new(outbox.clone()))
///     .route("/health", get(async || "fine")) // added after the layer, so outside of it
///     .with_state(outbox.clone());
///
/// let response = app.oneshot(Request::post("/orders").body(Body::empty())?).await?;
/// assert_eq!(response.status(), StatusCode::CREATED);
/// assert_eq!(outbox.admin().counts().await?.total(), 1);
/// # outbox.shutdown().await;
/// # Ok(())
/// # }
/// ```
pub struct AmbientTxLayer<S: WriteStore> {
    outbox: Outbox<S>,
    on_error: OnError,
}

impl<S: WriteStore> AmbientTxLayer<S> {
    /// Transactions of this outbox.
    pub fn new(outbox: Outbox<S>) -> Self {
        Self { outbox, on_error: Arc::new(Error::response) }
    }

    /// What clients are told when a transaction cannot be begun or committed, as with
    /// [`TxLayer::on_error`](crate::TxLayer::on_error).
    pub fn on_error(mut self, respond: impl Fn(&Error) -> Response + Send + Sync + 'static) -> Self {
        self.on_error = Arc::new(respond);
        self
    }
}

impl<S: WriteStore> Clone for AmbientTxLayer<S> {
    fn clone(&self) -> Self {
        Self { outbox: self.outbox.clone(), on_error: Arc::clone(&self.on_error) }
    }
}

impl<S: WriteStore> fmt::Debug for AmbientTxLayer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AmbientTxLayer").field("outbox", &self.outbox).finish_non_exhaustive()
    }
}

impl<S: WriteStore, V> Layer<V> for AmbientTxLayer<S> {
    type Service = AmbientTx<S, V>;

    fn layer(&self, inner: V) -> AmbientTx<S, V> {
        AmbientTx { layer: self.clone(), inner }
    }
}

/// A service with an [`AmbientTxLayer`] around it.
#[derive(Debug)]
pub struct AmbientTx<S: WriteStore, V> {
    layer: AmbientTxLayer<S>,
    inner: V,
}

impl<S: WriteStore, V: Clone> Clone for AmbientTx<S, V> {
    fn clone(&self) -> Self {
        Self { layer: self.layer.clone(), inner: self.inner.clone() }
    }
}

/// Why a transaction around a request is not committed.
enum Undone<E> {
    /// The response says so.
    Response(Response),
    Service(E),
    Failed(Error),
}

impl<E> From<TransactionError> for Undone<E> {
    fn from(error: TransactionError) -> Self {
        Self::Failed(error.into())
    }
}

impl<S, V, B> Service<Request<B>> for AmbientTx<S, V>
where
    S: WriteStore,
    V: Service<Request<B>, Response: IntoResponse, Error: Send, Future: Send + 'static>,
{
    type Response = Response;
    type Error = V::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response, V::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), V::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let AmbientTxLayer { outbox, on_error } = self.layer.clone();
        let response = self.inner.call(request);
        Box::pin(async move {
            let handled = async {
                let response = response.await.map_err(Undone::Service)?.into_response();
                if keeps(response.status()) { Ok(response) } else { Err(Undone::Response(response)) }
            };
            match outbox.transaction(|| handled).await {
                Ok(response) | Err(Undone::Response(response)) => Ok(response),
                Err(Undone::Service(error)) => Err(error),
                Err(Undone::Failed(error)) => {
                    error.log();
                    Ok(on_error(&error))
                }
            }
        })
    }
}
