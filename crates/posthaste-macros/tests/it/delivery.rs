//! From a commit to a listener.

use posthaste::event::TypedEvent;
use posthaste::store::AdminStore;
use posthaste::{Delivery, MemoryStore, Outbox, Status};
use posthaste_macros::Event;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::unbounded_channel;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Event)]
#[event(type = "OrderPlaced", aggregate = "Order", key = "id", version = 2, from = OrderPlacedV1)]
struct OrderPlaced {
    id: u64,
    total: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Event)]
#[event(type = "OrderPlaced", aggregate = "Order", key = "id")]
struct OrderPlacedV1 {
    id: u64,
}

impl From<OrderPlacedV1> for OrderPlaced {
    fn from(old: OrderPlacedV1) -> Self {
        Self { id: old.id, total: 0 }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Event)]
#[event(aggregate = "Stock", key = "item")]
enum StockEvent {
    #[event(type = "StockTaken")]
    Taken { item: String, pieces: u32 },
    #[event(type = "StockCounted")]
    Counted,
}

#[derive(Debug, PartialEq)]
enum Received {
    Order(OrderPlaced),
    Stock(StockEvent),
}

#[tokio::test(start_paused = true)]
async fn what_is_written_typed_arrives_typed() {
    let (sender, mut arrived) = unbounded_channel();
    let for_stock = sender.clone();
    let outbox = Outbox::builder(MemoryStore::new())
        .on::<OrderPlaced>(move |_, order| std::future::ready(sender.send(Received::Order(order))))
        .on_with(for_stock, |sender, event: Delivery, stock: StockEvent| async move {
            assert_eq!(event.aggregate_type(), "Stock");
            sender.send(Received::Stock(stock))
        })
        .start()
        .await
        .unwrap();

    let order = OrderPlaced { id: 1, total: 7 };
    let taken = StockEvent::Taken { item: "pen".into(), pieces: 3 };
    let mut tx = outbox.begin().await.unwrap();
    tx.write(&order).await.unwrap();
    tx.write_all(&[taken.clone(), StockEvent::Counted]).await.unwrap();
    tx.write(OrderPlacedV1 { id: 2 }).await.unwrap();
    tx.commit().await.unwrap();

    let mut received = Vec::new();
    for _ in 0..4 {
        received.push(arrived.recv().await.unwrap());
    }
    for wanted in [
        Received::Order(order),
        Received::Order(OrderPlaced { id: 2, total: 0 }),
        Received::Stock(taken),
        Received::Stock(StockEvent::Counted),
    ] {
        assert!(received.contains(&wanted), "{wanted:?} is not in {received:?}");
    }
    outbox.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_does_not_decode_is_dead_with_the_reason() {
    let store = MemoryStore::new();
    let outbox = Outbox::builder(store.clone()).on::<StockEvent>(|_, _| async {}).start().await.unwrap();
    let right = StockEvent::Counted.to_builder().id("right").build().unwrap();
    let taken = posthaste::Event::builder("StockTaken").id("wrong").aggregate("Stock", "pen");
    let mut tx = outbox.begin().await.unwrap();
    tx.write(right).await.unwrap();
    tx.write(taken.json_text(r#"{"item":"pen","pieces":"three"}"#)).await.unwrap();
    tx.commit().await.unwrap();
    outbox.shutdown().await;

    let rows = store.list(&Default::default(), &Default::default()).await.unwrap();
    let row = |id: &str| rows.iter().find(|row| row.id == *id).unwrap();
    assert_eq!(row("right").state.status, Status::Done);
    assert_eq!(row("wrong").state.status, Status::Dead);
    assert_eq!(
        row("wrong").state.last_error.as_deref(),
        Some(
            "StockTaken version 1 does not decode: pieces: invalid type: string \"three\", expected u32 at line 1 column 30; \
             mend the reader or the payload, then redrive the event"
        )
    );
}
