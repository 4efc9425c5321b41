//! A layer for axum on a pool.

use axum::Router;
use posthaste::axum::TxLayer;
use sqlx::PgPool;

fn place(pool: PgPool) {
    let _ = Router::<()>::new().layer(TxLayer::new(pool));
}

fn main() {}
