//! Claims and settlements.

use std::time::{Duration, Instant};

use posthaste_core::EventId;
use posthaste_core::store::{Action, AdminStore, Lease, RelayStore, Settled, Settlement, Status};
use posthaste_sql::{Partitions, PgStore};

use super::support::{Database, claim, sql, write};
use crate::support::{event, ids, settle_all};

/// A store with another table, in partitions.
async fn partitioned(database: &Database) -> PgStore {
    let store = database.empty().await.with_table("parts").unwrap().partitioned(Partitions::daily());
    store.migrate().await.unwrap();
    store
}

#[tokio::test]
async fn a_batch_is_answered_row_by_row_in_its_order_even_with_repeated_ids() {
    let database = Database::new().await;
    let store = database.store().await;
    let odd = "q\"u'o\\t{,}\u{e9}\u{1f600}\n";
    write(&store, ["a", "b", "c", "d", odd].map(event)).await;
    let (lease, _) = claim(&store, 10).await;
    let other = Lease::new("other", 1);
    let settle = |id: &str, lease: &Lease, action| Settlement::new(EventId::from_row(id), lease.clone(), action);
    let delay = Duration::from_secs(60);
    let answers = store
        .settle(&[
            settle("a", &other, Action::Done),
            settle("b", &lease, Action::Release),
            settle("a", &lease, Action::Retry { delay, error: "no\0".to_owned() }),
            settle("a", &lease, Action::Done),
            settle(odd, &lease, Action::Done),
            settle("gone", &lease, Action::Done),
            settle("c", &lease, Action::Done),
            settle("b", &lease, Action::Done),
            settle("c", &lease, Action::Dead { error: String::new(), counts: true }),
            settle("d", &lease, Action::Defer { delay }),
        ])
        .await
        .unwrap();
    use Settled::{Applied, Lost};
    assert_eq!(answers, [Lost, Applied, Applied, Lost, Applied, Lost, Applied, Lost, Lost, Applied]);
    let state = async |id: &str| store.find(&EventId::from_row(id)).await.unwrap().unwrap().state;
    let a = state("a").await;
    assert_eq!((a.status, a.attempts, a.last_error.as_deref()), (Status::Retry, 1, Some("no\u{fffd}")));
    assert_eq!((state("c").await.status, state(odd).await.status), (Status::Done, Status::Done));
    assert_eq!(ids(&claim(&store, 10).await.1), ["b"]);
}

/// Each row is fenced by its own lease, and not by any of the leases of its batch.
#[tokio::test]
async fn leases_of_one_batch_do_not_stand_in_for_each_other() {
    let database = Database::new().await;
    let store = database.store().await;
    write(&store, ["a", "b"].map(event)).await;
    let (first, of_a) = claim(&store, 1).await;
    let (second, of_b) = claim(&store, 1).await;
    let mut crossed = settle_all(&second, &of_a, &Action::Done);
    crossed.extend(settle_all(&first, &of_b, &Action::Done));
    assert_eq!(store.settle(&crossed).await.unwrap(), [Settled::Lost; 2]);
    for settlement in &mut crossed {
        settlement.seq = None;
    }
    assert_eq!(store.settle(&crossed).await.unwrap(), [Settled::Lost; 2]);
    let mut right = settle_all(&second, &of_b, &Action::Done);
    right.extend(settle_all(&first, &of_a, &Action::Done));
    assert_eq!(store.settle(&right).await.unwrap(), [Settled::Applied; 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settlements_that_cross_do_not_lock_each_other_out() {
    let database = Database::new().await;
    let store = database.store().await;
    write(&store, (0..200).map(|n| event(&format!("{n:03}")))).await;
    let (lease, claimed) = claim(&store, 200).await;
    let forwards = settle_all(&lease, &claimed, &Action::Release);
    let backwards: Vec<_> = forwards.iter().rev().cloned().collect();
    // Under the lease of somebody else they wait for the rows, and find that they have lost them.
    let lost: Vec<_> =
        backwards.iter().map(|settlement| Settlement { lease: Lease::new("other", 1), ..settlement.clone() }).collect();
    let tasks: Vec<_> = [forwards, backwards, lost.clone(), lost]
        .into_iter()
        .map(|settlements| {
            let store = store.clone();
            tokio::spawn(async move { store.settle(&settlements).await.unwrap() })
        })
        .collect();
    let mut applied = 0;
    for task in tasks {
        applied += task.await.unwrap().iter().filter(|settled| **settled == Settled::Applied).count();
    }
    assert_eq!(applied, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_pass_by_rows_that_somebody_has_locked() {
    let database = Database::new().await;
    let store = database.store().await;
    write(&store, ["a", "b", "c"].map(event)).await;
    let mut tx = store.pool().begin().await.unwrap();
    sqlx::query("SELECT 1 FROM outbox_event WHERE event_id = 'b' FOR UPDATE").execute(&mut *tx).await.unwrap();
    assert_eq!(ids(&claim(&store, 10).await.1), ["a", "c"]);
    tx.rollback().await.unwrap();
    assert_eq!(ids(&claim(&store, 10).await.1), ["b"]);
}

#[tokio::test]
async fn what_a_claim_has_just_missed_is_come_back_for_but_not_what_is_in_hand() {
    let database = Database::new().await;
    for store in [database.store().await, partitioned(&database).await] {
        write(&store, ["a", "b"].map(event)).await;
        assert_eq!(ids(&claim(&store, 1).await.1), ["a"]);
        let mut tx = store.pool().begin().await.unwrap();
        let lock = format!("SELECT 1 FROM {} WHERE event_id = 'b' FOR UPDATE", store.table());
        sqlx::query(sqlx::AssertSqlSafe(lock)).execute(&mut *tx).await.unwrap();
        let missed = claim(&store, 10).await.1;
        assert_eq!(missed.rows.len(), 0);
        assert!(missed.next_in.is_some_and(|soon| soon < Duration::from_millis(100)), "{:?}", missed.next_in);
        tx.rollback().await.unwrap();
        assert_eq!(ids(&claim(&store, 10).await.1), ["b"]);
        // On a busy machine claims may be slow, and one that begins at a mark wants another one soon.
        let mut nothing = claim(&store, 10).await.1;
        for _ in 0..20 {
            let Some(again) = nothing.next_in else { break };
            assert!(again <= Duration::from_secs(5));
            tokio::time::sleep(again).await;
            nothing = claim(&store, 10).await.1;
        }
        assert_eq!(nothing.next_in, None);
    }
}

#[tokio::test]
async fn only_held_leases_are_renewed() {
    let database = Database::new().await;
    let store = database.store().await;
    write(&store, ["a", "b", "c"].map(event)).await;
    let (lease, claimed) = claim(&store, 2).await;
    store.settle(&settle_all(&lease, &claimed, &Action::Done)[1..]).await.unwrap();
    sql(&store, "UPDATE outbox_event SET locked_at = now() - interval '1 day' WHERE locked_at IS NOT NULL").await;
    let other = Lease::new("other", 1);
    let leases: Vec<_> = [("a", &other), ("a", &lease), ("b", &lease), ("c", &lease), ("a", &lease)]
        .map(|(id, lease)| (EventId::from_row(id), lease.clone()))
        .into();
    assert_eq!(store.renew(&leases).await.unwrap(), [false, true, false, false, true]);
    assert_eq!(ids(&claim(&store, 10).await.1), ["c"]);
    assert_eq!(store.release_all().await.unwrap(), 2);
    assert_eq!(ids(&claim(&store, 10).await.1), ["a", "c"]);
}

#[tokio::test]
async fn moments_without_end_are_never_due_and_break_nothing() {
    let database = Database::new().await;
    let store = database.store().await;
    write(&store, ["now", "never", "always"].map(event)).await;
    sql(&store, "UPDATE outbox_event SET available_at = 'infinity' WHERE event_id = 'never'").await;
    sql(&store, "UPDATE outbox_event SET available_at = '-infinity' WHERE event_id = 'always'").await;
    let (_, claimed) = claim(&store, 10).await;
    assert_eq!(ids(&claimed), ["always", "now"]);
    assert!(claimed.next_in.unwrap() > Duration::from_secs(1_000_000_000));
    assert_eq!(store.list(&Default::default(), &Default::default()).await.unwrap().len(), 3);
}

/// A row may become due while a claim that has not seen it is on its way back.
#[tokio::test]
async fn what_becomes_due_during_a_claim_is_looked_for_soon() {
    let database = Database::new().await;
    let store = database.store().await;
    sql(
        &store,
        "CREATE FUNCTION rest() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(2); RETURN NULL; END $$; \
         CREATE TRIGGER rest AFTER UPDATE ON outbox_event FOR EACH STATEMENT EXECUTE FUNCTION rest()",
    )
    .await;
    let soon = event("soon").to_builder().deliver_after(Duration::from_millis(1500)).build().unwrap();
    write(&store, [soon]).await;
    let (_, claimed) = claim(&store, 10).await;
    assert_eq!((ids(&claimed), claimed.next_in), (vec![], Some(Duration::from_millis(5))));
    sql(&store, "DROP TRIGGER rest ON outbox_event").await;
    let (_, claimed) = claim(&store, 10).await;
    assert_eq!(ids(&claimed), ["soon"]);
    // It is leased now, and nothing to look for.
    assert_eq!(claim(&store, 10).await.1.next_in, None);
}

/// Claims of a busy relay begin where the last ones found something. What is before that is found all the same, soon.
#[tokio::test]
async fn a_row_that_comes_back_behind_the_mark_is_found_soon() {
    let database = Database::new().await;
    let store = database.store().await;
    write(&store, (0..12).map(|n| event(&format!("{n:02}")))).await;
    sql(&store, "UPDATE outbox_event SET available_at = available_at - interval '1 minute' WHERE event_id = '00'")
        .await;
    let (first, old) = claim(&store, 1).await;
    assert_eq!(ids(&old), ["00"]);
    for n in 1..12 {
        assert_eq!(ids(&claim(&store, 1).await.1), [format!("{n:02}")]);
    }
    let given_back = settle_all(&first, &old, &Action::Release);
    assert_eq!(store.settle(&given_back).await.unwrap(), [Settled::Applied]);

    let begun_at = Instant::now();
    loop {
        let (_, claimed) = claim(&store, 1).await;
        if ids(&claimed) == ["00"] {
            break;
        }
        let next_in = claimed.next_in.expect("a claim that did not look at everything says when to come back");
        assert!(begun_at.elapsed() < Duration::from_secs(30), "not found");
        tokio::time::sleep(next_in).await;
    }
}

#[tokio::test]
async fn a_row_of_a_claim_whose_lease_was_lost_is_named_and_kept() {
    for deleting in [false, true] {
        let database = Database::new().await;
        let store = database.store().await;
        let store = if deleting { store.deleting_done() } else { store };
        write(&store, (0..9).map(|n| event(&n.to_string()))).await;
        let (lease, claimed) = claim(&store, 9).await;
        sql(&store, "UPDATE outbox_event SET locked_by = 'another/1' WHERE event_id = '4'").await;

        let settled = store.settle(&settle_all(&lease, &claimed, &Action::Done)).await.unwrap();
        let expected: Vec<_> = (0..9).map(|n| if n == 4 { Settled::Lost } else { Settled::Applied }).collect();
        assert_eq!(settled, expected);
        let kept = store.find(&EventId::from_row("4")).await.unwrap().unwrap().state;
        assert_eq!((kept.status, kept.lease.map(|(owner, _)| owner)), (Status::New, Some("another/1".to_owned())));
        let counts = store.counts().await.unwrap();
        assert_eq!((counts.done, counts.total()), if deleting { (0, 1) } else { (8, 9) });
    }
}

/// What of rows a relay changes, by their ids.
async fn leases(store: &PgStore, table: &str) -> Vec<(String, i16, Option<String>)> {
    let query = format!("SELECT event_id, status, locked_by FROM ONLY {table} ORDER BY event_id");
    sqlx::query_as(sqlx::AssertSqlSafe(query)).fetch_all(store.pool()).await.unwrap()
}

/// A table with heirs has rows with the same place and the same number in several tables.
#[tokio::test]
async fn rows_of_heirs_are_claimed_and_told_apart() {
    let database = Database::new().await;
    let store = database.store().await;
    sql(&store, "CREATE TABLE heir () INHERITS (outbox_event)").await;
    write(&store, ["a", "b"].map(event)).await;
    let copy = "INSERT INTO heir SELECT * FROM ONLY outbox_event ORDER BY seq";
    sql(&store, copy).await;
    sql(&store, "UPDATE heir SET event_id = event_id || ' of the heir', status = seq % 2").await;
    let (lease, claimed) = claim(&store, 10).await;
    let mut claimed_ids = ids(&claimed);
    claimed_ids.sort_unstable();
    assert_eq!(claimed_ids, ["a", "b", "b of the heir"]);
    let settled = store.settle(&settle_all(&lease, &claimed, &Action::Done)[..1]).await.unwrap();
    assert_eq!(settled, [Settled::Applied]);
    let left: Vec<_> = leases(&store, "outbox_event").await.into_iter().chain(leases(&store, "heir").await).collect();
    assert_eq!(left.iter().filter(|(_, _, lease)| lease.is_some()).count(), 2, "{left:?}");
}

/// It may get heirs, or partitions, while a relay is at work that has asked before.
#[tokio::test]
async fn a_table_that_is_no_longer_one_is_not_mistaken_for_one() {
    for deleting in [false, true] {
        let database = Database::new().await;
        let mut store = database.store().await;
        if deleting {
            store = store.deleting_done();
        }
        write(&store, ["a", "b", "c"].map(event)).await;
        let (lease, claimed) = claim(&store, 2).await;
        assert_eq!(ids(&claimed), ["a", "b"]);
        sql(&store, "CREATE TABLE heir () INHERITS (outbox_event)").await;
        // One that is held moves there, beside others with the same numbers and places, held under the same lease and not.
        sql(&store, "INSERT INTO heir SELECT * FROM ONLY outbox_event ORDER BY seq").await;
        sql(&store, "UPDATE heir SET event_id = 'other ' || event_id WHERE event_id <> 'b'").await;
        sql(&store, "DELETE FROM ONLY outbox_event WHERE event_id = 'b'").await;
        let settlements = settle_all(&lease, &claimed, &Action::Done);
        assert_eq!(store.settle(&settlements).await.unwrap(), [Settled::Applied; 2]);
        let before = leases(&store, "heir").await;
        let held: Vec<_> = before.iter().filter(|(_, _, lease)| lease.is_some()).map(|(id, ..)| &**id).collect();
        assert_eq!(held, ["other a"], "{before:?}");
        assert_eq!(ids(&claim(&store, 10).await.1), ["c"]);
        assert_eq!(leases(&store, "heir").await, before);
    }
}
