//! What clients are told when there is no transaction for them.

use axum::Router;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::post;
use posthaste_axum::{Error, Rejection, Tx};

use posthaste_conformance::testing::{Journal, cut_short};
use posthaste_core::CommitError;
use posthaste_core::testing::{Call, Fault};
use tracing::Level;

use crate::support::{Server, Shop, Store, World, place, placed, told};

crate::tests! { postgres: PgFixture, sqlite: SqliteFixture, mariadb: MariaDbFixture => error {
    database_away,
    without_the_layer,
    response_of_the_users_own,
    handler_looks_at_the_error,
    transaction_that_has_ended,
} }

async fn database_away<F: Shop>() {
    let world = World::<F>::new().await;
    let server = Server::start(world.app()).await;
    for (fault, status) in [(Fault::Unavailable, 503), (Fault::Refused, 500), (Fault::AnswerLost, 503)] {
        let journal = Journal::keep();
        world.faults.times(1, Call::Begin, fault);
        let answer = server.post("/orders/1/201").await;
        assert_eq!((answer.status, answer.header("retry-after")), (status, (status == 503).then_some("1")));
        assert!(answer.body.contains("nothing was stored") && !answer.body.contains("on demand"), "{answer:?}");
        journal.assert_has(if status == 503 { Level::WARN } else { Level::ERROR }, "on demand");
    }
    world.assert_nothing_stored().await;
    // The next one begins anew.
    assert_eq!(server.post("/orders/1/201").await.status, 201);
    world.outbox.shutdown().await;
}

async fn without_the_layer<F: Shop>() {
    let journal = Journal::keep();
    let world = World::<F>::new().await;
    // A route that is added after the layer is outside of it.
    let app = Router::new().layer(world.layer()).route("/orders/{id}/{status}", post(place::<F>));
    let answer = Server::start(app).await.post("/orders/1/201").await;
    assert_eq!(answer.status, 500);
    assert!(!answer.body.contains("layer"), "{answer:?}");
    journal.assert_has(Level::ERROR, ".layer(TxLayer::new(outbox))");
    journal.assert_has(Level::ERROR, std::any::type_name::<F::Store>());
    world.assert_nothing_stored().await;
    world.close().await;
}

async fn response_of_the_users_own<F: Shop>() {
    let world = World::<F>::new().await;
    let layer = world.layer().on_error(|error| match error {
        Error::Begin(_) => (StatusCode::BAD_GATEWAY, "begin").into_response(),
        Error::Commit(CommitError::NotCommitted(_)) => (StatusCode::CONFLICT, "commit").into_response(),
        Error::InUse => (StatusCode::NOT_IMPLEMENTED, "in use").into_response(),
        other => other.response(),
    });
    let app = Router::new()
        .route("/orders/{id}/{status}", post(place::<F>))
        .route("/twice", post(async |_: Tx<Store<F>>, _: Tx<Store<F>>| ()))
        .layer(layer);
    let server = Server::start(app).await;
    world.faults.times(1, Call::Begin, Fault::Unavailable);
    world.faults.times(1, Call::Commit, Fault::Refused);
    for (path, status, body) in
        [("/orders/1/201", 502, "begin"), ("/orders/1/201", 409, "commit"), ("/twice", 501, "in use")]
    {
        let answer = server.post(path).await;
        assert_eq!((answer.status, &*answer.body), (status, body));
    }
    world.faults.times(1, Call::Commit, Fault::ConnectionLost);
    assert_eq!(server.post("/orders/1/201").await.status, 500);
    world.assert_nothing_stored().await;
    world.close().await;
}

/// A handler that can do without takes the refusal as a value.
async fn handler_looks_at_the_error<F: Shop>() {
    let world = World::<F>::new().await;
    let handler = async |tx: Result<Tx<Store<F>>, Rejection>| match tx {
        Ok(mut tx) => {
            tx.write(placed(1)).await.unwrap();
            "stored".to_owned()
        }
        Err(refused) => format!("{} {refused}", refused.error().is_transient()),
    };
    let app = Router::new().route("/", post(handler)).layer(world.layer());
    let server = Server::start(app).await;
    world.faults.times(1, Call::Begin, Fault::Unavailable);
    let answer = server.post("/").await;
    assert_eq!((answer.status, &*answer.body), (200, "true the transaction of a request could not be begun"));
    assert_eq!(server.post("/").await.body, "stored");
    assert_eq!(world.witness.told(), [told("commit", [1])]);
    world.outbox.shutdown().await;
}

/// A savepoint that could not be set has ended the transaction: a handler that answers 200 all the same is not believed.
async fn transaction_that_has_ended<F: Shop>() {
    let world = World::<F>::new().await;
    let handler = async |mut tx: Tx<Store<F>>| {
        tx.write(placed(1)).await.unwrap();
        if F::GOES_ON_AFTER_ERROR {
            // A server may be so quick that there is nothing to cut off.
            while cut_short(1, tx.savepoint()).await.is_some() {}
        } else {
            F::place(&mut tx, 1).await.unwrap();
            F::place(&mut tx, 1).await.unwrap_err();
            tx.savepoint().await.unwrap_err();
        }
    };
    let app = Router::new().route("/", post(handler)).layer(world.layer());
    assert_eq!(Server::start(app).await.post("/").await.status, 500);
    world.assert_nothing_stored().await;
    assert_eq!(world.witness.told(), [told("rollback", [1])]);
    world.close().await;
}
