//! A database of its own for each test, and clients of it.

use posthaste_conformance::testing::{Told, Witness, watched};
use posthaste_conformance::{Fixture, Inbox, PgFixture, Tables, Tap};
use posthaste_core::{Outbox, OutboxBuilder};
use posthaste_sql::{Partitions, PgStore};
use tokio_postgres::{Client, Config, NoTls, SimpleQueryMessage};

/// A database.
pub(crate) struct Database(PgFixture);

impl Database {
    pub(crate) async fn new() -> Self {
        Self(PgFixture::empty().await)
    }

    pub(crate) fn url(&self) -> String {
        self.0.plain_url()
    }

    pub(crate) fn config(&self) -> Config {
        self.url().parse().unwrap()
    }

    pub(crate) async fn client(&self) -> Client {
        connect(&self.url()).await
    }

    /// A migrated store.
    pub(crate) async fn store(&self) -> PgStore {
        let store = self.0.store();
        store.migrate().await.unwrap();
        store
    }

    /// A migrated store with a table in partitions.
    pub(crate) async fn partitioned(&self) -> PgStore {
        let store = self.0.store().partitioned(Partitions::daily());
        store.migrate().await.unwrap();
        store
    }

    /// An outbox with one listener for everything, and what it hears.
    pub(crate) async fn outbox(&self) -> (Outbox<PgStore>, Witness, Inbox) {
        watched(self.store().await).await
    }

    /// How many rows the table has.
    pub(crate) async fn rows(&self) -> i64 {
        self.client().await.query_one("SELECT count(*) FROM outbox_event", &[]).await.unwrap().get(0)
    }

    /// How many other connections of this database fit the condition.
    pub(crate) async fn backends(&self, condition: &str) -> i64 {
        self.client().await.query_one(&of_others("count(*)", condition), &[]).await.unwrap().get(0)
    }

    /// Ends the connections of this database that fit the condition, from the side of the server.
    pub(crate) async fn terminate(&self, condition: &str) {
        self.call("pg_terminate_backend(pid, 10000)", condition).await;
    }

    /// Does this to the connections of this database that fit the condition.
    pub(crate) async fn call(&self, function: &str, condition: &str) {
        self.client().await.batch_execute(&of_others(function, condition)).await.unwrap();
    }
}

fn of_others(select: &str, condition: &str) -> String {
    let others = "datname = current_database() AND pid <> pg_backend_pid()";
    format!("SELECT {select} FROM pg_stat_activity WHERE {others} AND {condition}")
}

pub(crate) async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    // It ends when the client is dropped, or when a test has it cut.
    tokio::spawn(connection);
    client
}

/// Has one listener hear everything.
pub(crate) fn listening(builder: OutboxBuilder<PgStore>) -> (OutboxBuilder<PgStore>, Inbox) {
    let (tap, inbox) = Tap::new();
    (builder.listen_all(tap), inbox)
}

/// What a [`Witness`] hears of these ids.
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
