//! Claims and settlements.

use std::collections::HashSet;
use std::time::Duration;

use posthaste_core::EventId;
use posthaste_core::store::{
    Action, AdminStore, Lease, Malformed, RelayStore, Settled, Settlement, Status, WriteStore,
};
use posthaste_sql::MySqlStore;

use super::{Database, execute, until_waiting};
use crate::support::{claim, claim_of, event, ids, settle_all, unleased, write};

#[tokio::test]
async fn rows_that_are_no_events_are_malformed_and_hold_up_no_others() {
    let database = Database::new().await;
    let store = database.store().await;
    let damage = [
        ("headers", "headers = '['"),
        ("negative", "attempts = -1"),
        ("payload", "payload = '{'"),
        ("both", "payload_bytes = x'00'"),
        ("none", "payload = NULL"),
        ("type", "event_type = ''"),
    ];
    write(&store, damage.map(|(id, _)| event(id)).into_iter().chain([event("good")])).await;
    for (id, set) in damage {
        execute(&store, &format!("UPDATE outbox_event SET {set} WHERE event_id = '{id}'")).await;
    }

    let (lease, claimed) = claim(&store, 100).await;
    assert_eq!(ids(&claimed), ["good"]);
    let malformed: Vec<_> = claimed.malformed.iter().map(|row| row.id.as_str()).collect();
    assert_eq!(malformed, damage.map(|(id, _)| id));

    // They can be made DEAD, and looked at.
    let dead = |row: &Malformed| {
        let action = Action::Dead { error: row.reason.clone(), counts: false };
        Settlement::new(row.id.clone(), lease.clone(), action)
    };
    let settled = store.settle(&claimed.malformed.iter().map(dead).collect::<Vec<_>>()).await.unwrap();
    assert_eq!(settled, [Settled::Applied; 6]);
    let record = store.find(&EventId::from_row("headers")).await.unwrap().unwrap();
    assert_eq!((record.state.status, record.event.is_err()), (Status::Dead, true));
}

#[tokio::test]
async fn a_batch_is_answered_row_by_row_in_its_order_even_with_repeated_ids() {
    let database = Database::new().await;
    let store = database.store().await;
    let odd = "q\"u'o\\t\u{e9}\u{1f600}\n";
    write(&store, ["a", "b", "c", "d", odd].map(event)).await;
    let (lease, claimed) = claim(&store, 10).await;
    let other = Lease::new("other", 1);
    let settle = |id: &str, lease: &Lease, action| Settlement::new(EventId::from_row(id), lease.clone(), action);
    let delay = Duration::from_secs(60);
    let answers = store
        .settle(&[
            settle("a", &other, Action::Done),
            settle("b", &lease, Action::Release),
            settle("a", &lease, Action::Retry { delay, error: "no\0".to_owned() }),
            settle("a", &lease, Action::Done),
            Settlement { seq: Some(claimed.rows[4].seq), ..settle(odd, &lease, Action::Done) },
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
    assert!(a.lease.is_none() && a.available_at > a.created_at + delay && a.done_at.is_none());
    let d = state("d").await;
    assert_eq!((d.status, d.attempts, d.last_error), (Status::New, 0, None));
    assert!(d.lease.is_none() && d.available_at > d.created_at + delay);
    assert_eq!((state("c").await.status, state(odd).await.status), (Status::Done, Status::Done));
    let (_, claimed) = claim(&store, 10).await;
    assert_eq!(ids(&claimed), ["b"]);
}

#[tokio::test]
async fn batches_of_every_kind_and_size_are_settled() {
    let database = Database::new().await;
    let store = database.store().await;
    for size in [1, 2, 3, 511, 513, 1500] {
        write(&store, (0..size).map(|n| event(&format!("{size}-{n}")))).await;
        let kinds = [
            Action::Release,
            Action::Retry { delay: Duration::ZERO, error: "é".repeat(5000) },
            Action::Defer { delay: Duration::ZERO },
            Action::Done,
        ];
        for (kind, action) in kinds.iter().enumerate() {
            let (lease, claimed) = claim(&store, 2000).await;
            assert_eq!(claimed.rows.len(), size);
            let mut settlements = settle_all(&lease, &claimed, action);
            // Half of them by id.
            settlements.iter_mut().step_by(2).for_each(|settlement| settlement.seq = None);
            let settled = store.settle(&settlements).await.unwrap();
            assert!(settled.iter().all(|settled| *settled == Settled::Applied), "{size} of kind {kind}");
            let again = store.settle(&settlements).await.unwrap();
            assert!(again.iter().all(|settled| *settled == Settled::Lost), "{size} of kind {kind}");
        }
    }
    let state = store.find(&EventId::from_row("3-2")).await.unwrap().unwrap().state;
    assert_eq!((state.status, state.attempts, state.lease), (Status::Done, 1, None));
    assert_eq!(state.last_error.unwrap(), "é".repeat(4000));
    assert!(state.done_at.unwrap() >= state.created_at);
}

#[tokio::test]
async fn only_held_leases_are_renewed() {
    let database = Database::new().await;
    let store = database.store().await;
    write(&store, ["a", "b", "c"].map(event)).await;
    let (lease, claimed) = claim(&store, 2).await;
    store.settle(&settle_all(&lease, &claimed, &Action::Done)[1..]).await.unwrap();
    execute(&store, "UPDATE outbox_event SET locked_at = locked_at - INTERVAL 1 HOUR").await;

    let other = Lease::new("other", 1);
    let leases: Vec<_> = [("a", &other), ("a", &lease), ("b", &lease), ("c", &lease), ("a", &lease)]
        .map(|(id, lease)| (EventId::from_row(id), lease.clone()))
        .into();
    assert_eq!(store.renew(&leases).await.unwrap(), [false, true, false, false, true]);
    assert_eq!(store.renew(&leases[1..2]).await.unwrap(), [true]);
    assert_eq!(ids(&claim(&store, 10).await.1), ["c"]);
    assert_eq!(store.release_all().await.unwrap(), 2);
    assert_eq!(ids(&claim(&store, 10).await.1), ["a", "c"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_of_two_pools_never_overlap() {
    for skip_locked in [true, false] {
        let database = Database::new().await;
        let store = database.store().await.with_skip_locked(skip_locked);
        write(&store, (0..400).map(|n| event(&n.to_string()))).await;
        let second = MySqlStore::new(database.pool(4).await).with_skip_locked(skip_locked);
        let tasks: Vec<_> = (0..8)
            .map(|n| {
                let store = if n % 2 == 0 { store.clone() } else { second.clone() };
                tokio::spawn(async move {
                    let mut mine = Vec::new();
                    loop {
                        let (lease, claimed) = claim(&store, 7).await;
                        if claimed.rows.is_empty() {
                            return mine;
                        }
                        let settled = store.settle(&settle_all(&lease, &claimed, &Action::Done)).await.unwrap();
                        assert!(settled.iter().all(|settled| *settled == Settled::Applied));
                        mine.extend(claimed.rows.into_iter().map(|row| row.event.id().to_string()));
                    }
                })
            })
            .collect();
        let mut all = Vec::new();
        for task in tasks {
            all.extend(task.await.unwrap());
        }
        // A claim passes by what others have locked, and may find nothing while they decide.
        while store.counts().await.unwrap().pending() > 0 {
            let (lease, claimed) = claim(&store, 100).await;
            store.settle(&settle_all(&lease, &claimed, &Action::Done)).await.unwrap();
            all.extend(claimed.rows.into_iter().map(|row| row.event.id().to_string()));
        }
        assert_eq!(all.len(), 400, "skip_locked {skip_locked}");
        assert_eq!(all.into_iter().collect::<HashSet<_>>().len(), 400, "skip_locked {skip_locked}");
    }
}

#[tokio::test]
async fn claims_pass_by_rows_that_somebody_has_locked() {
    let database = Database::new().await;
    let store = database.store().await;
    write(&store, ["1", "2", "3"].map(event)).await;
    let mut tx = store.begin().await.unwrap();
    sqlx::query("UPDATE outbox_event SET topic = 'x' WHERE event_id = '1'").execute(&mut *tx).await.unwrap();
    assert_eq!(ids(&claim(&store, 1).await.1), ["2"]);

    // Where the server cannot, they wait for it.
    let waiting = store.clone().with_skip_locked(false);
    let waiting = tokio::spawn(async move { waiting.claim(&claim_of(10)).await });
    until_waiting(&database, 1).await;
    store.commit(tx).await.unwrap();
    assert_eq!(ids(&waiting.await.unwrap().unwrap()), ["1", "3"]);
}

#[tokio::test]
async fn writers_and_claims_do_not_wait_for_each_other() {
    let database = Database::new().await;
    let store = database.store().await;
    write(&store, ["1", "2"].map(event)).await;
    // An insert that is not committed holds up no claim.
    let mut tx = store.begin().await.unwrap();
    store.insert(&mut tx, &unleased([event("open")])).await.unwrap();
    for skip_locked in [true, false] {
        let store = store.clone().with_skip_locked(skip_locked);
        let (lease, claimed) = claim(&store, 10).await;
        assert_eq!(ids(&claimed), if skip_locked { vec!["1", "2"] } else { vec![] });
        assert_eq!(store.settle(&settle_all(&lease, &claimed, &Action::Done)).await.unwrap().len(), claimed.rows.len());
        if skip_locked {
            store.commit(tx).await.unwrap();
            tx = store.begin().await.unwrap();
            assert_eq!(ids(&claim(&store, 10).await.1), ["open"]);
        }
    }

    // Nor does a claim that is not committed hold up an insert.
    write(&store, [event("3")]).await;
    let mut claiming =
        store.pool().begin_with("SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION").await.unwrap();
    let locked = sqlx::query(
        "SELECT seq FROM outbox_event WHERE stage = 0 AND stage_at <= UTC_TIMESTAMP(6) \
         ORDER BY stage_at, seq LIMIT 10 FOR UPDATE SKIP LOCKED",
    );
    assert_eq!(locked.fetch_all(&mut *claiming).await.unwrap().len(), 2);
    sqlx::query("SET innodb_lock_wait_timeout = 1").execute(&mut *tx).await.unwrap();
    store.insert(&mut tx, &unleased([event("4")])).await.unwrap();
    store.commit(tx).await.unwrap();
    claiming.rollback().await.unwrap();
}

#[tokio::test]
async fn a_claim_that_passed_something_by_is_to_look_again_soon() {
    let database = Database::new().await;
    let store = database.store().await;
    write(&store, [event("1")]).await;
    let mut tx = store.begin().await.unwrap();
    sqlx::query("UPDATE outbox_event SET topic = 'x' WHERE event_id = '1'").execute(&mut *tx).await.unwrap();
    let (_, claimed) = claim(&store, 10).await;
    assert!(claimed.rows.is_empty());
    assert!(claimed.next_in.unwrap() < Duration::from_secs(1));
    store.rollback(tx).await.unwrap();
    let (_, claimed) = claim(&store, 10).await;
    assert_eq!((ids(&claimed), claimed.next_in), (vec!["1"], None));
}
