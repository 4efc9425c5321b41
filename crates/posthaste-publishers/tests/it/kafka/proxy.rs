//! A proxy that loses acknowledgements: it knows requests from replies, and which of them are about messages.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// The request that carries messages.
const PRODUCE: i16 = 0;

/// Hands requests on to a broker. Instead of handing on every n-th acknowledgement it loses that and those of the requests
/// behind it that the broker has already, and cuts the connection.
pub(super) struct Proxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    accepting: Mutex<Option<JoinHandle<()>>>,
    listener: Mutex<Option<TcpListener>>,
}

struct Shared {
    every: u64,
    acknowledged: AtomicU64,
    lost: AtomicU64,
}

impl Proxy {
    pub(super) async fn losing_every(every: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let shared = Arc::new(Shared { every, acknowledged: AtomicU64::new(0), lost: AtomicU64::new(0) });
        Self { addr, shared, accepting: Mutex::default(), listener: Mutex::new(Some(listener)) }
    }

    pub(super) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// How many acknowledgements were lost.
    pub(super) fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }

    /// Begins, with that broker behind it.
    pub(super) fn run(&self, broker: &str) {
        let listener = self.listener.lock().unwrap().take().expect("it runs once");
        let (shared, broker) = (Arc::clone(&self.shared), broker.to_owned());
        let accepting = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(carry(client, broker.clone(), Arc::clone(&shared)));
            }
        });
        *self.accepting.lock().unwrap() = Some(accepting);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(accepting) = self.accepting.lock().unwrap().take() {
            accepting.abort();
        }
    }
}

async fn carry(client: TcpStream, broker: String, shared: Arc<Shared>) {
    let Ok(broker) = TcpStream::connect(broker).await else { return };
    let ((from_client, to_client), (from_broker, to_broker)) = (client.into_split(), broker.into_split());
    let connection = Connection::default();
    tokio::select! {
        _ = connection.up(from_client, to_broker) => {}
        _ = connection.down(from_broker, to_client, &shared) => {}
    }
}

#[derive(Default)]
struct Connection {
    /// Requests with messages that the broker has not answered.
    open: Mutex<HashSet<i32>>,
    losing: AtomicBool,
}

impl Connection {
    async fn up(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) -> std::io::Result<()> {
        loop {
            let frame = frame(&mut from).await?;
            {
                let mut open = self.open.lock().unwrap();
                if self.losing.load(Ordering::Relaxed) {
                    continue;
                }
                if i16::from_be_bytes([frame[4], frame[5]]) == PRODUCE {
                    open.insert(number(&frame[8..12]));
                }
            }
            to.write_all(&frame).await?;
        }
    }

    async fn down(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, shared: &Shared) -> std::io::Result<()> {
        loop {
            let frame = frame(&mut from).await?;
            {
                let mut open = self.open.lock().unwrap();
                if open.remove(&number(&frame[4..8])) {
                    let nth = shared.acknowledged.fetch_add(1, Ordering::Relaxed) + 1;
                    self.losing.fetch_or(nth.is_multiple_of(shared.every), Ordering::Relaxed);
                    shared.lost.fetch_add(u64::from(self.losing.load(Ordering::Relaxed)), Ordering::Relaxed);
                }
                if self.losing.load(Ordering::Relaxed) {
                    // The broker is through with what it has before the client repeats it.
                    if open.is_empty() {
                        return Ok(());
                    }
                    continue;
                }
            }
            to.write_all(&frame).await?;
        }
    }
}

/// Four bytes of length, and as many as they say.
async fn frame(from: &mut OwnedReadHalf) -> std::io::Result<Vec<u8>> {
    let mut frame = vec![0; 4];
    from.read_exact(&mut frame).await?;
    let length = usize::try_from(number(&frame)).unwrap();
    frame.resize(4 + length, 0);
    from.read_exact(&mut frame[4..]).await?;
    Ok(frame)
}

fn number(bytes: &[u8]) -> i32 {
    i32::from_be_bytes(bytes.try_into().unwrap())
}
