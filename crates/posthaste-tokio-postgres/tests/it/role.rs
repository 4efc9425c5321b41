//! What a role needs that writes, as docs/databases.md has it.

use posthaste_conformance::testing::{event_with_id as event, watched};
use posthaste_core::listener::Path;
use posthaste_core::store::Error;
use posthaste_core::{CommitError, WriteError};
use posthaste_tokio_postgres::OutboxExt;

use crate::support::Database;

const PAGE: &str = include_str!("../../../../docs/databases.md");
const TABLE: &str = "outbox.outbox_event";

/// The grant that the page asks for where adapters write.
const FOR_ADAPTERS: &str = "GRANT SELECT ON outbox.outbox_event TO outbox_writer;";

/// Text of the page, about roles of this test alone: a server has them in common for all its databases.
fn own(text: &str, name: &str) -> String {
    ["owner", "writer", "relay", "viewer"]
        .iter()
        .fold(text.to_owned(), |text, role| text.replace(&format!("outbox_{role}"), &format!("{name}_{role}")))
}

#[tokio::test]
async fn a_writer_needs_insert_and_select() {
    let database = Database::new().await;
    let mut client = database.client().await;
    let name: String = client.query_one("SELECT current_database()::TEXT", &[]).await.unwrap().get(0);
    let section = PAGE.split("\n## Roles on PostgreSQL\n").nth(1).expect("the page has roles");
    let section = section.split("\n## ").next().unwrap();
    let blocks: Vec<String> =
        section.split("```sql\n").skip(1).map(|block| own(block.split("```").next().unwrap(), &name)).collect();
    let [create, grant, ..] = &blocks[..] else { panic!("{blocks:?}") };
    assert!(section.contains(FOR_ADAPTERS), "the page says something else by now");

    client.batch_execute(create).await.unwrap();
    let store = database.store().await.with_table(TABLE).unwrap();
    store.migrate().await.unwrap();
    client.batch_execute(grant).await.unwrap();
    let (outbox, _, mut inbox) = watched(store).await;
    let writes = own("SET ROLE outbox_writer", &name);

    client.batch_execute(&writes).await.unwrap();
    let denied = |error: WriteError| match error {
        WriteError::Store { error: Error::Refused(reason), .. } => {
            assert_eq!(reason.to_string(), "grant this user what it needs");
            let said = reason.source().expect("what the server said").to_string();
            assert!(said.contains("permission denied for table outbox_event"), "{said}");
        }
        other => panic!("{other:?}"),
    };
    let mut tx = outbox.begin_on(&mut client).await.unwrap();
    denied(tx.write(event("denied")).await.unwrap_err());
    assert!(matches!(tx.commit().await, Err(CommitError::NotCommitted(_))));
    let tx = client.transaction().await.unwrap();
    denied(outbox.write_in(&tx, event("denied")).await.unwrap_err());
    drop(tx);

    client.batch_execute(&format!("RESET ROLE; {} {writes}", own(FOR_ADAPTERS, &name))).await.unwrap();
    let mut tx = outbox.begin_on(&mut client).await.unwrap();
    tx.write(event("own")).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(inbox.arrival().await, ("own".to_owned(), Path::Hot));
    let tx = client.transaction().await.unwrap();
    let receipt = outbox.write_in(&tx, event("foreign")).await.unwrap();
    tx.commit().await.unwrap();
    receipt.dispatch();
    assert_eq!(inbox.arrival().await, ("foreign".to_owned(), Path::Hot));
    // That was all that it may.
    for more in ["UPDATE", "DELETE", "TRUNCATE", "TRIGGER"] {
        let may = client.query_one("SELECT has_table_privilege($1, $2)", &[&TABLE, &more]).await.unwrap();
        assert!(!may.get::<_, bool>(0), "{more}");
    }

    outbox.shutdown().await;
    inbox.assert_empty();
    let roles = own("outbox_owner, outbox_writer, outbox_relay, outbox_viewer", &name);
    let forget = format!("RESET ROLE; DROP OWNED BY {roles} CASCADE; DROP ROLE {roles}");
    client.batch_execute(&forget).await.unwrap();
}
