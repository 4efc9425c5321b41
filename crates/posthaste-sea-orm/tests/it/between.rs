//! Somebody on the way to the server.

use sea_orm::{ConnectOptions, Database, DatabaseConnection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Where a connection is cut that says COMMIT.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    Never,
    /// The server never hears of it.
    Before,
    /// The server has answered, and nobody hears of that.
    After,
}

/// SeaORM on one connection that leads through a task of this runtime, so that no answer is there before its question was
/// waited for.
pub(crate) async fn through(url: &str, cut: Cut) -> (DatabaseConnection, JoinSet<()>) {
    let (start, rest) = url.split_once('@').unwrap();
    let (server, end) = rest.split_once('/').unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("{start}@{}/{end}", listener.local_addr().unwrap());
    let server = server.to_owned();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut pairs = JoinSet::new();
        loop {
            let (client, _) = listener.accept().await.unwrap();
            let server = TcpStream::connect(&server).await.unwrap();
            pairs.spawn(carry(client, server, cut));
        }
    });
    let mut options = ConnectOptions::new(url);
    options.max_connections(1);
    (Database::connect(options).await.unwrap(), tasks)
}

async fn carry(mut client: TcpStream, mut server: TcpStream, cut: Cut) {
    let (mut asked, mut answered) = ([0; 4096], [0; 4096]);
    let mut committing = false;
    loop {
        tokio::select! {
            read = client.read(&mut asked) => {
                let Ok(length @ 1..) = read else { return };
                committing = asked[..length].windows(6).any(|word| word == b"COMMIT");
                if committing && cut == Cut::Before {
                    return;
                }
                server.write_all(&asked[..length]).await.unwrap();
            }
            read = server.read(&mut answered) => {
                let Ok(length @ 1..) = read else { return };
                if committing && cut == Cut::After {
                    return;
                }
                client.write_all(&answered[..length]).await.unwrap();
            }
        }
    }
}
