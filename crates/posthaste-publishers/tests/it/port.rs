//! Ports for those who come later.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

/// A port that nobody listens on, for somebody who will. It is below those that the system gives to connections, so it stays free.
pub(crate) fn free_port() -> u16 {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    loop {
        let place = std::process::id().wrapping_mul(97).wrapping_add(ASKED.fetch_add(1, Ordering::Relaxed));
        let port = 20_000 + u16::try_from(place % 12_000).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
