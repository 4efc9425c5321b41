//! Part C: outcomes written back under a lease.

use std::time::Duration;

use posthaste_core::store::{
    Action, AdminStore, ClaimedRow, Counts, Lease, RelayStore, RowState, Settled, Settlement, Status,
};
use posthaste_core::{Delivery, EventId};

use crate::fixture::Fixture;
use crate::outboxes::{no_interval, start, write_all};
use crate::rows::{
    LEASE, assert_at, claim, claim_ids, counts, dead, event, events, insert, lease, one_leased, retry, settle, state,
};

const MINUTE: Duration = Duration::from_secs(60);

fn every_action() -> [Action; 5] {
    [Action::Done, retry(Duration::ZERO), Action::Defer { delay: Duration::ZERO }, dead(), Action::Release]
}

/// How long after its insert a row becomes available.
fn wait_of(state: &RowState) -> Duration {
    state.available_at.since(state.created_at)
}

/// The second DONE changes nothing and says so.
pub async fn case_22_done_twice<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let (id, lease) = one_leased(&store).await;
    assert_eq!(settle(&store, &id, &lease, Action::Done).await, Settled::Applied);
    fixture.advance(MINUTE).await;
    let done = assert_at(&store, &id, Status::Done, 0).await;
    assert!(done.done_at.unwrap() >= done.created_at);
    assert_eq!(settle(&store, &id, &lease, Action::Done).await, Settled::Lost);
    assert_eq!(state(&store, &id).await, done);
}

/// DONE and DEAD are final, whatever comes after them.
pub async fn case_23_final_states<F: Fixture>(fixture: F) {
    let store = fixture.store();
    for (end, status) in [(Action::Done, Status::Done), (dead(), Status::Dead)] {
        let (id, lease) = one_leased(&store).await;
        settle(&store, &id, &lease, end).await;
        let ended = state(&store, &id).await;
        assert_eq!(ended.status, status);
        for action in every_action() {
            assert_eq!(settle(&store, &id, &lease, action.clone()).await, Settled::Lost, "{action:?} after {status}");
            assert_eq!(state(&store, &id).await, ended, "{action:?} after {status}");
        }
        let by_number = Settlement { seq: Some(ended.seq), ..Settlement::new(id.clone(), lease.clone(), Action::Done) };
        assert_eq!(store.settle(&[by_number]).await.unwrap(), [Settled::Lost]);
        assert_eq!(store.renew(&[(id.clone(), lease)]).await.unwrap(), [false]);
        fixture.advance(LEASE * 2).await;
        assert_eq!(claim_ids(&store, 10).await, [""; 0]);
        assert_eq!(store.release_all().await.unwrap(), 0);
    }
}

/// A retry counts, waits by the database's clock, keeps the error and ends the lease.
pub async fn case_24_retry<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let (id, lease) = one_leased(&store).await;
    // Had the delay been counted from the insert, or by another clock, the hour would show.
    fixture.advance(MINUTE * 60).await;
    let action = Action::Retry { delay: MINUTE, error: "what went wrong".into() };
    assert_eq!(settle(&store, &id, &lease, action).await, Settled::Applied);
    let failed = assert_at(&store, &id, Status::Retry, 1).await;
    assert!(wait_of(&failed) >= MINUTE * 61 && wait_of(&failed) < MINUTE * 62, "{failed:?}");
    assert_eq!(failed.last_error.as_deref(), Some("what went wrong"));
    assert_eq!(failed.done_at, None);

    fixture.advance(MINUTE - Duration::from_secs(20)).await;
    assert_eq!(claim_ids(&store, 1).await, [""; 0]);
    fixture.advance(Duration::from_secs(20)).await;
    let (lease, rows) = claim(&store, 1).await;
    assert_eq!(rows[0].attempts, 1);
    let action = Action::Retry { delay: Duration::ZERO, error: "again".into() };
    settle(&store, &id, &lease, action).await;
    let failed = assert_at(&store, &id, Status::Retry, 2).await;
    assert_eq!(failed.last_error.as_deref(), Some("again"));
}

/// An error is cut to 4000 characters, never inside one, and any text can be kept.
pub async fn case_24_error_text<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let (id, lease) = one_leased(&store).await;
    let error = "x".to_owned() + &"🦀".repeat(5000);
    settle(&store, &id, &lease, Action::Retry { delay: Duration::ZERO, error: error.clone() }).await;
    let kept = state(&store, &id).await.last_error.unwrap();
    assert_eq!(kept.chars().count(), 4000);
    assert!(error.starts_with(&kept));

    let (lease, _) = claim(&store, 1).await;
    let nasty = "NUL \0, quotes ' \" and \\ and \u{7} ; --";
    settle(&store, &id, &lease, Action::Dead { error: nasty.into(), counts: false }).await;
    let kept = state(&store, &id).await.last_error.unwrap();
    assert_eq!(kept, nasty.replace('\0', "\u{fffd}"));
}

/// The longest delay that can be asked for is not a short one.
pub async fn case_24_longest_delay<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let (id, lease) = one_leased(&store).await;
    settle(&store, &id, &lease, retry(Duration::MAX)).await;
    assert_at(&store, &id, Status::Retry, 1).await;
    fixture.advance(MINUTE * 60 * 24 * 365).await;
    assert_eq!(claim_ids(&store, 1).await, [""; 0]);
}

/// DEAD notes when and why, and ends the lease; whether it counts is said with it.
pub async fn case_25_dead<F: Fixture>(fixture: F) {
    let store = fixture.store();
    for (counts, attempts) in [(true, 1), (false, 0)] {
        let (id, lease) = one_leased(&store).await;
        fixture.advance(MINUTE).await;
        settle(&store, &id, &lease, Action::Dead { error: "no use".into(), counts }).await;
        let dead = assert_at(&store, &id, Status::Dead, attempts).await;
        let age = dead.done_at.unwrap().since(dead.created_at);
        assert!(age >= MINUTE && age < MINUTE * 2, "{dead:?}");
        assert_eq!(dead.last_error.as_deref(), Some("no use"));
    }
}

/// A deferral changes when, and nothing else: not the status, not the attempts, not the error.
pub async fn case_25_deferred<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let (id, lease) = one_leased(&store).await;
    settle(&store, &id, &lease, Action::Defer { delay: MINUTE }).await;
    let deferred = assert_at(&store, &id, Status::New, 0).await;
    assert!(wait_of(&deferred) >= MINUTE && wait_of(&deferred) < MINUTE * 2, "{deferred:?}");
    fixture.advance(MINUTE).await;
    let (lease, _) = claim(&store, 1).await;
    settle(&store, &id, &lease, retry(Duration::ZERO)).await;
    let (lease, _) = claim(&store, 1).await;
    settle(&store, &id, &lease, Action::Defer { delay: Duration::ZERO }).await;
    let deferred = assert_at(&store, &id, Status::Retry, 1).await;
    assert_eq!((deferred.last_error.as_deref(), deferred.done_at), (Some("it failed"), None));
}

/// A batch of every kind of outcome, and of every kind of mistake, gets one answer for each, in order.
pub async fn case_26_mixed_batch<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let rows = events(7);
    insert(&store, &rows).await;
    let (lease, _) = claim(&store, 10).await;
    let [done, failed, deferred, died, released, stolen, ended] = [0, 1, 2, 3, 4, 5, 6].map(|n| rows[n].id().clone());
    settle(&store, &ended, &lease, Action::Done).await;
    let other = self::lease();
    let nobody = EventId::new("nobody").unwrap();
    let batch: Vec<Settlement> = [
        (&nobody, &lease, Action::Done),
        (&died, &lease, dead()),
        (&done, &lease, Action::Done),
        (&stolen, &other, Action::Done),
        (&failed, &lease, retry(MINUTE)),
        (&ended, &lease, dead()),
        (&released, &lease, Action::Release),
        (&deferred, &lease, Action::Defer { delay: MINUTE }),
        // Twice in one batch: the first counts.
        (&done, &lease, dead()),
        (&failed, &lease, Action::Done),
    ]
    .map(|(id, lease, action)| Settlement::new(id.clone(), lease.clone(), action))
    .into();
    let (yes, no) = (Settled::Applied, Settled::Lost);
    assert_eq!(store.settle(&batch).await.unwrap(), [no, yes, yes, no, yes, no, yes, yes, no, no]);
    assert_at(&store, &done, Status::Done, 0).await;
    assert_at(&store, &died, Status::Dead, 1).await;
    assert_at(&store, &failed, Status::Retry, 1).await;
    assert_at(&store, &deferred, Status::New, 0).await;
    assert_at(&store, &released, Status::New, 0).await;
    assert_at(&store, &ended, Status::Done, 0).await;
    assert_eq!(state(&store, &stolen).await.lease.unwrap().0, lease.as_str());
    assert_eq!(store.settle(&[]).await.unwrap(), [yes; 0]);
}

/// Rows named by their numbers among rows named by their ids, with leases of several claims, some of them lost.
pub async fn case_26_numbers_and_ids<F: Fixture>(fixture: F) {
    let store = fixture.store();
    insert(&store, &events(6)).await;
    let (first, early) = claim(&store, 3).await;
    let (second, late) = claim(&store, 3).await;
    let settlement = |row: &ClaimedRow, lease: &Lease, numbered: bool| Settlement {
        seq: numbered.then_some(row.seq),
        ..Settlement::new(row.event.id().clone(), lease.clone(), Action::Done)
    };
    let batch = [
        settlement(&late[0], &second, true),
        settlement(&early[0], &first, true),
        settlement(&late[1], &first, true),
        settlement(&early[1], &first, false),
        settlement(&late[2], &second, false),
        settlement(&early[2], &second, true),
        settlement(&early[0], &first, false),
    ];
    let (yes, no) = (Settled::Applied, Settled::Lost);
    assert_eq!(store.settle(&batch).await.unwrap(), [yes, yes, no, yes, yes, no, no]);
    for (row, lease) in [(&late[1], &second), (&early[2], &first)] {
        let held = state(&store, row.event.id()).await;
        assert_eq!((held.seq, held.status, held.lease.unwrap().0), (row.seq, Status::New, lease.as_str().to_owned()));
    }
    assert_eq!(crate::rows::counts(&store).await.done, 4);
}

/// A batch of any size gets an answer for each.
pub async fn case_26_large_batch<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let rows = events(3000);
    insert(&store, &rows).await;
    let (lease, claimed) = claim(&store, 5000).await;
    assert_eq!(claimed.len(), 3000);
    let actions = [Action::Done, retry(Duration::ZERO), dead()];
    // Every other one with the number of its row, as it is known of claimed rows and not of hot ones.
    let batch: Vec<Settlement> = claimed
        .iter()
        .zip(actions.iter().cycle())
        .map(|(row, action)| Settlement {
            seq: (row.seq % 2 == 0).then_some(row.seq),
            ..Settlement::new(row.event.id().clone(), lease.clone(), action.clone())
        })
        .collect();
    assert_eq!(store.settle(&batch).await.unwrap(), [Settled::Applied; 3000]);
    let counts = crate::rows::counts(&store).await;
    assert_eq!((counts.new, counts.retry, counts.done, counts.dead), (0, 1000, 1000, 1000));
}

/// A lost lease settles nothing and says so.
pub async fn case_32_lost_lease<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let (id, lost) = one_leased(&store).await;
    fixture.advance(LEASE).await;
    let (held, rows) = claim(&store, 1).await;
    assert_eq!(rows.len(), 1);
    let before = state(&store, &id).await;
    for action in every_action() {
        assert_eq!(settle(&store, &id, &lost, action.clone()).await, Settled::Lost, "{action:?}");
        let by_number =
            Settlement { seq: Some(rows[0].seq), ..Settlement::new(id.clone(), lost.clone(), action.clone()) };
        assert_eq!(store.settle(&[by_number]).await.unwrap(), [Settled::Lost], "{action:?}");
        assert_eq!(state(&store, &id).await, before, "{action:?}");
    }
    assert_eq!(settle(&store, &id, &held, retry(Duration::ZERO)).await, Settled::Applied);
    // Nobody holds it now; neither of the old leases does.
    for old in [&lost, &held] {
        assert_eq!(settle(&store, &id, old, Action::Done).await, Settled::Lost);
    }
    assert_at(&store, &id, Status::Retry, 1).await;
}

/// A lease that ran out but that nobody took still stands in the row, and settles it.
pub async fn case_32_expired_but_not_taken<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let (id, lease) = one_leased(&store).await;
    fixture.advance(LEASE * 2).await;
    assert_eq!(settle(&store, &id, &lease, Action::Done).await, Settled::Applied);
    assert_at(&store, &id, Status::Done, 0).await;
    assert_eq!(settle(&store, event("Never written").id(), &lease, Action::Done).await, Settled::Lost);
}

/// A store that deletes what is DONE does so by id and by number, under the lease that stands in the row only, and frees
/// the id.
pub async fn case_78_done_is_deleted<F: Fixture>(fixture: F) {
    let store = fixture.deleting_done();
    let (bystander, _) = one_leased(&store).await;
    for numbered in [false, true] {
        let (id, lost) = one_leased(&store).await;
        fixture.advance(LEASE).await;
        // The bystander was available for longer.
        let (held, rows) = claim(&store, 2).await;
        let row = rows.iter().find(|row| *row.event.id() == id).unwrap();
        let done = |lease: &Lease| {
            let settlement = Settlement::new(id.clone(), lease.clone(), Action::Done);
            [Settlement { seq: numbered.then_some(row.seq), ..settlement }]
        };
        let before = state(&store, &id).await;
        assert_eq!(store.settle(&done(&lost)).await.unwrap(), [Settled::Lost]);
        assert_eq!(state(&store, &id).await, before, "a lost lease deletes nothing");
        assert_eq!(store.settle(&done(&held)).await.unwrap(), [Settled::Applied]);
        assert!(store.find(&id).await.unwrap().is_none());
        assert_eq!(store.settle(&done(&held)).await.unwrap(), [Settled::Lost], "it is gone");
        assert_eq!(store.renew(&[(id.clone(), held)]).await.unwrap(), [false]);
        insert(&store, std::slice::from_ref(&row.event)).await;
        let (lease, _) = claim(&store, 1).await;
        assert_eq!(settle(&store, &id, &lease, dead()).await, Settled::Applied);
        let again = assert_at(&store, &id, Status::Dead, 1).await;
        assert_ne!(again.seq, row.seq, "a number is not used twice");
        assert_eq!(store.settle(&done(&lease)).await.unwrap(), [Settled::Lost], "what is DEAD is not deleted");
        assert_at(&store, &id, Status::Dead, 1).await;
    }
    state(&store, &bystander).await;
    assert_eq!(counts(&store).await, Counts { new: 1, dead: 2, ..Counts::default() });
}

/// Every other outcome is written into the row, which stays. Another store on the table deletes nothing.
pub async fn case_78_every_other_outcome_is_kept<F: Fixture>(fixture: F) {
    let (store, keeping) = (fixture.deleting_done(), fixture.store());
    let (id, lease) = one_leased(&store).await;
    settle(&store, &id, &lease, retry(Duration::ZERO)).await;
    assert_at(&store, &id, Status::Retry, 1).await;
    for (action, status, attempts) in [
        (Action::Defer { delay: Duration::ZERO }, Status::Retry, 1),
        (Action::Release, Status::Retry, 1),
        (dead(), Status::Dead, 2),
    ] {
        let (lease, _) = claim(&store, 1).await;
        assert_eq!(settle(&store, &id, &lease, action).await, Settled::Applied);
        assert_at(&store, &id, status, attempts).await;
    }
    let (id, lease) = one_leased(&store).await;
    assert_eq!(settle(&keeping, &id, &lease, Action::Done).await, Settled::Applied);
    assert_at(&keeping, &id, Status::Done, 0).await;
    assert_eq!(settle(&store, &id, &lease, Action::Done).await, Settled::Lost);
    assert_at(&store, &id, Status::Done, 0).await;
}

/// A batch of every kind of outcome, numbered or not, gets the answers that it would get if rows were kept.
pub async fn case_78_mixed_batch<F: Fixture>(fixture: F) {
    let store = fixture.deleting_done();
    insert(&store, &events(9)).await;
    let (lease, rows) = claim(&store, 10).await;
    let other = self::lease();
    let settlement = |n: usize, numbered: bool, lease: &Lease, action: Action| Settlement {
        seq: numbered.then_some(rows[n].seq),
        ..Settlement::new(rows[n].event.id().clone(), lease.clone(), action)
    };
    let (yes, no) = (Settled::Applied, Settled::Lost);
    let only_done = [
        settlement(0, true, &lease, Action::Done),
        settlement(1, true, &other, Action::Done),
        settlement(2, true, &lease, Action::Done),
    ];
    assert_eq!(store.settle(&only_done).await.unwrap(), [yes, no, yes]);
    let batch = [
        settlement(0, true, &lease, Action::Done),
        settlement(1, true, &lease, Action::Done),
        settlement(3, false, &lease, Action::Done),
        settlement(4, false, &other, Action::Done),
        settlement(5, true, &lease, retry(MINUTE)),
        settlement(6, false, &lease, dead()),
        settlement(7, false, &lease, Action::Release),
        settlement(8, true, &other, retry(MINUTE)),
        // Twice in one batch: the first counts.
        settlement(3, false, &lease, dead()),
        settlement(5, true, &lease, Action::Done),
    ];
    assert_eq!(store.settle(&batch).await.unwrap(), [no, yes, yes, no, yes, yes, yes, no, no, no]);
    assert_eq!(counts(&store).await, Counts { new: 3, retry: 1, dead: 1, done: 0 });
    for n in [4, 8] {
        assert_eq!(state(&store, rows[n].event.id()).await.lease.unwrap().0, lease.as_str());
    }
    assert_at(&store, rows[5].event.id(), Status::Retry, 1).await;
    assert_at(&store, rows[6].event.id(), Status::Dead, 1).await;
    assert_at(&store, rows[7].event.id(), Status::New, 0).await;
}

/// What an outbox delivers, on either path, is gone afterwards.
pub async fn case_78_deleted_after_delivery<F: Fixture>(fixture: F) {
    let store = fixture.deleting_done();
    insert(&store, &events(20)).await;
    let (outbox, meter) = start(store.clone(), no_interval(), |_: Delivery| async {}).await;
    write_all(&outbox, events(20)).await;
    meter.until("all are delivered", |tally| tally.delivered == 40).await;
    outbox.shutdown().await;
    assert_eq!(counts(&store).await, Counts::default());
    assert_eq!(meter.tally().lease_lost, 0);
}
