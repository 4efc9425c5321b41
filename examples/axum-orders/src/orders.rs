//! Placing and cancelling orders, and the events that tell of it.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use posthaste::axum::{LazyTx, Rejection, Tx};
use posthaste::{Event, WriteError};
use serde::{Deserialize, Serialize};

use crate::database::Database;

#[derive(Serialize, Deserialize, Event)]
#[event(type = "OrderPlaced", aggregate = "Order", key = "id")]
pub(crate) struct OrderPlaced {
    pub(crate) id: i64,
    pub(crate) customer: String,
    pub(crate) total: i64,
}

#[derive(Serialize, Deserialize, Event)]
#[event(type = "OrderCancelled", aggregate = "Order", key = "id")]
pub(crate) struct OrderCancelled {
    pub(crate) id: i64,
}

/// What a client sends.
#[derive(Deserialize)]
pub(crate) struct NewOrder {
    pub(crate) customer: String,
    /// In cents.
    pub(crate) total: i64,
}

#[derive(Serialize)]
pub(crate) struct Order {
    pub(crate) id: i64,
    pub(crate) customer: String,
    pub(crate) total: i64,
    pub(crate) status: String,
}

impl NewOrder {
    fn check(&self) -> Result<(), Refused> {
        if self.customer.trim().is_empty() {
            return Err(Refused::Invalid("customer is empty"));
        }
        if self.total <= 0 {
            return Err(Refused::Invalid("total is not above zero"));
        }
        Ok(())
    }
}

/// `POST /orders`. The transaction is begun when the body is there and found good.
pub(crate) async fn place<D: Database>(
    tx: LazyTx<D>,
    Json(order): Json<NewOrder>,
) -> Result<(StatusCode, Json<Order>), Refused> {
    order.check()?;
    let mut tx = tx.begin().await?;
    let id = D::insert_order(&mut tx, &order).await?;
    tx.write(OrderPlaced { id, customer: order.customer.clone(), total: order.total }).await?;
    let order = Order { id, customer: order.customer, total: order.total, status: "placed".to_owned() };
    Ok((StatusCode::CREATED, Json(order)))
}

/// `POST /orders/{id}/cancel`. A refusal is no success, so it leaves no event behind.
pub(crate) async fn cancel<D: Database>(mut tx: Tx<D>, Path(id): Path<i64>) -> Result<StatusCode, Refused> {
    tx.write(OrderCancelled { id }).await?;
    if D::cancel_order(&mut tx, id).await? {
        return Ok(StatusCode::NO_CONTENT);
    }
    match D::status(&mut tx, id).await? {
        None => Err(Refused::Missing),
        Some(status) => Err(Refused::Conflict(status)),
    }
}

/// `GET /orders`. It changes nothing, and needs no transaction.
pub(crate) async fn list<D: Database>(State(database): State<D>) -> Result<Json<Vec<Order>>, Refused> {
    Ok(Json(database.orders().await?))
}

/// Why a request is not carried out. As a response it is no success, so that the transaction is rolled back.
pub(crate) enum Refused {
    Invalid(&'static str),
    Missing,
    /// The order stands at this already.
    Conflict(String),
    /// There is no transaction for it.
    NoTransaction(Rejection),
    Failed(anyhow::Error),
}

impl From<Rejection> for Refused {
    fn from(rejection: Rejection) -> Self {
        Self::NoTransaction(rejection)
    }
}

impl From<WriteError> for Refused {
    fn from(error: WriteError) -> Self {
        Self::Failed(error.into())
    }
}

impl From<sqlx::Error> for Refused {
    fn from(error: sqlx::Error) -> Self {
        Self::Failed(error.into())
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let (status, text) = match self {
            Self::Invalid(reason) => (StatusCode::UNPROCESSABLE_ENTITY, reason.to_owned()),
            Self::Missing => (StatusCode::NOT_FOUND, "there is no such order".to_owned()),
            Self::Conflict(status) => (StatusCode::CONFLICT, format!("the order is {status} already")),
            Self::NoTransaction(rejection) => return rejection.into_response(),
            Self::Failed(error) => {
                tracing::error!(error = format!("{error:#}"), "a request failed");
                (StatusCode::INTERNAL_SERVER_ERROR, "the request could not be carried out".to_owned())
            }
        };
        (status, Json(serde_json::json!({ "error": text }))).into_response()
    }
}
