//! Transactions that SQLite has rolled back by itself, while its driver goes on counting them.

use std::pin::pin;
use std::slice::from_ref;
use std::time::Duration;

use posthaste_conformance::testing::{Witness, event, events, told};
use posthaste_conformance::{Fixture, SqliteFixture};
use posthaste_core::Outbox;
use posthaste_core::store::{CommitError, Error};
use posthaste_sea_orm::OutboxExt;
use posthaste_sql::SqliteStore;
use sea_orm::sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sea_orm::{ConnectionTrait, DatabaseConnection, DatabaseTransaction, TransactionTrait};
use tokio::time::timeout;

use crate::order::{place, placed};
use crate::support::{Sea, rows, with_orders};

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
        Self::open_with(|options| options).await
    }

    async fn open_with(options: impl FnOnce(SqliteConnectOptions) -> SqliteConnectOptions) -> Self {
        let fixture = SqliteFixture::create().await;
        let (other, witness) = (with_orders(&fixture).await, Witness::default());
        place(&other, TAKEN).await;
        let refuses = "CREATE TRIGGER refuses BEFORE UPDATE ON orders BEGIN SELECT RAISE(ROLLBACK, 'refused'); END";
        other.execute_unprepared(refuses).await.unwrap();
        let options = options(fixture.store().pool().connect_options().as_ref().clone());
        let one = SqlitePoolOptions::new().max_connections(1).connect_with(options).await.unwrap().into();
        let outbox = Outbox::writer_only(fixture.store()).hook(witness.clone()).start().await.unwrap();
        Self { fixture, one, other, outbox, witness }
    }

    /// Has SQLite roll back when an event of the type `Refused` is inserted.
    async fn refuse_events(&self) {
        let table = self.outbox.store().table().name();
        let refuses = format!(
            "CREATE TRIGGER no_such_events BEFORE INSERT ON {table} WHEN NEW.event_type = 'Refused' BEGIN
                SELECT RAISE(ROLLBACK, 'refused');
            END"
        );
        self.other.execute_unprepared(&refuses).await.unwrap();
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
        assert_eq!(till.witness.told(), [told("rollback", from_ref(&undone))], "{ending}");
        till.assert_sound(ending).await;
    }
}

/// A statement that was there before, and waited for the one with which SQLite has rolled back, is refused, too.
#[tokio::test]
async fn statements_at_the_same_time() {
    let till = Till::open().await;
    let tx = till.outbox.begin_on(&till.one).await.unwrap();
    let loses = "INSERT OR ROLLBACK INTO orders VALUES (1, 0)";
    let [one, other] = ["INSERT INTO orders VALUES (3, 0)", "INSERT INTO orders VALUES (4, 0)"];
    let (lost, one, other) =
        tokio::join!(tx.execute_unprepared(loses), tx.execute_unprepared(one), tx.execute_unprepared(other));
    assert!(lost.is_err() && one.is_err() && other.is_err(), "{lost:?}, {one:?}, {other:?}");
    tx.commit().await.unwrap_err();
    till.assert_sound("commit").await;
}

/// One that waits for its turn, and that nobody polls any more, keeps nobody waiting.
#[tokio::test]
async fn a_statement_that_is_left_alone() {
    let till = Till::open().await;
    let tx = till.outbox.begin_on(&till.one).await.unwrap();
    let mut left = pin!(tx.execute_unprepared("INSERT INTO orders VALUES (3, 0)"));
    tokio::select! {
        biased;
        first = tx.execute_unprepared("INSERT INTO orders VALUES (2, 0)") => drop(first.unwrap()),
        _ = &mut left => panic!("it was not first"),
    }
    let next = tx.execute_unprepared("INSERT INTO orders VALUES (4, 0)");
    timeout(Duration::from_secs(10), next).await.expect("it waits for one that nobody polls").unwrap();
}

/// Statements on `&tx` are refused right after it, and go on after an error that leaves the transaction open.
#[tokio::test]
async fn statements_right_after() {
    for ending in ["commit", "rollback", "drop", "savepoint"] {
        let till = Till::open().await;
        let undone = event("Undone");
        let mut tx = till.outbox.begin_on(&till.one).await.unwrap();
        place(&tx, 2).await;
        tx.write(&undone).await.unwrap();
        tx.execute_unprepared("INSERT INTO orders VALUES (1, 0)").await.unwrap_err();
        place(&tx, 3).await;
        if ending == "savepoint" {
            let savepoint = tx.savepoint().await.unwrap();
            lose(&savepoint).await;
            assert_refused(&savepoint).await;
        } else {
            lose(&tx).await;
        }
        assert_refused(&tx).await;
        match ending {
            "rollback" => tx.rollback().await.unwrap(),
            "drop" => drop(tx),
            _ => {
                let error = tx.commit().await.unwrap_err();
                assert!(matches!(error, CommitError::NotCommitted(_)), "{error:?}");
            }
        }
        assert_eq!(till.witness.told(), [told("rollback", from_ref(&undone))], "{ending}");
        till.assert_sound(ending).await;
    }
}

async fn assert_refused(db: &impl ConnectionTrait) {
    for sql in ["INSERT INTO orders VALUES (4, 0)", "SELECT 1"] {
        let error = db.execute_unprepared(sql).await.unwrap_err();
        assert!(error.to_string().contains("the transaction has ended"), "{error}");
    }
}

/// Those on SeaORM's own transaction are stored on their own, as SQLite has it. Nobody takes that for the transaction.
#[tokio::test]
async fn statements_of_seaorm_right_after() {
    let till = Till::open().await;
    let undone = event("Undone");
    let mut tx = till.outbox.begin_on(&till.one).await.unwrap();
    place(&*tx, 2).await;
    tx.write(&undone).await.unwrap();
    lose(&*tx).await;
    place(&*tx, 3).await;
    let error = tx.commit().await.unwrap_err();
    assert!(matches!(error, CommitError::NotCommitted(_)), "{error:?}");
    assert_eq!(till.witness.told(), [told("rollback", from_ref(&undone))]);
    assert_eq!(placed(&till.other).await, [TAKEN, 3]);
    till.other.execute_unprepared("DELETE FROM orders WHERE id = 3").await.unwrap();
    till.assert_sound("commit").await;
}

/// The same when it is the insert of an event that SQLite answers so: the transaction has ended.
#[tokio::test]
async fn by_an_insert() {
    for ending in ["commit", "rollback", "drop", "many"] {
        let till = Till::open().await;
        till.refuse_events().await;
        let undone = event("Undone");
        let mut tx = till.outbox.begin_on(&till.one).await.unwrap();
        tx.write(&undone).await.unwrap();
        // So many that there are several statements, of which the last one does it.
        let before = if ending == "many" { events(3000) } else { vec![] };
        tx.write_all(before.into_iter().chain([event("Refused")])).await.unwrap_err();
        assert_refused(&tx).await;
        match ending {
            "rollback" => tx.rollback().await.unwrap(),
            "drop" => drop(tx),
            _ => drop(tx.commit().await.unwrap_err()),
        }
        assert_eq!(till.witness.told(), [told("rollback", from_ref(&undone))], "{ending}");
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
                Error::Refused("dropped".into())
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
        assert_eq!(till.witness.told(), [told("rollback", from_ref(&undone))], "{ending}");
        till.assert_sound(ending).await;
    }
}

/// One that SeaORM has begun in place of it, without a word, is not taken for it.
#[tokio::test]
async fn before_one_of_seaorm() {
    for ending in ["commit", "write", "savepoint", "rollback", "drop"] {
        let till = Till::open().await;
        let undone = event("Undone");
        let mut tx = till.outbox.begin_on(&till.one).await.unwrap();
        tx.write(&undone).await.unwrap();
        lose(&*tx).await;
        let inner = tx.begin().await.unwrap();
        place(&inner, 3).await;
        if ending == "drop" {
            drop((inner, tx));
        } else {
            match ending {
                "write" => drop(tx.write(event("Late")).await.unwrap_err()),
                "savepoint" => drop(tx.savepoint().await.unwrap_err()),
                "rollback" => tx.rollback().await.unwrap(),
                _ => drop(tx.commit().await.unwrap_err()),
            }
            drop(inner);
        }
        assert_eq!(till.witness.told(), [told("rollback", from_ref(&undone))], "{ending}");
        till.assert_sound(ending).await;
    }
}

/// In a transaction of the user's the write is refused, by SQLite itself or because it had rolled back before. However he goes on,
/// nothing is stored, his commit is refused, and its end ends everything.
#[tokio::test]
async fn in_one_of_the_user() {
    for by_insert in [false, true] {
        for ending in ["drop", "rollback", "commit", "write, commit", "write, drop", "inner, commit", "lose, commit"] {
            let till = Till::open().await;
            till.refuse_events().await;
            let txn = till.one.begin().await.unwrap();
            place(&txn, 2).await;
            if !by_insert {
                lose(&txn).await;
            }
            till.outbox.write_in(&txn, event("Refused")).await.unwrap_err();
            // Undone as well: it is not on its own.
            place(&txn, 3).await;
            if ending.starts_with("write") {
                for late in [event("Late"), event("Refused")] {
                    let error = till.outbox.write_in(&txn, late).await.unwrap_err();
                    let source = std::error::Error::source(&error).and_then(std::error::Error::source).unwrap();
                    assert!(source.to_string().contains("has rolled the transaction back"), "{source}");
                }
                place(&txn, 4).await;
            } else if ending.starts_with("inner") {
                let inner = txn.begin().await.unwrap();
                till.outbox.write_in(&inner, event("Late")).await.unwrap_err();
                place(&inner, 4).await;
                inner.commit().await.unwrap();
            } else if ending.starts_with("lose") {
                lose(&txn).await;
                till.outbox.write_in(&txn, event("Late")).await.unwrap_err();
            }
            match ending {
                "rollback" => txn.rollback().await.unwrap(),
                "drop" | "write, drop" => drop(txn),
                _ => drop(txn.commit().await.unwrap_err()),
            }
            assert_eq!(till.witness.told(), []);
            till.assert_sound(ending).await;
        }
    }
}

/// The same in one that SeaORM began inside of the user's.
#[tokio::test]
async fn in_an_inner_one_of_the_user() {
    for ending in ["rollback", "commit", "drop, commit", "commit, drop", "around"] {
        let till = Till::open().await;
        let txn = till.one.begin().await.unwrap();
        place(&txn, 2).await;
        let inner = txn.begin().await.unwrap();
        lose(&inner).await;
        till.outbox.write_in(if ending == "around" { &txn } else { &inner }, event("Late")).await.unwrap_err();
        place(&inner, 3).await;
        match ending {
            "rollback" => inner.rollback().await.unwrap(),
            "drop, commit" => drop(inner),
            // It is kept as a part of what cannot be committed.
            _ => inner.commit().await.unwrap(),
        }
        match ending {
            "rollback" => txn.rollback().await.unwrap(),
            "commit, drop" => drop(txn),
            _ => drop(txn.commit().await.unwrap_err()),
        }
        till.assert_sound(ending).await;
    }
}

/// Without foreign keys nothing can stand in: SQLite refuses the commit, and the next one of the outbox mends the connection.
#[tokio::test]
async fn in_one_of_the_user_without_foreign_keys() {
    for ending in ["commit", "write, commit", "rollback", "drop"] {
        let till = Till::open_with(|options| options.foreign_keys(false)).await;
        let txn = till.one.begin().await.unwrap();
        place(&txn, 2).await;
        lose(&txn).await;
        till.outbox.write_in(&txn, event("Late")).await.unwrap_err();
        if ending.starts_with("write") {
            till.outbox.write_in(&txn, event("Late")).await.unwrap_err();
        }
        match ending {
            "rollback" => drop(txn.rollback().await.unwrap_err()),
            "drop" => drop(txn),
            _ => drop(txn.commit().await.unwrap_err()),
        }
        till.outbox.begin_on(&till.one).await.unwrap().rollback().await.unwrap();
        till.assert_sound(ending).await;
    }
}

/// So many inside of each other, the outermost first.
async fn nest(mut all: Vec<DatabaseTransaction>, depth: usize) -> Vec<DatabaseTransaction> {
    while all.len() < depth {
        let inner = all.last().unwrap().begin().await.unwrap();
        all.push(inner);
    }
    all
}

/// The innermost first, as a stack of calls does.
fn unwind(mut all: Vec<DatabaseTransaction>) {
    while let Some(innermost) = all.pop() {
        drop(innermost);
    }
}

/// What others left of one on a connection is none of a transaction's that begins there, however deep they were.
#[tokio::test]
async fn by_others_before() {
    for depth in [1, 2, 3, 4, 5, 12, 30] {
        let till = Till::open().await;
        let all = nest(vec![till.one.begin().await.unwrap()], depth).await;
        lose(all.last().unwrap()).await;
        unwind(all);
        let mut tx = till.outbox.begin_on(&till.one).await.unwrap();
        place(&*tx, 2).await;
        tx.write(event("Undone")).await.unwrap();
        tx.rollback().await.unwrap();
        till.assert_sound(&format!("{depth} deep")).await;
    }
}

/// The same inside of one of the outbox, and after its commit.
#[tokio::test]
async fn deep_inside() {
    for depth in [1, 4, 12, 30] {
        let till = Till::open().await;
        let tx = till.outbox.begin_on(&till.one).await.unwrap();
        let all = nest(vec![tx.begin().await.unwrap()], depth).await;
        lose(all.last().unwrap()).await;
        unwind(all);
        tx.rollback().await.unwrap();
        till.assert_sound(&format!("{depth} deep")).await;

        let till = Till::open().await;
        let tx = till.outbox.begin_on(&till.one).await.unwrap();
        let forgotten = nest(vec![tx.begin().await.unwrap()], depth).await;
        tx.commit().await.unwrap();
        unwind(forgotten);
        till.assert_sound(&format!("{depth} forgotten")).await;
    }
}

/// There is an end to it, and it is told.
#[tokio::test]
async fn too_deep_to_mend() {
    let till = Till::open().await;
    let tx = till.outbox.begin_on(&till.one).await.unwrap();
    let all = nest(vec![tx.begin().await.unwrap()], 50).await;
    lose(all.last().unwrap()).await;
    unwind(all);
    let error = tx.rollback().await.unwrap_err();
    assert!(matches!(&error, Error::Refused(_)), "{error:?}");
    for _ in 0..2 {
        let error = till.outbox.begin_on(&till.one).await.unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains("close the pool"), "{source}");
    }
    assert_eq!((rows(&till.outbox).await, placed(&till.other).await), (0, vec![TAKEN]));
}
