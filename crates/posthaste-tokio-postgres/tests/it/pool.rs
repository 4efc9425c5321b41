//! Clients of a pool of deadpool-postgres.

use deadpool_postgres::{Client, Manager, ManagerConfig, Pool, RecyclingMethod};
use posthaste_conformance::testing::{cut_short, event_with_id as event, eventually, within};
use posthaste_core::listener::Path;
use posthaste_core::store::AdminStore;
use posthaste_core::{CommitError, Outbox};
use posthaste_sql::PgStore;
use posthaste_tokio_postgres::{DeadpoolTransaction, OutboxExt};
use tokio::task::JoinSet;
use tokio_postgres::{IsolationLevel, NoTls};

use crate::support::{Database, assert_outside, told};

/// A pool of one client, which asks nothing of it when it comes back.
fn pool(database: &Database) -> Pool {
    let config = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    Pool::builder(Manager::from_config(database.config(), NoTls, config)).max_size(1).build().unwrap()
}

#[tokio::test]
async fn case_11_transactions_of_a_pool() {
    let database = Database::new().await;
    let (outbox, witness, mut inbox) = database.outbox().await;
    let pool = pool(&database);
    let mut client = pool.get().await.unwrap();

    let mut tx: DeadpoolTransaction<'_> = outbox.begin_on(&mut client).await.unwrap();
    tx.write(event("own")).await.unwrap();
    let cached = tx.prepare_cached("SELECT count(*) FROM outbox_event").await.unwrap();
    assert_eq!(tx.query_one(&cached, &[]).await.unwrap().get::<_, i64>(0), 1);
    tx.commit().await.unwrap();
    assert_eq!(client.statement_cache.size(), 1, "what the outbox says is not kept");
    assert_eq!(inbox.arrival().await, ("own".to_owned(), Path::Hot));

    let tx = client.transaction().await.unwrap();
    let receipt = outbox.write_in(&tx, event("foreign")).await.unwrap();
    tx.commit().await.unwrap();
    receipt.dispatch();
    assert_eq!(inbox.arrival().await, ("foreign".to_owned(), Path::Hot));

    let strict = client.build_transaction().isolation_level(IsolationLevel::Serializable);
    let mut tx = outbox.begin_on(strict).await.unwrap();
    let level = tx.query_one("SHOW transaction_isolation", &[]).await.unwrap();
    assert_eq!(level.get::<_, &str>(0), "serializable");
    tx.write(event("strict")).await.unwrap();
    let mut savepoint = tx.savepoint().await.unwrap();
    savepoint.write(event("undone")).await.unwrap();
    drop(savepoint);
    tx.commit().await.unwrap();
    assert_eq!(inbox.arrival().await, ("strict".to_owned(), Path::Hot));
    let commit = |id| told("commit", &[id]);
    assert_eq!(witness.told(), [commit("own"), commit("foreign"), told("rollback", &["undone"]), commit("strict")]);
    outbox.shutdown().await;
    inbox.assert_empty();
}

#[tokio::test]
async fn case_10_nothing_survives_in_a_pool() {
    let database = Database::new().await;
    let (outbox, witness, mut inbox) = database.outbox().await;
    let pool = pool(&database);
    for ending in ["rollback", "drop", "failed statement"] {
        let mut client = pool.get().await.unwrap();
        let mut tx = outbox.begin_on(&mut client).await.unwrap();
        tx.write(event("undone")).await.unwrap();
        match ending {
            "rollback" => tx.rollback().await.unwrap(),
            "drop" => drop(tx),
            _ => {
                tx.query_one("SELECT 1 / 0", &[]).await.unwrap_err();
                let error = tx.commit().await.unwrap_err();
                assert!(matches!(error, CommitError::NotCommitted(_)), "{error:?}");
            }
        }
        drop(client);
        assert_eq!(witness.told(), [told("rollback", &["undone"])], "{ending}");
        assert_outside(&pool.get().await.unwrap()).await;
    }
    outbox.shutdown().await;
    inbox.assert_empty();
    assert_eq!(database.rows().await, 0);
}

/// Dropped at any await, together with its client, a transaction is not left open in the pool.
#[tokio::test]
async fn case_19_cut_anywhere_in_a_pool() {
    let database = Database::new().await;
    let (outbox, _, _inbox) = database.outbox().await;
    let pool = pool(&database);
    let mut cuts = 0;
    for polls in 1..10_000 {
        let finished = cut_short(polls, write_with(&outbox, &pool)).await.is_some();
        let client = within("the one client is back", pool.get()).await.unwrap();
        within("the next statement gets through", assert_outside(&client)).await;
        if finished {
            break;
        }
        cuts = polls;
    }
    assert!(cuts > 3, "{cuts}");
    let settled = async || outbox.store().counts().await.unwrap().pending() == 0 && outbox.in_flight() == 0;
    eventually("everything committed is delivered", settled).await;
    let counts = outbox.store().counts().await.unwrap();
    assert!(counts.done >= 3 && counts.done % 3 == 0, "half a transaction: {counts:?}");
    outbox.shutdown().await;
}

/// Dropped in the middle of the commit, with its client: back in its pool, the connection carries the commit out. Taken from its
/// pool it takes the connection with it, here before that has sent anything; all of the transaction is undone.
#[tokio::test]
async fn case_19_cut_commit_in_a_pool() {
    let database = Database::new().await;
    let (outbox, witness, mut inbox) = database.outbox().await;
    let pool = pool(&database);
    for (id, parted_with) in [("kept", false), ("lost", true)] {
        let mut client = pool.get().await.unwrap();
        let mut tx = outbox.begin_on(&mut client).await.unwrap();
        tx.write(event(id)).await.unwrap();
        assert!(cut_short(1, tx.commit()).await.is_none());
        if parted_with {
            drop(Client::take(client));
        } else {
            drop(client);
        }
        assert_eq!(witness.told(), [told("unknown", &[id])]);
    }
    assert_eq!(inbox.arrival().await, ("kept".to_owned(), Path::Cold));
    let open = "state LIKE 'idle in transaction%'";
    eventually("nothing is left open", async || database.backends(open).await == 0).await;
    outbox.shutdown().await;
    inbox.assert_empty();
    assert_eq!(database.rows().await, 1);
}

async fn write_with(outbox: &Outbox<PgStore>, pool: &Pool) {
    let mut client = pool.get().await.unwrap();
    let mut tx = outbox.begin_on(&mut client).await.unwrap();
    let one = || posthaste_core::Event::of_json("Happened", "{}");
    tx.write_all([one(), one(), one()]).await.unwrap();
    tx.commit().await.unwrap();
}

/// Tasks of several threads share a pool and an outbox.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_tasks_share_a_pool() {
    let database = Database::new().await;
    let (outbox, _, _inbox) = database.outbox().await;
    let pool = Pool::builder(Manager::new(database.config(), NoTls)).max_size(3).build().unwrap();
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let (outbox, pool) = (outbox.clone(), pool.clone());
        tasks.spawn(async move {
            for _ in 0..25 {
                write_with(&outbox, &pool).await;
                let mut client = pool.get().await.unwrap();
                let tx = client.transaction().await.unwrap();
                let receipt = outbox.write_in(&tx, posthaste_core::Event::of_json("Happened", "{}")).await.unwrap();
                tx.commit().await.unwrap();
                receipt.dispatch();
            }
        });
    }
    within("all are done", tasks.join_all()).await;
    outbox.shutdown().await;
    assert_eq!(outbox.store().counts().await.unwrap().done, 800);
}

/// A thousand transactions on one client.
#[tokio::test]
async fn case_64_thousand_cycles_in_a_pool() {
    let database = Database::new().await;
    let (outbox, _, _inbox) = database.outbox().await;
    let pool = pool(&database);
    for _ in 0..1_000 {
        write_with(&outbox, &pool).await;
    }
    assert_eq!(pool.status().size, 1);
    outbox.shutdown().await;
    assert_eq!(outbox.store().counts().await.unwrap().done, 3_000);
}
