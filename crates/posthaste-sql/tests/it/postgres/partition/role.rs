//! Who may make and drop partitions.

use std::time::Duration;

use posthaste_core::store::{AdminStore, Error, Maintained, Purge};
use posthaste_core::{Delivery, Options, Outbox};
use posthaste_sql::{Partitions, PgStore};
use sqlx::postgres::PgPoolOptions;
use tokio::sync::mpsc;

use super::super::support::{Database, sql, within, write};
use super::{DAY, names};
use crate::support::event;

const TABLE: &str = "outbox.outbox_event";

fn name(role: &str) -> String {
    format!("posthaste_{}_partition_{role}", std::process::id())
}

async fn store(database: &Database, role: &str) -> PgStore {
    let options = database.options().options([("role", name(role))]);
    let pool = PgPoolOptions::new().max_connections(4).connect_with(options).await.unwrap();
    PgStore::new(pool).with_table(TABLE).unwrap().partitioned(Partitions::daily())
}

#[tokio::test]
async fn a_relay_that_is_not_the_owner_is_told_what_to_grant_and_goes_on_delivering() {
    let database = Database::new().await;
    let superuser = database.empty().await.with_table(TABLE).unwrap();
    let (owner, relay) = (name("owner"), name("relay"));
    let roles = format!(
        "DROP ROLE IF EXISTS {owner}; DROP ROLE IF EXISTS {relay}; CREATE ROLE {owner}; CREATE ROLE {relay}; \
         CREATE SCHEMA outbox AUTHORIZATION {owner}"
    );
    sql(&superuser, roles).await;
    let owning = store(&database, "owner").await;
    owning.migrate().await.unwrap();
    let grant = format!(
        "GRANT USAGE ON SCHEMA outbox TO {relay}; GRANT SELECT, INSERT, UPDATE ON outbox.outbox_event TO {relay}"
    );
    sql(&owning, grant).await;
    let store = store(&database, "relay").await;
    let kept = Purge { done_after: Some(DAY), ..Purge::default() };
    assert_eq!(store.maintain(&kept).await.unwrap(), Maintained::default(), "there is nothing to do");

    let all = names(&superuser).await;
    sql(&superuser, format!("DROP TABLE outbox.{}, outbox.{}", all[0], all[3])).await;
    for error in [store.maintain(&kept).await.unwrap_err(), store.maintain_partitions().await.unwrap_err()] {
        let Error::Refused(reason) = &error else { panic!("{error:?}") };
        assert!(reason.to_string().contains(&format!("GRANT {owner} TO {relay}")), "{reason}");
    }

    let (sender, mut delivered) = mpsc::unbounded_channel();
    let listener = move |event: Delivery| {
        sender.send(event.id().to_string()).unwrap();
        std::future::ready(())
    };
    let options = Options { retention_interval: Duration::from_millis(10), ..Options::default() };
    let outbox = Outbox::builder(store.clone()).options(options).listen_all(listener).start().await.unwrap();
    for id in ["a", "b"] {
        write(&store, [event(id)]).await;
        outbox.wake();
        assert_eq!(within("it is delivered", delivered.recv()).await.unwrap(), id);
    }
    assert!(outbox.shutdown().await.is_clean());

    sql(&superuser, format!("GRANT {owner} TO {relay}")).await;
    let maintained = store.maintain(&Purge::default()).await.unwrap();
    assert_eq!(maintained, Maintained { made: 2, moved: 2, dropped: 0 });
    let owners: Vec<String> = sqlx::query_scalar(
        "SELECT DISTINCT pg_get_userbyid(relowner)::text FROM pg_class WHERE relname LIKE 'outbox_event_p%' AND relkind = 'r'",
    )
    .fetch_all(superuser.pool())
    .await
    .unwrap();
    assert_eq!(owners, [owner.as_str()], "what the relay makes belongs to the owner");

    for role in [relay, owner] {
        sql(&superuser, format!("DROP OWNED BY {role} CASCADE; DROP ROLE {role}")).await;
    }
}

#[tokio::test]
async fn a_table_that_is_found_by_the_name_of_the_role_is_found_as_its_owner() {
    let database = Database::new().await;
    let superuser = database.empty().await;
    let (owner, relay) = (name("proprietor"), name("user"));
    let roles = format!(
        "DROP ROLE IF EXISTS {owner}; DROP ROLE IF EXISTS {relay}; CREATE ROLE {owner}; CREATE ROLE {relay}; \
         GRANT {owner} TO {relay}; CREATE SCHEMA {relay} AUTHORIZATION {owner}"
    );
    sql(&superuser, roles).await;
    let owning = store(&database, "proprietor").await.with_table(&format!("{relay}.outbox_event")).unwrap();
    owning.migrate().await.unwrap();
    sql(&owning, format!("GRANT USAGE ON SCHEMA {relay} TO {relay}")).await;
    let all = names(&superuser).await;
    sql(&superuser, format!("DROP TABLE {relay}.{}", all[3])).await;

    // Its search path says "$user".
    let store = store(&database, "user").await.with_table("outbox_event").unwrap();
    let maintained = store.maintain(&Purge::default()).await.unwrap();
    assert_eq!(maintained, Maintained { made: 1, ..Maintained::default() });
    assert_eq!(names(&superuser).await, all);

    for role in [relay, owner] {
        sql(&superuser, format!("DROP OWNED BY {role} CASCADE; DROP ROLE {role}")).await;
    }
}
