//! Claims and settlements.

use std::time::Duration;

use posthaste_core::EventId;
use posthaste_core::store::{Action, AdminStore, Lease, RelayStore, Settled, Settlement, Status};

use crate::support::{Database, claim, event, ids, settle_all, write};

#[tokio::test]
async fn rows_of_unexpected_types_are_malformed_and_hold_up_no_others() {
    let database = Database::new();
    let store = database.store().await;
    write(
        &store,
        ["good", "headers", "attempts", "negative", "payload", "utf8", "occurred", "both", "none"].map(event),
    )
    .await;
    let damage = [
        ("headers", "headers = x'00ff'"),
        ("attempts", "attempts = 'many'"),
        ("negative", "attempts = -1"),
        ("payload", "payload = x'7b7d'"),
        ("utf8", "payload = CAST(x'22ff22' AS TEXT)"),
        ("occurred", "occurred_at = 'yesterday'"),
        ("both", "payload_bytes = x'00'"),
        ("none", "payload = NULL"),
    ];
    for (id, set) in damage {
        let sql = format!("UPDATE outbox_event SET {set} WHERE event_id = '{id}'");
        sqlx::query(sqlx::AssertSqlSafe(sql)).execute(store.pool()).await.unwrap();
    }

    let (lease, claimed) = claim(&store, 100).await;
    assert_eq!(ids(&claimed), ["good"]);
    let malformed: Vec<_> = claimed.malformed.iter().map(|row| row.id.as_str()).collect();
    assert_eq!(malformed, damage.map(|(id, _)| id));
    assert_eq!(claimed.malformed[0].reason, "headers is not text in UTF-8");
    assert_eq!(claimed.malformed[1].reason, "attempts is not a whole number");

    // They can be made DEAD, and looked at.
    let dead = |row: &posthaste_core::store::Malformed| {
        let action = Action::Dead { error: row.reason.clone(), counts: false };
        Settlement::new(row.id.clone(), lease.clone(), action)
    };
    let settled = store.settle(&claimed.malformed.iter().map(dead).collect::<Vec<_>>()).await.unwrap();
    assert_eq!(settled, [Settled::Applied; 8]);
    let record = store.find(&EventId::from_row("headers")).await.unwrap().unwrap();
    assert_eq!((record.state.status, record.event.is_err()), (Status::Dead, true));
}

#[tokio::test]
async fn a_batch_is_answered_row_by_row_in_its_order_even_with_repeated_ids() {
    let database = Database::new();
    let store = database.store().await;
    let odd = "q\"u'o\\t\u{e9}\u{1f600}\n";
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
    assert!(a.lease.is_none() && a.available_at > a.created_at + delay && a.done_at.is_none());
    let d = state("d").await;
    assert_eq!((d.status, d.attempts, d.last_error), (Status::New, 0, None));
    assert!(d.lease.is_none() && d.available_at > d.created_at + delay);
    assert_eq!((state("c").await.status, state(odd).await.status), (Status::Done, Status::Done));
    let (_, claimed) = claim(&store, 10).await;
    assert_eq!(ids(&claimed), ["b"]);
}

#[tokio::test]
async fn a_settlement_that_the_database_undoes_changes_nothing_and_spoils_no_connection() {
    let database = Database::new();
    let store = database.store().await;
    write(&store, ["a", "b", "c"].map(event)).await;
    let (lease, claimed) = claim(&store, 10).await;
    let trigger = "CREATE TRIGGER no BEFORE UPDATE ON outbox_event WHEN new.status = 1 AND new.event_id = 'b' \
                   BEGIN SELECT RAISE(ROLLBACK, 'not b'); END";
    sqlx::query(trigger).execute(store.pool()).await.unwrap();
    let by_seq = |row: &posthaste_core::store::ClaimedRow| {
        let done = Settlement::new(row.event.id().clone(), lease.clone(), Action::Done);
        Settlement { seq: Some(row.seq), ..done }
    };
    let done: Vec<_> = claimed.rows.iter().map(by_seq).collect();

    let error = store.settle(&done).await.unwrap_err();
    assert!(format!("{error:?}").contains("not b"), "{error:?}");
    assert_eq!(store.counts().await.unwrap().new, 3);

    sqlx::query("DROP TRIGGER no").execute(store.pool()).await.unwrap();
    assert_eq!(store.settle(&done).await.unwrap(), [Settled::Applied; 3]);
    assert_eq!(store.counts().await.unwrap().done, 3);
}

#[tokio::test]
async fn only_held_leases_are_renewed() {
    let database = Database::new();
    let store = database.store().await;
    write(&store, ["a", "b", "c"].map(event)).await;
    let (lease, claimed) = claim(&store, 2).await;
    store.settle(&settle_all(&lease, &claimed, &Action::Done)[1..]).await.unwrap();
    sqlx::query("UPDATE outbox_event SET locked_at = 1 WHERE locked_at IS NOT NULL")
        .execute(store.pool())
        .await
        .unwrap();

    let other = Lease::new("other", 1);
    let leases: Vec<_> = [("a", &other), ("a", &lease), ("b", &lease), ("c", &lease), ("a", &lease)]
        .map(|(id, lease)| (EventId::from_row(id), lease.clone()))
        .into();
    assert_eq!(store.renew(&leases).await.unwrap(), [false, true, false, false, true]);
    assert_eq!(ids(&claim(&store, 10).await.1), ["c"]);
    assert_eq!(store.release_all().await.unwrap(), 2);
    assert_eq!(ids(&claim(&store, 10).await.1), ["a", "c"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_of_two_pools_never_overlap() {
    let database = Database::new();
    let store = database.store().await;
    write(&store, (0..400).map(|n| event(&n.to_string()))).await;
    let second = database.store().await;
    let tasks: Vec<_> = (0..8)
        .map(|n| {
            let store = if n % 2 == 0 { store.clone() } else { second.clone() };
            tokio::spawn(async move {
                let mut mine = Vec::new();
                loop {
                    let (_, claimed) = claim(&store, 7).await;
                    if claimed.rows.is_empty() {
                        return mine;
                    }
                    mine.extend(claimed.rows.into_iter().map(|row| row.event.id().to_string()));
                }
            })
        })
        .collect();
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.unwrap());
    }
    assert_eq!(all.len(), 400);
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 400);
}

/// Rows are settled by stretches of the table where their numbers leave no gap: never more than was asked for.
#[tokio::test]
async fn runs_of_numbers_are_settled_and_nothing_between_or_beside_them() {
    for deleting in [false, true] {
        // Which of forty rows are DONE: all, all but one, the middle, every other one (too many runs for a statement each).
        let choices: [fn(usize) -> bool; 4] = [|_| true, |n| n != 20, |n| (10..30).contains(&n), |n| n % 2 == 0];
        for chosen in choices {
            let database = Database::new();
            let store = database.store().await;
            let store = if deleting { store.deleting_done() } else { store };
            write(&store, (0..40).map(|n| event(&format!("{n:02}")))).await;
            let (lease, claimed) = claim(&store, 40).await;
            let mut settlements = settle_all(&lease, &claimed, &Action::Done);
            settlements = settlements.into_iter().enumerate().filter(|(n, _)| chosen(*n)).map(|(_, it)| it).collect();
            // Out of order, as workers finish.
            settlements.reverse();
            let settled = store.settle(&settlements).await.unwrap();
            assert_eq!(settled, vec![Settled::Applied; settlements.len()]);
            for n in 0..40 {
                let record = store.find(&EventId::from_row(format!("{n:02}"))).await.unwrap();
                let status = record.map(|record| record.state.status);
                let done = if deleting { None } else { Some(Status::Done) };
                assert_eq!(status, if chosen(n) { done } else { Some(Status::New) }, "row {n}, deleting: {deleting}");
            }
        }
    }
}

#[tokio::test]
async fn a_row_in_the_middle_of_a_run_whose_lease_was_lost_is_named_and_kept() {
    let database = Database::new();
    let store = database.store().await;
    write(&store, (0..9).map(|n| event(&n.to_string()))).await;
    let (lease, claimed) = claim(&store, 9).await;
    sqlx::query("UPDATE outbox_event SET locked_by = 'another/1' WHERE event_id = '4'")
        .execute(store.pool())
        .await
        .unwrap();

    let settled = store.settle(&settle_all(&lease, &claimed, &Action::Done)).await.unwrap();
    let expected: Vec<_> = (0..9).map(|n| if n == 4 { Settled::Lost } else { Settled::Applied }).collect();
    assert_eq!(settled, expected);
    let kept = store.find(&EventId::from_row("4")).await.unwrap().unwrap().state;
    assert_eq!((kept.status, kept.lease.map(|(owner, _)| owner)), (Status::New, Some("another/1".to_owned())));
}
