//! A connection of sqlx on which nothing was begun, on SQLite.

use posthaste::{Event, Outbox, SqliteStore};
use sqlx::SqliteConnection;

async fn place(outbox: Outbox<SqliteStore>, mut connection: SqliteConnection) {
    let _ = outbox.write(&mut connection, Event::of_json("OrderPlaced", "{}")).await;
}

fn main() {}
