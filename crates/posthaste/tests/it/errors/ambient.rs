//! Transactions that a task has at hand, where it has none.

use posthaste::{Event, MemoryStore, NoTransaction, Outbox, SqliteStore, TransactionError};

use super::Book;

pub(super) async fn write(book: &mut Book) {
    let outbox = Outbox::writer_only(MemoryStore::new()).start().await.unwrap();
    let event = || Event::of_json("OrderPlaced", "{}");
    book.add("write", "Outbox::write_current, outside", &outbox.write_current(event()).await.unwrap_err());
    book.add("none", "Outbox::current, outside", &outbox.current().unwrap_err());
    let mut kept = None;
    let error = outbox
        .transaction(|| async {
            kept = Some(outbox.current().map_err(TransactionError::from)?);
            book.add("none", "Outbox::current, while it is in use", &outbox.current().unwrap_err());
            let inner = outbox.transaction(|| async { Ok::<_, TransactionError>(()) });
            book.add("transaction", "Outbox::transaction, while it is in use", &inner.await.unwrap_err());
            Ok::<_, TransactionError>(())
        })
        .await
        .unwrap_err();
    book.add("transaction", "Outbox::transaction, kept beyond its end", &error);
    drop(kept);
    assert_eq!(outbox.current().unwrap_err(), NoTransaction::Outside);

    let store = SqliteStore::connect("sqlite::memory:").await.unwrap();
    store.migrate().await.unwrap();
    let outbox = Outbox::writer_only(store.clone()).start().await.unwrap();
    let cut_off = outbox.transaction(|| async {
        // SQLite may be through with it before anybody can cut it off.
        let through = async || {
            let inner = outbox.transaction(|| async { Ok::<_, TransactionError>(()) });
            tokio::select! {
                biased;
                _ = inner => true,
                () = std::future::ready(()) => false,
            }
        };
        while through().await {}
        book.add("none", "Outbox::current, after an inner transaction was cut off", &outbox.current().unwrap_err());
        Ok::<_, TransactionError>(())
    });
    let error = cut_off.await.unwrap_err();
    book.add("transaction", "Outbox::transaction, in which an inner one was cut off", &error);
    let by_hand = outbox.transaction(|| async {
        sqlx::raw_sql("ROLLBACK").execute(&mut **outbox.current()?).await.unwrap();
        Ok::<_, TransactionError>(())
    });
    book.add("transaction", "Outbox::transaction, after a ROLLBACK by hand", &by_hand.await.unwrap_err());
    let by_hand = outbox.transaction(|| async {
        let inner = outbox.transaction(|| async {
            sqlx::raw_sql("ROLLBACK").execute(&mut **outbox.current()?).await.unwrap();
            Ok::<_, TransactionError>(())
        });
        inner.await
    });
    book.add(
        "transaction",
        "Outbox::transaction, inside of another, after a ROLLBACK by hand",
        &by_hand.await.unwrap_err(),
    );
    store.close().await;
    let closed = outbox.transaction(|| async { Ok::<_, TransactionError>(()) });
    book.add("transaction", "Outbox::transaction, after SqliteStore::close", &closed.await.unwrap_err());
}
