//! A TCP proxy that breaks what goes through it.
//!
//! It runs as tasks of the caller's runtime. What is in transit is bounded by one piece of [`PIECE`] bytes per
//! direction and connection: a side that does not read stops the other.

mod connection;
mod search;

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};

use search::Needle;

/// How many bytes are read at once.
pub const PIECE: usize = 64 * 1024;

/// A running proxy. Dropping it closes its port and its connections.
pub struct Proxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

/// What has gone through a proxy since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Connections that are open now.
    pub open: u64,
    /// Connections that were let in.
    pub total: u64,
    /// Connections that were turned away, because of [`refuse`](Proxy::refuse) or because the target was not there.
    pub refused: u64,
    /// Connections that were cut, by [`cut`](Proxy::cut) or because they had lost something.
    pub cut: u64,
    /// Replies that came from the target and were not handed on.
    pub replies_lost: u64,
    /// How often a client spoke after the target had, or first: round trips, of clients that wait for answers.
    pub turns: u64,
    /// Bytes handed on to the target.
    pub bytes_up: u64,
    /// Bytes handed on to the clients.
    pub bytes_down: u64,
    /// Bytes that the [black hole](Proxy::black_hole) took, in both directions.
    pub bytes_swallowed: u64,
}

impl Proxy {
    /// Starts a proxy on a free port of 127.0.0.1. The target need not be there yet.
    ///
    /// # Errors
    /// When there is no port.
    pub async fn start(target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared::new(target));
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { addr, shared, accepting })
    }

    /// Where clients connect to.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Sends new connections elsewhere. Those that are open stay where they are.
    pub fn set_target(&self, target: SocketAddr) {
        self.shared.controls.send_modify(|controls| controls.target = target);
    }

    /// Closes all connections, on both sides, and returns how many there were. What was in transit is lost.
    pub fn cut(&self) -> u64 {
        let connections = std::mem::take(&mut *self.shared.connections());
        connections.values().for_each(AbortHandle::abort);
        let cut = connections.len() as u64;
        self.shared.counters.cut.fetch_add(cut, Ordering::Relaxed);
        cut
    }

    /// Whether new connections are closed at once. Those that are open stay.
    pub fn refuse(&self, refuse: bool) {
        self.shared.controls.send_modify(|controls| controls.refuse = refuse);
    }

    /// Holds every piece back for so long, in both directions; a round trip takes twice that. What is held back now
    /// goes by the new delay. There is one piece on its way at a time, so a delay also limits the rate, to [`PIECE`]
    /// per delay.
    pub fn delay(&self, delay: Option<Duration>) {
        self.shared.controls.send_modify(|controls| controls.delay = delay.unwrap_or_default());
    }

    /// Whether all bytes vanish in both directions, while connections stay open, as when a cable is pulled. Nobody
    /// learns that the other side has closed either. New connections are let in.
    ///
    /// When it ends, connections that have lost something are cut: with a hole in the stream they cannot go on. The
    /// others go on.
    pub fn black_hole(&self, black_hole: bool) {
        self.shared.controls.send_modify(|controls| controls.black_hole = black_hole);
    }

    /// Loses the reply to a request, once: the one in which the clients' bytes contain the needle for the `n`-th time
    /// from now, counted over all connections. The request is handed on; when the reply has come and the target has
    /// fallen silent, the connection is cut. So the target has done what it was asked for, and the client cannot know.
    ///
    /// Replaces what was asked for before. An `n` of 0 means 1. The needle is compared with the bytes as they are: it
    /// is not found in TLS or compression.
    ///
    /// # Panics
    /// When the needle is empty.
    pub fn lose_reply_to(&self, needle: &[u8], n: u32) {
        assert!(!needle.is_empty(), "an empty needle is everywhere");
        *self.shared.needle() = Some(Needle::new(needle, n));
    }

    /// Takes back [`lose_reply_to`](Self::lose_reply_to), if it has not happened yet.
    pub fn lose_no_reply(&self) {
        *self.shared.needle() = None;
    }

    /// What has gone through.
    pub fn stats(&self) -> Stats {
        let open = self.shared.connections().len() as u64;
        self.shared.counters.stats(open)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // It owns the tasks of the connections.
        self.accepting.abort();
    }
}

/// What the controls, the accepting task and the connections have in common.
struct Shared {
    controls: watch::Sender<Controls>,
    connections: Mutex<HashMap<u64, AbortHandle>>,
    needle: Mutex<Option<Needle>>,
    counters: Counters,
}

#[derive(Clone, Copy)]
struct Controls {
    target: SocketAddr,
    refuse: bool,
    delay: Duration,
    black_hole: bool,
}

#[derive(Default)]
struct Counters {
    total: AtomicU64,
    refused: AtomicU64,
    cut: AtomicU64,
    replies_lost: AtomicU64,
    turns: AtomicU64,
    bytes_up: AtomicU64,
    bytes_down: AtomicU64,
    bytes_swallowed: AtomicU64,
}

impl Shared {
    fn new(target: SocketAddr) -> Self {
        let controls = Controls { target, refuse: false, delay: Duration::ZERO, black_hole: false };
        Self {
            controls: watch::Sender::new(controls),
            connections: Mutex::default(),
            needle: Mutex::default(),
            counters: Counters::default(),
        }
    }

    fn connections(&self) -> MutexGuard<'_, HashMap<u64, AbortHandle>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn needle(&self) -> MutexGuard<'_, Option<Needle>> {
        self.needle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counters {
    fn stats(&self, open: u64) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            open,
            total: read(&self.total),
            refused: read(&self.refused),
            cut: read(&self.cut),
            replies_lost: read(&self.replies_lost),
            turns: read(&self.turns),
            bytes_up: read(&self.bytes_up),
            bytes_down: read(&self.bytes_down),
            bytes_swallowed: read(&self.bytes_swallowed),
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut tasks = JoinSet::new();
    for id in 0.. {
        let client = loop {
            tokio::select! {
                client = listener.accept() => break client,
                Some(_) = tasks.join_next() => {}
            }
        };
        match client {
            Ok((client, _)) => admit(id, client, &shared, &mut tasks),
            // Out of file descriptors, most likely: they come back as connections end.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

fn admit(id: u64, client: TcpStream, shared: &Arc<Shared>, tasks: &mut JoinSet<()>) {
    if shared.controls.borrow().refuse {
        shared.counters.refused.fetch_add(1, Ordering::Relaxed);
        return;
    }
    // The task takes itself out when it ends, which must not be before it is in.
    let mut connections = shared.connections();
    let task = tasks.spawn(connection::run(id, client, Arc::clone(shared)));
    connections.insert(id, task);
}
