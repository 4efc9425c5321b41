//! A shop on a real database and a real socket, and what can be seen of it.

use std::net::SocketAddr;

use axum::Router;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::routing::post;
use posthaste_axum::{Tx, TxLayer};
use posthaste_conformance::testing::{Told, Witness, within};
use posthaste_conformance::{
    Fixture, Inbox, MariaDbFixture, Meter, PgFixture, SqliteFixture, Tables, Tap, no_interval,
};
use posthaste_core::store::{Counts, WriteStore};
use posthaste_core::testing::{Faults, Faulty};
use posthaste_core::{Event, EventBuilder, Options, Outbox};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// A database with a table of the user's own beside that of the outbox.
pub(crate) trait Shop: Tables {
    /// Stores an order.
    fn place(connection: &mut Connection<Self>, id: i64) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// How many orders there are, as others see it.
    fn orders(&self) -> impl Future<Output = i64> + Send;
}

type Connection<F> = <<F as Fixture>::Store as WriteStore>::Connection;

macro_rules! shop {
    ($fixture:ty, $insert:literal) => {
        impl Shop for $fixture {
            async fn place(connection: &mut Connection<Self>, id: i64) -> Result<(), sqlx::Error> {
                sqlx::query($insert).bind(id).execute(connection).await.map(drop)
            }

            async fn orders(&self) -> i64 {
                sqlx::query_scalar("SELECT count(*) FROM orders").fetch_one(self.store().pool()).await.unwrap()
            }
        }
    };
}

shop!(PgFixture, "INSERT INTO orders (id) VALUES ($1)");
shop!(SqliteFixture, "INSERT INTO orders (id) VALUES (?)");
shop!(MariaDbFixture, "INSERT INTO orders (id) VALUES (?)");

/// The store of a test, which can be told to fail.
pub(crate) type Store<F> = Faulty<<F as Fixture>::Store>;

/// An outbox that runs, and everything that can be seen of it.
pub(crate) struct World<F: Shop> {
    pub(crate) fixture: F,
    pub(crate) outbox: Outbox<Store<F>>,
    pub(crate) faults: Faults,
    pub(crate) inbox: Inbox,
    pub(crate) meter: Meter,
    pub(crate) witness: Witness,
}

impl<F: Shop> World<F> {
    pub(crate) async fn new() -> Self {
        Self::on(F::create().await, no_interval()).await
    }

    pub(crate) async fn on(fixture: F, options: Options) -> Self {
        fixture.execute("CREATE TABLE orders (id BIGINT PRIMARY KEY)").await;
        let (store, faults) = Faulty::new(fixture.store());
        let (tap, inbox) = Tap::new();
        let (meter, witness) = (Meter::new(), Witness::default());
        let outbox = Outbox::builder(store)
            .options(options)
            .metrics(meter.clone())
            .hook(witness.clone())
            .listen_all(tap)
            .start()
            .await
            .unwrap();
        Self { fixture, outbox, faults, inbox, meter, witness }
    }

    pub(crate) fn layer(&self) -> TxLayer<Store<F>> {
        TxLayer::new(self.outbox.clone())
    }

    /// `POST /orders/{id}/{status}` places an order, writes its event, and answers with that status.
    pub(crate) fn app(&self) -> Router {
        Router::new().route("/orders/{id}/{status}", post(place::<F>)).layer(self.layer())
    }

    pub(crate) async fn counts(&self) -> Counts {
        self.outbox.admin().counts().await.unwrap()
    }

    /// Nothing was stored, and no connection is left inside a transaction.
    pub(crate) async fn assert_nothing_stored(&self) {
        self.fixture.assert_no_open_transaction().await;
        assert_eq!((self.fixture.orders().await, self.counts().await.total()), (0, 0));
    }

    /// Nothing was delivered that was not looked at, not even by the end.
    pub(crate) async fn close(mut self) {
        assert!(self.outbox.shutdown().await.is_clean());
        self.inbox.assert_empty();
        self.fixture.assert_no_open_transaction().await;
    }
}

pub(crate) async fn place<F: Shop>(
    mut tx: Tx<Store<F>>,
    Path((id, status)): Path<(i64, u16)>,
) -> Result<StatusCode, StatusCode> {
    F::place(&mut tx, id).await.map_err(|_| StatusCode::CONFLICT)?;
    tx.write(placed(id)).await.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    Ok(StatusCode::from_u16(status).unwrap())
}

/// The event of an order, which has an id that can be foretold.
pub(crate) fn placed(id: i64) -> EventBuilder {
    Event::builder("OrderPlaced").id(event_id(id)).aggregate("Order", id).json_text("{}")
}

pub(crate) fn event_id(id: i64) -> String {
    format!("order-{id}")
}

/// What a [`Witness`] is told of the orders of one transaction.
pub(crate) fn told<const N: usize>(step: &'static str, orders: [i64; N]) -> Told {
    (step, orders.map(event_id).to_vec())
}

/// A server on a port of its own, until it is dropped.
pub(crate) struct Server {
    address: SocketAddr,
    task: JoinHandle<()>,
}

/// What a client reads.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

impl Server {
    pub(crate) async fn start(app: Router) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        Self { address, task: tokio::spawn(async move { axum::serve(listener, app).await.unwrap() }) }
    }

    /// Sends a request, and leaves it to the caller to read the answer or to go away.
    pub(crate) async fn send(&self, path: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: shop\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    /// The answer, if there is one.
    pub(crate) async fn try_post(&self, path: &str, body: &str) -> Option<Answer> {
        let mut stream = self.send(path, body).await;
        let mut text = String::new();
        within("the server answers", stream.read_to_string(&mut text)).await.unwrap();
        let (head, body) = text.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Some(Answer { status, head: head.to_lowercase(), body: body.to_owned() })
    }

    pub(crate) async fn post(&self, path: &str) -> Answer {
        self.try_post(path, "").await.expect("the server closed the connection without an answer")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}
