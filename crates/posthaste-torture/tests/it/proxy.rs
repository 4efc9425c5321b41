use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use posthaste_torture::proxy::{PIECE, Proxy};
use posthaste_torture::server::{Kind, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use crate::client::Client;
use crate::{eventually, in_memory};

/// Sends back what it gets.
struct Echo {
    addr: SocketAddr,
    task: JoinHandle<()>,
}

impl Echo {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                connections.spawn(async move {
                    let (mut read, mut write) = stream.split();
                    let _ = tokio::io::copy(&mut read, &mut write).await;
                });
            }
        });
        Self { addr, task }
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn ask(stream: &mut TcpStream, question: &[u8]) -> io::Result<()> {
    stream.write_all(question).await?;
    let mut answer = vec![0; question.len()];
    stream.read_exact(&mut answer).await?;
    assert!(answer == question);
    Ok(())
}

/// Whether it is not done in a time in which it otherwise would be.
async fn hangs<T>(future: impl Future<Output = T>) -> bool {
    timeout(Duration::from_millis(200), future).await.is_err()
}

/// Whether it ends, or breaks, before a byte comes.
async fn closes(stream: &mut TcpStream) -> bool {
    let limit = Duration::from_secs(10);
    timeout(limit, stream.read(&mut [0])).await.is_ok_and(|read| !matches!(read, Ok(1..)))
}

#[tokio::test]
async fn bytes_go_through() {
    let echo = Echo::start().await;
    let proxy = Proxy::start(echo.addr).await.unwrap();
    let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
    ask(&mut stream, b"hello").await.unwrap();
    // An end is handed on, and what comes after it from the other side too.
    stream.write_all(b"bye").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).await.unwrap();
    assert_eq!(rest, "bye");
    eventually(|| (proxy.stats().open == 0).then_some(())).await;
    let stats = proxy.stats();
    assert_eq!((stats.total, stats.cut, stats.bytes_up, stats.bytes_down), (1, 0, 8, 8));
}

/// A client that does not read fills the buffers of the kernel and one piece here, and can then not write any more.
#[tokio::test]
async fn a_side_that_does_not_read_stops_the_other() {
    let echo = Echo::start().await;
    let proxy = Proxy::start(echo.addr).await.unwrap();
    let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
    let zeros = vec![0; PIECE];
    let mut written = 0;
    while !hangs(stream.write_all(&zeros)).await {
        written += PIECE;
    }
    assert!(written < 100 << 20, "{written} bytes were taken");
    stream.read_exact(&mut vec![0; written]).await.unwrap();
}

#[tokio::test]
async fn connections_are_cut() {
    let echo = Echo::start().await;
    let proxy = Proxy::start(echo.addr).await.unwrap();
    let mut one = TcpStream::connect(proxy.addr()).await.unwrap();
    let mut other = TcpStream::connect(proxy.addr()).await.unwrap();
    ask(&mut one, b"hello").await.unwrap();
    ask(&mut other, b"hello").await.unwrap();
    assert_eq!(proxy.cut(), 2);
    assert!(closes(&mut one).await);
    assert!(closes(&mut other).await);
    assert_eq!(proxy.cut(), 0);
    assert_eq!((proxy.stats().open, proxy.stats().cut), (0, 2));
    let mut next = TcpStream::connect(proxy.addr()).await.unwrap();
    ask(&mut next, b"hello").await.unwrap();
}

#[tokio::test]
async fn connections_are_refused() {
    let echo = Echo::start().await;
    let proxy = Proxy::start(echo.addr).await.unwrap();
    let mut old = TcpStream::connect(proxy.addr()).await.unwrap();
    ask(&mut old, b"hello").await.unwrap();
    proxy.refuse(true);
    let mut new = TcpStream::connect(proxy.addr()).await.unwrap();
    assert!(closes(&mut new).await);
    ask(&mut old, b"hello").await.unwrap();
    proxy.refuse(false);
    let mut new = TcpStream::connect(proxy.addr()).await.unwrap();
    ask(&mut new, b"hello").await.unwrap();
    assert_eq!((proxy.stats().refused, proxy.stats().total), (1, 2));
}

#[tokio::test]
async fn the_target_comes_and_goes() {
    let echo = Echo::start().await;
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let proxy = Proxy::start(nobody).await.unwrap();
    let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
    assert!(closes(&mut stream).await);
    proxy.set_target(echo.addr);
    let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
    ask(&mut stream, b"hello").await.unwrap();
    drop(proxy);
    assert!(closes(&mut stream).await);
}

#[tokio::test]
async fn pieces_are_delayed() {
    const DELAY: Duration = Duration::from_millis(100);
    let echo = Echo::start().await;
    let proxy = Proxy::start(echo.addr).await.unwrap();
    let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
    proxy.delay(Some(DELAY));
    let asked_at = Instant::now();
    ask(&mut stream, b"hello").await.unwrap();
    assert!(asked_at.elapsed() >= 2 * DELAY);
    // What is held back already does not wait for the old delay.
    proxy.delay(Some(Duration::from_secs(3600)));
    assert!(hangs(ask(&mut stream, b"hello")).await);
    proxy.delay(None);
    stream.read_exact(&mut [0; 5]).await.unwrap();
}

#[tokio::test]
async fn bytes_vanish_in_a_black_hole() {
    let echo = Echo::start().await;
    let proxy = Proxy::start(echo.addr).await.unwrap();
    let mut speaking = TcpStream::connect(proxy.addr()).await.unwrap();
    let mut silent = TcpStream::connect(proxy.addr()).await.unwrap();
    ask(&mut speaking, b"hello").await.unwrap();
    ask(&mut silent, b"hello").await.unwrap();

    proxy.black_hole(true);
    let mut new = TcpStream::connect(proxy.addr()).await.unwrap();
    assert!(hangs(ask(&mut speaking, b"hello")).await);
    assert!(hangs(ask(&mut new, b"hello")).await);
    eventually(|| (proxy.stats().bytes_swallowed >= 10).then_some(())).await;
    let stats = proxy.stats();
    assert_eq!((stats.open, stats.cut, stats.bytes_up, stats.bytes_swallowed), (3, 0, 10, 10));

    proxy.black_hole(false);
    assert!(closes(&mut speaking).await);
    assert!(closes(&mut new).await);
    ask(&mut silent, b"hello").await.unwrap();
    assert_eq!((proxy.stats().open, proxy.stats().cut), (1, 2));
}

#[tokio::test]
async fn nobody_hears_of_an_end_in_a_black_hole() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = Proxy::start(listener.local_addr().unwrap()).await.unwrap();
    let client = TcpStream::connect(proxy.addr()).await.unwrap();
    let (mut target, _) = listener.accept().await.unwrap();
    proxy.black_hole(true);
    drop(client);
    assert!(hangs(closes(&mut target)).await);
    proxy.black_hole(false);
    assert!(closes(&mut target).await);
}

#[tokio::test]
async fn one_reply_is_lost() {
    let echo = Echo::start().await;
    let proxy = Proxy::start(echo.addr).await.unwrap();
    let mut one = TcpStream::connect(proxy.addr()).await.unwrap();
    let mut other = TcpStream::connect(proxy.addr()).await.unwrap();
    proxy.lose_reply_to(b"COMMIT", 2);
    ask(&mut one, b"COMMIT").await.unwrap();
    ask(&mut one, b"COM").await.unwrap();
    ask(&mut other, b"ROLLBACK").await.unwrap();
    ask(&mut one, b"MIT").await.unwrap_err();
    ask(&mut other, b"COMMIT").await.unwrap();
    let stats = proxy.stats();
    assert_eq!((stats.open, stats.cut, stats.replies_lost), (1, 1, 1));
    proxy.lose_reply_to(b"COMMIT", 1);
    proxy.lose_no_reply();
    ask(&mut other, b"COMMIT").await.unwrap();
}

#[tokio::test]
async fn postgres_commits_without_a_reply() {
    commits_without_a_reply(Kind::Postgres).await;
}

#[tokio::test]
async fn mariadb_commits_without_a_reply() {
    commits_without_a_reply(Kind::MariaDb).await;
}

async fn commits_without_a_reply(kind: Kind) {
    let server = Server::start(kind, &in_memory()).await.unwrap();
    let mut direct = Client::connect(kind, server.url()).await.unwrap();
    direct.create_table().await.unwrap();
    let proxy = Proxy::start(server.addr()).await.unwrap();
    let mut client = Client::connect(kind, &server.url_at(proxy.addr())).await.unwrap();
    proxy.lose_reply_to(kind.commit(), 2);
    client.insert().await.unwrap();
    let error = client.insert().await.unwrap_err();
    assert!(matches!(error, sqlx::Error::Io(_)), "{error}");
    assert_eq!(direct.count().await.unwrap(), 2);
    let stats = proxy.stats();
    assert_eq!((stats.total, stats.cut, stats.replies_lost), (1, 1, 1));
}
