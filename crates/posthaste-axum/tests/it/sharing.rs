//! Who has the transaction of a request, and who does not.

use std::sync::{Arc, Mutex};

use axum::extract::{FromRequestParts, Request};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::routing::post;
use axum::{Extension, Router};
use posthaste_axum::{Error, LazyTx, Rejection, Tx};

use posthaste_conformance::testing::Journal;
use posthaste_core::testing::{Call, Fault, Gate, within};
use tracing::Level;

use crate::support::{Server, Shop, Store, World, event_id, placed, told};

crate::tests! { postgres: PgFixture, sqlite: SqliteFixture => sharing {
    twice_in_one_handler,
    middleware_that_keeps_it,
    middleware_that_passes_it_on,
    task_that_outlives_the_handler,
    asked_for_after_the_end,
    two_layers,
    begun_when_the_handler_says_so,
} }

async fn twice_in_one_handler<F: Shop>() {
    let journal = Journal::keep();
    let world = World::<F>::new().await;
    let handler = async |_first: Tx<Store<F>>, _second: Tx<Store<F>>| StatusCode::OK;
    let app = Router::new().route("/", post(handler)).layer(world.layer());
    assert_eq!(Server::start(app).await.post("/").await.status, 500);
    journal.assert_has(Level::ERROR, "the transaction of this request is in use");
    assert_eq!((world.faults.count(Call::Begin), world.faults.count(Call::Commit)), (1, 0));
    world.assert_nothing_stored().await;
    world.close().await;
}

async fn middleware_that_keeps_it<F: Shop>() {
    let journal = Journal::keep();
    let world = World::<F>::new().await;
    let keeps = async |mut tx: Tx<Store<F>>, request, next: Next| {
        tx.write(placed(1)).await.unwrap();
        let answer = next.run(request).await;
        drop(tx);
        answer
    };
    let handler = async |_: Tx<Store<F>>| StatusCode::OK;
    let app = Router::new().route("/", post(handler)).layer(from_fn(keeps)).layer(world.layer());
    assert_eq!(Server::start(app).await.post("/").await.status, 500);
    journal.assert_has(Level::ERROR, "in middleware drop it before calling what is inside");
    world.assert_nothing_stored().await;
    assert_eq!(world.witness.told(), [told("rollback", [1])]);
    world.close().await;
}

async fn middleware_that_passes_it_on<F: Shop>() {
    let mut world = World::<F>::new().await;
    let before = async |mut tx: Tx<Store<F>>, request, next: Next| {
        F::place(&mut tx, 1).await.unwrap();
        drop(tx);
        next.run(request).await
    };
    let handler = async |mut tx: Tx<Store<F>>| {
        // It is the same transaction, so what the middleware stored is there.
        F::place(&mut tx, 2).await.unwrap();
        tx.write(placed(2)).await.unwrap();
        StatusCode::CREATED
    };
    let app = Router::new().route("/", post(handler)).layer(from_fn(before)).layer(world.layer());
    assert_eq!(Server::start(app).await.post("/").await.status, 201);
    assert_eq!((world.faults.count(Call::Begin), world.faults.count(Call::Commit)), (1, 1));
    assert_eq!(world.fixture.orders().await, 2);
    assert_eq!(world.inbox.next().await.id().as_str(), event_id(2));
    world.close().await;
}

async fn task_that_outlives_the_handler<F: Shop>() {
    let journal = Journal::keep();
    let world = World::<F>::new().await;
    let gate = Gate::new();
    let task = Arc::new(Mutex::new(None));
    let handler = {
        let (gate, task) = (gate.clone(), Arc::clone(&task));
        move |mut tx: Tx<Store<F>>| async move {
            tx.write(placed(1)).await.unwrap();
            let outlives = tokio::spawn(async move {
                gate.pass().await;
                drop(tx);
            });
            *task.lock().unwrap() = Some(outlives);
            StatusCode::OK
        }
    };
    let app = Router::new().route("/", post(handler)).layer(world.layer());
    assert_eq!(Server::start(app).await.post("/").await.status, 500);
    journal.assert_has(Level::ERROR, "do not move it into a task");
    assert_eq!(world.faults.count(Call::Commit), 0);
    gate.open();
    let task = task.lock().unwrap().take().expect("the handler spawned it");
    within("the task ends", task).await.unwrap();
    world.assert_nothing_stored().await;
    assert_eq!(world.witness.told(), [told("rollback", [1])]);
    world.close().await;
}

/// Something has kept the request beyond its end. It gets nothing, and begins nothing.
async fn asked_for_after_the_end<F: Shop>() {
    let world = World::<F>::new().await;
    let kept = Arc::new(Mutex::new(None::<Request>));
    let handler = async |Extension(kept): Extension<Arc<Mutex<Option<Request>>>>, request: Request| {
        *kept.lock().unwrap() = Some(request);
    };
    let app = Router::new().route("/", post(handler)).layer(Extension(Arc::clone(&kept))).layer(world.layer());
    assert_eq!(Server::start(app).await.post("/").await.status, 200);
    let (mut parts, _) = kept.lock().unwrap().take().expect("the handler has kept it").into_parts();
    let refused = Tx::<Store<F>>::from_request_parts(&mut parts, &()).await.unwrap_err();
    assert!(matches!(refused.error(), Error::Ended), "{refused:?}");
    assert_eq!(world.faults.count(Call::Begin), 0);
    world.close().await;
}

/// Two by mistake are as good as one: the outer one has nothing to end.
async fn two_layers<F: Shop>() {
    let mut world = World::<F>::new().await;
    let server = Server::start(world.app().layer(world.layer())).await;
    assert_eq!(server.post("/orders/1/201").await.status, 201);
    assert_eq!(server.post("/orders/2/400").await.status, 400);
    assert_eq!((world.faults.count(Call::Begin), world.faults.count(Call::Commit)), (2, 1));
    assert_eq!(world.inbox.next().await.id().as_str(), event_id(1));
    world.close().await;
}

/// A body that is refused needs no transaction, and neither does a handler that changes its mind.
async fn begun_when_the_handler_says_so<F: Shop>() {
    let mut world = World::<F>::new().await;
    let handler = async |tx: LazyTx<Store<F>>, axum::Json(orders): axum::Json<Vec<i64>>| {
        for id in orders {
            // Dropped at the end of each round, and the same one in the next.
            let mut tx = tx.begin().await?;
            F::place(&mut tx, id).await.unwrap();
            tx.write(placed(id)).await.unwrap();
        }
        Ok::<_, Rejection>(StatusCode::CREATED)
    };
    let holds = async |tx: LazyTx<Store<F>>| {
        let _held = tx.begin().await?;
        tx.begin().await?;
        Ok::<_, Rejection>(StatusCode::OK)
    };
    let app = Router::new().route("/", post(handler)).route("/held", post(holds)).layer(world.layer());
    let server = Server::start(app).await;
    assert_eq!(server.try_post("/", "no JSON").await.unwrap().status, 400);
    assert_eq!(server.try_post("/", "[]").await.unwrap().status, 201);
    assert_eq!(world.faults.count(Call::Begin), 0);
    assert_eq!(server.try_post("/", "[1, 2]").await.unwrap().status, 201);
    assert_eq!((world.faults.count(Call::Begin), world.faults.count(Call::Commit)), (1, 1));
    assert_eq!(world.witness.told(), [told("commit", [1, 2])]);
    let mut delivered = world.inbox.ids(2).await;
    delivered.sort_unstable();
    assert_eq!(delivered, [event_id(1), event_id(2)]);
    assert_eq!(server.post("/held").await.status, 500);
    world.faults.times(1, Call::Begin, Fault::Unavailable);
    assert_eq!(server.try_post("/", "[3]").await.unwrap().status, 503);
    assert_eq!(world.fixture.orders().await, 2);
    world.close().await;
}
