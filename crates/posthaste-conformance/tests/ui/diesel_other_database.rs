//! A connection of diesel-async to another database than the one of the outbox.

use diesel_async::AsyncPgConnection;
use posthaste::diesel::OutboxExt;
use posthaste::{Event, Outbox, SqliteStore};

fn place(outbox: Outbox<SqliteStore>, mut conn: AsyncPgConnection) {
    drop(outbox.write_in(&mut conn, Event::of_json("OrderPlaced", "{}")));
}

fn main() {}
