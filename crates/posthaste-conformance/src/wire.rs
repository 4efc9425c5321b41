//! Somebody on the way to a server of PostgreSQL.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// A way to a server of PostgreSQL on which connections are cut that say a certain word. Dropped, it is closed.
pub struct Wire {
    url: String,
    _carriers: JoinSet<()>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Cut {
    Before,
    After,
}

impl Wire {
    /// The server never hears of the word.
    pub async fn cut_before(url: &str, word: &'static str) -> Self {
        Self::lead(url, word, Cut::Before).await
    }

    /// The server hears of the word, and nobody hears of the answer, which has the word in it, too.
    pub async fn losing_the_answer(url: &str, word: &'static str) -> Self {
        Self::lead(url, word, Cut::After).await
    }

    /// The URL of the server by way of this.
    pub fn url(&self) -> &str {
        &self.url
    }

    async fn lead(url: &str, word: &'static str, cut: Cut) -> Self {
        let (start, rest) = url.split_once('@').expect("the URL names a user");
        let (server, end) = rest.split_once('/').expect("the URL names a database");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("{start}@{}/{end}", listener.local_addr().unwrap());
        let server = server.to_owned();
        let mut carriers = JoinSet::new();
        carriers.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let server = TcpStream::connect(&server).await.unwrap();
                connections.spawn(carry(client, server, word.as_bytes(), cut));
            }
        });
        Self { url, _carriers: carriers }
    }
}

/// Carries messages back and forth until the word was said. Both ends are closed then.
async fn carry(client: TcpStream, server: TcpStream, word: &[u8], cut: Cut) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let said = AtomicBool::new(false);
    let forth = async {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(length @ 1..) = from_client.read(&mut buffer).await {
            if contains(&buffer[..length], word) {
                said.store(true, Ordering::SeqCst);
                if cut == Cut::Before {
                    break;
                }
            }
            if to_server.write_all(&buffer[..length]).await.is_err() {
                break;
            }
        }
    };
    let back = async {
        let (mut buffer, mut lost) = (vec![0; 1 << 16], Vec::new());
        while let Ok(length @ 1..) = from_server.read(&mut buffer).await {
            if said.load(Ordering::SeqCst) {
                lost.extend_from_slice(&buffer[..length]);
                if contains(&lost, word) {
                    break;
                }
            } else if to_client.write_all(&buffer[..length]).await.is_err() {
                break;
            }
        }
    };
    tokio::select! {
        () = forth => {}
        () = back => {}
    }
}

fn contains(bytes: &[u8], word: &[u8]) -> bool {
    bytes.windows(word.len()).any(|window| window == word)
}
