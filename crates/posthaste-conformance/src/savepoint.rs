//! Part B: savepoints, of ours and of others.

use posthaste_core::listener::Path;
use posthaste_core::store::{Store, WriteStore};
use posthaste_core::{CommitError, Event, Outbox};

use crate::fixture::Fixture;
use crate::outboxes::{no_interval, start, watched, write};
use crate::rows::{counts, event, events, ids_of};
use crate::tap::{Inbox, Tap};
use crate::wait::{cut_short, eventually, within};

/// More than any of these futures is polled.
const MANY: usize = 10_000;

/// What was written in a savepoint that was rolled back or dropped has no row and is not delivered; what is around it is.
pub async fn case_79_undone<F: Fixture>(fixture: F) {
    let (outbox, witness, mut inbox) = watched(fixture.store()).await;
    for ending in ["rollback", "drop"] {
        let [before, undone, after] = ["Before", "Undone", "After"].map(event);
        let mut tx = outbox.begin().await.unwrap();
        tx.write(&before).await.unwrap();
        let mut savepoint = tx.savepoint().await.unwrap();
        savepoint.write(&undone).await.unwrap();
        match ending {
            "rollback" => savepoint.rollback().await.unwrap(),
            _ => drop(savepoint),
        }
        assert_eq!(witness.told(), [("rollback", vec![undone.id().to_string()])], "{ending}");
        tx.write(&after).await.unwrap();
        tx.commit().await.unwrap();
        let kept = [before, after];
        assert_eq!(witness.told(), [("commit", ids_of(&kept))], "{ending}");
        assert_eq!(inbox.ids(2).await, ids_of(&kept), "{ending}");
        assert!(outbox.admin().find(undone.id()).await.unwrap().is_none(), "{ending}");
    }
    outbox.shutdown().await;
    inbox.assert_empty();
    assert_eq!(counts(outbox.store()).await.done, 4);
}

/// What a savepoint keeps is delivered with its transaction, in order, hot; savepoints have savepoints.
pub async fn case_79_kept<F: Fixture>(fixture: F) {
    let (outbox, witness, mut inbox) = watched(fixture.store()).await;
    let all = events(5);
    let mut tx = outbox.begin().await.unwrap();
    tx.write(&all[0]).await.unwrap();
    let mut outer = tx.savepoint().await.unwrap();
    outer.write(&all[1]).await.unwrap();
    let mut inner = outer.savepoint().await.unwrap();
    inner.write(event("Undone")).await.unwrap();
    inner.rollback().await.unwrap();
    let mut inner = outer.savepoint().await.unwrap();
    inner.write_all(&all[2..4]).await.unwrap();
    inner.commit().await.unwrap();
    outer.commit().await.unwrap();
    tx.write(&all[4]).await.unwrap();
    assert_eq!(witness.told().len(), 1, "nothing is committed yet");
    tx.commit().await.unwrap();
    assert_eq!(witness.told(), [("commit", ids_of(&all))]);
    for event in &all {
        let delivered = inbox.next().await;
        assert_eq!((delivered.id(), delivered.path()), (event.id(), Path::Hot));
    }

    // Of a transaction that is rolled back nothing is left, whatever its savepoints kept.
    let mut tx = outbox.begin().await.unwrap();
    let mut savepoint = tx.savepoint().await.unwrap();
    let lost = savepoint.write(event("Lost")).await.unwrap().unwrap();
    savepoint.commit().await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(witness.told(), [("rollback", vec![lost.to_string()])]);
    outbox.shutdown().await;
    inbox.assert_empty();
    assert_eq!(counts(outbox.store()).await.total(), 5);
}

/// Nobody says how a savepoint of somebody else ended. What was written in it is delivered from the table, if it is there.
pub async fn case_79_of_somebody_else<F: Fixture>(fixture: F) {
    let (outbox, witness, mut inbox) = watched(fixture.store()).await;
    let store = fixture.store();
    let mut tx = fixture.begin_foreign().await;
    let outside = outbox.write(&mut tx, event("Outside")).await.unwrap();
    store.savepoint(&mut tx).await.unwrap();
    let undone = outbox.write(&mut tx, event("Undone")).await.unwrap();
    store.undo_savepoint(&mut tx, 2).await.unwrap();
    store.savepoint(&mut tx).await.unwrap();
    let kept = outbox.write(&mut tx, event("Kept")).await.unwrap();
    store.release_savepoint(&mut tx, 2).await.unwrap();
    fixture.commit_foreign(tx).await;
    // As who forgot that a part of it was rolled back.
    outside.and(undone).and(kept).dispatch();
    let delivered = [inbox.next().await, inbox.next().await];
    let paths = delivered.each_ref().map(|one| (one.event_type().to_owned(), one.path()));
    assert_eq!(paths, [("Outside".to_owned(), Path::Hot), ("Kept".to_owned(), Path::Cold)]);
    let steps: Vec<_> = witness.told().into_iter().map(|(step, ids)| (step, ids.len())).collect();
    assert_eq!(steps, [("commit", 1), ("unknown", 2)]);
    outbox.shutdown().await;
    inbox.assert_empty();
    assert_eq!(counts(&store).await.done, 2);
}

/// Somebody has set a savepoint inside of ours and forgotten it. When ours is dropped, theirs is undone instead: so all of it is.
pub async fn case_79_forgotten<F: Fixture>(fixture: F) {
    let (outbox, witness, mut inbox) = watched(fixture.store()).await;
    for next in ["commit", "write", "savepoint", "rollback"] {
        let [before, undone] = ["Before", "Undone"].map(event);
        let mut tx = outbox.begin().await.unwrap();
        tx.write(&before).await.unwrap();
        let mut savepoint = tx.savepoint().await.unwrap();
        savepoint.write(&undone).await.unwrap();
        fixture.store().savepoint(&mut savepoint).await.unwrap();
        drop(savepoint);
        assert_eq!(witness.told(), [("rollback", vec![undone.id().to_string()])], "{next}");
        match next {
            "write" => drop(tx.write(event("After")).await),
            "savepoint" => drop(tx.savepoint().await.unwrap_err()),
            _ => {}
        }
        if next == "rollback" {
            tx.rollback().await.unwrap();
        } else {
            let error = tx.commit().await.unwrap_err();
            assert!(matches!(error, CommitError::NotCommitted(_)), "{next}: {error:?}");
        }
        let told = witness.told();
        assert!(!told.is_empty() && told.iter().all(|(step, _)| *step == "rollback"), "{next}: {told:?}");
        fixture.assert_no_open_transaction().await;
        assert_eq!(counts(outbox.store()).await.total(), 0, "{next}");
    }
    outbox.shutdown().await;
    inbox.assert_empty();
}

/// A savepoint that is cut off leaves a transaction that refuses all else, and nothing of it is committed.
pub async fn case_79_cut_off<F: Fixture>(_fixture: F) {
    let fixture = F::narrow().await;
    let (tap, mut inbox) = Tap::new();
    let (outbox, _) = start(fixture.store(), no_interval(), tap).await;
    let mut cuts = 0;
    for polls in 1..MANY {
        let mut tx = outbox.begin().await.unwrap();
        tx.write(event("Before")).await.unwrap();
        let cut = cut_short(polls, tx.savepoint()).await.map(drop).is_none();
        if cut {
            cuts += 1;
            tx.write(event("Refused")).await.unwrap_err();
            let error = tx.commit().await.unwrap_err();
            assert!(matches!(error, CommitError::NotCommitted(_)), "{error:?}");
        } else {
            tx.rollback().await.unwrap();
        }
        fixture.assert_no_open_transaction().await;
        within("the next transaction gets through", write(&outbox, event("Next"))).await;
        if !cut {
            break;
        }
    }
    assert_eq!(inbox.ids(cuts + 1).await.len(), cuts + 1);
    outbox.shutdown().await;
    inbox.assert_empty();
    assert_eq!(counts(outbox.store()).await.total(), cuts as u64 + 1);
}

/// Dropped at any await, a transaction with savepoints is not left open; what it kept is all there, or nothing is.
pub async fn case_79_cut_anywhere<F: Fixture>(_fixture: F) {
    let fixture = F::narrow().await;
    let (tap, mut inbox) = Tap::new();
    let (outbox, _) = start(fixture.store(), no_interval(), tap).await;
    let mut whole = 0;
    for polls in 1..MANY {
        let three: Vec<Event> = events(3);
        let work = async {
            let mut tx = outbox.begin().await.unwrap();
            tx.write(&three[0]).await.unwrap();
            let mut kept = tx.savepoint().await.unwrap();
            kept.write(&three[1]).await.unwrap();
            kept.commit().await.unwrap();
            let mut undone = tx.savepoint().await.unwrap();
            undone.write(event("Undone")).await.unwrap();
            undone.rollback().await.unwrap();
            tx.write(&three[2]).await.unwrap();
            tx.commit().await.unwrap();
        };
        let finished = cut_short(polls, work).await.is_some();
        fixture.assert_no_open_transaction().await;
        let mut rows = 0;
        for event in &three {
            rows += usize::from(outbox.admin().find(event.id()).await.unwrap().is_some());
        }
        assert!(rows == 0 || rows == 3, "{rows} rows after {polls} polls");
        whole += rows / 3;
        if finished {
            assert_eq!(rows, 3);
            break;
        }
    }
    assert_eq!(inbox.ids(whole * 3).await.len(), whole * 3);
    eventually("all is settled", || async { counts(outbox.store()).await.pending() == 0 }).await;
    outbox.shutdown().await;
    inbox.assert_empty();
}

/// Of every transaction that may have been cut somewhere: what its end said, and the events that must be stored if it said yes,
/// and those that must not be in any case.
struct Ends {
    stored: Vec<Event>,
    not_stored: Vec<Event>,
}

impl Ends {
    fn new() -> Self {
        Self { stored: Vec::new(), not_stored: Vec::new() }
    }

    fn note(&mut self, stored: bool, event: Event) {
        if stored { self.stored.push(event) } else { self.not_stored.push(event) }
    }

    /// What is stored is what was said to be, and what is delivered is what is stored, once each.
    async fn check<S: Store>(&self, outbox: &Outbox<S>, inbox: &mut Inbox) {
        for event in &self.stored {
            let found = outbox.admin().find(event.id()).await.unwrap();
            assert!(found.is_some(), "{} was committed, and is not there", event.event_type());
        }
        for event in &self.not_stored {
            let found = outbox.admin().find(event.id()).await.unwrap();
            assert!(found.is_none(), "{} was not committed, and is there", event.event_type());
        }
        eventually("all is settled", || async { counts(outbox.store()).await.pending() == 0 }).await;
        outbox.shutdown().await;
        let mut delivered: Vec<String> = inbox.rest().iter().map(|event| event.id().to_string()).collect();
        let mut stored = ids_of(&self.stored);
        delivered.sort_unstable();
        stored.sort_unstable();
        assert_eq!(delivered, stored);
    }
}

/// A savepoint that sqlx itself sets, and that is cut off, rolls back the whole transaction. The outbox notices, also inside of a
/// savepoint of its own.
pub async fn case_79_cut_off_by_others<F: Fixture>(_fixture: F)
where
    <F::Store as WriteStore>::Connection: sqlx::Connection,
{
    use sqlx::Connection;

    let fixture = F::narrow().await;
    let (tap, mut inbox) = Tap::new();
    let (outbox, _) = start(fixture.store(), no_interval(), tap).await;
    let mut ends = Ends::new();
    for inside in [false, true] {
        for polls in 1..MANY {
            let name = |what: &str| event(&format!("{what}, inside {inside}, cut after {polls}"));
            let [before, within, after] = ["before", "within", "after"].map(name);
            let mut tx = outbox.begin().await.unwrap();
            tx.write(&before).await.unwrap();
            let (cut, kept) = if inside {
                let mut savepoint = tx.savepoint().await.unwrap();
                savepoint.write(&within).await.unwrap();
                let cut = cut_short(polls, (**savepoint).begin()).await.is_none();
                (cut, savepoint.commit().await.is_ok())
            } else {
                (cut_short(polls, (*tx).begin()).await.is_none(), false)
            };
            let written = tx.write(&after).await.is_ok();
            let committed = tx.commit().await.is_ok();
            ends.note(committed, before);
            ends.note(committed && kept, within);
            ends.note(committed && written, after);
            fixture.assert_no_open_transaction().await;
            if !cut {
                assert!(committed && written, "nothing was cut");
                break;
            }
        }
    }
    ends.check(&outbox, &mut inbox).await;
}

/// The end of a savepoint that is cut off: what is stored afterwards is what the transaction says.
pub async fn case_79_cut_end<F: Fixture>(_fixture: F) {
    let fixture = F::narrow().await;
    let (tap, mut inbox) = Tap::new();
    let (outbox, _) = start(fixture.store(), no_interval(), tap).await;
    let mut ends = Ends::new();
    for keep in [true, false] {
        for polls in 1..MANY {
            let name = |what: &str| event(&format!("{what}, kept {keep}, cut after {polls}"));
            let [undone, between, last] = ["undone", "between", "last"].map(name);
            let mut tx = outbox.begin().await.unwrap();
            // An older savepoint of the same name must not be mistaken for the last one.
            let mut older = tx.savepoint().await.unwrap();
            older.write(&undone).await.unwrap();
            older.rollback().await.unwrap();
            tx.write(&between).await.unwrap();
            let mut savepoint = tx.savepoint().await.unwrap();
            savepoint.write(&last).await.unwrap();
            let end = async { if keep { savepoint.commit().await } else { savepoint.rollback().await } };
            let ended = cut_short(polls, end).await;
            let committed = tx.commit().await.is_ok();
            ends.note(false, undone);
            ends.note(committed, between);
            ends.note(committed && keep && matches!(ended, Some(Ok(()))), last);
            fixture.assert_no_open_transaction().await;
            if ended.is_some() {
                assert!(committed, "nothing was cut");
                break;
            }
        }
    }
    ends.check(&outbox, &mut inbox).await;
}
