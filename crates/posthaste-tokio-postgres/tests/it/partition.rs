//! A table in partitions, which does not tell whether a row was written in a savepoint.

use posthaste_conformance::testing::{event_with_id as event, watched};
use posthaste_core::listener::Path;
use posthaste_tokio_postgres::OutboxExt;

use crate::support::{Database, told};

#[tokio::test]
async fn events_are_written_to_a_table_in_partitions() {
    let database = Database::new().await;
    let partitioned = database.partitioned().await;
    // A store that was not told of the partitions writes to the same table.
    let stores = [partitioned, database.store().await];
    let mut client = database.client().await;
    for (number, store) in stores.into_iter().enumerate() {
        let id = |name: &str| format!("{name} {number}");
        let (outbox, witness, mut inbox) = watched(store).await;
        let mut tx = outbox.begin_on(&mut client).await.unwrap();
        tx.write(event(&id("own"))).await.unwrap();
        let mut savepoint = tx.savepoint().await.unwrap();
        savepoint.write(event(&id("undone"))).await.unwrap();
        savepoint.rollback().await.unwrap();
        // One that nobody sees.
        tx.batch_execute("SAVEPOINT mine").await.unwrap();
        tx.write(event(&id("undone by hand"))).await.unwrap();
        tx.batch_execute("ROLLBACK TO SAVEPOINT mine").await.unwrap();
        tx.commit().await.unwrap();
        let written = told("unknown", &[&id("own"), &id("undone by hand")]);
        assert_eq!(witness.told(), [told("rollback", &[&id("undone")]), written]);
        assert_eq!(inbox.arrival().await, (id("own"), Path::Cold));

        // Whether this is in a savepoint is not known, so the poller looks.
        let mut tx = client.transaction().await.unwrap();
        let receipt = outbox.write_in(&tx, event(&id("foreign"))).await.unwrap();
        let savepoint = tx.transaction().await.unwrap();
        let receipt = receipt.and(outbox.write_in(&savepoint, event(&id("undone, too"))).await.unwrap());
        savepoint.rollback().await.unwrap();
        tx.commit().await.unwrap();
        receipt.dispatch();
        assert_eq!(witness.told(), [told("unknown", &[&id("foreign"), &id("undone, too")])]);
        assert_eq!(inbox.arrival().await, (id("foreign"), Path::Cold));
        outbox.shutdown().await;
        inbox.assert_empty();
    }
}
