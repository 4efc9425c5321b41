//! A client of tokio-postgres on which nothing was begun.

use posthaste::tokio_postgres::OutboxExt;
use posthaste::{Event, Outbox, PgStore};
use tokio_postgres::Client;

async fn place(outbox: Outbox<PgStore>, client: Client) {
    let _ = outbox.write_in(&client, Event::of_json("OrderPlaced", "{}")).await;
}

fn main() {}
