//! Part B: writing inside a transaction, and the hooks around it.

use std::time::Duration;

use posthaste_conformance::testing::{Witness, event_with_id as event, within};
use posthaste_conformance::{Gate, Tap, no_interval};
use posthaste_core::hook::HookError;
use posthaste_core::listener::Path;
use posthaste_core::store::{Error, Filter, NewRow, Page};
use posthaste_core::{Event, Options, Outbox, Status, WriteError, WriteHook};
use posthaste_tokio_postgres::OutboxExt;

use crate::support::{Database, listening, told};

#[tokio::test]
async fn case_09_only_inside_a_transaction() {
    let database = Database::new().await;
    let (outbox, _, mut inbox) = database.outbox().await;
    let mut client = database.client().await;
    let tx = client.transaction().await.unwrap();
    let receipt = outbox.write_in(&tx, event("foreign")).await.unwrap();
    assert_eq!(database.rows().await, 0, "it was written outside of the transaction");
    drop(tx);
    receipt.rolled_back();
    assert_eq!(database.rows().await, 0, "it outlived the transaction");

    let mut tx = outbox.begin_on(&mut client).await.unwrap();
    tx.write(event("own")).await.unwrap();
    assert_eq!(database.rows().await, 0, "it was written outside of the transaction");
    tx.commit().await.unwrap();
    assert_eq!(inbox.arrival().await, ("own".to_owned(), Path::Hot));
    outbox.shutdown().await;
    inbox.assert_empty();
    assert_eq!(database.rows().await, 1);
}

/// Ended by a statement of somebody's own, there is no transaction any more, and what is written is on its own.
#[tokio::test]
async fn case_09_a_transaction_that_somebody_ended() {
    let database = Database::new().await;
    let (outbox, witness, mut inbox) = database.outbox().await;
    let mut client = database.client().await;
    for (end, id) in [("ROLLBACK", "rolled back"), ("COMMIT", "committed")] {
        let mut tx = outbox.begin_on(&mut client).await.unwrap();
        tx.write(event(id)).await.unwrap();
        tx.batch_execute(end).await.unwrap();
        let error = tx.commit().await.unwrap_err();
        assert!(matches!(error, posthaste_core::CommitError::Unknown(_)), "{error:?}");
        assert_eq!(witness.told(), [told("unknown", &[id])]);
    }
    assert_eq!(inbox.arrival().await, ("committed".to_owned(), Path::Cold));
    outbox.shutdown().await;
    inbox.assert_empty();
}

#[tokio::test]
async fn case_11_one_call_per_commit() {
    let database = Database::new().await;
    let (outbox, witness, mut inbox) = database.outbox().await;
    let mut client = database.client().await;
    let mut tx = outbox.begin_on(&mut client).await.unwrap();
    tx.batch_execute("CREATE TABLE orders (id BIGINT)").await.unwrap();
    assert_eq!(tx.write(event("a")).await.unwrap().unwrap(), "a");
    let ids = tx.write_all(["b", "c", "d"].map(event)).await.unwrap();
    assert_eq!(ids.iter().map(ToString::to_string).collect::<Vec<_>>(), ["b", "c", "d"]);
    tx.execute("INSERT INTO orders VALUES ($1)", &[&42_i64]).await.unwrap();
    tx.write(event("e")).await.unwrap();
    assert_eq!(witness.told(), []);
    tx.commit().await.unwrap();
    assert_eq!(witness.told(), [told("commit", &["a", "b", "c", "d", "e"])]);
    for id in ["a", "b", "c", "d", "e"] {
        assert_eq!(inbox.arrival().await, (id.to_owned(), Path::Hot));
    }
    assert_eq!(client.query_one("SELECT id FROM orders", &[]).await.unwrap().get::<_, i64>(0), 42);

    // A transaction that wrote nothing is nobody's business.
    outbox.begin_on(&mut client).await.unwrap().commit().await.unwrap();
    outbox.begin_on(&mut client).await.unwrap().rollback().await.unwrap();
    drop(outbox.begin_on(&mut client).await.unwrap());
    assert_eq!(witness.told(), []);
    outbox.shutdown().await;
    inbox.assert_empty();
}

#[tokio::test]
async fn case_11_receipts() {
    let database = Database::new().await;
    let (outbox, witness, mut inbox) = database.outbox().await;
    let mut client = database.client().await;
    let tx = client.transaction().await.unwrap();
    let first = outbox.write_in(&tx, event("a")).await.unwrap();
    let receipt = first.and(outbox.write_all_in(&tx, ["b", "c"].map(event)).await.unwrap());
    tx.commit().await.unwrap();
    assert_eq!(witness.told(), [], "nobody said yet that it was committed");
    receipt.dispatch();
    assert_eq!(witness.told(), [told("commit", &["a", "b", "c"])]);
    for _ in 0..3 {
        assert_eq!(inbox.next().await.path(), Path::Hot);
    }

    let tx = client.transaction().await.unwrap();
    let receipt = outbox.write_in(&tx, event("forgotten")).await.unwrap();
    tx.commit().await.unwrap();
    drop(receipt);
    assert_eq!(inbox.arrival().await, ("forgotten".to_owned(), Path::Cold));
    outbox.shutdown().await;
    inbox.assert_empty();
}

/// What a broken hook does.
#[derive(Clone, Copy)]
enum Broken {
    Fails,
    Panics,
}

impl Broken {
    fn act(self) -> Result<(), HookError> {
        match self {
            Self::Fails => Err("a broken hook".into()),
            Self::Panics => panic!("a broken hook"),
        }
    }
}

impl WriteHook for Broken {
    fn before_write(&self, rows: &mut Vec<NewRow>) -> Result<(), HookError> {
        rows.clear();
        self.act()
    }

    fn after_commit(&self, _rows: &[NewRow]) -> Result<(), HookError> {
        self.act()
    }

    fn after_rollback(&self, _rows: &[NewRow]) -> Result<(), HookError> {
        self.act()
    }
}

#[tokio::test]
async fn case_12_broken_hooks() {
    let database = Database::new().await;
    let mut client = database.client().await;
    for (broken, kept) in [(Broken::Fails, "a"), (Broken::Panics, "b")] {
        let (earlier, later) = (Witness::default(), Witness::default());
        let builder = Outbox::builder(database.store().await).options(no_interval());
        let (builder, mut inbox) = listening(builder.hook(earlier.clone()).hook(broken).hook(later.clone()));
        let outbox = builder.start().await.unwrap();
        let mut tx = outbox.begin_on(&mut client).await.unwrap();
        tx.write(event(kept)).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(inbox.arrival().await, (kept.to_owned(), Path::Hot));
        let mut tx = outbox.begin_on(&mut client).await.unwrap();
        tx.write(event("undone")).await.unwrap();
        tx.rollback().await.unwrap();
        for witness in [earlier, later] {
            assert_eq!(witness.told(), [told("commit", &[kept]), told("rollback", &["undone"])]);
        }
        outbox.shutdown().await;
    }
}

/// A hook that changes what is written.
struct Editor(fn(&mut Vec<NewRow>));

impl WriteHook for Editor {
    fn before_write(&self, rows: &mut Vec<NewRow>) -> Result<(), HookError> {
        (self.0)(rows);
        Ok(())
    }
}

#[tokio::test]
async fn case_13_hook_changes_events() {
    let database = Database::new().await;
    let editor = Editor(|rows| {
        rows.retain(|row| *row.event.id() != "taken away");
        for row in &mut *rows {
            row.event = row.event.to_builder().header("seen", "yes").build().unwrap();
        }
        rows.push(NewRow::new(event("added")));
    });
    let builder = Outbox::builder(database.store().await).options(Options { workers: 1, ..no_interval() });
    let (builder, mut inbox) = listening(builder.hook(editor));
    let outbox = builder.start().await.unwrap();
    let mut client = database.client().await;
    let mut tx = outbox.begin_on(&mut client).await.unwrap();
    let ids = tx.write_all(["first", "taken away", "last"].map(event)).await.unwrap();
    assert_eq!(ids.iter().map(ToString::to_string).collect::<Vec<_>>(), ["first", "last", "added"]);
    tx.commit().await.unwrap();
    for (id, seen) in [("first", Some("yes")), ("last", Some("yes")), ("added", None)] {
        let delivered = inbox.next().await;
        assert_eq!((delivered.id().as_str(), delivered.header("seen")), (id, seen));
    }
    outbox.shutdown().await;
    assert_eq!(database.rows().await, 3);
}

#[tokio::test]
async fn case_13_hook_takes_all() {
    let database = Database::new().await;
    let witness = Witness::default();
    let builder = Outbox::builder(database.store().await).options(no_interval());
    let (builder, mut inbox) = listening(builder.hook(Editor(Vec::clear)).hook(witness.clone()));
    let outbox = builder.start().await.unwrap();
    let mut client = database.client().await;
    let mut tx = outbox.begin_on(&mut client).await.unwrap();
    assert_eq!(tx.write(event("one")).await.unwrap(), None);
    tx.commit().await.unwrap();
    let tx = client.transaction().await.unwrap();
    let receipt = outbox.write_in(&tx, event("one")).await.unwrap();
    assert!(receipt.ids().is_empty());
    tx.commit().await.unwrap();
    receipt.dispatch();
    assert_eq!(witness.told(), []);
    outbox.shutdown().await;
    inbox.assert_empty();
    assert_eq!(database.rows().await, 0);
}

#[tokio::test]
async fn case_14_large_batch() {
    const EVENTS: usize = 10_000;
    let database = Database::new().await;
    let outbox = Outbox::writer_only(database.store().await).start().await.unwrap();
    let mut client = database.client().await;
    let many: Vec<Event> = (0..EVENTS).map(|number| event(&format!("{number:05}"))).collect();
    let mut tx = outbox.begin_on(&mut client).await.unwrap();
    assert_eq!(tx.write_all(&many).await.unwrap().len(), EVENTS);
    // Rows that one statement inserted have the same moment.
    let statements = tx.query_one("SELECT count(DISTINCT created_at) FROM outbox_event", &[]).await.unwrap();
    assert!(statements.get::<_, i64>(0) <= 30, "{statements:?} are too many statements");
    tx.commit().await.unwrap();
    let page = Page { limit: EVENTS + 1, ..Page::default() };
    let stored = outbox.admin().list(&Filter::default(), &page).await.unwrap();
    assert_eq!(stored.len(), EVENTS);
    assert!(stored.iter().zip(&many).all(|(stored, written)| stored.id == *written.id()), "in another order");
}

#[tokio::test]
async fn case_14_empty_batch() {
    let database = Database::new().await;
    let (outbox, witness, _inbox) = database.outbox().await;
    let mut client = database.client().await;
    let mut tx = outbox.begin_on(&mut client).await.unwrap();
    assert!(tx.write_all(Vec::<Event>::new()).await.unwrap().is_empty());
    tx.commit().await.unwrap();
    let tx = client.transaction().await.unwrap();
    let receipt = outbox.write_all_in(&tx, Vec::<Event>::new()).await.unwrap();
    tx.commit().await.unwrap();
    receipt.dispatch();
    assert_eq!(witness.told(), []);
    assert_eq!(database.rows().await, 0);
    outbox.shutdown().await;
}

/// One bad event in a batch: none of them is written, and the transaction goes on as its owner likes.
#[tokio::test]
async fn case_14_all_or_none() {
    let database = Database::new().await;
    let (outbox, witness, _inbox) = database.outbox().await;
    let mut client = database.client().await;
    let mut tx = outbox.begin_on(&mut client).await.unwrap();
    let good = || Event::builder("Good").json_text("{}");
    let error = tx.write_all([good(), Event::builder("").json_text("{}"), good()]).await.unwrap_err();
    assert!(matches!(error, WriteError::Event(_)), "{error:?}");
    tx.write(event("good")).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(witness.told(), [told("commit", &["good"])]);
    assert_eq!(database.rows().await, 1);
    outbox.shutdown().await;
}

#[tokio::test]
async fn case_15_full_hot_queue() {
    let database = Database::new().await;
    let (tap, mut inbox) = Tap::new();
    let gate = Gate::new();
    let options = Options { hot_queue: 2, workers: 1, ..no_interval() };
    let (outbox, _) = posthaste_conformance::start(database.store().await, options, tap.behind(&gate)).await;
    let mut client = database.client().await;
    let mut tx = outbox.begin_on(&mut client).await.unwrap();
    tx.write_all(["a", "b", "c", "d", "e"].map(event)).await.unwrap();
    let promised = tx.query("SELECT event_id FROM outbox_event WHERE locked_by IS NOT NULL ORDER BY seq", &[]);
    let promised: Vec<String> = promised.await.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(promised, ["a", "b"], "promised a place, so leased");
    tx.commit().await.unwrap();
    gate.open();
    let mut hot = 0;
    for _ in 0..5 {
        hot += usize::from(inbox.next().await.path() == Path::Hot);
    }
    assert_eq!(hot, 2);
    outbox.shutdown().await;
    inbox.assert_empty();
}

#[tokio::test]
async fn case_16_delayed_events() {
    let database = Database::new().await;
    let (outbox, _, mut inbox) = database.outbox().await;
    let mut client = database.client().await;
    let late = Event::builder("Late").id("late").deliver_after(Duration::from_millis(50)).json_text("{}");
    let mut tx = outbox.begin_on(&mut client).await.unwrap();
    tx.write(late).await.unwrap();
    tx.write(event("next")).await.unwrap();
    let leased = tx.query_one("SELECT locked_by IS NOT NULL FROM outbox_event WHERE event_id = 'late'", &[]);
    assert!(!leased.await.unwrap().get::<_, bool>(0));
    tx.commit().await.unwrap();
    assert_eq!(inbox.arrival().await, ("next".to_owned(), Path::Hot));
    assert_eq!(inbox.arrival().await, ("late".to_owned(), Path::Cold));
    outbox.shutdown().await;
    inbox.assert_empty();
    let late = "SELECT available_at - created_at >= INTERVAL '50 ms' FROM outbox_event WHERE event_id = 'late'";
    assert!(client.query_one(late, &[]).await.unwrap().get::<_, bool>(0));
}

#[tokio::test]
async fn case_17_writer_only() {
    let database = Database::new().await;
    let witness = Witness::default();
    let store = database.store().await;
    let outbox = Outbox::writer_only(store).hook(witness.clone()).start().await.unwrap();
    let mut client = database.client().await;
    let mut tx = outbox.begin_on(&mut client).await.unwrap();
    let id = tx.write(event("a")).await.unwrap().unwrap();
    tx.commit().await.unwrap();
    assert_eq!(witness.told(), [told("commit", &["a"])]);
    assert!(outbox.shutdown().await.is_clean());
    let row = outbox.admin().find(&id).await.unwrap().unwrap();
    assert_eq!((row.state.status, row.state.lease), (Status::New, None));
}

/// A taken id reaches the writer as the store's typed error, and its place in the hot queue is free again.
#[tokio::test]
async fn case_21_duplicate_id() {
    let database = Database::new().await;
    let builder = Outbox::builder(database.store().await).options(Options { hot_queue: 1, ..no_interval() });
    let (builder, mut inbox) = listening(builder);
    let outbox = builder.start().await.unwrap();
    let mut client = database.client().await;
    let mut tx = outbox.begin_on(&mut client).await.unwrap();
    tx.write(event("taken")).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(inbox.arrival().await, ("taken".to_owned(), Path::Hot));
    let slices = [vec![event("taken")], vec![event("x"), event("taken"), event("y")], vec![event("z"), event("z")]];
    for (slice, expected) in slices.iter().zip(["taken", "taken", "z"]) {
        let mut tx = outbox.begin_on(&mut client).await.unwrap();
        let error = tx.write_all(slice).await.unwrap_err();
        assert!(
            matches!(&error, WriteError::Store { error: Error::DuplicateId { id }, .. } if *id == expected),
            "{error:?}"
        );
        tx.rollback().await.unwrap();
        let tx = client.transaction().await.unwrap();
        let error = outbox.write_all_in(&tx, slice).await.unwrap_err();
        assert!(
            matches!(&error, WriteError::Store { error: Error::DuplicateId { id }, .. } if *id == expected),
            "{error:?}"
        );
    }
    let mut tx = outbox.begin_on(&mut client).await.unwrap();
    tx.write(event("next")).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(inbox.arrival().await, ("next".to_owned(), Path::Hot));
    outbox.shutdown().await;
    inbox.assert_empty();
}

/// Everything can be awaited in a task that may change threads.
#[tokio::test]
async fn every_future_can_be_spawned() {
    let database = Database::new().await;
    let (outbox, _, mut inbox) = database.outbox().await;
    let mut client = database.client().await;
    let task = tokio::spawn({
        let outbox = outbox.clone();
        async move {
            let mut tx = outbox.begin_on(client.build_transaction().read_only(false)).await.unwrap();
            tx.write_all(["a", "b"].into_iter().map(event)).await.unwrap();
            let mut savepoint = tx.savepoint().await.unwrap();
            savepoint.write(event("c")).await.unwrap();
            savepoint.rollback().await.unwrap();
            let savepoint = tx.savepoint().await.unwrap();
            savepoint.commit().await.unwrap();
            tx.commit().await.unwrap();
            outbox.begin_on(&mut client).await.unwrap().rollback().await.unwrap();
            let tx = client.transaction().await.unwrap();
            let receipt = outbox.write_all_in(&tx, ["d"].into_iter().map(event)).await.unwrap();
            tx.commit().await.unwrap();
            receipt.dispatch();
        }
    });
    within("it is done", task).await.unwrap();
    for _ in ["a", "b", "d"] {
        inbox.next().await;
    }
    outbox.shutdown().await;
    inbox.assert_empty();
}

/// What else the database may say.
#[tokio::test]
async fn errors_have_their_kind() {
    let database = Database::new().await;
    let store = database.store().await;
    let outbox = Outbox::writer_only(store.clone()).start().await.unwrap();
    let nowhere = Outbox::writer_only(store.with_table("nowhere").unwrap()).start().await.unwrap();
    let mut client = database.client().await;
    let kind = |error: WriteError| match error {
        WriteError::Store { error, .. } => error,
        other => panic!("{other:?}"),
    };

    let mut tx = nowhere.begin_on(&mut client).await.unwrap();
    let error = kind(tx.write(event("a")).await.unwrap_err());
    assert!(matches!(&error, Error::Schema { table, .. } if table == "nowhere"), "{error:?}");
    drop(tx);
    let mut tx = outbox.begin_on(client.build_transaction().read_only(true)).await.unwrap();
    let error = kind(tx.write(event("a")).await.unwrap_err());
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    drop(tx);
    let mut tx = outbox.begin_on(&mut client).await.unwrap();
    tx.query_one("SELECT 1 / 0", &[]).await.unwrap_err();
    let error = kind(tx.write(event("a")).await.unwrap_err());
    assert!(matches!(error, Error::Refused(_)), "{error:?}");
    drop(tx);
    let mut tx = outbox.begin_on(&mut client).await.unwrap();
    database.terminate("state = 'idle in transaction'").await;
    let error = kind(tx.write(event("a")).await.unwrap_err());
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    drop(tx);
    let error = outbox.begin_on(&mut client).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
}
