//! Part B: transactions that have ended before their time.

use std::slice::from_ref;

use posthaste_core::CommitError;
use posthaste_core::listener::Path;
use posthaste_core::store::WriteStore;

use crate::fixture::{Fixture, Served, Tables};
use crate::outboxes::{watched, write};
use crate::rows::{counts, event};
use crate::witness::told;

type Connection<F> = <<F as Fixture>::Store as WriteStore>::Connection;

/// A table for [`lose`].
async fn with_rows<F: Served>(fixture: &F) {
    fixture.execute("CREATE TABLE contended (id INTEGER NOT NULL PRIMARY KEY, n INTEGER NOT NULL)").await;
    let rows: Vec<_> = (1..=50).map(|id| format!("({id}, 0)")).collect();
    fixture.execute(&format!("INSERT INTO contended VALUES {}", rows.join(", "))).await;
}

/// Has the transaction on a connection lose a deadlock.
async fn lose<F: Served>(fixture: &F, connection: &mut Connection<F>) {
    F::say(connection, "UPDATE contended SET n = n + 1 WHERE id = 1").await.unwrap();
    let mut other = fixture.begin_foreign().await;
    F::say(&mut other, F::WIN).await.unwrap();
    F::say(&mut other, "UPDATE contended SET n = n + 1 WHERE id > 1").await.unwrap();
    let won = F::say(&mut other, "UPDATE contended SET n = n + 1 WHERE id = 1");
    let lost = F::say(connection, "UPDATE contended SET n = n + 1 WHERE id = 2");
    let (won, lost) = tokio::join!(won, lost);
    won.unwrap();
    let lost = lost.unwrap_err().to_string().to_lowercase();
    assert!(lost.contains("deadlock"), "{lost}");
    fixture.commit_foreign(other).await;
}

/// A deadlock costs a transaction all that was done in it. Who passes over the error can neither write nor commit, and nobody hears
/// of what was written.
pub async fn case_10_lost_deadlock<F: Served>(fixture: F) {
    with_rows(&fixture).await;
    let (outbox, witness, mut inbox) = watched(fixture.store()).await;
    for next in ["commit", "write", "many", "statement", "savepoint", "rollback", "drop"] {
        let before = event("Before");
        let mut tx = outbox.begin().await.unwrap();
        tx.write(&before).await.unwrap();
        lose(&fixture, &mut tx).await;
        match next {
            "write" => {
                tx.write(event("After")).await.unwrap_err();
                tx.write(event("After")).await.unwrap_err();
            }
            "many" => drop(tx.write_all((0..700).map(|_| event("After"))).await.unwrap_err()),
            // On its own, or refused.
            "statement" => drop(F::say(&mut tx, "UPDATE contended SET n = n + 1 WHERE id = 1").await),
            "savepoint" => drop(tx.savepoint().await.unwrap_err()),
            _ => {}
        }
        match next {
            "rollback" => tx.rollback().await.unwrap(),
            "drop" => drop(tx),
            _ => {
                let error = tx.commit().await.unwrap_err();
                assert!(matches!(error, CommitError::NotCommitted(_)), "{next}: {error:?}");
            }
        }
        assert_eq!(witness.told(), [told("rollback", from_ref(&before))], "{next}");
        assert_eq!(counts(outbox.store()).await.total(), 0, "{next}");
        fixture.assert_no_open_transaction().await;
    }

    // The only event comes after it.
    let mut tx = outbox.begin().await.unwrap();
    lose(&fixture, &mut tx).await;
    tx.write(event("Alone")).await.unwrap_err();
    // Where the transaction is gone, no event shows how it has ended.
    let error = tx.commit().await.unwrap_err();
    assert_eq!(matches!(error, CommitError::NotCommitted(_)), !F::GOES_ON_AFTER_ERROR, "{error:?}");
    assert_eq!(witness.told(), []);

    let last = write(&outbox, event("Last")).await;
    assert_eq!(inbox.next().await.id(), &last);
    outbox.shutdown().await;
    inbox.assert_empty();
    assert_eq!(counts(outbox.store()).await.total(), 1);
}

/// The same in a savepoint, which the deadlock may take along, with all that is around it.
pub async fn case_10_lost_deadlock_in_a_savepoint<F: Served>(fixture: F) {
    with_rows(&fixture).await;
    let (outbox, witness, mut inbox) = watched(fixture.store()).await;
    for (end, next) in [("commit", "write"), ("commit", "commit"), ("drop", "write"), ("drop", "commit")] {
        let [before, within] = ["Before", "Within"].map(event);
        let mut tx = outbox.begin().await.unwrap();
        tx.write(&before).await.unwrap();
        let mut savepoint = tx.savepoint().await.unwrap();
        savepoint.write(&within).await.unwrap();
        lose(&fixture, &mut savepoint).await;
        savepoint.write(event("After")).await.unwrap_err();
        match end {
            "commit" => drop(savepoint.commit().await.unwrap_err()),
            _ => drop(savepoint),
        }
        // Where the transaction has failed and is still there, the savepoint is undone, and it goes on.
        let goes_on = !F::GOES_ON_AFTER_ERROR;
        if next == "write" {
            assert_eq!(tx.write(event("After")).await.is_ok(), goes_on, "{end}, {next}");
        }
        let committed = tx.commit().await;
        let told = witness.told();
        if goes_on {
            committed.unwrap();
            assert_eq!((told.len(), told[0].0, told[1].0), (2, "rollback", "commit"), "{end}, {next}");
        } else {
            assert!(matches!(committed, Err(CommitError::NotCommitted(_))), "{end}, {next}: {committed:?}");
            let each = [within, before].map(|event| ("rollback", vec![event.id().to_string()]));
            assert_eq!(told, each, "{end}, {next}");
        }
        let stored = if goes_on { 1 + usize::from(next == "write") } else { 0 };
        assert_eq!(inbox.ids(stored).await.len(), stored);
        fixture.assert_no_open_transaction().await;
    }
    outbox.shutdown().await;
    inbox.assert_empty();
}

/// In a transaction of somebody else's nothing can be written any more. The rest is his to judge.
pub async fn case_10_lost_deadlock_of_somebody_else<F: Served>(fixture: F) {
    with_rows(&fixture).await;
    let (outbox, witness, mut inbox) = watched(fixture.store()).await;
    let mut tx = fixture.begin_foreign().await;
    let before = outbox.write(&mut tx, event("Before")).await.unwrap();
    lose(&fixture, &mut tx).await;
    outbox.write(&mut tx, event("After")).await.unwrap_err();
    outbox.write_all(&mut tx, (0..700).map(|_| event("After"))).await.unwrap_err();
    drop(tx);
    let ids = before.ids().iter().map(ToString::to_string).collect();
    before.rolled_back();
    assert_eq!(witness.told(), [("rollback", ids)]);
    fixture.assert_no_open_transaction().await;
    outbox.shutdown().await;
    inbox.assert_empty();
    assert_eq!(counts(outbox.store()).await.total(), 0);
}

/// A transaction that a statement of the user's has committed: its own commit cannot tell, and says so, also after a savepoint that
/// was dropped, that could not be set, or not be undone. The poller delivers what is there.
pub async fn case_18_committed_by_a_statement<F: Tables>(fixture: F) {
    let (outbox, witness, mut inbox) = watched(fixture.store()).await;
    for (round, what) in ["nothing", "dropped", "set", "undone"].into_iter().enumerate() {
        let [kept, undone] = ["Kept", "Undone"].map(event);
        let mut tx = outbox.begin().await.unwrap();
        tx.write(&kept).await.unwrap();
        if what == "dropped" {
            let mut savepoint = tx.savepoint().await.unwrap();
            savepoint.write(&undone).await.unwrap();
            drop(savepoint);
            assert_eq!(witness.told(), [told("rollback", from_ref(&undone))]);
        }
        if what == "undone" {
            let mut savepoint = tx.savepoint().await.unwrap();
            F::say(&mut savepoint, "COMMIT").await.unwrap();
            savepoint.rollback().await.unwrap_err();
        } else {
            F::say(&mut tx, "COMMIT").await.unwrap();
        }
        if what == "set" {
            tx.savepoint().await.map(drop).unwrap_err();
        }
        let error = tx.commit().await.unwrap_err();
        assert!(matches!(error, CommitError::Unknown(_)), "{what}: {error:?}");
        assert_eq!(witness.told(), [told("unknown", from_ref(&kept))], "{what}");
        let delivered = inbox.next().await;
        assert_eq!((delivered.id(), delivered.path()), (kept.id(), Path::Cold), "{what}");
        assert!(outbox.admin().find(undone.id()).await.unwrap().is_none());
        fixture.assert_no_open_transaction().await;
        let last = write(&outbox, event("Last")).await;
        assert_eq!(inbox.next().await.id(), &last);
        assert_eq!(witness.told().len(), 1, "{what}");
        assert_eq!(counts(outbox.store()).await.total(), 2 * (round as u64 + 1), "{what}");
    }
    outbox.shutdown().await;
    inbox.assert_empty();
}
