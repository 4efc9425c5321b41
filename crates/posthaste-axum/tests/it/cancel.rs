//! Requests that nobody waits for any more.

use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::extract::Request;
use axum::http::{self, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::routing::post;
use axum::{Extension, Router};
use posthaste_axum::Tx;
use posthaste_conformance::no_interval;
use posthaste_conformance::testing::{cut_short, eventually};
use posthaste_core::listener::Path;
use posthaste_core::testing::{Call, Fault, Gate, within};
use tokio::sync::mpsc;
use tower::ServiceExt;

use crate::support::{Server, Shop, Store, World, event_id, placed, told};

crate::tests! { postgres: PgFixture, sqlite: SqliteFixture, mariadb: MariaDbFixture => cancel {
    case_19_client_leaves_in_the_handler,
    case_19_client_leaves_in_the_begin,
    case_19_client_leaves_in_the_commit,
    case_19_cut_anywhere,
    case_19_somebody_kept_the_request,
} }

/// Tells when a request is over, answered or not. For the outside of the layer.
fn telling_the_end(app: Router) -> (Router, mpsc::UnboundedReceiver<()>) {
    struct Tell(mpsc::UnboundedSender<()>);

    impl Drop for Tell {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }

    let (sender, ended) = mpsc::unbounded_channel();
    let telling = move |request: Request, next: Next| {
        let tell = Tell(sender.clone());
        async move {
            let answer = next.run(request).await;
            drop(tell);
            answer
        }
    };
    (app.layer(from_fn(telling)), ended)
}

async fn case_19_client_leaves_in_the_handler<F: Shop>() {
    let world = World::<F>::on(F::narrow().await, no_interval()).await;
    let (written, mut has_written) = mpsc::unbounded_channel();
    let handler = move |mut tx: Tx<Store<F>>| async move {
        F::place(&mut tx, 1).await.unwrap();
        tx.write(placed(1)).await.unwrap();
        written.send(()).unwrap();
        std::future::pending::<StatusCode>().await
    };
    let app = Router::new().route("/slow", post(handler)).layer(world.layer()).merge(world.app());
    let (app, mut ended) = telling_the_end(app);
    let server = Server::start(app).await;
    let client = server.send("/slow", "").await;
    within("the handler has written", has_written.recv()).await.unwrap();
    assert_eq!(world.witness.told(), []);
    drop(client);
    within("the server notices", ended.recv()).await.unwrap();
    assert_eq!(world.witness.told(), [told("rollback", [1])]);
    world.assert_nothing_stored().await;
    // The one connection serves the next.
    assert_eq!(server.post("/orders/2/404").await.status, 404);
    assert_eq!(world.faults.count(Call::Commit), 0);
    world.close().await;
}

async fn case_19_client_leaves_in_the_begin<F: Shop>() {
    let world = World::<F>::on(F::narrow().await, no_interval()).await;
    let (app, mut ended) = telling_the_end(world.app());
    let server = Server::start(app).await;
    let gate = Gate::new();
    world.faults.times(1, Call::Begin, Fault::AnswerWaits(gate.clone()));
    let client = server.send("/orders/1/201", "").await;
    world.faults.until(Call::Begin, 1).await;
    drop(client);
    within("the server notices", ended.recv()).await.unwrap();
    gate.open();
    world.assert_nothing_stored().await;
    assert_eq!(server.post("/orders/2/404").await.status, 404);
    world.close().await;
}

/// A commit that was begun goes on to its end, and so does what follows it.
async fn case_19_client_leaves_in_the_commit<F: Shop>() {
    for fault in [Fault::Wait as fn(Gate) -> Fault, Fault::AnswerWaits] {
        let mut world = World::<F>::on(F::narrow().await, no_interval()).await;
        let (app, mut ended) = telling_the_end(world.app());
        let server = Server::start(app).await;
        let gate = Gate::new();
        world.faults.times(1, Call::Commit, fault(gate.clone()));
        let client = server.send("/orders/1/201", "").await;
        world.faults.until(Call::Commit, 1).await;
        drop(client);
        within("the server notices", ended.recv()).await.unwrap();
        assert_eq!(world.witness.told(), [], "nobody knows yet how it ends");
        gate.open();
        let delivered = world.inbox.next().await;
        assert_eq!((delivered.id().as_str(), delivered.path()), (&*event_id(1), Path::Hot));
        assert_eq!(world.witness.told(), [told("commit", [1])]);
        world.fixture.assert_no_open_transaction().await;
        assert_eq!((world.fixture.orders().await, world.counts().await.total()), (1, 1));
        world.close().await;
    }
}

/// Dropped at any await, a request leaves no transaction open, and its order and its event are both there or neither.
async fn case_19_cut_anywhere<F: Shop>() {
    const MANY: usize = 10_000;
    let world = World::<F>::on(F::narrow().await, no_interval()).await;
    let app = world.app();
    let mut cuts = 0;
    for polls in 1..MANY {
        let request = http::Request::post(format!("/orders/{polls}/201")).body(Body::empty()).unwrap();
        let answer = cut_short(polls, app.clone().oneshot(request)).await;
        world.fixture.assert_no_open_transaction().await;
        if let Some(answer) = answer {
            assert_eq!(answer.unwrap().status(), StatusCode::CREATED);
            break;
        }
        cuts = polls;
    }
    assert!(cuts + 1 < MANY);
    let settled = async || world.counts().await.pending() == 0 && world.outbox.in_flight() == 0;
    eventually("everything committed is delivered", settled).await;
    let (orders, events) = (world.fixture.orders().await, world.counts().await.done);
    assert_eq!(orders as u64, events);
    assert!(orders >= 1, "the last was not cut");
    world.outbox.shutdown().await;
}

/// A request that is kept beyond its end keeps no transaction open.
async fn case_19_somebody_kept_the_request<F: Shop>() {
    let world = World::<F>::on(F::narrow().await, no_interval()).await;
    let kept = Arc::new(Mutex::new(None::<http::Extensions>));
    let handler = async |Extension(kept): Extension<Arc<Mutex<Option<http::Extensions>>>>,
                         mut tx: Tx<Store<F>>,
                         request: Request| {
        *kept.lock().unwrap() = Some(request.extensions().clone());
        tx.write(placed(1)).await.unwrap();
        drop(tx);
        std::future::pending::<StatusCode>().await
    };
    let app = Router::new().route("/", post(handler)).layer(Extension(Arc::clone(&kept))).layer(world.layer());
    let (app, mut ended) = telling_the_end(app);
    let server = Server::start(app).await;
    let client = server.send("/", "").await;
    world.faults.until(Call::Insert, 1).await;
    eventually("the handler has it", async || kept.lock().unwrap().is_some()).await;
    drop(client);
    within("the server notices", ended.recv()).await.unwrap();
    assert!(kept.lock().unwrap().is_some());
    world.assert_nothing_stored().await;
    world.close().await;
}
