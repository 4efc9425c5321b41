//! A database of its own for each test, and who looks at what happens.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use posthaste_core::hook::HookError;
use posthaste_core::listener::Path;
use posthaste_core::store::NewRow;
use posthaste_core::{Delivery, Event, Options, Outbox, OutboxBuilder, WriteHook};
use posthaste_sql::{Partitions, PgStore};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_postgres::config::Host;
use tokio_postgres::{Client, Config, NoTls, SimpleQueryMessage};

/// Where the server is.
const URL: &str = "POSTHASTE_TEST_POSTGRES_URL";

/// How long a test waits for something before it has failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// A database that is dropped at the end.
pub(crate) struct Database {
    server: Config,
    url: String,
    name: String,
}

impl Database {
    pub(crate) async fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let url = std::env::var(URL).unwrap_or_else(|_| {
            panic!("{URL} is not set: run scripts/test, or eval \"$(scripts/servers start)\" first, for a server")
        });
        let server: Config = url.parse().unwrap();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("posthaste_tokio_postgres_test_{}_{number}", std::process::id());
        let admin = connect(&server).await;
        // A process of the same id may have ended before its time.
        admin.batch_execute(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await.unwrap();
        admin.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        Self { server, url, name }
    }

    pub(crate) fn config(&self) -> Config {
        let mut config = self.server.clone();
        config.dbname(&self.name);
        config
    }

    pub(crate) async fn client(&self) -> Client {
        connect(&self.config()).await
    }

    /// A client whose connection is cut when the answer to its first message with this text comes.
    pub(crate) async fn client_that_loses_the_answer_to(&self, text: &'static str) -> Client {
        let [Host::Tcp(host)] = self.server.get_hosts() else { panic!("the server has no address of TCP") };
        let server = (host.clone(), self.server.get_ports().first().copied().unwrap_or(5432));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut config = Config::new();
        config.host("127.0.0.1").port(listener.local_addr().unwrap().port()).dbname(&self.name);
        config.user(self.server.get_user().unwrap());
        if let Some(password) = self.server.get_password() {
            config.password(password);
        }
        tokio::spawn(async move {
            let (client, _) = listener.accept().await.unwrap();
            lose_the_answer(client, TcpStream::connect(server).await.unwrap(), text.as_bytes()).await;
        });
        connect(&config).await
    }

    /// A migrated store.
    pub(crate) async fn store(&self) -> PgStore {
        let store = self.empty().await;
        store.migrate().await.unwrap();
        store
    }

    /// A migrated store with a table in partitions.
    pub(crate) async fn partitioned(&self) -> PgStore {
        let store = self.empty().await.partitioned(Partitions::daily());
        store.migrate().await.unwrap();
        store
    }

    async fn empty(&self) -> PgStore {
        let options: PgConnectOptions = self.url.parse().unwrap();
        let pool = PgPoolOptions::new().max_connections(4).connect_with(options.database(&self.name)).await.unwrap();
        PgStore::new(pool)
    }

    /// An outbox with one listener for everything, and what it hears.
    pub(crate) async fn outbox(&self) -> (Outbox<PgStore>, Witness, Inbox) {
        outbox(self.store().await).await
    }

    /// How many rows the table has.
    pub(crate) async fn rows(&self) -> i64 {
        self.client().await.query_one("SELECT count(*) FROM outbox_event", &[]).await.unwrap().get(0)
    }

    /// How many connections of this database fit the condition.
    pub(crate) async fn backends(&self, condition: &str) -> i64 {
        let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE datname = '{}' AND {condition}", self.name);
        connect(&self.server).await.query_one(&sql, &[]).await.unwrap().get(0)
    }

    /// Ends the connections of this database that fit the condition, from the side of the server.
    pub(crate) async fn terminate(&self, condition: &str) {
        self.call("pg_terminate_backend(pid, 10000)", condition).await;
    }

    /// Does this to the connections of this database that fit the condition.
    pub(crate) async fn call(&self, function: &str, condition: &str) {
        let sql = format!("SELECT {function} FROM pg_stat_activity WHERE datname = '{}' AND {condition}", self.name);
        connect(&self.server).await.batch_execute(&sql).await.unwrap();
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let (server, name) = (self.server.clone(), std::mem::take(&mut self.name));
        // A destructor cannot wait in the runtime of its test.
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let drop = format!("DROP DATABASE {name} WITH (FORCE)");
                connect(&server).await.batch_execute(&drop).await.unwrap();
            });
        });
        let dropped = dropping.join();
        assert!(dropped.is_ok() || std::thread::panicking(), "the database could not be dropped");
    }
}

async fn connect(config: &Config) -> Client {
    let (client, connection) = config.connect(NoTls).await.unwrap();
    // It ends when the client is dropped, or when a test has it cut.
    tokio::spawn(connection);
    client
}

/// Carries messages back and forth until one with this text has been answered, and both ends are closed instead.
async fn lose_the_answer(client: TcpStream, server: TcpStream, text: &[u8]) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let asked = AtomicU64::new(0);
    let forth = async {
        let mut buffer = vec![0; 1 << 16];
        loop {
            let length = from_client.read(&mut buffer).await.unwrap_or(0);
            if contains(&buffer[..length], text) {
                asked.store(1, Ordering::SeqCst);
            }
            if length == 0 || to_server.write_all(&buffer[..length]).await.is_err() {
                break;
            }
        }
    };
    let back = async {
        let (mut buffer, mut lost) = (vec![0; 1 << 16], Vec::new());
        loop {
            let length = from_server.read(&mut buffer).await.unwrap_or(0);
            if asked.load(Ordering::SeqCst) == 1 {
                lost.extend_from_slice(&buffer[..length]);
                // The tag of the answer is the same text.
                if contains(&lost, text) {
                    break;
                }
            } else if to_client.write_all(&buffer[..length]).await.is_err() {
                break;
            }
            if length == 0 {
                break;
            }
        }
    };
    tokio::select! {
        () = forth => {}
        () = back => {}
    }
}

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|window| window == text)
}

/// Options with which nothing is delivered because an interval is over.
pub(crate) fn no_interval() -> Options {
    Options { poll_interval: Duration::from_secs(3600), ..Options::default() }
}

/// An outbox with one listener for everything, and what it hears.
pub(crate) async fn outbox(store: PgStore) -> (Outbox<PgStore>, Witness, Inbox) {
    let witness = Witness::default();
    let (builder, inbox) = listening(Outbox::builder(store).options(no_interval()).hook(witness.clone()));
    (builder.start().await.unwrap(), witness, inbox)
}

/// Has one listener hear everything.
pub(crate) fn listening(builder: OutboxBuilder<PgStore>) -> (OutboxBuilder<PgStore>, Inbox) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let listener = move |event: Delivery| {
        // A test that has ended does not look any more.
        let _ = sender.send(event);
        async {}
    };
    (builder.listen_all(listener), Inbox(receiver))
}

/// What was delivered, in order.
pub(crate) struct Inbox(mpsc::UnboundedReceiver<Delivery>);

impl Inbox {
    pub(crate) async fn next(&mut self) -> Delivery {
        within("an event is delivered", self.0.recv()).await.unwrap()
    }

    /// The id of the next one, and the way it came.
    pub(crate) async fn arrival(&mut self) -> (String, Path) {
        let delivery = self.next().await;
        (delivery.id().to_string(), delivery.path())
    }

    /// Fails if anything was delivered that was not looked at.
    pub(crate) fn assert_empty(&mut self) {
        assert!(self.0.try_recv().is_err(), "something else was delivered");
    }
}

/// What a [`Witness`] was told: the step, and the ids.
type Told = (&'static str, Vec<String>);

/// A hook that remembers what it was told.
#[derive(Clone, Default)]
pub(crate) struct Witness(Arc<Mutex<Vec<Told>>>);

impl Witness {
    fn note(&self, step: &'static str, rows: &[NewRow]) -> Result<(), HookError> {
        self.0.lock().unwrap().push((step, rows.iter().map(|row| row.event.id().to_string()).collect()));
        Ok(())
    }

    /// What it was told since it was asked last.
    pub(crate) fn told(&self) -> Vec<Told> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl WriteHook for Witness {
    fn after_commit(&self, rows: &[NewRow]) -> Result<(), HookError> {
        self.note("commit", rows)
    }

    fn after_rollback(&self, rows: &[NewRow]) -> Result<(), HookError> {
        self.note("rollback", rows)
    }

    fn after_unknown(&self, rows: &[NewRow]) -> Result<(), HookError> {
        self.note("unknown", rows)
    }
}

/// An event with that id.
pub(crate) fn event(id: &str) -> Event {
    Event::builder("Happened").id(id).json_text("{}").build().unwrap()
}

/// What a hook hears of these ids.
pub(crate) fn told(step: &'static str, ids: &[&str]) -> Told {
    (step, ids.iter().map(ToString::to_string).collect())
}

/// Fails if this client is inside a transaction.
pub(crate) async fn assert_outside(client: &Client) {
    // Whoever is inside a transaction began it in an earlier message than this one.
    let answer = client.simple_query("SELECT statement_timestamp() = transaction_timestamp()").await.unwrap();
    let outside = answer.iter().any(|part| matches!(part, SimpleQueryMessage::Row(row) if row.get(0) == Some("t")));
    assert!(outside, "it is inside a transaction");
}

/// The output of a future that should end soon.
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("waited in vain until {what}"))
}

/// Asks again and again until the answer is yes, where nothing gives a signal.
pub(crate) async fn eventually(what: &str, mut ask: impl AsyncFnMut() -> bool) {
    within(what, async {
        while !ask().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// Polls a future that many times and then drops it. Its output, if it came to its end before.
pub(crate) async fn cut_short<T>(polls: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        let polled = future.as_mut().poll(context).map(Some);
        if polled.is_pending() && left == 0 {
            return Poll::Ready(None);
        }
        polled
    })
    .await
}
