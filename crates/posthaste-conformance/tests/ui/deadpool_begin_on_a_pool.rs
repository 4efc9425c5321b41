//! A transaction on a pool of deadpool-postgres.

use deadpool_postgres::Pool;
use posthaste::tokio_postgres::OutboxExt;
use posthaste::{Outbox, PgStore};

fn place(outbox: Outbox<PgStore>, mut pool: Pool) {
    drop(outbox.begin_on(&mut pool));
}

fn main() {}
