//! The listener between the databases, without the program around it.

use posthaste::testing::{self, Call, Fault, Faulty, Recorder, TestOutbox, Wanted};
use posthaste::{Event, MemoryStore, Options, SqliteStore};

use super::{billed, order_placed};

async fn billing() -> (TestOutbox<SqliteStore>, Recorder) {
    let store = testing::sqlite().await;
    sqlx::query("CREATE TABLE invoices (order_id TEXT PRIMARY KEY)").execute(store.pool()).await.unwrap();
    let recorder = Recorder::new();
    (testing::outbox_on(store).listen_all(recorder.clone()).start_test().await, recorder)
}

#[tokio::test]
async fn an_order_is_billed_once_however_often_it_is_told() {
    let (billing, issued) = billing().await;
    // The process that delivers the order is gone before it could note that it has.
    let (store, faults) = Faulty::new(MemoryStore::new());
    faults.always(Call::Settle, Fault::Unavailable);
    let orders = billed(testing::outbox_on(store.clone()), billing.clone()).start_test().await;
    let mut tx = orders.begin().await.unwrap();
    tx.write(order_placed(7)).await.unwrap();
    tx.commit().await.unwrap();
    faults.until(Call::Settle, 1).await;
    drop(orders);
    faults.clear();

    // Once its lease has run out, the next one tells it again.
    let orders = billed(testing::outbox_on(store), billing.clone()).start_test().await;
    orders.advance(Options::default().lease).await;
    assert_eq!(orders.drain_now().await.done, 1);

    billing.assert_written_event(Wanted::event("InvoiceIssued").aggregate("Invoice", 7).times(1)).await;
    assert_eq!((billing.drain_now().await.done, issued.count()), (1, 1));
    let invoices = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM invoices").fetch_one(billing.store().pool());
    assert_eq!(invoices.await.unwrap(), 1);
}

#[tokio::test]
async fn an_order_without_an_id_is_left_for_somebody_to_look_at() {
    let (billing, _) = billing().await;
    let orders = billed(testing::outbox(), billing.clone()).start_test().await;
    let mut tx = orders.begin().await.unwrap();
    let nameless = Event::builder("OrderPlaced").aggregate_type("Order").json_text("{}");
    let id = tx.write(nameless).await.unwrap().expect("no hook takes it away");
    tx.commit().await.unwrap();
    assert_eq!(orders.drain_now().await.dead, 1);
    let dead = orders.admin().find(&id).await.unwrap().expect("DEAD rows are kept");
    assert_eq!(dead.state.last_error.as_deref(), Some("an order without an id"));
    billing.assert_nothing_written().await;
}
