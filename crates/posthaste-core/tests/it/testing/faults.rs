//! A store that fails as it is told.

use std::time::Duration;

use posthaste_core::store::{Claim, Counts, Lease, RelayStore};
use posthaste_core::testing::{self, Call, Fault, Faulty, Recorder, TestOutbox, Wanted};
use posthaste_core::{CommitError, MemoryStore};

use super::{event, failure, write};

#[tokio::test(start_paused = true)]
async fn a_commit_of_unknown_end_is_told_from_none() {
    let (store, faults) = Faulty::new(MemoryStore::new());
    let mailer = Recorder::new();
    let outbox = testing::outbox_on(store).listen_all(mailer.clone()).start_test().await;
    let committed = async |fault: Fault, id: &str| {
        faults.times(1, Call::Commit, fault);
        let mut tx = outbox.begin().await.unwrap();
        tx.write(event(id, "Any")).await.unwrap();
        tx.commit().await
    };

    assert!(matches!(committed(Fault::Unavailable, "e1").await, Err(CommitError::NotCommitted(_))));
    assert!(matches!(committed(Fault::ConnectionLost, "e2").await, Err(CommitError::Unknown(_))));
    outbox.assert_nothing_written().await;
    // It was committed after all, so it is delivered, and a drain waits for that.
    assert!(matches!(committed(Fault::AnswerLost, "e3").await, Err(CommitError::Unknown(_))));
    outbox.assert_written_event(Wanted::event("Any").times(1)).await;
    assert_eq!(outbox.drain_now().await, Counts { done: 1, ..Counts::default() });
    assert_eq!(mailer.deliveries()[0].id().as_str(), "e3");
    // And once the faults are used up, all is well.
    write(&outbox, [event("e4", "Any")]).await;
    assert_eq!((faults.count(Call::Commit), outbox.drain_now().await.done), (4, 2));
}

#[tokio::test(start_paused = true)]
async fn a_settlement_that_fails_repeats_nothing() {
    let (store, faults) = Faulty::new(MemoryStore::new());
    let mailer = Recorder::new();
    let outbox = testing::outbox_on(store).listen_all(mailer.clone()).start_test().await;
    faults.times(3, Call::Settle, Fault::Unavailable);
    write(&outbox, [event("e1", "Any")]).await;
    assert_eq!((outbox.drain_now().await.done, mailer.count()), (1, 1));
    assert_eq!(faults.count(Call::Settle), 4);
}

#[tokio::test(start_paused = true)]
async fn claims_that_fail_are_told_by_a_drain_in_vain() {
    let (store, faults) = Faulty::new(MemoryStore::new());
    let outbox = testing::outbox_on(store).listen_all(Recorder::new()).start_test().await;
    let outbox = outbox.with_patience(Duration::from_secs(1));
    faults.always(Call::Claim, Fault::Unavailable);
    let message = failure(outbox.drain_now()).await;
    assert_eq!(
        message,
        "waited 1s in vain until everything due is delivered; 0 in hand; a claim failed: the database cannot be reached: \
         away on demand; the table is empty"
    );
    faults.clear();
    outbox.advance(Duration::from_secs(1)).await;
    assert_eq!(outbox.drain_now().await, Counts::default());
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_leases_that_are_not_given_back_yet() {
    let (store, faults) = Faulty::new(MemoryStore::new());
    let outbox = testing::outbox_on(store).listen_all(Recorder::new()).start_test().await;
    faults.times(1, Call::Commit, Fault::AnswerLost);
    faults.times(5, Call::Settle, Fault::Unavailable);
    let mut tx = outbox.begin().await.unwrap();
    tx.write(event("e1", "Any")).await.unwrap();
    tx.commit().await.unwrap_err();
    assert_eq!((outbox.in_flight(), outbox.drain_now().await.done), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_that_of_a_call_that_happened() {
    for (fault, happened) in [(Fault::AnswerLost, true), (Fault::ConnectionLost, false), (Fault::Unavailable, false)] {
        let (store, faults) = Faulty::new(MemoryStore::new());
        let outbox = TestOutbox::over(store.clone()).await;
        faults.times(1, Call::Insert, fault.clone());
        let mut tx = outbox.begin().await.unwrap();
        let error = tx.write(event("e1", "Any")).await.unwrap_err();
        assert_eq!(error.to_string(), "event Any (id e1) could not be stored");
        tx.write(event("e2", "Any")).await.unwrap();
        tx.commit().await.unwrap();
        let written = outbox.admin().counts().await.unwrap().new;
        assert_eq!(written, 1 + u64::from(happened), "{fault:?}");

        faults.times(1, Call::Claim, fault.clone());
        let claim = |number| Claim {
            lease: Lease::new("somebody", number),
            lease_duration: Duration::from_secs(60),
            limit: 10,
            skip_recent: Duration::ZERO,
        };
        assert!(store.claim(&claim(1)).await.unwrap_err().is_transient());
        let left = store.claim(&claim(2)).await.unwrap().rows.len();
        assert_eq!(left, if happened { 0 } else { 1 }, "{fault:?}");
    }
}
