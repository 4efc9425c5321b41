//! Events that their user has undone by statements of his own.

use std::sync::{Arc, Mutex};

use posthaste_core::hook::HookError;
use posthaste_core::store::{AdminStore, CommitError, NewRow};
use posthaste_core::{Event, Outbox, WriteHook};
use posthaste_sql::{Partitions, PgStore};
use sqlx::postgres::PgConnection;

use super::support::{Database, claim, sql, within};
use crate::support::{event, ids};
use crate::undone::Step::{Say, Write};
use crate::undone::{Outcome, Step, after};

async fn say(connection: &mut PgConnection, statement: &'static str) {
    sqlx::raw_sql(statement).execute(connection).await.unwrap();
}

async fn outcome(store: &PgStore, steps: &[Step]) -> Outcome {
    let outcome = after(store, steps, say).await;
    sql(store, format!("DELETE FROM {}", store.table())).await;
    outcome
}

/// What is undone is never delivered, and what is not takes the hot path.
#[tokio::test]
async fn an_event_that_a_statement_has_undone_is_never_delivered() {
    let database = Database::new().await;
    let store = database.store().await;
    let parts = database.empty().await.with_table("parts").unwrap().partitioned(Partitions::daily());
    parts.migrate().await.unwrap();
    for store in [store, parts] {
        let savepoint = [Write(&["kept"]), Say("SAVEPOINT mine"), Write(&["u", "v"]), Say("ROLLBACK TO mine")];
        assert_eq!(outcome(&store, &savepoint).await, Outcome::of(&["kept"], &[]));
        let alone = [Say("SAVEPOINT mine"), Write(&["u"]), Say("ROLLBACK TO mine")];
        assert_eq!(outcome(&store, &alone).await, Outcome::of(&[], &[]));
        let more = [Say("SAVEPOINT mine"), Write(&["u"]), Say("ROLLBACK TO mine"), Write(&["v", "w"])];
        assert_eq!(outcome(&store, &more).await, Outcome::of(&["v", "w"], &[]));
        let released = [Say("SAVEPOINT mine"), Write(&["k"]), Say("RELEASE mine")];
        assert_eq!(outcome(&store, &released).await, Outcome::of(&["k"], &[]));
        // The row may be from either insert, so the poller sees to it.
        let again = [Say("SAVEPOINT mine"), Write(&["u"]), Say("ROLLBACK TO mine"), Write(&["u"]), Write(&["v"])];
        assert_eq!(outcome(&store, &again).await, Outcome::of(&["v"], &["u"]));

        let another = [Write(&["u"]), Say("ROLLBACK; BEGIN")];
        assert_eq!(outcome(&store, &another).await, Outcome::of(&[], &[]));
        let another = [Write(&["u"]), Say("ROLLBACK; BEGIN"), Write(&["v"])];
        assert_eq!(outcome(&store, &another).await, Outcome::of(&["v"], &[]));
        let chain = [Write(&["u"]), Say("ROLLBACK AND CHAIN"), Write(&["v"]), Say("SELECT 1")];
        assert_eq!(outcome(&store, &chain).await, Outcome::of(&["v"], &[]));
        let committed = [Write(&["c"]), Say("COMMIT; BEGIN"), Write(&["v"])];
        assert_eq!(outcome(&store, &committed).await, Outcome::of(&["v"], &["c"]));
    }
}

#[tokio::test]
async fn what_is_there_takes_the_hot_path_whatever_it_is_called() {
    const ODD: &[&str] = &["it's", "a\\b", "$1 {ids}", "ü'; --", "\" \u{1f980}"];
    let database = Database::new().await;
    let store = database.store().await.with_table("odd").unwrap();
    store.migrate().await.unwrap();
    for setting in ["SELECT 1", "SET LOCAL standard_conforming_strings = off", "SET LOCAL search_path = public"] {
        let odd = ODD.iter().map(|id| Write(std::slice::from_ref(id)));
        let steps: Vec<_> = odd.chain([Say(setting)]).collect();
        assert_eq!(outcome(&store, &steps).await, Outcome::of(ODD, &[]), "{setting}");
    }
    let repeatable = [Say("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"), Write(&["a"]), Say("SELECT 1")];
    assert_eq!(outcome(&store, &repeatable).await, Outcome::of(&["a"], &[]));
    // The table is not found, so nobody knows; it was committed all the same.
    let elsewhere = [Write(&["a"]), Say("SET LOCAL search_path = pg_catalog")];
    assert_eq!(outcome(&store, &elsewhere).await, Outcome::of(&[], &["a"]));
}

/// To look for a row would be in conflict with everybody else who inserts.
#[tokio::test]
async fn serializable_transactions_are_in_nobodys_way() {
    let database = Database::new().await;
    let store = database.store().await;
    let serializable = "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE";
    let kept = [Say(serializable), Write(&["a"]), Say("SELECT 1")];
    assert_eq!(outcome(&store, &kept).await, Outcome::of(&[], &["a"]));
    let undone = [Say(serializable), Say("SAVEPOINT mine"), Write(&["a"]), Say("ROLLBACK TO mine")];
    assert_eq!(outcome(&store, &undone).await, Outcome::of(&[], &[]));

    let outbox = Outbox::writer_only(store.clone()).hook(Told::default()).start().await.unwrap();
    let mut open = Vec::new();
    for id in ["a", "b", "c"] {
        let mut tx = outbox.begin().await.unwrap();
        say(&mut tx, serializable).await;
        tx.write(event(id)).await.unwrap();
        say(&mut tx, "SELECT 1").await;
        open.push(tx);
    }
    for tx in open {
        tx.commit().await.unwrap();
    }
    assert_eq!(ids(&claim(&store, 10).await.1), ["a", "b", "c"]);
}

/// A commit that fails is none, and says so, whatever it would have looked for.
#[tokio::test]
async fn a_commit_that_looks_and_fails() {
    let database = Database::new().await;
    let store = database.store_of_one().await;
    let tables = "CREATE TABLE parent (id INTEGER PRIMARY KEY); \
                  CREATE TABLE child (parent INTEGER REFERENCES parent DEFERRABLE INITIALLY DEFERRED)";
    sql(&store, tables).await;
    let deferred = [Write(&["a"]), Say("INSERT INTO child VALUES (1)")];
    assert_eq!(outcome(&store, &deferred).await, Outcome::not_committed());

    let told = Told::default();
    let outbox = Outbox::writer_only(store.clone()).hook(told.clone()).start().await.unwrap();
    for (statement, certain) in [("SELECT 1 / 0", true), ("ROLLBACK", false), ("COMMIT", false)] {
        let mut tx = outbox.begin().await.unwrap();
        tx.write(Event::of_json("T", "{}")).await.unwrap();
        let _ = sqlx::raw_sql(statement).execute(&mut *tx).await;
        let error = tx.commit().await.unwrap_err();
        assert_eq!(matches!(error, CommitError::NotCommitted(_)), certain, "{statement}: {error:?}");
        assert_eq!(told.take(), [if certain { "rollback 1" } else { "unknown 1" }], "{statement}");
    }
    let mut tx = within("the connection is there", outbox.begin()).await.unwrap();
    tx.write(event("real")).await.unwrap();
    say(&mut tx, "SELECT 1").await;
    tx.commit().await.unwrap();
    assert_eq!((told.take(), store.counts().await.unwrap().total()), (vec!["commit 1".to_owned()], 2));
}

/// Hooks are told, each of what was kept and of what was not, by its number.
#[derive(Clone, Default)]
pub(super) struct Told(Arc<Mutex<Vec<String>>>);

impl Told {
    pub(super) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }

    fn note(&self, what: &str, rows: &[NewRow]) -> Result<(), HookError> {
        self.0.lock().unwrap().push(format!("{what} {}", rows.len()));
        Ok(())
    }
}

impl WriteHook for Told {
    fn after_commit(&self, rows: &[NewRow]) -> Result<(), HookError> {
        self.note("commit", rows)
    }

    fn after_rollback(&self, rows: &[NewRow]) -> Result<(), HookError> {
        self.note("rollback", rows)
    }

    fn after_unknown(&self, rows: &[NewRow]) -> Result<(), HookError> {
        self.note("unknown", rows)
    }
}

#[tokio::test]
async fn hooks_are_told_of_what_was_undone() {
    let database = Database::new().await;
    let store = database.store().await;
    let told = Told::default();
    let outbox = Outbox::writer_only(store.clone()).hook(told.clone()).start().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    tx.write_all(["a", "b"].map(event)).await.unwrap();
    say(&mut tx, "SAVEPOINT mine").await;
    tx.write(event("c")).await.unwrap();
    say(&mut tx, "ROLLBACK TO mine").await;
    tx.commit().await.unwrap();
    assert_eq!(told.take(), ["commit 2", "unknown 1"]);
}
