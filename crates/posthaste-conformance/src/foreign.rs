//! Part C: other programs at the same table, with nothing but the SQL that the outbox is documented by.

use std::time::Duration;

use posthaste_core::store::{Action, Settled};
use posthaste_core::{EventId, Status, Timestamp};

use crate::fixture::{Polled, Tables, Value};
use crate::outboxes::{no_interval, start};
use crate::rows::{assert_at, claim, counts, record, settle, state};
use crate::tap::Tap;
use crate::wait::eventually;

const INSERT_NEW: &str = "INSERT INTO outbox_event (event_id, event_type, aggregate_type, aggregate_id,
  tenant_id, payload, headers, status, attempts, available_at, created_at)
VALUES (?, ?, ?, ?, ?, ?, ?, 0, 0, ?, ?)";

const MARK_DONE: &str = "UPDATE outbox_event
SET status = 1, done_at = ?, locked_by = NULL, locked_at = NULL
WHERE event_id = ? AND status <> 1";

const MARK_RETRY: &str = "UPDATE outbox_event
SET status = 2, attempts = attempts + 1, available_at = ?, last_error = ?,
    locked_by = NULL, locked_at = NULL
WHERE event_id = ? AND status <> 1";

const MARK_DEAD: &str = "UPDATE outbox_event
SET status = 3, last_error = ?, locked_by = NULL, locked_at = NULL
WHERE event_id = ? AND status <> 1";

const POLL_PENDING: &str = "SELECT event_id, event_type, aggregate_type, aggregate_id, tenant_id,
       payload, headers, attempts, created_at
FROM outbox_event
WHERE status IN (0, 2)
  AND available_at <= ?
  AND created_at <= ?
ORDER BY created_at
LIMIT ?";

const HOUR: Duration = Duration::from_secs(3600);

/// Odd in its spaces, so that it shows whether it is kept as it is.
const PAYLOAD: &str = r#"{"total" : "19.90",  "name":"Zoë"}"#;

/// A program and its clock, which is a little late.
struct Program<F> {
    fixture: F,
    now: Timestamp,
}

impl<F: Tables> Program<F> {
    fn new(fixture: F) -> Self {
        Self { fixture, now: Timestamp::now() - Duration::from_secs(60) }
    }

    /// Inserts an event with an aggregate, a tenant, a payload and headers, or without any.
    async fn insert(&self, id: &'static str, full: bool) {
        let text = |text| Value::Text(full.then_some(text));
        let values = [
            Value::Text(Some(id)),
            Value::Text(Some("OrderPlaced")),
            text("Order"),
            text("17"),
            text("acme"),
            text(PAYLOAD),
            text(r#"{"trace":"a1"}"#),
            Value::Moment(self.now),
            Value::Moment(self.now),
        ];
        assert_eq!(self.fixture.change(INSERT_NEW, &values).await, 1);
    }

    async fn mark_done(&self, id: &'static str) -> u64 {
        self.fixture.change(MARK_DONE, &[Value::Moment(self.now), Value::Text(Some(id))]).await
    }

    async fn mark_retry(&self, id: &'static str, next_at: Timestamp) -> u64 {
        let values = [Value::Moment(next_at), Value::Text(Some("no answer")), Value::Text(Some(id))];
        self.fixture.change(MARK_RETRY, &values).await
    }

    async fn mark_dead(&self, id: &'static str) -> u64 {
        self.fixture.change(MARK_DEAD, &[Value::Text(Some("no use")), Value::Text(Some(id))]).await
    }

    async fn poll_pending(&self) -> Vec<Polled> {
        let values = [Value::Moment(self.now), Value::Moment(self.now), Value::Number(10)];
        self.fixture.poll(POLL_PENDING, &values).await
    }
}

fn id(id: &str) -> EventId {
    EventId::new(id).unwrap()
}

/// A row that another program inserted is delivered like any other.
pub async fn case_76_inserted_by_another_program<F: Tables>(fixture: F) {
    let store = fixture.store();
    let program = Program::new(fixture);
    program.insert("full", true).await;
    let polled = Polled {
        event_id: "full".into(),
        payload: Some(PAYLOAD.into()),
        headers: Some(r#"{"trace":"a1"}"#.into()),
        attempts: 0,
    };
    assert_eq!(program.poll_pending().await, [polled]);

    let (tap, mut inbox) = Tap::new();
    let (outbox, _) = start(store.clone(), no_interval(), tap).await;
    let event = inbox.next().await;
    assert_eq!((event.id().as_str(), event.event_type(), event.attempt()), ("full", "OrderPlaced", 1));
    assert_eq!((event.aggregate_type(), event.aggregate_id()), ("Order", Some("17")));
    assert_eq!((event.tenant_id(), event.header("trace")), (Some("acme"), Some("a1")));
    assert_eq!(event.payload().as_json(), Some(PAYLOAD));
    eventually("it is done", || async { counts(&store).await.done == 1 }).await;
    assert!(outbox.shutdown().await.is_clean());
    assert_at(&store, &id("full"), Status::Done, 0).await;
    let created_at = state(&store, &id("full")).await.created_at;
    assert_eq!(created_at, program.now, "moments are those that the program meant");
    assert_eq!(program.poll_pending().await, []);
    assert_eq!(program.mark_done("full").await, 0, "it is done already");
}

/// What another program has made of a row holds, for claims and for settlements that come too late.
pub async fn case_76_marked_by_another_program<F: Tables>(fixture: F) {
    let store = fixture.store();
    let program = Program::new(fixture);
    for id in ["done", "dead", "later", "now"] {
        program.insert(id, true).await;
    }
    let (lease, rows) = claim(&store, 4).await;
    assert_eq!(rows.len(), 4);
    assert_eq!(program.mark_done("done").await, 1);
    assert_eq!(program.mark_done("done").await, 0, "a second time changes nothing");
    assert_eq!(program.mark_retry("done", program.now).await, 0, "done is final");
    assert_eq!(program.mark_dead("done").await, 0, "done is final");
    assert_eq!(program.mark_dead("dead").await, 1);
    assert_eq!(program.mark_retry("later", program.now + HOUR).await, 1);
    assert_eq!(program.mark_retry("now", program.now).await, 1);
    for row in &rows {
        let late = settle(&store, row.event.id(), &lease, Action::Done).await;
        assert_eq!(late, Settled::Lost, "{}", row.event.id());
    }

    let done = assert_at(&store, &id("done"), Status::Done, 0).await;
    assert_eq!(done.done_at, Some(program.now));
    let dead = assert_at(&store, &id("dead"), Status::Dead, 0).await;
    assert_eq!(dead.last_error.as_deref(), Some("no use"));
    let later = assert_at(&store, &id("later"), Status::Retry, 1).await;
    assert_eq!((later.available_at, later.last_error.as_deref()), (program.now + HOUR, Some("no answer")));
    let ids: Vec<_> = program.poll_pending().await.into_iter().map(|row| (row.event_id, row.attempts)).collect();
    assert_eq!(ids, [("now".to_owned(), 1)]);

    let (tap, mut inbox) = Tap::new();
    let (outbox, _) = start(store.clone(), no_interval(), tap).await;
    let event = inbox.next().await;
    assert_eq!((event.id().as_str(), event.attempt()), ("now", 2));
    eventually("it is done", || async { counts(&store).await.done == 2 }).await;
    program.fixture.advance(HOUR).await;
    outbox.wake();
    assert_eq!(inbox.ids(1).await, ["later"]);
    assert!(outbox.shutdown().await.is_clean());
    inbox.closed().await;
    let counts = counts(&store).await;
    assert_eq!((counts.done, counts.dead, counts.total()), (3, 1, 4));
}

/// A row that another program left without a payload is no event. It goes dead, and says why.
pub async fn case_76_without_a_payload<F: Tables>(fixture: F) {
    let store = fixture.store();
    let program = Program::new(fixture);
    program.insert("bare", false).await;
    program.insert("full", true).await;
    let (tap, mut inbox) = Tap::new();
    let (outbox, _) = start(store.clone(), no_interval(), tap).await;
    assert_eq!(inbox.ids(1).await, ["full"]);
    eventually("the other is dead", || async { counts(&store).await.dead == 1 }).await;
    assert!(outbox.shutdown().await.is_clean());
    let error = record(&store, &id("bare")).await.state.last_error.unwrap();
    assert!(error.contains("payload"), "{error}");
}
