//! Part B: futures that are dropped half-way.

use std::collections::HashMap;

use posthaste_core::listener::Path;
use posthaste_core::store::{Filter, Page};
use posthaste_core::{Event, Outbox};

use crate::faulty::{Call, Fault, Faulty};
use crate::fixture::Fixture;
use crate::outboxes::{no_interval, start, watched, write};
use crate::rows::{counts, event};
use crate::tap::Tap;
use crate::wait::{Gate, cut_short, eventually, within};

/// More than any of these futures is polled.
const MANY: usize = 10_000;

/// Dropped at any await between begin and commit, a transaction is not left open, and its events are all there or none.
pub async fn case_19_cut_anywhere<F: Fixture>(_fixture: F) {
    let fixture = F::narrow().await;
    let (tap, _inbox) = Tap::new();
    let (outbox, _) = start(fixture.store(), no_interval(), tap).await;
    let mut cuts = 0;
    for polls in 1..MANY {
        let name = format!("cut after {polls}");
        let three: Vec<Event> = (0..3).map(|_| event(&name)).collect();
        let whole = async {
            let mut tx = outbox.begin().await.unwrap();
            tx.write_all(&three).await.unwrap();
            tx.commit().await.unwrap();
        };
        let finished = cut_short(polls, whole).await.is_some();
        fixture.assert_no_open_transaction().await;
        // The one connection serves the next at once.
        within("the next transaction gets through", write(&outbox, event("Next"))).await;
        if finished {
            break;
        }
        cuts = polls;
    }
    assert!(cuts + 1 < MANY);
    assert_whole_transactions_are_delivered(&outbox, cuts).await;
}

async fn assert_whole_transactions_are_delivered<S: posthaste_core::store::Store>(outbox: &Outbox<S>, cuts: usize) {
    let settled = || async { counts(outbox.store()).await.pending() == 0 && outbox.in_flight() == 0 };
    eventually("everything committed is delivered", settled).await;
    let page = Page { limit: MANY, ..Page::default() };
    let mut rows: HashMap<String, usize> = HashMap::new();
    for record in outbox.store().list(&Filter::default(), &page).await.unwrap() {
        *rows.entry(record.event.unwrap().event_type().to_owned()).or_default() += 1;
    }
    assert_eq!(rows.remove("Next"), Some(cuts + 1));
    assert_eq!(rows.get(&format!("cut after {}", cuts + 1)), Some(&3), "the last was not cut");
    assert!(rows.values().all(|count| *count == 3), "half a transaction: {rows:?}");
    outbox.shutdown().await;
}

/// Dropped in the middle of the commit, the commit goes on, and so does the hot dispatch.
pub async fn case_19_cut_commit<F: Fixture>(_fixture: F) {
    let fixture = F::narrow().await;
    let (tap, mut inbox) = Tap::new();
    let (outbox, _) = start(fixture.store(), no_interval(), tap).await;
    let mut committed = Vec::new();
    for polls in 1..MANY {
        let mut tx = outbox.begin().await.unwrap();
        let id = tx.write(event("Cut")).await.unwrap().unwrap();
        let finished = cut_short(polls, tx.commit()).await.is_some();
        fixture.assert_no_open_transaction().await;
        committed.push(id);
        if finished {
            break;
        }
    }
    // Each was begun, so each came to its end.
    let mut delivered = inbox.ids(committed.len()).await;
    delivered.sort_unstable();
    assert_eq!(delivered, committed.iter().map(ToString::to_string).collect::<Vec<_>>());
    outbox.shutdown().await;
    inbox.assert_empty();
    assert_eq!(counts(outbox.store()).await.done, committed.len() as u64);
}

/// The same when the database takes its time, before the commit and after it.
pub async fn case_19_commit_goes_on<F: Fixture>(fixture: F) {
    for wait in [Fault::Wait, Fault::AnswerWaits] {
        let (store, faults) = Faulty::new(fixture.store());
        let (outbox, witness, mut inbox) = watched(store).await;
        let gate = Gate::new();
        faults.times(1, Call::Commit, wait(gate.clone()));
        let mut tx = outbox.begin().await.unwrap();
        let id = tx.write(event("Cut")).await.unwrap().unwrap();
        assert!(cut_short(1, tx.commit()).await.is_none());
        assert_eq!(witness.told(), [], "nobody knows yet how it ends");
        gate.open();
        let delivered = inbox.next().await;
        assert_eq!((delivered.id(), delivered.path()), (&id, Path::Hot));
        assert_eq!(witness.told(), [("commit", vec![id.to_string()])]);
        outbox.shutdown().await;
        inbox.assert_empty();
    }
}

/// Dropped while it begins, a transaction is rolled back as soon as it has begun; dropped before its first step it never
/// begins.
pub async fn case_19_begin_goes_on<F: Fixture>(_fixture: F) {
    let fixture = F::narrow().await;
    let (store, faults) = Faulty::new(fixture.store());
    let (tap, _inbox) = Tap::new();
    let (outbox, _) = start(store, no_interval(), tap).await;
    drop(outbox.begin());
    assert_eq!(faults.count(Call::Begin), 0);
    let gate = Gate::new();
    faults.times(1, Call::Begin, Fault::AnswerWaits(gate.clone()));
    assert!(cut_short(1, outbox.begin()).await.is_none());
    gate.open();
    within("the next transaction gets through", write(&outbox, event("Next"))).await;
    outbox.shutdown().await;
    fixture.assert_no_open_transaction().await;
    assert_eq!(counts(outbox.store()).await.total(), 1);
}

/// Dropped in the middle of a write, the transaction can still end; what was committed is delivered, and nothing else.
pub async fn case_19_cut_write<F: Fixture>(_fixture: F) {
    let fixture = F::narrow().await;
    let (tap, mut inbox) = Tap::new();
    let (outbox, _) = start(fixture.store(), no_interval(), tap).await;
    for polls in 1..MANY {
        let mut tx = outbox.begin().await.unwrap();
        let finished = cut_short(polls, tx.write_all([event("Cut"), event("Cut")])).await.is_some();
        // Whether it may be committed now depends on the database; it ends in any case.
        let _ = within("the transaction ends", tx.commit()).await;
        fixture.assert_no_open_transaction().await;
        if finished {
            break;
        }
    }
    let settled = || async { counts(outbox.store()).await.pending() == 0 && outbox.in_flight() == 0 };
    eventually("everything committed is delivered", settled).await;
    outbox.shutdown().await;
    assert_eq!(inbox.rest().len() as u64, counts(outbox.store()).await.done);
}

/// A write that is cut off, after another one in the same transaction: the commit says what is stored, and what is stored is
/// delivered.
pub async fn case_19_cut_write_after_another<F: Fixture>(_fixture: F) {
    let fixture = F::narrow().await;
    let (tap, mut inbox) = Tap::new();
    let (outbox, _) = start(fixture.store(), no_interval(), tap).await;
    let mut first = Vec::new();
    for polls in 1..MANY {
        let before = event("Before");
        let three: Vec<Event> = (0..3).map(|_| event("Cut")).collect();
        let mut tx = outbox.begin().await.unwrap();
        tx.write(&before).await.unwrap();
        let finished = cut_short(polls, tx.write_all(&three)).await.is_some();
        let committed = tx.commit().await.is_ok();
        fixture.assert_no_open_transaction().await;
        let found = outbox.admin().find(before.id()).await.unwrap().is_some();
        assert_eq!(found, committed, "after {polls} polls");
        if committed {
            first.push(before.id().to_string());
        }
        if finished {
            assert!(committed, "nothing was cut");
            break;
        }
    }
    eventually("all is settled", || async { counts(outbox.store()).await.pending() == 0 }).await;
    outbox.shutdown().await;
    let delivered: Vec<String> = inbox
        .rest()
        .iter()
        .filter(|event| event.event_type() == "Before")
        .map(|event| event.id().to_string())
        .collect();
    assert_eq!(delivered.len(), first.len());
    assert!(first.iter().all(|id| delivered.contains(id)), "{first:?} and {delivered:?}");
}
