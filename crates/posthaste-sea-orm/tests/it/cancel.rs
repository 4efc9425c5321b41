//! Futures that are dropped half-way.

use std::slice::from_ref;

use posthaste_conformance::testing::{Witness, cut_short, event, told};
use posthaste_core::Outbox;
use posthaste_sea_orm::{OutboxExt, SeaOrmStore};
use sea_orm::DatabaseConnection;

use crate::order::{place, placed};
use crate::support::{Sea, Shop, rows, with_orders};

crate::tests! {
    every: case_19_cut_anywhere, case_19_cut_begin, case_19_cut_savepoint, case_19_cut_inner, case_19_commit_goes_on
}

/// Drops a call after one poll, after two, and so on until it comes to its end, on a pool of one connection. After each,
/// the connection is outside of any transaction.
async fn cut_everywhere<F: Sea, T>(db: &DatabaseConnection, least: usize, call: impl AsyncFn(i64) -> T) {
    for polls in 1.. {
        let finished = cut_short(polls, call(i64::try_from(polls).unwrap())).await.is_some();
        F::assert_outside(db).await;
        if finished {
            assert!(polls > least, "it was cut {} times only", polls - 1);
            return;
        }
    }
}

/// Begin, statements, writes and commit: an order has its events, or is not there.
async fn case_19_cut_anywhere<F: Sea>() {
    let fixture = F::create().await;
    with_orders(&fixture).await;
    let ((db, _tasks), witness) = (fixture.cuttable().await, Witness::default());
    let outbox = Outbox::writer_only(fixture.store()).hook(witness.clone()).start().await.unwrap();
    cut_everywhere::<F, _>(&db, F::PLACES, async |id| {
        let mut tx = outbox.begin_on(&db).await.unwrap();
        tx.write_all([event("First"), event("Second")]).await.unwrap();
        if F::STATEMENTS_CAN_BE_CUT {
            place(&*tx, id).await;
        }
        let mut savepoint = tx.savepoint().await.unwrap();
        savepoint.write(event("Third")).await.unwrap();
        savepoint.commit().await.unwrap();
        tx.commit().await.unwrap();
    })
    .await;
    // Also those are told whose caller was gone in the commit.
    let committed = witness.told().iter().filter(|(step, ids)| *step == "commit" && ids.len() == 3).count();
    assert!(committed > 0);
    assert_eq!(rows(&outbox).await, 3 * u64::try_from(committed).unwrap());
    assert_eq!(placed(&db).await.len(), if F::STATEMENTS_CAN_BE_CUT { committed } else { 0 });
}

async fn case_19_cut_begin<F: Sea>() {
    let fixture = F::create().await;
    with_orders(&fixture).await;
    let (db, _tasks) = fixture.cuttable().await;
    let outbox = Outbox::writer_only(fixture.store()).start().await.unwrap();
    cut_everywhere::<F, _>(&db, 0, async |_| drop(outbox.begin_on(&db).await.unwrap())).await;
    // What is written next is not lost in a transaction that nobody knows of.
    place_with_event(&outbox, &db, 1).await;
    assert_eq!((rows(&outbox).await, placed(&db).await), (1, vec![1]));
}

async fn place_with_event<S: SeaOrmStore>(outbox: &Outbox<S>, db: &DatabaseConnection, id: i64) {
    let mut tx = outbox.begin_on(db).await.unwrap();
    place(&*tx, id).await;
    tx.write(event("OrderPlaced")).await.unwrap();
    tx.commit().await.unwrap();
}

/// A savepoint that was cut off ends its transaction: what follows would otherwise be on its own.
async fn case_19_cut_savepoint<F: Sea>() {
    let shop = Shop::<F>::open().await;
    let mut cut = 0;
    // It may be so fast that it cannot be cut.
    while cut == 0 {
        let undone = event("Undone");
        let mut tx = shop.outbox.begin_on(&shop.db).await.unwrap();
        tx.write(&undone).await.unwrap();
        if cut_short(1, tx.savepoint()).await.is_some() {
            tx.rollback().await.unwrap();
            shop.witness.told();
            continue;
        }
        cut += 1;
        tx.write(event("Late")).await.unwrap_err();
        tx.commit().await.unwrap_err();
        shop.fixture.assert_no_open_transaction().await;
        assert_eq!(shop.witness.told(), [told("rollback", from_ref(&undone))]);
    }
    assert_eq!(shop.rows().await, 0);
    shop.close().await;
}

/// An inner transaction of SeaORM's that is cut off takes the outer one along: what is written afterwards is refused, and not
/// stored on its own.
async fn case_19_cut_inner<F: Sea>() {
    let shop = Shop::<F>::open().await;
    let mut cut = 0;
    // It may be so fast that it cannot be cut.
    while cut < 4 {
        let mut tx = shop.outbox.begin_on(&shop.db).await.unwrap();
        tx.write(event("Undone")).await.unwrap();
        if let Some(inner) = cut_short(1, sea_orm::TransactionTrait::begin(&*tx)).await {
            drop(inner);
            tx.rollback().await.unwrap();
            continue;
        }
        cut += 1;
        tx.write(event("Late")).await.unwrap_err();
        if cut % 2 == 0 {
            tx.commit().await.unwrap_err();
        } else {
            // Rolled back already, which may be said or not.
            let _ = tx.rollback().await;
        }
        F::assert_outside(&shop.db).await;
        shop.fixture.assert_no_open_transaction().await;
    }
    assert_eq!(shop.rows().await, 0);
    shop.close().await;
}

/// A commit whose caller is gone goes on, and its events are delivered.
async fn case_19_commit_goes_on<F: Sea>() {
    let mut shop = Shop::<F>::open().await;
    let committed = event("Committed");
    let mut tx = shop.outbox.begin_on(&shop.db).await.unwrap();
    place(&*tx, 1).await;
    tx.write(&committed).await.unwrap();
    // Whether it was cut is up to the server; it is committed in any case.
    cut_short(1, tx.commit()).await;
    assert_eq!(shop.inbox.next().await.id(), committed.id());
    assert_eq!(placed(&shop.db).await, [1]);
    assert_eq!(shop.witness.told(), [told("commit", from_ref(&committed))]);
    shop.close().await;
}
