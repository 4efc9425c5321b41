//! Retention by dropping what is old as a whole.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use posthaste_core::store::{AdminStore, Error, Purge, RelayStore};
use posthaste_core::{Delivery, Options, Outbox};
use sqlx::Connection;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

use super::super::support::{Database, claim, eventually, sql, write};
use super::{DAY, daily, fallen, forget, insert, make, name_of, names};
use crate::support::{claim_of, event};

const NEW: i16 = 0;
const DONE: i16 = 1;
const RETRY: i16 = 2;
const DEAD: i16 = 3;

/// What is done is kept for two days.
fn two_days() -> Purge {
    Purge { done_after: Some(2 * DAY), ..Purge::default() }
}

async fn all_ids(database: &Database) -> Vec<String> {
    let mut connection = database.connection().await;
    sqlx::query_scalar("SELECT event_id FROM outbox_event ORDER BY event_id").fetch_all(&mut connection).await.unwrap()
}

#[tokio::test]
async fn old_partitions_are_dropped_unless_something_in_them_is_needed() {
    let database = Database::new().await;
    let store = daily(&database).await;
    for days_ago in 1..=10 {
        make(&store, days_ago).await;
        insert(&store, &format!("done {days_ago:02}"), DONE, days_ago, Some(days_ago)).await;
    }
    insert(&store, "new", NEW, 9, None).await;
    insert(&store, "failed", RETRY, 8, None).await;
    insert(&store, "dead", DEAD, 7, Some(7)).await;
    insert(&store, "done late", DONE, 6, Some(1)).await;
    insert(&store, "leased", NEW, 5, None).await;
    sql(&store, "UPDATE outbox_event SET locked_by = 'a/1', locked_at = now() WHERE event_id = 'leased'").await;
    // Somebody else ended it, without saying when.
    insert(&store, "done at some time", DONE, 4, None).await;
    insert(&store, "long ago", DONE, 20, Some(20)).await;

    assert_eq!(store.maintain(&Purge::default()).await.unwrap().dropped, 0, "everything is kept for ever");
    assert_eq!(store.maintain(&two_days()).await.unwrap().dropped, 3);
    assert_eq!(store.maintain(&two_days()).await.unwrap().dropped, 0);
    let mut expected = Vec::new();
    // Of three days ago, all was done before two days ago.
    for days_ago in [9, 8, 7, 6, 5, 2, 1, 0, -1, -2, -3] {
        expected.push(name_of(&store, days_ago).await);
    }
    assert_eq!(names(&store).await, expected);

    // What is done is deleted where it could not be dropped, but not where it still may be, unless somebody insists.
    let by_parts = Purge { by_parts: true, ..two_days() };
    assert_eq!(store.purge(&by_parts).await.unwrap(), 6);
    assert_eq!(store.purge(&by_parts).await.unwrap(), 0);
    let kept = ["dead", "done 01", "done 02", "done late", "failed", "leased", "new"];
    assert_eq!(all_ids(&database).await, kept);
    let insist = Purge { done_after: Some(DAY * 3 / 2), ..Purge::default() };
    assert_eq!(store.purge(&insist).await.unwrap(), 1);
    assert_eq!(fallen(&store).await, 0);

    let dead_too = Purge { dead_after: Some(2 * DAY), ..two_days() };
    assert_eq!(store.maintain(&dead_too).await.unwrap().dropped, 1);
    assert_eq!(all_ids(&database).await, ["done 01", "done late", "failed", "leased", "new"]);
    // Delivered at last.
    sql(&store, "UPDATE outbox_event SET status = 1, done_at = now() - INTERVAL '3 days' WHERE event_id = 'new'").await;
    assert_eq!(store.maintain(&two_days()).await.unwrap().dropped, 1);
    assert_eq!(all_ids(&database).await, ["done 01", "done late", "failed", "leased"]);
}

/// What is warned of, with its values.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }

    fn event(&self, event: &Event<'_>) {
        struct Text(String);
        impl Visit for Text {
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                self.0 += &format!("{}={value:?} ", field.name());
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

#[tokio::test]
async fn an_old_partition_is_kept_for_the_head_of_a_closed_key() {
    let database = Database::new().await;
    let store = daily(&database).await;
    store.prepare_lanes().await.unwrap();
    for days_ago in [5, 6] {
        make(&store, days_ago).await;
        insert(&store, &format!("dead {days_ago}"), DEAD, days_ago, Some(days_ago)).await;
    }
    sql(
        &store,
        "INSERT INTO outbox_event_key (aggregate_type, aggregate_id, lane, state, head_seq, head_id, since) \
         SELECT 'Order', '7', 0, 2, seq, event_id, now() FROM outbox_event WHERE event_id = 'dead 5'",
    )
    .await;
    let kept = Purge { dead_after: Some(2 * DAY), ..Purge::default() };
    assert_eq!(store.maintain(&kept).await.unwrap().dropped, 1);
    assert_eq!(all_ids(&database).await, ["dead 5"]);
    // Somebody has decided.
    sql(&store, "UPDATE outbox_event_key SET state = 1").await;
    assert_eq!(store.maintain(&kept).await.unwrap().dropped, 1);
}

#[tokio::test]
async fn an_old_partition_with_pending_rows_is_warned_of_once_for_each_number() {
    let database = Database::new().await;
    let store = daily(&database).await;
    make(&store, 9).await;
    insert(&store, "a", NEW, 9, None).await;
    let name = name_of(&store, 9).await;
    let warnings = Warnings::default();
    let _guard = tracing::subscriber::set_default(warnings.clone());
    for pending in [1, 2] {
        for _ in 0..3 {
            assert_eq!(store.maintain(&two_days()).await.unwrap().dropped, 0);
        }
        let told = std::mem::take(&mut *warnings.0.lock().unwrap());
        let [told] = &told[..] else { panic!("{told:?}") };
        assert!(told.contains(&name) && told.contains(&format!("pending={pending} ")), "{told}");
        insert(&store, &format!("another {pending}"), RETRY, 9, None).await;
    }
}

#[tokio::test]
async fn too_many_partitions_are_warned_of_once() {
    let database = Database::new().await;
    let store = daily(&database).await;
    let warnings = Warnings::default();
    let _guard = tracing::subscriber::set_default(warnings.clone());
    let mut told = Vec::new();
    // With the one for everything else, the current one and those ahead, there are a hundred.
    for days_ago in 1..=95 {
        make(&store, days_ago).await;
    }
    for days_ago in 96..=98 {
        store.maintain(&Purge::default()).await.unwrap();
        told.extend(std::mem::take(&mut *warnings.0.lock().unwrap()));
        assert_eq!(told.len(), usize::from(days_ago > 96), "{told:?}");
        make(&store, days_ago).await;
    }
    assert!(told[0].contains("partitions=101 "), "{told:?}");
}

#[tokio::test]
async fn tables_that_are_only_appended_to_lose_their_old_partitions_with_all_rows() {
    let database = Database::new().await;
    let store = daily(&database).await;
    for days_ago in 1..=5 {
        make(&store, days_ago).await;
        insert(&store, &format!("new {days_ago}"), NEW, days_ago, None).await;
    }
    let purge = Purge { any_after: Some(2 * DAY), ..Purge::default() };
    assert_eq!(store.maintain(&purge).await.unwrap().dropped, 3);
    assert_eq!(all_ids(&database).await, ["new 1", "new 2"]);
    assert_eq!(store.purge(&Purge { by_parts: true, ..purge }).await.unwrap(), 0);
}

#[tokio::test]
async fn a_writer_in_a_long_transaction_keeps_nobody_from_writing() {
    let database = Database::new().await;
    let store = daily(&database).await;
    make(&store, 9).await;
    insert(&store, "old", DONE, 9, Some(9)).await;
    let ahead = name_of(&store, -3).await;
    sql(&store, format!("DROP TABLE {ahead}")).await;

    let mut long = database.connection().await;
    let mut tx = long.begin().await.unwrap();
    sqlx::raw_sql("INSERT INTO outbox_event (event_id, event_type, payload) VALUES ('long', 'x', '{}')")
        .execute(&mut *tx)
        .await
        .unwrap();
    let mut slowest = Duration::ZERO;
    let maintaining = async {
        let maintained = store.maintain(&two_days()).await;
        assert!(matches!(maintained, Err(Error::Busy(_))), "{maintained:?}");
    };
    let writing = async {
        for number in 0..20 {
            let started_at = Instant::now();
            write(&store, [event(&number.to_string())]).await;
            store.claim(&claim_of(1)).await.unwrap();
            slowest = slowest.max(started_at.elapsed());
        }
    };
    tokio::join!(maintaining, writing);
    assert!(slowest < Duration::from_secs(5), "a writer waited for {slowest:?}");
    let there = names(&store).await;
    assert!(there.contains(&ahead), "partitions are made beside writers");
    assert_eq!(there[0], name_of(&store, 9).await);
    tx.commit().await.unwrap();
    assert_eq!(store.maintain(&two_days()).await.unwrap().dropped, 1);
    assert_eq!(claim(&store, 30).await.1.rows.len(), 1);
}

#[tokio::test]
async fn a_reader_in_a_long_transaction_keeps_nobody_from_writing() {
    let database = Database::new().await;
    let store = daily(&database).await;
    let ahead = name_of(&store, -3).await;
    sql(&store, format!("DROP TABLE {ahead}")).await;
    let mut long = database.connection().await;
    let mut tx = long.begin().await.unwrap();
    sqlx::raw_sql("SELECT count(*) FROM outbox_event").execute(&mut *tx).await.unwrap();

    let maintaining = async {
        let started_at = Instant::now();
        let maintained = store.maintain_partitions().await;
        assert!(matches!(maintained, Err(Error::Busy(_))), "{maintained:?}");
        assert!(started_at.elapsed() < Duration::from_secs(20), "it gives up soon");
        store.migrate().await.unwrap();
    };
    let writing = async {
        for number in 0..20 {
            write(&store, [event(&number.to_string())]).await;
            assert_eq!(claim(&store, 10).await.1.rows.len(), 1);
        }
    };
    tokio::join!(maintaining, writing);
    assert!(!names(&store).await.contains(&ahead));
    tx.rollback().await.unwrap();
    store.maintain_partitions().await.unwrap();
    assert!(names(&store).await.contains(&ahead));
}

#[tokio::test]
async fn an_outbox_looks_after_its_partitions_by_itself() {
    let database = Database::new().await;
    let store = daily(&database).await;
    forget(&store).await;
    write(&store, [event("fallen")]).await;
    make(&store, 9).await;
    insert(&store, "old", DONE, 9, Some(9)).await;
    let (sender, mut delivered) = tokio::sync::mpsc::unbounded_channel();
    let listener = move |event: Delivery| {
        sender.send(event.id().to_string()).unwrap();
        std::future::ready(())
    };
    let options =
        Options { retention_done: Some(2 * DAY), retention_interval: Duration::from_millis(20), ..Options::default() };
    let outbox = Outbox::builder(store.clone()).options(options).listen_all(listener).start().await.unwrap();
    assert_eq!(delivered.recv().await.unwrap(), "fallen");
    let expected = name_of(&store, 0).await;
    eventually("the old one is dropped", async || names(&store).await.first() == Some(&expected)).await;
    eventually("all are made", async || names(&store).await.len() == 4 && fallen(&store).await == 0).await;
    // And goes on with it.
    make(&store, 9).await;
    eventually("the old one is dropped", async || names(&store).await.len() == 4).await;
    outbox.shutdown().await;

    // A writer does, too, and also where everything is kept.
    forget(&store).await;
    let writer = Outbox::writer_only(store.clone()).start().await.unwrap();
    eventually("all are made", async || names(&store).await.len() == 4).await;
    writer.shutdown().await;
}
