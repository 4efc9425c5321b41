//! What may be wrong with SQLite.

use super::{assert_fine, bad, execute, found};
use crate::place::Place;

#[tokio::test]
async fn sqlite_is_looked_at() {
    let here = Place::new();
    assert!(bad(&found(&here, &[]).1, "connection").0.contains("there is no posthaste.db"));
    assert!(!here.path("posthaste.db").exists());
    here.ok(&["events", "write", "--id", "1", "--type", "OrderPlaced", "{}"]);
    let (status, findings) = found(&here, &[]);
    assert_eq!(status, 0, "{findings:#?}");
    for check in ["connection", "schema", "journal", "bloat", "file", "indexes", "leases", "relays"] {
        assert_fine(&findings, check);
    }
    let url = format!("sqlite:{}", here.path("posthaste.db").display());
    execute(&url, "DROP INDEX outbox_event_pending").await;
    execute(&url, "UPDATE outbox_event SET locked_by = 'relay-9/17', locked_at = 1").await;
    let (status, findings) = found(&here, &[]);
    let (what, fix) = bad(&findings, "indexes");
    assert!(status == 1 && what.contains("outbox_event_pending"), "{what}");
    assert!(bad(&findings, "leases").0.contains("of relay-9"), "{findings:#?}");
    execute(&url, fix).await;
    assert_fine(&found(&here, &[]).1, "indexes");
}

#[tokio::test]
async fn a_file_that_is_looked_at_stays_as_it_is() {
    let here = Place::new();
    let url = format!("sqlite:{}", here.path("shop.db").display());
    let there = Place::new().variable("POSTHASTE_DATABASE_URL", &url);
    let (status, findings) = found(&there, &[]);
    assert!(status == 1 && bad(&findings, "connection").0.contains("there is no file"), "{findings:#?}");
    assert!(!here.path("shop.db").exists());
    there.ok(&["migrate", "up"]);
    execute(&url, "PRAGMA journal_mode = DELETE").await;
    for _ in 0..2 {
        // It would be gone the second time, had somebody opened the file who is used to having it otherwise.
        let (status, findings) = found(&there, &[]);
        let (what, fix) = bad(&findings, "journal");
        assert!(status == 1 && what.contains("delete") && fix.contains("WAL"), "{what} {fix}");
    }
    execute(&url, "PRAGMA journal_mode = WAL").await;
    assert_fine(&found(&there, &[]).1, "journal");
}
