//! A transaction around a closure.

use std::slice::from_ref;

use posthaste_conformance::testing::{cut_short, event, told};
use posthaste_core::outbox::TransactionError;
use posthaste_core::store::CommitError;
use posthaste_core::{Outbox, WriteError};
use posthaste_sea_orm::{OutboxExt, SeaOrmStore};
use sea_orm::{DatabaseConnection, DbErr};

use crate::order::{place, placed};
use crate::support::{Sea, Shop};

crate::tests! { every: commits, rolls_back, rolls_back_after_a_panic, refuses_what_was_cut_off, runs_in_a_task }

/// The error of a service.
#[derive(Debug)]
enum Failed {
    Order,
    #[expect(dead_code, reason = "shown when a test fails")]
    Write(WriteError),
    #[expect(dead_code, reason = "shown when a test fails")]
    Database(DbErr),
    Transaction(TransactionError),
}

impl From<WriteError> for Failed {
    fn from(error: WriteError) -> Self {
        Self::Write(error)
    }
}

impl From<DbErr> for Failed {
    fn from(error: DbErr) -> Self {
        Self::Database(error)
    }
}

impl From<TransactionError> for Failed {
    fn from(error: TransactionError) -> Self {
        Self::Transaction(error)
    }
}

async fn commits<F: Sea>() {
    let mut shop = Shop::<F>::open().await;
    let placed_event = event("OrderPlaced");
    let id = shop
        .outbox
        .transaction_on(&shop.db, async |tx| {
            place(&*tx, 7).await;
            tx.write(&placed_event).await?;
            Ok::<_, Failed>(7)
        })
        .await
        .unwrap();
    assert_eq!((id, placed(&shop.db).await), (7, vec![7]));
    assert_eq!(shop.witness.told(), [told("commit", from_ref(&placed_event))]);
    assert_eq!(shop.inbox.next().await.id(), placed_event.id());
    shop.close().await;
}

async fn rolls_back<F: Sea>() {
    let shop = Shop::<F>::open().await;
    let undone = event("OrderPlaced");
    let done = shop
        .outbox
        .transaction_on(&shop.db, async |tx| {
            place(&*tx, 7).await;
            tx.write(&undone).await?;
            Err::<(), _>(Failed::Order)
        })
        .await;
    assert!(matches!(done, Err(Failed::Order)), "{done:?}");
    assert_eq!(shop.witness.told(), [told("rollback", from_ref(&undone))]);
    assert_eq!((shop.rows().await, placed(&shop.db).await), (0, vec![]));
    shop.close().await;
}

async fn rolls_back_after_a_panic<F: Sea>() {
    let shop = Shop::<F>::open().await;
    let (outbox, db, undone) = (shop.outbox.clone(), shop.db.clone(), event("OrderPlaced"));
    let panics = {
        let undone = undone.clone();
        async move {
            outbox
                .transaction_on(&db, async |tx| {
                    tx.write(&undone).await?;
                    if undone.id().as_str().len() == 26 {
                        panic!("on purpose");
                    }
                    Ok::<_, Failed>(())
                })
                .await
        }
    };
    assert!(tokio::spawn(panics).await.unwrap_err().is_panic());
    assert_eq!(shop.witness.told(), [told("rollback", from_ref(&undone))]);
    assert_eq!(shop.rows().await, 0);
    shop.close().await;
}

/// A write that was dropped in the middle ends the transaction, and a closure that goes on is told.
async fn refuses_what_was_cut_off<F: Sea>() {
    let shop = Shop::<F>::open().await;
    let mut cut = 0;
    // A write may be so fast that it cannot be cut.
    while cut == 0 {
        let done = shop
            .outbox
            .transaction_on(&shop.db, async |tx| {
                if cut_short(1, tx.write(event("Cut"))).await.is_some() {
                    return Err(Failed::Order);
                }
                cut += 1;
                let error = tx.write(event("Refused")).await.unwrap_err();
                let source = std::error::Error::source(&error).and_then(std::error::Error::source).unwrap();
                assert!(source.to_string().starts_with("the transaction has ended, because a call"), "{source}");
                Ok(())
            })
            .await;
        let not_committed =
            matches!(&done, Err(Failed::Transaction(TransactionError::Commit(CommitError::NotCommitted(_)))));
        assert!(not_committed || cut == 0, "{done:?}");
    }
    shop.fixture.assert_no_open_transaction().await;
    assert_eq!(shop.rows().await, 0);
    shop.close().await;
}

/// What a web framework demands of a handler: a future that can be sent to another thread.
async fn runs_in_a_task<F: Sea>() {
    async fn handle<S: SeaOrmStore>(outbox: Outbox<S>, db: DatabaseConnection) -> Result<i64, Failed> {
        outbox
            .transaction_on(&db, async |tx| {
                place(&*tx, 1).await;
                let mut part = tx.savepoint().await.map_err(|_| Failed::Order)?;
                place(&*part, 2).await;
                part.write(event("Part")).await?;
                part.rollback().await.map_err(|_| Failed::Order)?;
                tx.write(event("Whole")).await?;
                Ok(1)
            })
            .await
    }
    let mut shop = Shop::<F>::open().await;
    let handled = tokio::spawn(handle(shop.outbox.clone(), shop.db.clone())).await.unwrap();
    assert_eq!(handled.unwrap(), 1);
    assert_eq!(placed(&shop.db).await, [1]);
    assert_eq!(shop.inbox.next().await.event_type(), "Whole");
    shop.close().await;
}
