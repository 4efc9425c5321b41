//! A pool of diesel-async.

use diesel_async::AsyncPgConnection;
use diesel_async::pooled_connection::deadpool::Pool;
use posthaste::diesel::OutboxExt;
use posthaste::{Event, Outbox, PgStore};

fn place(outbox: Outbox<PgStore>, mut pool: Pool<AsyncPgConnection>) {
    drop(outbox.write_in(&mut pool, Event::of_json("OrderPlaced", "{}")));
}

fn main() {}
