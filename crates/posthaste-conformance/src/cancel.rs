//! Part B: futures that are dropped half-way.

use std::collections::HashMap;

use posthaste_core::store::{Filter, Page};
use posthaste_core::{Event, Outbox};

use crate::fixture::Fixture;
use crate::outboxes::{no_interval, start, write};
use crate::rows::{counts, event};
use crate::tap::Tap;
use crate::wait::{cut_short, eventually, within};

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
