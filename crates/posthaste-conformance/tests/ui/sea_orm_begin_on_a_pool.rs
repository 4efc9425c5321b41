//! A pool of sqlx in place of a connection of SeaORM.

use posthaste::sea_orm::OutboxExt;
use posthaste::{Outbox, PgStore};
use sqlx::PgPool;

async fn place(outbox: Outbox<PgStore>, pool: PgPool) {
    let _ = outbox.begin_on(&pool).await;
}

fn main() {}
