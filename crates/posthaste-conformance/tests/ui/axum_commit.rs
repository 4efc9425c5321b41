//! The transaction of a request ends with its response.

use posthaste::PgStore;
use posthaste::axum::Tx;

async fn place(tx: Tx<PgStore>) {
    let _ = tx.commit().await;
}

fn main() {}
