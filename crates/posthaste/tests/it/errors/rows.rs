//! What a row keeps of why its event was not delivered.

use std::time::Duration;

use posthaste::interceptor::before;
use posthaste::listener::{AnyListener, Failure, Listener, Outcome, batch, blocking, typed};
use posthaste::store::{AdminStore, Store};
use posthaste::{
    Delivery, Event, EventBuilder, FanOut, MemoryStore, Options, Outbox, OutboxBuilder, RetryPolicy, SqliteStore,
    Status,
};

use super::Book;
use super::decoding::{Placed, placed};

pub(super) async fn write(book: &mut Book) {
    let mut add = |call: &str, said: String| book.add_text(call, &said);

    let elsewhere = outbox().listen("Order", "OrderCancelled", done);
    add("nobody listens for it", of_outbox(elsewhere, event()).await);
    add("a FanOut to nobody", of(FanOut::new(), event()).await);
    add("a typed listener, a payload that does not decode", of_typed(r#"{"id":1,"lines":[{"total":"two"}]}"#, 2).await);
    add("a typed listener, a version that is not known", of_typed("{}", 3).await);

    add("a listener that fails, with its cause", of(|_: Delivery| async { Err::<(), _>(unanswered()) }, event()).await);
    add(
        "Failure::permanent",
        of(|_: Delivery| async { Err::<(), _>(Failure::permanent("no such address")) }, event()).await,
    );
    add("Outcome::Dead", of(|_: Delivery| async { Outcome::Dead("the shop is closed".into()) }, event()).await);
    add("a listener that panics", of(panics, event()).await);
    add("a blocking listener that panics", of(blocking(|_| -> () { panic!("no printer") }), event()).await);
    let limit = Duration::from_millis(5);
    add("a listener over its time limit", of(hangs.with_time_limit(limit), event()).await);
    add(
        "a listener with a limit, over its time limit",
        of(hangs.with_time_limit(limit).with_concurrency(1), event()).await,
    );
    add("a FanOut, its second listener over its time limit", {
        of(FanOut::new().and(done).and(hangs.with_time_limit(limit)), event()).await
    });
    add("a batch listener with too few verdicts", of(batch(|_: Vec<Delivery>| async { Vec::new() }), event()).await);
    add("a FanOut to a batch listener with too few verdicts", {
        of(FanOut::new().and(batch(|_: Vec<Delivery>| async { Vec::new() })), event()).await
    });

    let fails = before(|_: &Delivery| Err(Failure::retryable("the audit log is full")));
    add("an interceptor that fails", of_outbox(outbox().listen_all(done).interceptor(fails), event()).await);
    let panics = before(|_: &Delivery| -> Result<(), Failure> { panic!("no audit log") });
    add("an interceptor that panics", of_outbox(outbox().listen_all(done).interceptor(panics), event()).await);
    let hangs =
        outbox().options(Options { listener_time_limit: limit, ..one_attempt() }).listen_all(done).interceptor(Hangs);
    add("an interceptor over the time limit", of_outbox(hangs, event()).await);

    for (call, damage) in [
        ("a row without an event type", "event_type = ''"),
        ("a row without a payload", "payload = NULL"),
        ("a row with two payloads", "payload_bytes = x'00'"),
        ("a row whose payload is no JSON", "payload = '{id:1}'"),
        ("a row whose payload is no text", "payload = x'7b7d'"),
        ("a row whose headers are no map of texts", "headers = '{\"trace\":7}'"),
        ("a row whose attempts are no number", "attempts = 'many'"),
        ("a row whose attempts are negative", "attempts = -1"),
    ] {
        add(call, of_damaged(damage).await);
    }
}

fn event() -> EventBuilder {
    Event::builder("OrderPlaced").aggregate("Order", 42).json_text("{}")
}

async fn done(_: Delivery) {}

async fn panics(_: Delivery) {
    panic!("no mailbox")
}

async fn hangs(_: Delivery) {
    std::future::pending::<()>().await;
}

struct Hangs;

impl posthaste::Interceptor for Hangs {
    async fn before(&self, _: &Delivery) -> Result<(), Failure> {
        std::future::pending().await
    }
}

#[derive(Debug)]
struct Unanswered(std::io::Error);

fn unanswered() -> Unanswered {
    Unanswered(std::io::Error::other("connection reset"))
}

impl std::fmt::Display for Unanswered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the mailer gave no answer")
    }
}

impl std::error::Error for Unanswered {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

fn one_attempt() -> Options {
    Options { retry_attempts: 1, ..Options::default() }
}

fn outbox() -> OutboxBuilder<MemoryStore> {
    Outbox::builder(MemoryStore::new()).options(one_attempt())
}

async fn of(listener: impl Into<AnyListener>, event: EventBuilder) -> String {
    of_outbox(outbox().listen_all(listener), event).await
}

async fn of_typed(json: &str, version: u32) -> String {
    of(typed::<Placed>(|_, _| async {}).with_retry(RetryPolicy::never()), placed(json).version(version)).await
}

/// Delivers one event, and gives why it is dead.
async fn of_outbox<S: Store>(outbox: OutboxBuilder<S>, event: EventBuilder) -> String {
    let outbox = outbox.start().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    tx.write(event).await.unwrap();
    tx.commit().await.unwrap();
    let reason = reason(outbox.admin()).await;
    outbox.shutdown().await;
    reason
}

/// Delivers one event whose row was damaged, and gives why it is dead.
async fn of_damaged(damage: &str) -> String {
    let store = SqliteStore::connect("sqlite::memory:").await.unwrap();
    store.migrate().await.unwrap();
    let writer = Outbox::writer_only(store.clone()).start().await.unwrap();
    let mut tx = writer.begin().await.unwrap();
    tx.write(event()).await.unwrap();
    tx.commit().await.unwrap();
    let sql = sqlx::AssertSqlSafe(format!("UPDATE outbox_event SET {damage}"));
    sqlx::raw_sql(sql).execute(store.pool()).await.unwrap();
    let outbox = Outbox::builder(store).listen_all(done).start().await.unwrap();
    let reason = reason(outbox.admin()).await;
    outbox.shutdown().await;
    reason
}

/// Waits until the only row is dead, and gives the reason that it keeps.
async fn reason(admin: &dyn AdminStore) -> String {
    loop {
        let record = admin.list(&Default::default(), &Default::default()).await.unwrap().remove(0);
        assert_ne!(record.state.status, Status::Done, "it was delivered");
        if record.state.status == Status::Dead {
            return record.state.last_error.unwrap();
        }
        tokio::task::yield_now().await;
    }
}
