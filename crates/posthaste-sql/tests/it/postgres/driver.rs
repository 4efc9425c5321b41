//! Inserts for drivers other than sqlx, carried out by sqlx all the same.

use posthaste_core::Event;
use posthaste_core::store::{Error, NewRow};
use posthaste_sql::driver::{DriverStore, Parameter, Refusal};
use posthaste_sql::{Partitions, PgStore};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection};

use super::support::{Database, claim, sql};
use crate::support::{event, ids, unleased};

/// What the statement says of where the rows were written: nested, and known.
async fn insert(store: &PgStore, connection: &mut PgConnection, rows: &[NewRow]) -> Result<(bool, bool), sqlx::Error> {
    let (nested, known, _) = insert_telling(store, connection, rows).await?;
    Ok((nested, known))
}

/// The same, and the number of the transaction.
async fn insert_telling(
    store: &PgStore,
    connection: &mut PgConnection,
    rows: &[NewRow],
) -> Result<(bool, bool, i64), sqlx::Error> {
    let mut inserts = store.inserts(rows);
    let insert = inserts.pop().unwrap();
    assert!(inserts.is_empty(), "one statement was expected");
    let mut query = sqlx::query_as(AssertSqlSafe(insert.sql));
    for parameter in insert.parameters {
        query = match parameter {
            Parameter::Text(text) => query.bind(text.map(String::from)),
            Parameter::Bytes(bytes) => query.bind(bytes.map(<[u8]>::to_vec)),
            Parameter::Number(number) => query.bind(number),
            other => panic!("{other:?}"),
        };
    }
    query.fetch_one(connection).await
}

#[tokio::test]
async fn an_insert_tells_whether_it_is_in_a_savepoint() {
    let database = Database::new().await;
    let store = database.store().await;
    let mut tx = store.pool().begin().await.unwrap();
    assert_eq!(insert(&store, &mut tx, &unleased([event("a")])).await.unwrap(), (false, true));
    let mut savepoint = tx.begin().await.unwrap();
    assert_eq!(insert(&store, &mut savepoint, &unleased([event("b"), event("c")])).await.unwrap(), (true, true));
    savepoint.commit().await.unwrap();
    assert_eq!(insert(&store, &mut tx, &unleased([event("d"), event("e")])).await.unwrap(), (false, true));
    tx.commit().await.unwrap();
    assert_eq!(ids(&claim(&store, 10).await.1), ["a", "b", "c", "d", "e"]);
}

/// In a savepoint, too, it is the transaction around it.
#[tokio::test]
async fn an_insert_tells_which_transaction_it_is_in() {
    let database = Database::new().await;
    let store = database.store().await;
    let mut tx = store.pool().begin().await.unwrap();
    let (_, _, first) = insert_telling(&store, &mut tx, &unleased([event("a")])).await.unwrap();
    let mut savepoint = tx.begin().await.unwrap();
    let (_, _, second) = insert_telling(&store, &mut savepoint, &unleased([event("b")])).await.unwrap();
    savepoint.commit().await.unwrap();
    let open = "SELECT txid_current_if_assigned()";
    let open: Option<i64> = sqlx::query_scalar(open).fetch_one(&mut *tx).await.unwrap();
    assert_eq!((second, open), (first, Some(first)));
    sqlx::raw_sql("ROLLBACK; BEGIN").execute(&mut *tx).await.unwrap();
    let (_, _, third) = insert_telling(&store, &mut tx, &unleased([event("c")])).await.unwrap();
    assert_ne!(third, first);
    tx.commit().await.unwrap();
}

/// Partitions do not tell of which transaction a new row is, whatever the store was told of them.
#[tokio::test]
async fn an_insert_into_partitions_does_not_know() {
    let database = Database::new().await;
    let partitioned = database.empty().await.partitioned(Partitions::daily());
    partitioned.migrate().await.unwrap();
    for (store, [one, two, three]) in [(partitioned, ["a", "b", "c"]), (database.empty().await, ["d", "e", "f"])] {
        let mut tx = store.pool().begin().await.unwrap();
        assert_eq!(insert(&store, &mut tx, &unleased([event(one)])).await.unwrap(), (true, false));
        let mut savepoint = tx.begin().await.unwrap();
        let rows: Vec<_> = unleased([event(two), event(three)]);
        assert_eq!(insert(&store, &mut savepoint, &rows).await.unwrap(), (true, false));
        savepoint.commit().await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(ids(&claim(&store, 10).await.1), [one, two, three]);
    }
}

#[tokio::test]
async fn a_table_of_another_name_and_schema_is_found() {
    let database = Database::new().await;
    let store = database.empty().await;
    sql(&store, "CREATE SCHEMA shop").await;
    for name in ["order_events", "shop.order_events"] {
        let store = store.clone().with_table(name).unwrap();
        store.migrate().await.unwrap();
        let mut tx = store.pool().begin().await.unwrap();
        assert_eq!(insert(&store, &mut tx, &unleased([event(name)])).await.unwrap(), (false, true));
        tx.commit().await.unwrap();
        assert_eq!(ids(&claim(&store, 10).await.1), [name]);
    }
}

#[tokio::test]
async fn a_refusal_of_another_driver_has_the_same_meaning() {
    let database = Database::new().await;
    for partitioned in [false, true] {
        let store = database.empty().await.with_table(if partitioned { "parts" } else { "plain" }).unwrap();
        let store = if partitioned { store.partitioned(Partitions::daily()) } else { store };
        store.migrate().await.unwrap();
        let rows = unleased([event("fresh"), event("taken")]);
        let mut connection = database.connection().await;
        insert(&store, &mut connection, &rows[1..]).await.unwrap();
        let error = insert(&store, &mut connection, &rows).await.unwrap_err();
        let said = error.as_database_error().unwrap();
        let said = said.downcast_ref::<sqlx::postgres::PgDatabaseError>();
        let refusal = Refusal {
            detail: said.detail().map(str::to_owned),
            table: said.table().map(str::to_owned),
            constraint: said.constraint().map(str::to_owned),
            ..Refusal::new(said.code(), said.message())
        };
        let error = store.refused(&rows, refusal);
        assert!(matches!(&error, Error::DuplicateId { id } if *id == "taken"), "{error:?}");
        let error = store.refused(&rows, Refusal::new("42P01", "there is no such table"));
        assert!(matches!(error, Error::Schema { .. }), "{error:?}");
    }
    let none: Vec<NewRow> = unleased(Vec::<Event>::new());
    assert!(database.empty().await.inserts(&none).is_empty());
}
