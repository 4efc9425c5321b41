//! An order service that tells others of its orders, on PostgreSQL: an order and its event in one transaction, five attempts to
//! publish it, an operator who tries again what failed, and a month of history.
//!
//! ```sh
//! export DATABASE_URL=postgres://shop@localhost/shop
//! example-order-service create 4711 'Green tea' 2 1250   # customer, what, how many, cents each
//! example-order-service publish                          # to standard output, one JSON document a line, until ctrl-c
//! example-order-service publish --kafka 127.0.0.1:9092   # to Kafka instead, if it was built with --features kafka
//! example-order-service history ORDER                    # the events of an order, and where they stand
//! example-order-service failed                           # what was given up, and why
//! example-order-service retry                            # gives it another five attempts
//! ```
//!
//! `KAFKA_URL` says the same as `--kafka`, and `KAFKA_TOPIC` which topic, unless it is `order.events`.

mod order;
mod publisher;

use anyhow::{Context, bail};
use posthaste::store::{Filter, Page, Redrive};
use posthaste::{Options, Outbox, PgStore, Status};

use order::{Item, create_order};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let url = std::env::var("DATABASE_URL").context("DATABASE_URL says where the database is: postgres://…")?;
    let store = PgStore::connect(&url).await?;
    store.migrate().await?;
    order::create_tables(store.pool()).await?;
    match arguments[..] {
        ["create", customer, product, quantity, cents] => {
            let item = Item { product: product.to_owned(), quantity: quantity.parse()?, unit_cents: cents.parse()? };
            create(store, customer, item).await
        }
        ["publish"] => publish(store, std::env::var("KAFKA_URL").ok()).await,
        ["publish", "--kafka", brokers] => publish(store, Some(brokers.to_owned())).await,
        ["history", order] => history(store, order).await,
        ["failed"] => failed(store).await,
        ["retry"] => retry(store).await,
        _ => bail!(
            "one of: create CUSTOMER PRODUCT QUANTITY CENTS, publish [--kafka HOST:PORT], history ORDER, failed, retry"
        ),
    }
}

/// Another process publishes, so that this one only writes.
async fn create(store: PgStore, customer: &str, item: Item) -> anyhow::Result<()> {
    let outbox = Outbox::writer_only(store).start().await?;
    let order = outbox.transaction(|| create_order(&outbox, customer, vec![item])).await?;
    outbox.shutdown().await;
    println!("{order}");
    Ok(())
}

async fn publish(store: PgStore, kafka: Option<String>) -> anyhow::Result<()> {
    let month = Some(std::time::Duration::from_secs(30 * 24 * 3600));
    let options = Options { retention_done: month, ..Options::default() }.with_env("OUTBOX_", std::env::vars())?;
    let topic = std::env::var("KAFKA_TOPIC").unwrap_or_else(|_| "order.events".to_owned());
    let publisher = match kafka {
        Some(brokers) => publisher::to_kafka(&brokers, &topic).await?,
        None => publisher::to_stdout(std::env::var("TOPIC_DOWN").ok()),
    };
    let outbox = Outbox::builder(store).options(options).listen("Order", "*", publisher).start().await?;
    tokio::signal::ctrl_c().await?;
    let closed = outbox.shutdown().await;
    anyhow::ensure!(closed.is_clean(), "not everything in hand was published: {closed:?}");
    Ok(())
}

async fn history(store: PgStore, order: &str) -> anyhow::Result<()> {
    let of_order = Filter { aggregate_id: Some(order.to_owned()), ..Filter::default() };
    print(store, &of_order).await
}

async fn failed(store: PgStore) -> anyhow::Result<()> {
    let dead = Filter { statuses: vec![Status::Dead], ..Filter::default() };
    print(store, &dead).await
}

async fn retry(store: PgStore) -> anyhow::Result<()> {
    let outbox = Outbox::writer_only(store).start().await?;
    let again = outbox.admin().redrive(&Redrive::matching(Filter::default())).await?;
    outbox.shutdown().await;
    println!("{again} events are tried again");
    Ok(())
}

async fn print(store: PgStore, filter: &Filter) -> anyhow::Result<()> {
    let outbox = Outbox::writer_only(store).start().await?;
    for row in outbox.admin().list(filter, &Page::default()).await? {
        let what = row.event.as_ref().map_or("?", |event| event.event_type());
        let error = row.state.last_error.map(|error| format!(": {error}")).unwrap_or_default();
        println!("{} {what} {} after {} failures{error}", row.id, row.state.status, row.state.attempts);
    }
    outbox.shutdown().await;
    Ok(())
}
