//! A transaction of a request, named by its pool.

use posthaste::axum::Tx;
use sqlx::PgPool;

fn place(_tx: Tx<PgPool>) {}

fn main() {}
