//! Part B: hooks around the write.

use posthaste_core::hook::HookError;
use posthaste_core::listener::Path;
use posthaste_core::store::{NewRow, WriteStore};
use posthaste_core::{Outbox, WriteHook};
use tracing::Level;

use crate::faulty::{Call, Fault, Faulty};
use crate::fixture::Fixture;
use crate::journal::Journal;
use crate::outboxes::{no_interval, start, watched, write, write_all};
use crate::rows::{counts, event, event_with_id, ids_of, record};
use crate::tap::Tap;
use crate::witness::{Witness, told};

/// A rollback, a dropped transaction and a failed commit leave no row and deliver nothing; the hook hears of each once.
pub async fn case_10_nothing_survives<F: Fixture>(fixture: F) {
    let (store, faults) = Faulty::new(fixture.store());
    let (outbox, witness, mut inbox) = watched(store).await;
    for ending in ["rollback", "drop", "failed commit"] {
        let (first, second) = (event(ending), event(ending));
        let mut tx = outbox.begin().await.unwrap();
        tx.write(&first).await.unwrap();
        tx.write(&second).await.unwrap();
        assert_eq!(witness.told(), [], "{ending}: too early");
        match ending {
            "rollback" => tx.rollback().await.unwrap(),
            "drop" => drop(tx),
            _ => {
                faults.times(1, Call::Commit, Fault::Unavailable);
                let error = tx.commit().await.unwrap_err();
                assert!(matches!(error, posthaste_core::CommitError::NotCommitted(_)), "{error:?}");
            }
        }
        assert_eq!(witness.told(), [told("rollback", &[first, second])], "{ending}");
        assert_eq!(counts(outbox.store()).await.total(), 0, "{ending}");
    }
    // What is delivered after all this is the next event, and nothing else.
    let last = write(&outbox, event("Last")).await;
    assert_eq!(inbox.next().await.id(), &last);
    outbox.shutdown().await;
    inbox.assert_empty();
}

/// Places that were reserved in the hot queue are given back, however the transaction ended.
pub async fn case_10_places_are_given_back<F: Fixture>(fixture: F) {
    let (store, faults) = Faulty::new(fixture.store());
    let (tap, mut inbox) = Tap::new();
    let options = posthaste_core::Options { hot_queue: 1, ..no_interval() };
    let (outbox, meter) = start(store, options, tap).await;
    write(&outbox, event_with_id("taken")).await;
    assert_eq!(inbox.next().await.path(), Path::Hot);
    for ending in ["rollback", "drop", "failed commit", "lost commit", "refused", "receipt", "dropped receipt"] {
        let mut tx = outbox.begin().await.unwrap();
        match ending {
            "refused" => {
                tx.write(event_with_id("taken")).await.unwrap_err();
                drop(tx);
            }
            "receipt" | "dropped receipt" => {
                drop(tx);
                let mut tx = fixture.begin_foreign().await;
                let receipt = outbox.write(&mut tx, event(ending)).await.unwrap();
                drop(tx);
                if ending == "receipt" {
                    receipt.rolled_back();
                }
            }
            _ => {
                tx.write(event(ending)).await.unwrap();
                match ending {
                    "rollback" => tx.rollback().await.unwrap(),
                    "drop" => drop(tx),
                    _ => {
                        let lost = if ending == "lost commit" { Fault::ConnectionLost } else { Fault::Unavailable };
                        faults.times(1, Call::Commit, lost);
                        tx.commit().await.unwrap_err();
                    }
                }
            }
        }
        write(&outbox, event("Next")).await;
        let next = inbox.next().await;
        assert_eq!((next.event_type(), next.path()), ("Next", Path::Hot), "after {ending}");
    }
    assert_eq!(meter.tally().hot_dropped, 0);
    outbox.shutdown().await;
    inbox.assert_empty();
}

/// One call per transaction, after its commit, with all its events in the order in which they were written.
pub async fn case_11_one_call_per_commit<F: Fixture>(fixture: F) {
    let (outbox, witness, mut inbox) = watched(fixture.store()).await;
    let events = crate::rows::events(5);
    let mut tx = outbox.begin().await.unwrap();
    assert_eq!(tx.write(&events[0]).await.unwrap().as_ref(), Some(events[0].id()));
    let ids = tx.write_all(&events[1..4]).await.unwrap();
    assert_eq!(ids.iter().map(ToString::to_string).collect::<Vec<_>>(), ids_of(&events[1..4]));
    tx.write(&events[4]).await.unwrap();
    assert_eq!(witness.told(), []);
    tx.commit().await.unwrap();
    assert_eq!(witness.told(), [told("commit", &events)]);
    assert_eq!(inbox.ids(5).await, ids_of(&events));

    // A transaction that wrote nothing is nobody's business.
    let tx = outbox.begin().await.unwrap();
    tx.commit().await.unwrap();
    outbox.begin().await.unwrap().rollback().await.unwrap();
    drop(outbox.begin().await.unwrap());
    assert_eq!(witness.told(), []);
    outbox.shutdown().await;
    inbox.assert_empty();
}

/// A receipt does for somebody else's transaction what the commit does for ours; receipts of one transaction are joined.
pub async fn case_11_receipts<F: Fixture>(fixture: F) {
    let (outbox, witness, mut inbox) = watched(fixture.store()).await;
    let events = crate::rows::events(3);
    let mut tx = fixture.begin_foreign().await;
    let first = outbox.write(&mut tx, &events[0]).await.unwrap();
    let rest = outbox.write_all(&mut tx, &events[1..]).await.unwrap();
    let receipt = first.and(rest);
    assert_eq!(receipt.ids().iter().map(ToString::to_string).collect::<Vec<_>>(), ids_of(&events));
    fixture.commit_foreign(tx).await;
    assert_eq!(witness.told(), [], "nobody said yet that it was committed");
    receipt.dispatch();
    assert_eq!(witness.told(), [told("commit", &events)]);
    for event in &events {
        let delivered = inbox.next().await;
        assert_eq!((delivered.id(), delivered.path()), (event.id(), Path::Hot));
    }

    let mut tx = fixture.begin_foreign().await;
    let receipt = outbox.write(&mut tx, event("Undone")).await.unwrap();
    drop(tx);
    let id = receipt.ids().remove(0).to_string();
    receipt.rolled_back();
    assert_eq!(witness.told(), [("rollback", vec![id])]);
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

    fn after_unknown(&self, _rows: &[NewRow]) -> Result<(), HookError> {
        self.act()
    }
}

/// A hook that fails or panics is logged, reaches nobody, undoes what it half did, and stops no other hook.
pub async fn case_12_broken_hooks<F: Fixture>(fixture: F) {
    for broken in [Broken::Fails, Broken::Panics] {
        let journal = Journal::keep();
        let (tap, mut inbox) = Tap::new();
        let (earlier, later) = (Witness::default(), Witness::default());
        let outbox = Outbox::builder(fixture.store())
            .options(no_interval())
            .hook(earlier.clone())
            .hook(broken)
            .hook(later.clone())
            .listen_all(tap)
            .start()
            .await
            .unwrap();
        let id = write(&outbox, event("Committed")).await;
        let delivered = inbox.next().await;
        assert_eq!((delivered.id(), delivered.path()), (&id, Path::Hot));
        let mut tx = outbox.begin().await.unwrap();
        let undone = tx.write(event("Undone")).await.unwrap().unwrap();
        tx.rollback().await.unwrap();
        let mut tx = fixture.begin_foreign().await;
        let receipt = outbox.write(&mut tx, event("Unknown")).await.unwrap();
        let unknown = receipt.ids().remove(0);
        drop(receipt);
        drop(tx);
        let expected =
            [("commit", id), ("rollback", undone), ("unknown", unknown)].map(|(step, id)| (step, vec![id.to_string()]));
        assert_eq!(earlier.told(), expected);
        assert_eq!(later.told(), expected);
        for step in ["before_write", "after_commit", "after_rollback", "after_unknown"] {
            assert!(journal.has(Level::ERROR, step), "{step} was not logged");
        }
        assert!(journal.has(Level::ERROR, "a broken hook"), "what went wrong was not logged");
        outbox.shutdown().await;
    }
}

/// A hook that works on what is about to be written.
struct Editor<E>(E);

impl<E: Fn(&mut Vec<NewRow>) + Send + Sync + 'static> WriteHook for Editor<E> {
    fn before_write(&self, rows: &mut Vec<NewRow>) -> Result<(), HookError> {
        (self.0)(rows);
        Ok(())
    }
}

/// A hook may change events, take some away and add others, before they are written.
pub async fn case_13_hook_changes_events<F: Fixture>(fixture: F) {
    let (tap, mut inbox) = Tap::new();
    let witness = Witness::default();
    let outbox = Outbox::builder(fixture.store())
        .options(posthaste_core::Options { workers: 1, ..no_interval() })
        .hook(Editor(|rows: &mut Vec<NewRow>| {
            rows.retain(|row| row.event.event_type() != "Secret");
            for row in rows.iter_mut() {
                row.event = row.event.to_builder().header("seen", "yes").build().unwrap();
            }
            rows.push(NewRow::new(event("Added")));
        }))
        .hook(witness.clone())
        .listen_all(tap)
        .start()
        .await
        .unwrap();
    let mut tx = outbox.begin().await.unwrap();
    let ids = tx.write_all([event("First"), event("Secret"), event("Last")]).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(ids.len(), 3);
    let mut delivered = Vec::new();
    for id in &ids {
        let delivery = inbox.next().await;
        assert_eq!(delivery.id(), id);
        delivered.push((delivery.event_type().to_owned(), delivery.header("seen").map(str::to_owned)));
        // The row says the same as the delivery.
        let stored = record(outbox.store(), id).await.event.unwrap();
        assert_eq!(stored.headers(), delivery.headers());
    }
    let seen = || Some("yes".to_owned());
    let expected = [("First", seen()), ("Last", seen()), ("Added", None)];
    assert_eq!(delivered, expected.map(|(name, seen)| (name.to_owned(), seen)));
    assert_eq!(witness.told().len(), 1);
    assert_eq!(counts(outbox.store()).await.total(), 3);
    outbox.shutdown().await;
}

/// When a hook takes everything away nothing is written, no id is given, and nothing follows.
pub async fn case_13_hook_takes_all<F: Fixture>(fixture: F) {
    let (tap, mut inbox) = Tap::new();
    let witness = Witness::default();
    let outbox = Outbox::builder(fixture.store())
        .options(no_interval())
        .hook(Editor(Vec::clear))
        .hook(witness.clone())
        .listen_all(tap)
        .start()
        .await
        .unwrap();
    let mut tx = outbox.begin().await.unwrap();
    assert_eq!(tx.write(event("One")).await.unwrap(), None);
    assert!(tx.write_all(crate::rows::events(3)).await.unwrap().is_empty());
    tx.commit().await.unwrap();
    let mut tx = fixture.begin_foreign().await;
    let receipt = outbox.write(&mut tx, event("One")).await.unwrap();
    assert!(receipt.ids().is_empty());
    fixture.commit_foreign(tx).await;
    receipt.dispatch();
    assert_eq!(counts(outbox.store()).await.total(), 0);
    assert_eq!(witness.told(), []);
    outbox.shutdown().await;
    inbox.assert_empty();
}

/// A writer alone: rows are there for others, and nothing else happens, neither in memory nor in the database.
pub async fn case_17_writer_only<F: Fixture>(fixture: F) {
    let (store, faults) = Faulty::new(fixture.store());
    let outbox = Outbox::writer_only(store).start().await.unwrap();
    let ids = write_all(&outbox, crate::rows::events(3)).await;
    let mut tx = fixture.begin_foreign().await;
    let receipt = outbox.write(&mut tx, event("Foreign")).await.unwrap();
    fixture.commit_foreign(tx).await;
    receipt.dispatch();
    outbox.wake();
    crate::wait::settle_down().await;
    for id in &ids {
        crate::rows::assert_at(outbox.store(), id, posthaste_core::Status::New, 0).await;
    }
    assert_eq!(outbox.in_flight(), 0);
    assert!(outbox.shutdown().await.is_clean());
    for call in [Call::Claim, Call::Settle, Call::Renew] {
        assert_eq!(faults.count(call), 0, "{call:?}");
    }
    // Any relay may have them at once.
    assert_eq!(crate::rows::claim_ids(&fixture.store(), 10).await.len(), 4);
}

/// A hook is told even where nobody delivers.
pub async fn case_17_writer_only_with_hook<F: Fixture>(fixture: F) {
    let witness = Witness::default();
    let outbox = Outbox::writer_only(fixture.store()).hook(witness.clone()).start().await.unwrap();
    let id = write(&outbox, event("Written")).await;
    assert_eq!(witness.told(), [("commit", vec![id.to_string()])]);
    drop(outbox.store().begin().await.unwrap());
}
