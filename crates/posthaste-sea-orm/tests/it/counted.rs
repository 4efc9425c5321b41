//! Transactions that SQLite has rolled back by itself, while its driver goes on counting them.

use posthaste_conformance::{Fixture, SqliteFixture};
use posthaste_core::Outbox;
use posthaste_core::store::CommitError;
use posthaste_sea_orm::OutboxExt;
use posthaste_sql::SqliteStore;
use sea_orm::{ConnectionTrait, DatabaseConnection, TransactionTrait};

use crate::order::{place, placed};
use crate::support::{Sea, Witness, event, rows, told, with_orders};

/// An outbox, SeaORM on one connection, and another one that looks.
struct Till {
    fixture: SqliteFixture,
    one: DatabaseConnection,
    other: DatabaseConnection,
    outbox: Outbox<SqliteStore>,
    witness: Witness,
}

/// The order that is there already, so that another one of that number is refused.
const TAKEN: i64 = 1;

impl Till {
    async fn open() -> Self {
        let fixture = SqliteFixture::create().await;
        let (other, witness) = (with_orders(&fixture).await, Witness::default());
        place(&other, TAKEN).await;
        let refuses = "CREATE TRIGGER refuses BEFORE UPDATE ON orders BEGIN SELECT RAISE(ROLLBACK, 'refused'); END";
        other.execute_unprepared(refuses).await.unwrap();
        let (one, _) = fixture.cuttable().await;
        let outbox = Outbox::writer_only(fixture.store()).hook(witness.clone()).start().await.unwrap();
        Self { fixture, one, other, outbox, witness }
    }

    /// Nothing of before is there, and whatever is done next on the connection is stored.
    async fn assert_sound(&self, ending: &str) {
        SqliteFixture::assert_outside(&self.one).await;
        assert_eq!((rows(&self.outbox).await, placed(&self.other).await), (0, vec![TAKEN]), "{ending}");
        // A driver that counts a transaction would leave one open here.
        self.one.begin().await.unwrap().rollback().await.unwrap();
        place(&self.one, 20).await;
        assert_eq!(placed(&self.other).await, [TAKEN, 20], "{ending}");
        let mut tx = self.outbox.begin_on(&self.one).await.unwrap();
        place(&*tx, 21).await;
        tx.write(event("Next")).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!((rows(&self.outbox).await, placed(&self.other).await), (1, vec![TAKEN, 20, 21]), "{ending}");
        place(&self.one, 22).await;
        assert_eq!(placed(&self.other).await, [TAKEN, 20, 21, 22], "{ending}");
        SqliteFixture::assert_outside(&self.one).await;
        self.fixture.assert_no_open_transaction().await;
    }
}

/// Has SQLite roll back, and swallows the error.
async fn lose(db: &impl ConnectionTrait) {
    db.execute_unprepared("INSERT OR ROLLBACK INTO orders VALUES (1, 0)").await.unwrap_err();
}

/// However it goes on: what comes next is refused, nobody hears of a commit, and the connection is as good as new.
#[tokio::test]
async fn whatever_comes_next_is_refused() {
    for ending in
        ["commit", "rollback", "drop", "write, commit", "write, rollback", "write, drop", "trigger", "savepoint"]
    {
        let till = Till::open().await;
        let undone = event("Undone");
        let mut tx = till.outbox.begin_on(&till.one).await.unwrap();
        place(&*tx, 2).await;
        tx.write(&undone).await.unwrap();
        if ending == "trigger" {
            tx.execute_unprepared("UPDATE orders SET total = 0").await.unwrap_err();
        } else {
            lose(&*tx).await;
        }
        if ending.starts_with("write") {
            tx.write(event("Late")).await.unwrap_err();
            let error = tx.execute_unprepared("INSERT INTO orders VALUES (3, 0)").await.unwrap_err();
            assert!(error.to_string().contains("the transaction has ended"), "{error}");
        }
        if ending == "savepoint" {
            tx.savepoint().await.unwrap_err();
        }
        match ending {
            "drop" | "write, drop" => drop(tx),
            "rollback" | "write, rollback" => tx.rollback().await.unwrap(),
            _ => {
                let error = tx.commit().await.unwrap_err();
                assert!(matches!(error, CommitError::NotCommitted(_)), "{error:?}");
            }
        }
        assert_eq!(till.witness.told(), [told("rollback", &[&undone])], "{ending}");
        till.assert_sound(ending).await;
    }
}

/// The same when it is the insert of an event that SQLite answers so, also in a transaction of the user's.
#[tokio::test]
async fn by_an_insert() {
    for ending in ["commit", "rollback", "drop", "user"] {
        let till = Till::open().await;
        let table = till.outbox.store().table().name().to_owned();
        let refuses = format!(
            "CREATE TRIGGER no_such_events BEFORE INSERT ON {table} WHEN NEW.event_type = 'Refused' BEGIN
                SELECT RAISE(ROLLBACK, 'refused');
            END"
        );
        till.other.execute_unprepared(&refuses).await.unwrap();
        if ending == "user" {
            let txn = till.one.begin().await.unwrap();
            place(&txn, 2).await;
            till.outbox.write_in(&txn, event("Refused")).await.unwrap_err();
            place(&txn, 3).await;
            drop(txn);
        } else {
            let undone = event("Undone");
            let mut tx = till.outbox.begin_on(&till.one).await.unwrap();
            tx.write(&undone).await.unwrap();
            tx.write(event("Refused")).await.unwrap_err();
            match ending {
                "rollback" => tx.rollback().await.unwrap(),
                "drop" => drop(tx),
                _ => drop(tx.commit().await.unwrap_err()),
            }
            assert_eq!(till.witness.told(), [told("rollback", &[&undone])], "{ending}");
        }
        till.assert_sound(ending).await;
    }
}

/// The same in a savepoint of the outbox, however that ends.
#[tokio::test]
async fn in_a_savepoint() {
    for ending in ["commit", "rollback", "drop", "drop, drop", "write"] {
        let till = Till::open().await;
        let undone = [event("Undone"), event("Undone")];
        let mut tx = till.outbox.begin_on(&till.one).await.unwrap();
        tx.write(&undone[0]).await.unwrap();
        let mut savepoint = tx.savepoint().await.unwrap();
        savepoint.write(&undone[1]).await.unwrap();
        lose(&*savepoint).await;
        match ending {
            "commit" => savepoint.commit().await.unwrap_err(),
            "rollback" => savepoint.rollback().await.unwrap_err(),
            "write" => {
                savepoint.write(event("Late")).await.unwrap_err();
                savepoint.commit().await.unwrap_err()
            }
            _ => {
                drop(savepoint);
                posthaste_core::store::Error::Refused("dropped".into())
            }
        };
        match ending {
            "drop, drop" => drop(tx),
            _ => drop(tx.commit().await.unwrap_err()),
        }
        let heard: Vec<_> = till.witness.told().into_iter().map(|(step, ids)| (step, ids.len())).collect();
        assert!(matches!(&*heard, [("rollback", 2)] | [("rollback", 1), ("rollback", 1)]), "{ending}: {heard:?}");
        till.assert_sound(ending).await;
    }
}

/// The same while SeaORM has one open inside of it, which ends before it or after.
#[tokio::test]
async fn around_one_of_seaorm() {
    for ending in ["before", "after", "nested"] {
        let till = Till::open().await;
        let undone = event("Undone");
        let mut tx = till.outbox.begin_on(&till.one).await.unwrap();
        tx.write(&undone).await.unwrap();
        let inner = tx.begin().await.unwrap();
        lose(&inner).await;
        if ending == "before" {
            drop(inner);
            tx.commit().await.unwrap_err();
        } else if ending == "nested" {
            let innermost = inner.begin().await.unwrap();
            drop((innermost, inner));
            tx.rollback().await.unwrap();
        } else {
            tx.commit().await.unwrap_err();
            drop(inner);
        }
        assert_eq!(till.witness.told(), [told("rollback", &[&undone])], "{ending}");
        till.assert_sound(ending).await;
    }
}

/// In a transaction of the user's the write is refused, and its end ends everything.
#[tokio::test]
async fn in_one_of_the_user() {
    for ending in ["drop", "rollback", "inner"] {
        let till = Till::open().await;
        let txn = till.one.begin().await.unwrap();
        place(&txn, 2).await;
        lose(&txn).await;
        if ending == "inner" {
            // It is a transaction of its own to SQLite, and so it is undone.
            let inner = txn.begin().await.unwrap();
            lose(&inner).await;
            till.outbox.write_in(&inner, event("Late")).await.unwrap_err();
            inner.rollback().await.unwrap();
            txn.rollback().await.unwrap();
        } else {
            till.outbox.write_in(&txn, event("Late")).await.unwrap_err();
            // Undone as well: it is not on its own.
            place(&txn, 3).await;
            match ending {
                "rollback" => txn.rollback().await.unwrap(),
                _ => drop(txn),
            }
        }
        till.assert_sound(ending).await;
    }
}

/// What others left of one on a connection is none of a transaction's that begins there.
#[tokio::test]
async fn by_others_before() {
    for deep in [false, true] {
        let till = Till::open().await;
        let txn = till.one.begin().await.unwrap();
        if deep {
            let inner = txn.begin().await.unwrap();
            lose(&inner).await;
            drop(inner);
        } else {
            lose(&txn).await;
        }
        drop(txn);
        let mut tx = till.outbox.begin_on(&till.one).await.unwrap();
        place(&*tx, 2).await;
        tx.write(event("Undone")).await.unwrap();
        tx.rollback().await.unwrap();
        till.assert_sound("rolled back").await;
    }
}
