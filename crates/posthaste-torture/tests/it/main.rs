//! What the nemesis relies on, what killed processes leave behind, and runs from beginning to end.

#![allow(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

#[cfg(feature = "brokers")]
mod brokers;
mod client;
#[cfg(feature = "failpoints")]
mod crash;
mod proxy;
mod run;
mod server;

use std::time::Duration;

use posthaste_torture::server::ServerOptions;

/// A disk that can be filled, and is faster than a real one. An ordinary directory without root.
fn in_memory() -> ServerOptions {
    ServerOptions::default().disk(256 << 20)
}

/// Looks until there is something to see.
async fn eventually<T>(mut look: impl FnMut() -> Option<T>) -> T {
    const LIMIT: Duration = Duration::from_secs(120);
    const PAUSE: Duration = Duration::from_millis(20);
    tokio::time::timeout(LIMIT, async {
        loop {
            if let Some(seen) = look() {
                return seen;
            }
            tokio::time::sleep(PAUSE).await;
        }
    })
    .await
    .expect("it happens in time")
}
