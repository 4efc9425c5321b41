//! A pool in place of a store.

use posthaste::Outbox;
use sqlx::PgPool;

fn outbox(pool: PgPool) {
    let _ = Outbox::builder(pool);
}

fn main() {}
