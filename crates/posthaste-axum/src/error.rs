//! What can go wrong with the transaction of a request, and what the client is told of it.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use axum_core::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use posthaste_core::TransactionError;
use posthaste_core::store::{self, CommitError};
use tracing::{error, warn};

/// Makes a response of an error.
pub(crate) type OnError = Arc<dyn Fn(&Error) -> Response + Send + Sync>;

/// What can go wrong with the transaction of a request. Except after [`Commit`](Self::Commit) with
/// [`Unknown`](CommitError::Unknown), nothing of the request is stored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A route takes a [`Tx`](crate::Tx), but no layer gives it.
    #[error(
        "no TxLayer of {store} is around this route: add `.layer(TxLayer::new(outbox))` to the router, after the routes that take \
         a Tx"
    )]
    NoLayer {
        /// The store that the handler asked for.
        store: &'static str,
    },
    /// Something in the same request has it.
    #[error(
        "the transaction of this request is in use: take one Tx in a handler, and in middleware drop it before calling what is \
         inside"
    )]
    InUse,
    /// The request was answered before it was asked for.
    #[error(
        "the transaction of this request has ended with its response: use `outbox.begin()` in what goes on after it"
    )]
    Ended,
    /// The handler has answered while something had it, so that it could not be committed. It is rolled back when dropped.
    #[error(
        "the handler answered while its transaction was in use, so it was not committed: drop the Tx before the end, and do not \
         move it into a task or the body of the response"
    )]
    StillInUse,
    /// It could not be begun.
    #[error("the transaction of a request could not be begun")]
    Begin(#[source] store::Error),
    /// It could not be committed; the cause says whether it is certain that nothing was.
    #[error("the transaction of a request could not be committed")]
    Commit(#[source] CommitError),
    /// Two ambient transactions of one outbox are inside each other, and the inner one failed.
    #[error("the transaction of a request inside of another failed")]
    Nested(#[source] TransactionError),
}

impl Error {
    /// The response that the client gets, unless [`on_error`](crate::TxLayer::on_error) says otherwise: 503 and `Retry-After`
    /// if the same request may succeed a little later, 500 otherwise. The text is short, and tells nothing of the database.
    pub fn response(&self) -> Response {
        const TRY_AGAIN: &str = "the service is busy, and nothing was stored; try again in a moment\n";
        const FAILED: &str = "the request could not be carried out, and nothing was stored\n";
        const UNKNOWN: &str = "it is not known whether the request was carried out; look before sending it again\n";

        if self.is_transient() {
            let soon = [(header::RETRY_AFTER, HeaderValue::from_static("1"))];
            return (StatusCode::SERVICE_UNAVAILABLE, soon, TRY_AGAIN).into_response();
        }
        let text = match self {
            Self::Commit(CommitError::NotCommitted(_)) => FAILED,
            Self::Commit(_) => UNKNOWN,
            _ => FAILED,
        };
        (StatusCode::INTERNAL_SERVER_ERROR, text).into_response()
    }

    /// Whether the same request may succeed a little later. Not if it may have been carried out already.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Begin(error) | Self::Commit(CommitError::NotCommitted(error)) => error.is_transient(),
            _ => false,
        }
    }

    pub(crate) fn log(&self) {
        match self.is_transient() {
            true => warn!(error = chain(self), "the transaction of a request failed; the client may try again"),
            false => error!(error = chain(self), "the transaction of a request failed"),
        }
    }
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        self.response()
    }
}

impl From<TransactionError> for Error {
    fn from(error: TransactionError) -> Self {
        match error {
            TransactionError::Begin(error) => Self::Begin(error),
            TransactionError::Commit(error) => Self::Commit(error),
            TransactionError::StillInUse => Self::StillInUse,
            error => Self::Nested(error),
        }
    }
}

/// Why a handler did not get its [`Tx`](crate::Tx). As a response it is what the layer makes of its [`error`](Self::error).
pub struct Rejection {
    error: Error,
    on_error: OnError,
}

impl Rejection {
    pub(crate) fn new(error: Error, on_error: OnError) -> Self {
        Self { error, on_error }
    }

    /// Of a route around which there is no layer that could say more.
    pub(crate) fn without_layer<S>() -> Self {
        let error = Error::NoLayer { store: std::any::type_name::<S>() };
        error.log();
        Self::new(error, Arc::new(Error::response))
    }

    /// What went wrong.
    pub fn error(&self) -> &Error {
        &self.error
    }
}

impl IntoResponse for Rejection {
    fn into_response(self) -> Response {
        (self.on_error)(&self.error)
    }
}

impl fmt::Debug for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Rejection").field(&self.error).finish()
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl StdError for Rejection {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.error.source()
    }
}

/// An error with its causes, in one line.
pub(crate) fn chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
