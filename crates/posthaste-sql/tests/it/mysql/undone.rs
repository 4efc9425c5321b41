//! Events that their user has undone by statements of his own.

use std::sync::{Arc, Mutex};

use posthaste_core::hook::HookError;
use posthaste_core::store::{AdminStore, NewRow};
use posthaste_core::{Outbox, WriteHook};
use posthaste_sql::MySqlStore;
use sqlx::mysql::MySqlConnection;

use super::{Database, execute, pool};
use crate::support::event;
use crate::undone::Step::{Say, Write};
use crate::undone::{Outcome, Step, after};

async fn say(connection: &mut MySqlConnection, statement: &'static str) {
    sqlx::raw_sql(statement).execute(connection).await.unwrap();
}

async fn outcome(store: &MySqlStore, steps: &[Step]) -> Outcome {
    let outcome = after(store, steps, say).await;
    execute(store, &format!("DELETE FROM {}", store.table())).await;
    outcome
}

/// What is undone is never delivered, and what is not takes the hot path.
#[tokio::test]
async fn an_event_that_a_statement_has_undone_is_never_delivered() {
    let database = Database::new().await;
    let store = database.store().await;
    let savepoint = [Write(&["kept"]), Say("SAVEPOINT mine"), Write(&["u", "v"]), Say("ROLLBACK TO mine")];
    assert_eq!(outcome(&store, &savepoint).await, Outcome::of(&["kept"], &[]));
    let alone = [Say("SAVEPOINT mine"), Write(&["u"]), Say("ROLLBACK TO mine")];
    assert_eq!(outcome(&store, &alone).await, Outcome::of(&[], &[]));
    let more = [Say("SAVEPOINT mine"), Write(&["u"]), Say("ROLLBACK TO mine"), Write(&["v", "w"])];
    assert_eq!(outcome(&store, &more).await, Outcome::of(&["v", "w"], &[]));
    let released = [Say("SAVEPOINT mine"), Write(&["k"]), Say("RELEASE SAVEPOINT mine")];
    assert_eq!(outcome(&store, &released).await, Outcome::of(&["k"], &[]));
    // The row may be from either insert, so the poller sees to it.
    let again = [Say("SAVEPOINT mine"), Write(&["u"]), Say("ROLLBACK TO mine"), Write(&["u"]), Write(&["v"])];
    assert_eq!(outcome(&store, &again).await, Outcome::of(&["v"], &["u"]));
    // Another transaction in place of the first is not committed.
    let another = [Write(&["u"]), Say("ROLLBACK; BEGIN")];
    assert_eq!(outcome(&store, &another).await, Outcome::not_committed());
    let another = [Write(&["u"]), Say("ROLLBACK; BEGIN"), Write(&["v"])];
    assert_eq!(outcome(&store, &another).await, Outcome::not_committed());
}

#[tokio::test]
async fn what_is_there_takes_the_hot_path_whatever_it_is_called() {
    const ODD: &[&str] = &["it's", "a\\b", "{ids} ?", "ü'; -- ", "\" \u{1f980}"];
    let database = Database::new().await;
    let store = database.store().await.with_table("odd").unwrap();
    store.migrate().await.unwrap();
    for setting in ["SELECT 1", "SET sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'"] {
        let odd = ODD.iter().map(|id| Write(std::slice::from_ref(id)));
        let steps: Vec<_> = odd.chain([Say(setting)]).collect();
        assert_eq!(outcome(&store, &steps).await, Outcome::of(ODD, &[]), "{setting}");
    }
    let levels =
        ["READ COMMITTED", "SERIALIZABLE"].map(|level| format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}"));
    for level in levels {
        let level: &'static str = level.leak();
        let set = pool(4).after_connect(move |connection, _| {
            Box::pin(async move { sqlx::raw_sql(level).execute(connection).await.map(drop) })
        });
        let store = MySqlStore::new(set.connect_with(database.options()).await.unwrap()).with_table("odd").unwrap();
        let kept = [Write(&["a"]), Say("SAVEPOINT mine"), Write(&["b"]), Say("ROLLBACK TO mine")];
        assert_eq!(outcome(&store, &kept).await, Outcome::of(&["a"], &[]), "{level}");
        store.close().await;
    }
}

#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<&'static str>>>);

impl WriteHook for Told {
    fn after_commit(&self, _: &[NewRow]) -> Result<(), HookError> {
        self.0.lock().unwrap().push("commit");
        Ok(())
    }

    fn after_unknown(&self, _: &[NewRow]) -> Result<(), HookError> {
        self.0.lock().unwrap().push("unknown");
        Ok(())
    }
}

/// Who may not look commits all the same, and the hooks are told that it is not known.
#[tokio::test]
async fn who_may_not_look_commits() {
    let database = Database::new().await;
    let store = database.store().await;
    let user = database.user("").await;
    execute(&store, &format!("REVOKE SELECT ON {}.* FROM {}", database.name, database.user_name())).await;
    let writer = MySqlStore::new(pool(2).connect_with(user).await.unwrap());
    let told = Told::default();
    let outbox = Outbox::writer_only(writer.clone()).hook(told.clone()).start().await.unwrap();
    for (number, id) in ["a", "b"].into_iter().enumerate() {
        let mut tx = outbox.begin().await.unwrap();
        tx.write(event(id)).await.unwrap();
        say(&mut tx, "DO 1").await;
        tx.commit().await.unwrap();
        assert_eq!(store.counts().await.unwrap().new, number as u64 + 1);
    }
    let mut tx = outbox.begin().await.unwrap();
    say(&mut tx, "DO 1").await;
    tx.write(event("c")).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(*told.0.lock().unwrap(), ["unknown", "unknown", "commit"]);
    writer.close().await;
}
