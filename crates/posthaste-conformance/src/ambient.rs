//! Part B: transactions that a task has at hand.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use posthaste_core::listener::Path;
use posthaste_core::store::Store;
use posthaste_core::{NoTransaction, Outbox, TransactionError, WriteError};

use crate::faulty::{Call, Fault, Faulty};
use crate::fixture::Fixture;
use crate::outboxes::{no_interval, start, watched};
use crate::rows::{counts, event, events, ids_of};
use crate::tap::Tap;
use crate::wait::{Gate, cut_short, within};

/// What the work of these cases fails with.
#[derive(Debug)]
enum Failed {
    Itself,
    #[expect(dead_code, reason = "shown by a case that fails")]
    Write(WriteError),
    Transaction(TransactionError),
}

impl From<WriteError> for Failed {
    fn from(error: WriteError) -> Self {
        Self::Write(error)
    }
}

impl From<TransactionError> for Failed {
    fn from(error: TransactionError) -> Self {
        Self::Transaction(error)
    }
}

async fn write_current<S: Store>(outbox: &Outbox<S>, event_type: &str) -> Result<(), Failed> {
    outbox.write_current(event(event_type)).await?;
    Ok(())
}

fn assert_outside<T: std::fmt::Debug>(result: Result<T, WriteError>) {
    let error = result.unwrap_err();
    assert!(matches!(error, WriteError::NoTransaction(NoTransaction::Outside)), "{error:?}");
    assert!(error.to_string().contains("outbox.transaction("), "{error}");
}

/// Outside of a scope it is refused: before it, after it, in a task that was spawned in it, and in another outbox's.
pub async fn case_80_refused_outside<F: Fixture>(fixture: F) {
    let (outbox, _) = start(fixture.store(), no_interval(), Tap::new().0).await;
    let (other, _) = start(fixture.node().await, no_interval(), Tap::new().0).await;
    assert_outside(outbox.write_current(event("Outside")).await);
    let within = outbox.transaction(|| async {
        assert_outside(other.write_current(event("Other")).await);
        let spawned = outbox.clone();
        let spawned = tokio::spawn(async move { spawned.write_current(event("Spawned")).await });
        assert_outside(spawned.await.unwrap());
        Ok::<_, Failed>(42)
    });
    assert_eq!(within.await.unwrap(), 42);
    assert_outside(outbox.write_all_current(events(2)).await);
    assert_eq!(outbox.current().unwrap_err(), NoTransaction::Outside);
    outbox.shutdown().await;
    other.shutdown().await;
    assert_eq!(counts(outbox.store()).await.total(), 0);
}

/// `Ok` commits: one call of the hook, everything in order, hot. Whatever is called has the same transaction.
pub async fn case_80_commits<F: Fixture>(fixture: F) {
    let (outbox, witness, mut inbox) = watched(fixture.store()).await;
    let four = events(4);
    let work = outbox.transaction(|| async {
        outbox.write_current(&four[0]).await?;
        outbox.current().map_err(WriteError::from)?.write(&four[1]).await?;
        outbox.write_all_current(&four[2..]).await?;
        assert_eq!(witness.told(), []);
        assert_eq!(counts(outbox.store()).await.total(), 0, "not yet");
        Ok::<_, Failed>(())
    });
    work.await.unwrap();
    assert_eq!(witness.told(), [("commit", ids_of(&four))]);
    for event in &four {
        let delivered = inbox.next().await;
        assert_eq!((delivered.id(), delivered.path()), (event.id(), Path::Hot));
    }
    outbox.shutdown().await;
    inbox.assert_empty();
}

/// `Err`, a panic, and being dropped roll back; so does a commit that fails, and a transaction that is kept too long.
pub async fn case_80_rolls_back<F: Fixture>(_fixture: F) {
    let fixture = F::narrow().await;
    let (store, faults) = Faulty::new(fixture.store());
    let (outbox, witness, mut inbox) = watched(store).await;
    let rolled_back = |what: &str| {
        let told = witness.told();
        assert!(matches!(&told[..], [("rollback", ids)] if ids.len() == 1), "{what}: {told:?}");
    };

    let failed = outbox.transaction(|| async {
        write_current(&outbox, "Failed").await?;
        Err::<(), _>(Failed::Itself)
    });
    assert!(matches!(failed.await, Err(Failed::Itself)));
    rolled_back("an error");

    let panicked = outbox.transaction(|| async {
        write_current(&outbox, "Panicked").await?;
        if outbox.current().is_ok() {
            panic!("in the middle");
        }
        Ok::<_, Failed>(())
    });
    assert!(AssertUnwindSafe(panicked).catch_unwind().await.is_err());
    rolled_back("a panic");

    let written = Gate::new();
    let dropped = outbox.transaction(|| async {
        write_current(&outbox, "Dropped").await?;
        written.open();
        std::future::pending::<()>().await;
        Ok::<_, Failed>(())
    });
    tokio::select! {
        biased;
        ended = dropped => panic!("it came to its end: {ended:?}"),
        () = within("it is written", written.pass()) => {}
    }
    rolled_back("dropped");

    faults.times(1, Call::Commit, Fault::Unavailable);
    let refused = outbox.transaction(|| write_current(&outbox, "Refused"));
    let error = refused.await.unwrap_err();
    assert!(matches!(error, Failed::Transaction(TransactionError::Commit(_))), "{error:?}");
    rolled_back("a failed commit");

    let mut kept = None;
    let in_use = outbox.transaction(|| async {
        write_current(&outbox, "InUse").await?;
        kept = Some(outbox.current().map_err(WriteError::from)?);
        let error = outbox.write_current(event("Twice")).await.unwrap_err();
        assert!(matches!(error, WriteError::NoTransaction(NoTransaction::InUse)), "{error:?}");
        Ok::<_, Failed>(())
    });
    let error = in_use.await.unwrap_err();
    assert!(matches!(error, Failed::Transaction(TransactionError::StillInUse)), "{error:?}");
    drop(kept);
    rolled_back("kept too long");

    fixture.assert_no_open_transaction().await;
    outbox.shutdown().await;
    inbox.assert_empty();
    assert_eq!(counts(outbox.store()).await.total(), 0);
}

/// One inside of another is a savepoint: it is undone alone, or kept with the rest.
pub async fn case_80_one_inside_another<F: Fixture>(fixture: F) {
    let (tap, mut inbox) = Tap::new();
    let options = posthaste_core::Options { workers: 1, ..no_interval() };
    let (outbox, _) = start(fixture.store(), options, tap).await;
    let work = outbox.transaction(|| async {
        write_current(&outbox, "First").await?;
        let undone = outbox.transaction(|| async {
            write_current(&outbox, "Undone").await?;
            Err::<(), _>(Failed::Itself)
        });
        assert!(matches!(undone.await, Err(Failed::Itself)));
        let undone = AssertUnwindSafe(outbox.transaction(|| async {
            write_current(&outbox, "Panicked").await?;
            if outbox.current().is_ok() {
                panic!("in the middle");
            }
            Ok::<_, Failed>(())
        }));
        assert!(undone.catch_unwind().await.is_err());
        outbox.transaction(|| write_current(&outbox, "Kept")).await?;
        // Two at a time would be in each other's way, and are told so.
        let (one, two) = tokio::join!(
            outbox.transaction(|| async {
                tokio::task::yield_now().await;
                write_current(&outbox, "One").await
            }),
            outbox.transaction(|| write_current(&outbox, "Two")),
        );
        one?;
        let refused = two.unwrap_err();
        assert!(matches!(refused, Failed::Transaction(TransactionError::Current(NoTransaction::InUse))), "{refused:?}");
        write_current(&outbox, "Last").await
    });
    work.await.unwrap();
    let mut delivered = Vec::new();
    for _ in 0..4 {
        delivered.push(inbox.next().await.event_type().to_owned());
    }
    assert_eq!(delivered, ["First", "Kept", "One", "Last"]);
    outbox.shutdown().await;
    inbox.assert_empty();
    assert_eq!(counts(outbox.store()).await.total(), 4);
}

/// Dropped at any await, it leaves no transaction open, and its events are all there or none.
pub async fn case_80_cut_anywhere<F: Fixture>(_fixture: F) {
    let fixture = F::narrow().await;
    let (outbox, _) = start(fixture.store(), no_interval(), Tap::new().0).await;
    for polls in 1.. {
        let three = events(3);
        let work = outbox.transaction(|| async {
            outbox.write_current(&three[0]).await?;
            outbox.transaction(|| async { Ok::<_, Failed>(outbox.write_current(&three[1]).await?) }).await?;
            outbox.write_current(&three[2]).await?;
            Ok::<_, Failed>(())
        });
        let finished = cut_short(polls, work).await.is_some();
        fixture.assert_no_open_transaction().await;
        let mut rows = 0;
        for event in &three {
            rows += usize::from(outbox.admin().find(event.id()).await.unwrap().is_some());
        }
        assert!(rows == 0 || rows == 3, "{rows} rows after {polls} polls");
        if finished {
            assert_eq!(rows, 3);
            break;
        }
    }
    outbox.shutdown().await;
}
