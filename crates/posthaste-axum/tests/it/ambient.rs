//! Transactions that handlers have without being handed them.

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::post;
use posthaste_axum::AmbientTxLayer;
use posthaste_conformance::no_interval;
use posthaste_conformance::testing::{Journal, eventually};
use posthaste_core::Outbox;
use posthaste_core::testing::{Call, Fault, Gate, within};
use tokio::sync::mpsc;
use tracing::Level;

use crate::support::{Server, Shop, Store, World, event_id, placed, told};

crate::tests! { postgres: PgFixture, sqlite: SqliteFixture => ambient {
    ends_as_the_answer_says,
    database_away,
    panic_and_client_that_leaves,
    held_beyond_the_handler,
    inside_of_each_other,
} }

/// Places an order, and hands nothing to what it calls.
async fn place<F: Shop>(
    State(outbox): State<Outbox<Store<F>>>,
    Path((id, status)): Path<(i64, u16)>,
) -> Result<StatusCode, StatusCode> {
    store::<F>(&outbox, id).await;
    outbox.write_current(placed(id)).await.unwrap();
    match status {
        1 => panic!("a handler that panics, on purpose"),
        status => Ok(StatusCode::from_u16(status).unwrap()),
    }
}

async fn store<F: Shop>(outbox: &Outbox<Store<F>>, id: i64) {
    F::place(&mut outbox.current().unwrap(), id).await.unwrap();
}

fn app<F: Shop>(world: &World<F>) -> Router {
    Router::new()
        .route("/orders/{id}/{status}", post(place::<F>))
        .layer(AmbientTxLayer::new(world.outbox.clone()))
        .with_state(world.outbox.clone())
}

async fn ends_as_the_answer_says<F: Shop>() {
    let mut world = World::<F>::new().await;
    let server = Server::start(app(&world)).await;
    for status in [400, 409, 500, 503] {
        assert_eq!(server.post(&format!("/orders/1/{status}")).await.status, status);
        world.assert_nothing_stored().await;
        assert_eq!(world.witness.told(), [told("rollback", [1])]);
    }
    for (id, status) in [(1, 201), (2, 303)] {
        assert_eq!(server.post(&format!("/orders/{id}/{status}")).await.status, status);
        assert_eq!(world.fixture.orders().await, id);
        assert_eq!(world.witness.told(), [told("commit", [id])]);
        assert_eq!(world.inbox.next().await.id().as_str(), event_id(id));
    }
    world.close().await;
}

async fn database_away<F: Shop>() {
    let world = World::<F>::new().await;
    let layer = AmbientTxLayer::new(world.outbox.clone());
    let app = Router::new().route("/orders/{id}/{status}", post(place::<F>)).layer(layer.clone());
    let server = Server::start(app.with_state(world.outbox.clone())).await;
    for (call, fault, status) in [
        (Call::Begin, Fault::Unavailable, 503),
        (Call::Begin, Fault::Refused, 500),
        (Call::Commit, Fault::Unavailable, 503),
        (Call::Commit, Fault::Refused, 500),
        (Call::Commit, Fault::ConnectionLost, 500),
    ] {
        let journal = Journal::keep();
        world.faults.times(1, call, fault);
        let answer = server.post("/orders/1/201").await;
        assert_eq!((answer.status, answer.header("retry-after")), (status, (status == 503).then_some("1")));
        assert!(!answer.body.contains("on demand"), "{answer:?}");
        journal.assert_has(if status == 503 { Level::WARN } else { Level::ERROR }, "on demand");
        world.assert_nothing_stored().await;
    }
    let layer = layer.on_error(|_| axum::response::IntoResponse::into_response(StatusCode::BAD_GATEWAY));
    let app = Router::new().route("/orders/{id}/{status}", post(place::<F>)).layer(layer);
    world.faults.times(1, Call::Begin, Fault::Unavailable);
    let server = Server::start(app.with_state(world.outbox.clone())).await;
    assert_eq!(server.post("/orders/1/201").await.status, 502);
    world.close().await;
}

async fn panic_and_client_that_leaves<F: Shop>() {
    let world = World::<F>::on(F::narrow().await, no_interval()).await;
    let server = Server::start(app(&world)).await;
    assert!(server.try_post("/orders/1/1", "").await.is_none());
    world.assert_nothing_stored().await;
    assert_eq!(world.witness.told(), [told("rollback", [1])]);

    let (written, mut has_written) = mpsc::unbounded_channel();
    let leaves = move |State(outbox): State<Outbox<Store<F>>>| async move {
        outbox.write_current(placed(2)).await.unwrap();
        written.send(()).unwrap();
        std::future::pending::<StatusCode>().await
    };
    let layer = AmbientTxLayer::new(world.outbox.clone());
    let slow = Router::new().route("/slow", post(leaves)).layer(layer).with_state(world.outbox.clone());
    let server = Server::start(slow).await;
    let client = server.send("/slow", "").await;
    within("the handler has written", has_written.recv()).await.unwrap();
    drop(client);
    eventually("it is rolled back", async || world.witness.told() == [told("rollback", [2])]).await;
    world.assert_nothing_stored().await;
    world.close().await;
}

async fn held_beyond_the_handler<F: Shop>() {
    let journal = Journal::keep();
    let world = World::<F>::new().await;
    let gate = Gate::new();
    let (ended, mut has_ended) = mpsc::unbounded_channel();
    let handler = {
        let gate = gate.clone();
        move |State(outbox): State<Outbox<Store<F>>>| async move {
            let mut held = outbox.current().unwrap();
            held.write(placed(1)).await.unwrap();
            tokio::spawn(async move {
                gate.pass().await;
                drop(held);
                ended.send(()).unwrap();
            });
        }
    };
    let layer = AmbientTxLayer::new(world.outbox.clone());
    let app = Router::new().route("/", post(handler)).layer(layer).with_state(world.outbox.clone());
    assert_eq!(Server::start(app).await.post("/").await.status, 500);
    journal.assert_has(Level::ERROR, "the handler answered while its transaction was in use");
    gate.open();
    within("the task ends", has_ended.recv()).await.unwrap();
    world.assert_nothing_stored().await;
    world.close().await;
}

/// Of two layers the inner one is a savepoint: what it undoes is undone, and the outer one decides about the rest.
async fn inside_of_each_other<F: Shop>() {
    let mut world = World::<F>::new().await;
    let server = Server::start(app(&world).layer(AmbientTxLayer::new(world.outbox.clone()))).await;
    assert_eq!(server.post("/orders/1/400").await.status, 400);
    world.assert_nothing_stored().await;
    assert_eq!(world.witness.told(), [told("rollback", [1])]);
    assert_eq!(server.post("/orders/1/201").await.status, 201);
    assert_eq!(world.witness.told(), [told("commit", [1])]);
    assert_eq!(world.inbox.next().await.id().as_str(), event_id(1));
    assert_eq!((world.faults.count(Call::Begin), world.faults.count(Call::Commit)), (2, 1));
    world.close().await;
}
