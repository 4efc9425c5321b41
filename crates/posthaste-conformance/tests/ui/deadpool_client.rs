//! A client of a deadpool on which nothing was begun.

use deadpool_postgres::Client;
use posthaste::tokio_postgres::OutboxExt;
use posthaste::{Event, Outbox, PgStore};

async fn place(outbox: Outbox<PgStore>, client: Client) {
    let _ = outbox.write_in(&client, Event::of_json("OrderPlaced", "{}")).await;
}

fn main() {}
