//! Part C: tables, their names, their URLs and their migrations.

use posthaste_core::store::{AdminStore, Error, Filter, NewRow, Page, RelayStore, WriteStore};
use posthaste_core::{EventId, Outbox};
use posthaste_sql::detect;

use crate::fixture::Tables;
use crate::rows::{claim_ids, claim_of, counts, event_with_id, insert};

/// A table of another name, with and without a schema, is a table of its own.
pub async fn case_37_custom_names<F: Tables>(fixture: F) {
    let default = fixture.store();
    insert(&default, &[event_with_id("default")]).await;
    let with_schema = format!("{}.audit_outbox", fixture.schema());
    for name in ["Order_Events2", "select", with_schema.as_str()] {
        let store = F::with_table(fixture.store(), name).unwrap();
        F::migrate(&store).await.unwrap();
        assert_eq!(counts(&store).await.total(), 0, "{name}");
        insert(&store, &[event_with_id("mine")]).await;
        assert_eq!(claim_ids(&store, 10).await, ["mine"], "{name}");
        assert_eq!(store.list(&Filter::default(), &Page::default()).await.unwrap().len(), 1, "{name}");
    }
    assert_eq!(claim_ids(&default, 10).await, ["default"]);
}

/// A name that is no plain identifier is refused, with the name and what is allowed, before it comes near any SQL.
pub async fn case_37_hostile_names<F: Tables>(fixture: F) {
    let long = "t".repeat(200);
    for name in [
        "",
        " ",
        "a b",
        "a;b",
        "outbox_event; DROP TABLE outbox_event",
        "a--",
        "a\"b",
        "a'b",
        "a`b",
        "a]b",
        "a\0b",
        "a.b.c",
        ".a",
        "a.",
        "1a",
        "täble",
        &long,
    ] {
        match F::with_table(fixture.store(), name) {
            Err(error @ Error::Config { field: "table", .. }) => {
                assert!(error.to_string().contains("characters"), "{error} does not say what is allowed");
            }
            Err(error) => panic!("{name:?} was refused with {error:?}"),
            Ok(_) => panic!("{name:?} was accepted"),
        }
    }
    assert_eq!(counts(&fixture.store()).await.total(), 0, "the table is still there");
}

/// The URL says which store it is, in capitals or not; an unknown one is told what is known, and no secret is repeated.
pub async fn case_38_urls<F: Tables>(_fixture: F) {
    let (urls, expected) = F::URLS;
    for url in urls {
        assert_eq!(detect(url).unwrap(), expected, "{url}");
    }
    for url in ["oracle://scott:tiger@db/orders", "scott:tiger@db", "orders.db", "", "sqlitex:a", " sqlite:a"] {
        let error = detect(url).unwrap_err();
        assert!(matches!(error, Error::Config { field: "url", .. }), "{url}: {error:?}");
        let text = error.to_string();
        for known in ["sqlite:", "postgres:", "mysql:", "mariadb:"] {
            assert!(text.contains(known), "{url}: {text}");
        }
        assert!(!text.contains("tiger"), "{text}");
    }
}

/// Without the table every call says what is missing and what to do.
pub async fn case_39_missing_table<F: Tables>(_fixture: F) {
    let fixture = F::empty().await;
    let store = fixture.store();
    let claim = store.claim(&claim_of(1)).await.map(|_| ());
    let find = store.find(&EventId::new("x").unwrap()).await.map(|_| ());
    let mut tx = store.begin().await.unwrap();
    let inserted = store.insert(&mut *tx, &[NewRow::new(event_with_id("x"))]).await;
    drop(tx);
    for result in [claim, find, inserted] {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Schema { .. }), "{error:?}");
        assert!(error.to_string().contains("call migrate() first"), "{error}");
    }
}

/// Migrations work from empty, and repeated they change nothing.
pub async fn case_39_from_empty_and_repeated<F: Tables>(_fixture: F) {
    let fixture = F::empty().await;
    let store = fixture.store();
    F::migrate(&store).await.unwrap();
    insert(&store, &[event_with_id("kept")]).await;
    for _ in 0..3 {
        F::migrate(&store).await.unwrap();
        F::migrate(&fixture.node().await).await.unwrap();
    }
    assert_eq!(claim_ids(&store, 10).await, ["kept"]);
}

/// What a dry run prints is what has to be done: carried out by hand, it makes a table that works, and nothing before.
pub async fn case_39_dry_run<F: Tables>(_fixture: F) {
    let fixture = F::empty().await;
    let store = fixture.store();
    let sql = F::migration_sql(&store);
    assert!(sql.contains("CREATE TABLE") && sql.contains("outbox_event"), "{sql}");
    assert_eq!(F::pending_migration_sql(&store).await, sql);
    assert!(store.counts().await.is_err(), "printing must not create the table");
    fixture.execute(&sql).await;
    insert(&store, &[event_with_id("x")]).await;
    assert_eq!(claim_ids(&store, 10).await, ["x"]);

    let migrated = F::create().await;
    assert_eq!(F::pending_migration_sql(&migrated.store()).await, "");
}

/// Several processes that migrate at once all succeed, and one table is there.
pub async fn case_39_two_processes_at_once<F: Tables>(_fixture: F) {
    for _ in 0..5 {
        let fixture = F::empty().await;
        let mut processes = tokio::task::JoinSet::new();
        let start = std::sync::Arc::new(tokio::sync::Barrier::new(4));
        for _ in 0..4 {
            let (store, start) = (fixture.node().await, start.clone());
            processes.spawn(async move {
                start.wait().await;
                F::migrate(&store).await
            });
        }
        for migrated in processes.join_all().await {
            migrated.unwrap();
        }
        insert(&fixture.store(), &[event_with_id("x")]).await;
        assert_eq!(claim_ids(&fixture.store(), 10).await, ["x"]);
    }
}

/// A write into a missing table says so.
pub async fn case_39_outbox_without_a_table<F: Tables>(_fixture: F) {
    let fixture = F::empty().await;
    let outbox = Outbox::writer_only(fixture.store()).start().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    let error = tx.write(event_with_id("x")).await.unwrap_err();
    assert!(matches!(error, posthaste_core::WriteError::Store { error: Error::Schema { .. }, .. }), "{error:?}");
}
