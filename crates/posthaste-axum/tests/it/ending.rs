//! How the transaction of a request ends, and what follows.

use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::routing::post;
use futures_util::FutureExt;
use posthaste_axum::{Tx, TxLayer};
use posthaste_conformance::no_interval;
use posthaste_conformance::testing::{Journal, Witness};
use posthaste_core::hook::HookError;
use posthaste_core::listener::Path;
use posthaste_core::store::NewRow;
use posthaste_core::testing::{Call, Fault, Gate};
use posthaste_core::{Event, EventId, MemoryStore, Options, Outbox, Status, WriteHook};
use tower::ServiceExt;
use tracing::Level;

use crate::support::{Server, Shop, Store, World, event_id, place, placed, told};

crate::tests! { postgres: PgFixture, sqlite: SqliteFixture, mariadb: MariaDbFixture => ending {
    case_10_other_answers_roll_back,
    case_10_panic,
    case_10_panic_that_became_a_success,
    case_10_refused_by_a_later_extractor,
    case_10_failed_commit,
    case_10_swallowed_error,
    case_10_rollback_on_demand,
    case_11_success_and_redirection_commit,
    case_11_one_call_per_request,
    case_12_broken_hook,
    case_15_full_hot_queue,
    case_16_delayed_event,
    case_17_writer_only,
    case_18_lost_answer_of_a_commit,
    case_18_lost_commit,
    answered_after_the_commit,
    begun_for_those_who_ask,
    savepoints,
} }

// MySQL and MariaDB have no constraints that are checked by the commit.
mod deferred {
    crate::tests! { postgres: PgFixture, sqlite: SqliteFixture => ending {
        case_10_constraint_that_is_checked_by_the_commit,
    } }
}

async fn case_10_other_answers_roll_back<F: Shop>() {
    let world = World::<F>::new().await;
    let server = Server::start(world.app()).await;
    for status in [400, 404, 409, 418, 422, 499, 500, 503, 599] {
        assert_eq!(server.post(&format!("/orders/1/{status}")).await.status, status);
        world.assert_nothing_stored().await;
        assert_eq!(world.witness.told(), [told("rollback", [1])], "{status}");
    }
    // No client sees this one as an answer of its own.
    let request = axum::http::Request::post("/orders/1/101").body(axum::body::Body::empty()).unwrap();
    assert_eq!(world.app().oneshot(request).await.unwrap().status(), StatusCode::SWITCHING_PROTOCOLS);
    world.assert_nothing_stored().await;
    assert_eq!(world.witness.told(), [told("rollback", [1])]);
    world.close().await;
}

async fn case_11_success_and_redirection_commit<F: Shop>() {
    let mut world = World::<F>::new().await;
    let server = Server::start(world.app()).await;
    for (status, id) in [200, 201, 202, 204, 301, 303, 304, 308].into_iter().zip(1..) {
        assert_eq!(server.post(&format!("/orders/{id}/{status}")).await.status, status);
        // When the answer is there, everything else is.
        assert_eq!((world.fixture.orders().await, world.counts().await.total()), (id, id as u64), "{status}");
        assert_eq!(world.witness.told(), [told("commit", [id])]);
        let delivered = world.inbox.next().await;
        assert_eq!((delivered.id().as_str(), delivered.path()), (&*event_id(id), Path::Hot));
    }
    world.close().await;
}

async fn case_10_panic<F: Shop>() {
    let world = World::<F>::new().await;
    let panics = async |mut tx: Tx<Store<F>>| -> StatusCode {
        F::place(&mut tx, 1).await.unwrap();
        tx.write(placed(1)).await.unwrap();
        panic!("a handler that panics, on purpose")
    };
    let app = Router::new().route("/panic", post(panics)).layer(world.layer()).merge(world.app());
    let server = Server::start(app).await;
    assert!(server.try_post("/panic", "").await.is_none());
    world.assert_nothing_stored().await;
    assert_eq!(world.witness.told(), [told("rollback", [1])]);
    assert_eq!(server.post("/orders/1/201").await.status, 201);
    assert_eq!(world.witness.told(), [told("commit", [1])]);
    assert!(world.outbox.shutdown().await.is_clean());
}

/// What catches the panic inside of the layer may answer as it likes: half a handler is never committed.
async fn case_10_panic_that_became_a_success<F: Shop>() {
    let world = World::<F>::new().await;
    let panics = async |mut tx: Tx<Store<F>>| -> StatusCode {
        F::place(&mut tx, 1).await.unwrap();
        tx.write(placed(1)).await.unwrap();
        panic!("a handler that panics, on purpose")
    };
    let soothed = async |request, next: Next| {
        let answer = std::panic::AssertUnwindSafe(next.run(request)).catch_unwind().await;
        if answer.is_err() { StatusCode::OK } else { StatusCode::IM_A_TEAPOT }
    };
    let app = Router::new().route("/panic", post(panics)).layer(from_fn(soothed)).layer(world.layer());
    assert_eq!(Server::start(app).await.post("/panic").await.status, 200);
    world.assert_nothing_stored().await;
    assert_eq!(world.witness.told(), [told("rollback", [1])]);
    world.close().await;
}

/// Middleware has written already, and the handler's own extractor then finds the body wanting.
async fn case_10_refused_by_a_later_extractor<F: Shop>() {
    let world = World::<F>::new().await;
    let writes_first = async |mut tx: Tx<Store<F>>, request, next: Next| {
        F::place(&mut tx, 1).await.unwrap();
        tx.write(placed(1)).await.unwrap();
        drop(tx);
        next.run(request).await
    };
    let handler = async |_tx: Tx<Store<F>>, axum::Json(_): axum::Json<Vec<u32>>| StatusCode::OK;
    let app = Router::new().route("/lines", post(handler)).layer(from_fn(writes_first)).layer(world.layer());
    let server = Server::start(app).await;
    assert_eq!(server.try_post("/lines", "no JSON").await.unwrap().status, 400);
    assert_eq!(server.try_post("/lines", "{}").await.unwrap().status, 422);
    world.assert_nothing_stored().await;
    assert_eq!(world.witness.told(), [told("rollback", [1]), told("rollback", [1])]);
    assert_eq!(server.try_post("/lines", "[1]").await.unwrap().status, 200);
    assert_eq!(world.witness.told(), [told("commit", [1])]);
    world.outbox.shutdown().await;
}

async fn case_10_failed_commit<F: Shop>() {
    let mut world = World::<F>::new().await;
    let server = Server::start(world.app()).await;
    for (fault, status) in [(Fault::Unavailable, 503), (Fault::Refused, 500)] {
        let journal = Journal::keep();
        world.faults.times(1, Call::Commit, fault);
        let answer = server.post("/orders/1/201").await;
        assert_eq!(answer.status, status);
        assert!(answer.body.contains("nothing was stored"), "{answer:?}");
        assert!(!answer.body.contains("on demand"), "{answer:?}");
        assert_eq!(answer.header("retry-after"), (status == 503).then_some("1"));
        let (level, reason) =
            if status == 503 { (Level::WARN, "away on demand") } else { (Level::ERROR, "refused on demand") };
        journal.assert_has(level, reason);
        world.assert_nothing_stored().await;
        assert_eq!(world.witness.told(), [told("rollback", [1])]);
    }
    // What is delivered after all this is the next event, and nothing else.
    assert_eq!(server.post("/orders/2/201").await.status, 201);
    assert_eq!(world.inbox.next().await.id().as_str(), event_id(2));
    world.close().await;
}

async fn case_10_constraint_that_is_checked_by_the_commit<F: Shop>() {
    let world = World::<F>::new().await;
    world
        .fixture
        .execute("ALTER TABLE orders ADD COLUMN parent BIGINT DEFAULT 7 REFERENCES orders (id) DEFERRABLE INITIALLY DEFERRED")
        .await;
    let journal = Journal::keep();
    let server = Server::start(world.app()).await;
    let answer = server.post("/orders/1/201").await;
    assert_eq!(answer.status, 500);
    assert_eq!(answer.body, "the request could not be carried out, and nothing was stored\n");
    assert_eq!(world.faults.count(Call::Commit), 1);
    journal.assert_has(Level::ERROR, "the transaction was not committed");
    world.assert_nothing_stored().await;
    assert_eq!(world.witness.told(), [told("rollback", [1])]);
    assert_eq!(world.meter.tally().hot_enqueued, 0);
    world.close().await;
}

/// A handler that answers 200 although a statement has failed: where that has ended the transaction, 200 would be a lie.
async fn case_10_swallowed_error<F: Shop>() {
    let world = World::<F>::new().await;
    let swallows = async |mut tx: Tx<Store<F>>| {
        F::place(&mut tx, 1).await.unwrap();
        tx.write(placed(1)).await.unwrap();
        F::place(&mut tx, 1).await.unwrap_err();
        StatusCode::OK
    };
    let app = Router::new().route("/twice", post(swallows)).layer(world.layer());
    let status = Server::start(app).await.post("/twice").await.status;
    if F::GOES_ON_AFTER_ERROR {
        assert_eq!((status, world.fixture.orders().await), (200, 1));
        assert_eq!(world.witness.told(), [told("commit", [1])]);
        world.outbox.shutdown().await;
    } else {
        assert_eq!(status, 500);
        assert_eq!(world.witness.told(), [told("rollback", [1])]);
        world.assert_nothing_stored().await;
        world.close().await;
    }
}

async fn case_10_rollback_on_demand<F: Shop>() {
    let world = World::<F>::new().await;
    let dry_run = async |mut tx: Tx<Store<F>>| {
        F::place(&mut tx, 1).await.unwrap();
        tx.set_rollback();
        tx.write(placed(1)).await.unwrap();
        "would cost 19.90"
    };
    let app = Router::new().route("/dry-run", post(dry_run)).layer(world.layer());
    let answer = Server::start(app).await.post("/dry-run").await;
    assert_eq!((answer.status, &*answer.body), (200, "would cost 19.90"));
    world.assert_nothing_stored().await;
    assert_eq!(world.witness.told(), [told("rollback", [1])]);
    world.close().await;
}

/// Middleware before the handler, the handler, and middleware after it write in one transaction, whose hook is called once.
async fn case_11_one_call_per_request<F: Shop>() {
    let mut world = World::<F>::on(F::create().await, Options { workers: 1, ..no_interval() }).await;
    let handler = async |mut tx: Tx<Store<F>>| {
        tx.write_all([placed(2), placed(3)]).await.unwrap();
        tx.write(placed(4)).await.unwrap();
    };
    let around = async |mut tx: Tx<Store<F>>, request: axum::extract::Request, next: Next| {
        tx.write(placed(1)).await.unwrap();
        drop(tx);
        // The handler takes the request, so what is to be extracted after it has to be kept.
        let (parts, body) = request.into_parts();
        let mut kept = parts.clone();
        let answer = next.run(axum::extract::Request::from_parts(parts, body)).await;
        let mut tx = axum::RequestPartsExt::extract::<Tx<Store<F>>>(&mut kept).await.unwrap();
        tx.write(placed(5)).await.unwrap();
        answer
    };
    let app = Router::new().route("/", post(handler)).layer(from_fn(around)).layer(world.layer());
    assert_eq!(Server::start(app).await.post("/").await.status, 200);
    assert_eq!(world.witness.told(), [told("commit", [1, 2, 3, 4, 5])]);
    assert_eq!((world.faults.count(Call::Begin), world.faults.count(Call::Commit)), (1, 1));
    assert_eq!(world.inbox.ids(5).await, (1..=5).map(event_id).collect::<Vec<_>>());
    world.close().await;
}

struct Broken;

impl WriteHook for Broken {
    fn after_commit(&self, _rows: &[NewRow]) -> Result<(), HookError> {
        panic!("a hook that panics, on purpose")
    }
}

async fn case_12_broken_hook<F: Shop>() {
    let journal = Journal::keep();
    let fixture = F::create().await;
    fixture.execute("CREATE TABLE orders (id BIGINT PRIMARY KEY)").await;
    let (store, _) = posthaste_core::testing::Faulty::new(fixture.store());
    let (tap, mut inbox) = posthaste_conformance::Tap::new();
    let witness = Witness::default();
    let outbox =
        Outbox::builder(store).options(no_interval()).hook(Broken).hook(witness.clone()).listen_all(tap).start();
    let outbox = outbox.await.unwrap();
    let app =
        Router::new().route("/orders/{id}/{status}", post(place::<F>)).layer(TxLayer::<Store<F>>::new(outbox.clone()));
    assert_eq!(Server::start(app).await.post("/orders/1/201").await.status, 201);
    journal.assert_has(Level::ERROR, "hook panicked");
    assert_eq!(witness.told(), [told("commit", [1])]);
    assert_eq!(inbox.next().await.id().as_str(), event_id(1));
    outbox.shutdown().await;
}

async fn case_15_full_hot_queue<F: Shop>() {
    let options = Options { hot_queue: 2, workers: 1, ..no_interval() };
    let mut world = World::<F>::on(F::create().await, options).await;
    let many = async |mut tx: Tx<Store<F>>| drop(tx.write_all((1..=5).map(placed)).await.unwrap());
    let app = Router::new().route("/many", post(many)).layer(world.layer());
    assert_eq!(Server::start(app).await.post("/many").await.status, 200);
    let mut ids = world.inbox.ids(5).await;
    ids.sort_unstable();
    assert_eq!(ids, (1..=5).map(event_id).collect::<Vec<_>>());
    let tally = world.meter.tally();
    assert_eq!((tally.hot_enqueued, tally.hot_dropped), (2, 3));
    world.close().await;
}

async fn case_16_delayed_event<F: Shop>() {
    let world = World::<F>::new().await;
    let later = async |mut tx: Tx<Store<F>>| {
        tx.write(placed(1).deliver_after(Duration::from_secs(3600))).await.unwrap();
    };
    let app = Router::new().route("/later", post(later)).layer(world.layer());
    assert_eq!(Server::start(app).await.post("/later").await.status, 200);
    let row = world.outbox.admin().find(&EventId::new(event_id(1)).unwrap()).await.unwrap().unwrap();
    assert_eq!((row.state.status, row.state.lease), (Status::New, None));
    assert_eq!(world.meter.tally().hot_enqueued, 0);
    world.close().await;
}

async fn case_17_writer_only<F: Shop>() {
    let fixture = F::create().await;
    fixture.execute("CREATE TABLE orders (id BIGINT PRIMARY KEY)").await;
    let (store, faults) = posthaste_core::testing::Faulty::new(fixture.store());
    let outbox = Outbox::writer_only(store).start().await.unwrap();
    let app =
        Router::new().route("/orders/{id}/{status}", post(place::<F>)).layer(TxLayer::<Store<F>>::new(outbox.clone()));
    let server = Server::start(app).await;
    assert_eq!(server.post("/orders/1/201").await.status, 201);
    assert_eq!(server.post("/orders/2/400").await.status, 400);
    let counts = outbox.admin().counts().await.unwrap();
    assert_eq!((counts.new, counts.total()), (1, 1));
    let row = outbox.admin().find(&EventId::new(event_id(1)).unwrap()).await.unwrap().unwrap();
    assert_eq!(row.state.lease, None);
    assert_eq!((faults.count(Call::Claim), faults.count(Call::Settle)), (0, 0));
}

/// It is committed, but nobody knows: the client is told that, nothing goes hot, and the poller delivers it.
async fn case_18_lost_answer_of_a_commit<F: Shop>() {
    let journal = Journal::keep();
    let mut world = World::<F>::new().await;
    let server = Server::start(world.app()).await;
    world.faults.times(1, Call::Commit, Fault::AnswerLost);
    let answer = server.post("/orders/1/201").await;
    assert_eq!((answer.status, answer.header("retry-after")), (500, None));
    assert_eq!(answer.body, "it is not known whether the request was carried out; look before sending it again\n");
    journal.assert_has(Level::ERROR, "may or may not have happened");
    assert_eq!(world.witness.told(), [told("unknown", [1])]);
    let delivered = world.inbox.next().await;
    assert_eq!((delivered.id().as_str(), delivered.path()), (&*event_id(1), Path::Cold));
    assert_eq!(world.fixture.orders().await, 1);
    world.close().await;
}

async fn case_18_lost_commit<F: Shop>() {
    let world = World::<F>::new().await;
    world.faults.times(1, Call::Commit, Fault::ConnectionLost);
    assert_eq!(Server::start(world.app()).await.post("/orders/1/201").await.status, 500);
    world.assert_nothing_stored().await;
    world.close().await;
}

/// While the commit is under way there is no answer; when there is one, others see what was stored.
async fn answered_after_the_commit<F: Shop>() {
    let mut world = World::<F>::new().await;
    for (fault, id) in [(Fault::Wait as fn(Gate) -> Fault, 1), (Fault::AnswerWaits, 2)] {
        let gate = Gate::new();
        world.faults.times(1, Call::Commit, fault(gate.clone()));
        let request = axum::http::Request::post(format!("/orders/{id}/201")).body(axum::body::Body::empty()).unwrap();
        let mut answer = std::pin::pin!(world.app().oneshot(request));
        let commits = world.faults.count(Call::Commit) + 1;
        tokio::select! {
            biased;
            answer = &mut answer => panic!("answered before the commit: {answer:?}"),
            () = world.faults.until(Call::Commit, commits) => {}
        }
        assert!(futures_util::poll!(&mut answer).is_pending());
        assert_eq!(world.witness.told(), [], "nobody knows yet how it ends");
        gate.open();
        assert_eq!(answer.await.unwrap().status(), StatusCode::CREATED);
        let elsewhere = sees_orders(&world).await;
        assert_eq!(elsewhere, (id, id as u64));
        assert_eq!(world.inbox.next().await.path(), Path::Hot);
        world.witness.told();
    }
    world.close().await;
}

/// Orders and events as another process sees them.
async fn sees_orders<F: Shop>(world: &World<F>) -> (i64, u64) {
    let node = world.fixture.node().await;
    let counts = posthaste_core::store::AdminStore::counts(&node).await.unwrap();
    (world.fixture.orders().await, counts.total())
}

async fn begun_for_those_who_ask<F: Shop>() {
    let world = World::<F>::new().await;
    let app = Router::new().route("/health", post(async || "fine")).layer(world.layer()).merge(world.app());
    let server = Server::start(app).await;
    assert_eq!(server.post("/health").await.body, "fine");
    assert_eq!(server.post("/nowhere").await.status, 404);
    assert_eq!((world.faults.count(Call::Begin), world.faults.count(Call::Commit)), (0, 0));
    assert_eq!(server.post("/orders/1/201").await.status, 201);
    assert_eq!((world.faults.count(Call::Begin), world.faults.count(Call::Commit)), (1, 1));
    world.outbox.shutdown().await;
}

/// A savepoint that is kept is delivered with the rest, and one that is undone is not, although the request commits.
async fn savepoints<F: Shop>() {
    let mut world = World::<F>::on(F::create().await, Options { workers: 1, ..no_interval() }).await;
    let handler = async |mut tx: Tx<Store<F>>| {
        for (id, keep) in [(1, true), (2, false)] {
            let mut savepoint = tx.savepoint().await.unwrap();
            F::place(&mut savepoint, id).await.unwrap();
            savepoint.write(placed(id)).await.unwrap();
            if keep { savepoint.commit().await.unwrap() } else { savepoint.rollback().await.unwrap() }
        }
        tx.write(placed(3)).await.unwrap();
    };
    let app = Router::new().route("/", post(handler)).layer(world.layer());
    assert_eq!(Server::start(app).await.post("/").await.status, 200);
    assert_eq!(world.witness.told(), [told("rollback", [2]), told("commit", [1, 3])]);
    assert_eq!(world.inbox.ids(2).await, [event_id(1), event_id(3)]);
    assert_eq!((world.fixture.orders().await, world.counts().await.total()), (1, 2));
    world.close().await;
}

/// The store in memory has no table of the user's, but is used the same way.
#[tokio::test]
async fn memory() {
    let outbox = Outbox::writer_only(MemoryStore::new()).start().await.unwrap();
    let handler = async |mut tx: Tx<MemoryStore>, status: String| {
        tx.write(Event::of_json("OrderPlaced", "{}")).await.unwrap();
        StatusCode::from_bytes(status.as_bytes()).unwrap()
    };
    let app = Router::new().route("/", post(handler)).layer(TxLayer::new(outbox.clone()));
    let server = Server::start(app).await;
    for (status, stored) in [("500", 0), ("201", 1), ("404", 1), ("303", 2)] {
        assert_eq!(server.try_post("/", status).await.unwrap().status.to_string(), status);
        assert_eq!(outbox.admin().counts().await.unwrap().total(), stored);
    }
}
