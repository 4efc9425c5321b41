//! The roles that the documentation recommends, made with its own SQL.

use std::fmt::Debug;
use std::time::Duration;

use posthaste_core::store::{Action, AdminStore, Error, Filter, Page, Purge, Redrive, RelayStore, WriteStore};
use posthaste_core::{Delivery, EventId, Outbox};
use posthaste_sql::PgStore;
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgPoolOptions;
use tokio::sync::mpsc;

use super::support::{Database, claim, sql, within, write};
use super::undone::Told;
use crate::support::{claim_of, event, settle_all, unleased};

const PAGE: &str = include_str!("../../../../../docs/databases.md");

const TABLE: &str = "outbox.outbox_event";

/// A database with the table and the roles, which are gone at the end of [`Roles::drop`].
struct Roles {
    database: Database,
    superuser: PgStore,
}

impl Roles {
    /// As the page says, but for the grant to purge.
    async fn new() -> Self {
        let database = Database::new().await;
        let superuser = database.empty().await.with_table(TABLE).unwrap();
        let roles = Self { database, superuser };
        for role in ["owner", "writer", "relay", "viewer"] {
            sql(&roles.superuser, format!("DROP ROLE IF EXISTS {}", name(role))).await;
        }
        sql(&roles.superuser, script(0)).await;
        let owner = roles.store("owner").await;
        owner.migrate().await.unwrap();
        sql(&owner, script(1)).await;
        roles
    }

    /// A store as one of them.
    async fn store(&self, role: &str) -> PgStore {
        let options = self.database.options().options([("role", name(role))]);
        let pool = PgPoolOptions::new().max_connections(4).connect_with(options).await.unwrap();
        PgStore::new(pool).with_table(TABLE).unwrap()
    }

    /// Roles belong to the whole server, so they do not go with the database.
    async fn drop(self) {
        for role in ["writer", "relay", "viewer", "owner"].map(name) {
            sql(&self.superuser, format!("DROP OWNED BY {role} CASCADE; DROP ROLE {role}")).await;
        }
    }
}

/// The names of the roles in this process.
fn name(role: &str) -> String {
    format!("posthaste_{}_{role}", std::process::id())
}

/// One of the scripts of the page, in order, for the roles of this process.
fn script(number: usize) -> String {
    let section = PAGE.split("\n## ").find(|section| section.starts_with("Roles on PostgreSQL")).unwrap();
    let script = section.split("```sql\n").nth(number + 1).unwrap().split("```").next().unwrap();
    ["owner", "writer", "relay", "viewer"]
        .iter()
        .fold(script.to_owned(), |script, role| script.replace(&format!("outbox_{role}"), &name(role)))
}

fn assert_denied<T: Debug>(what: &str, result: &Result<T, Error>) {
    let Err(Error::Refused(error)) = result else { panic!("{what}: {result:?}") };
    assert_eq!(error.to_string(), "grant this user what it needs", "{what}: {error:?}");
}

/// Every one of these statements is refused.
async fn assert_denied_sql(store: &PgStore, statements: &[&str]) {
    for statement in statements {
        let done = sqlx::raw_sql(AssertSqlSafe(statement.to_string())).execute(store.pool()).await;
        let code = done.unwrap_err().into_database_error().unwrap().code().unwrap().into_owned();
        assert_eq!(code, "42501", "{statement}");
    }
}

async fn try_write(store: &PgStore) -> Result<(), Error> {
    let mut tx = store.begin().await?;
    let written = store.insert(&mut tx, &unleased([event("refused")])).await;
    store.rollback(tx).await?;
    written
}

fn done() -> Purge {
    Purge { done_after: Some(Duration::ZERO), ..Purge::default() }
}

/// In one test, since the names are those of the process.
#[tokio::test]
async fn each_role_can_do_its_part_and_nothing_else() {
    let roles = Roles::new().await;
    owner(&roles).await;
    writer(&roles).await;
    viewer(&roles).await;
    relay(&roles).await;
    roles.drop().await;
}

async fn owner(roles: &Roles) {
    let owner = roles.store("owner").await;
    owner.migrate().await.unwrap();
    assert_eq!(owner.pending_migration_sql().await.unwrap(), "");
    owner.create_wake_trigger().await.unwrap();
}

async fn writer(roles: &Roles) {
    let store = roles.store("writer").await;
    write(&store, [event("a")]).await;
    write(&store, ["b", "c"].map(event)).await;
    let outbox = Outbox::writer_only(store.clone()).start().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    tx.write(event("d")).await.unwrap();
    tx.commit().await.unwrap();
    outbox.shutdown().await;

    // It may not look for what it wrote, and commits all the same.
    let told = Told::default();
    let outbox = Outbox::writer_only(store.clone()).hook(told.clone()).start().await.unwrap();
    for id in ["y", "z"] {
        let mut tx = outbox.begin().await.unwrap();
        tx.write(event(id)).await.unwrap();
        sqlx::raw_sql("SELECT 1").execute(&mut *tx).await.unwrap();
        tx.commit().await.unwrap();
    }
    outbox.shutdown().await;
    assert_eq!(told.take(), ["unknown 1", "unknown 1"]);
    assert_eq!(sql(&roles.superuser, format!("DELETE FROM {TABLE} WHERE event_id IN ('y', 'z')")).await, 2);

    let mut tx = store.begin().await.unwrap();
    let taken = store.insert(&mut tx, &unleased([event("a")])).await;
    assert!(matches!(&taken, Err(Error::DuplicateId { id }) if *id == "a"), "{taken:?}");
    drop(tx);

    assert_denied("claim", &store.claim(&claim_of(1)).await);
    assert_denied("release", &store.release_all().await);
    assert_denied("count", &store.counts().await);
    assert_denied("find", &store.find(&EventId::from_row("a")).await);
    assert_denied("redrive", &store.redrive(&Redrive::matching(Filter::default())).await);
    assert_denied("purge", &store.purge(&done()).await);
    assert_denied("migrate", &store.migrate().await);
    assert_denied_sql(
        &store,
        &[
            "SELECT event_id FROM outbox.outbox_event",
            "UPDATE outbox.outbox_event SET status = 1",
            "DELETE FROM outbox.outbox_event",
            "TRUNCATE outbox.outbox_event",
            "SELECT 1 FROM outbox.posthaste_migration",
        ],
    )
    .await;
}

async fn viewer(roles: &Roles) {
    let store = roles.store("viewer").await;
    assert_eq!(store.counts().await.unwrap().new, 4);
    assert!(store.find(&EventId::from_row("a")).await.unwrap().is_some());
    assert_eq!(store.list(&Filter::default(), &Page::default()).await.unwrap().len(), 4);

    assert_denied("write", &try_write(&store).await);
    assert_denied("claim", &store.claim(&claim_of(1)).await);
    assert_denied("release", &store.release_all().await);
    assert_denied("redrive", &store.redrive(&Redrive::matching(Filter::default())).await);
    assert_denied("purge", &store.purge(&done()).await);
    assert_denied("migrate", &store.migrate().await);
    assert_denied_sql(&store, &["SELECT 1 FROM outbox.outbox_event FOR UPDATE", "TRUNCATE outbox.outbox_event"]).await;
}

async fn relay(roles: &Roles) {
    let store = roles.store("relay").await;
    let (lease, claimed) = claim(&store, 2).await;
    let leases: Vec<_> = claimed.rows.iter().map(|row| (row.event.id().clone(), lease.clone())).collect();
    assert_eq!(store.renew(&leases).await.unwrap(), [true, true]);
    let mut settlements = settle_all(&lease, &claimed, &Action::Done);
    settlements[1].action = Action::Dead { error: "no use".into(), counts: true };
    store.settle(&settlements).await.unwrap();
    assert_eq!(store.redrive(&Redrive::matching(Filter::default())).await.unwrap(), 1);
    assert_eq!(store.release_all().await.unwrap(), 0);

    let (sender, mut delivered) = mpsc::unbounded_channel();
    let listener = move |event: Delivery| {
        sender.send(event.id().to_string()).unwrap();
        std::future::ready(())
    };
    let outbox = Outbox::many_nodes(store.clone()).listen_all(listener).start().await.unwrap();
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(within("it is delivered", delivered.recv()).await.unwrap());
    }
    ids.sort();
    assert_eq!(ids, ["b", "c", "d"]);
    // Written by somebody else, whose trigger wakes the relay.
    write(&roles.store("writer").await, [event("e")]).await;
    assert_eq!(within("it is delivered", delivered.recv()).await.unwrap(), "e");
    assert!(outbox.shutdown().await.is_clean());
    assert_eq!(store.counts().await.unwrap().done, 5);

    assert_denied("write", &try_write(&store).await);
    assert_denied("purge", &store.purge(&done()).await);
    assert_denied("migrate", &store.migrate().await);
    assert_denied_sql(
        &store,
        &[
            "UPDATE outbox.outbox_event SET payload = '{}'",
            "UPDATE outbox.outbox_event SET event_id = 'x'",
            "DELETE FROM outbox.outbox_event",
            "TRUNCATE outbox.outbox_event",
        ],
    )
    .await;
    sql(&roles.store("owner").await, script(2)).await;
    assert_eq!(store.purge(&done()).await.unwrap(), 5);
}
