//! Connections that are lost in the commit.

use posthaste_conformance::{MariaDbFixture, PgFixture, Served};
use posthaste_core::CommitError;
use posthaste_core::listener::Path;
use posthaste_core::store::Error;
use posthaste_sea_orm::OutboxExt;
use sea_orm::{Database, DatabaseConnection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::order::{place, placed};
use crate::support::{Sea, Shop, event, told};

mod postgres {
    use super::PgFixture;
    crate::tests!(PgFixture: case_18_lost_answer_of_a_commit, case_18_lost_commit);
}
mod mariadb {
    use super::MariaDbFixture;
    crate::tests!(MariaDbFixture: case_18_lost_answer_of_a_commit, case_18_lost_commit);
}

/// Where a connection is cut that says COMMIT.
#[derive(Clone, Copy)]
enum Cut {
    /// The server never hears of it.
    Before,
    /// The server has answered, and nobody hears of that.
    After,
}

/// SeaORM on the way to the server through somebody who cuts the connection in a commit.
async fn through(url: &str, cut: Cut) -> (DatabaseConnection, JoinSet<()>) {
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
    (Database::connect(url).await.unwrap(), tasks)
}

async fn carry(mut client: TcpStream, mut server: TcpStream, cut: Cut) {
    let (mut asked, mut answered) = ([0; 4096], [0; 4096]);
    let mut committing = false;
    loop {
        tokio::select! {
            read = client.read(&mut asked) => {
                let Ok(length @ 1..) = read else { return };
                committing = asked[..length].windows(6).any(|word| word == b"COMMIT");
                if committing && matches!(cut, Cut::Before) {
                    return;
                }
                server.write_all(&asked[..length]).await.unwrap();
            }
            read = server.read(&mut answered) => {
                let Ok(length @ 1..) = read else { return };
                if committing {
                    return;
                }
                client.write_all(&answered[..length]).await.unwrap();
            }
        }
    }
}

/// The answer to the commit was lost: a typed error and no hot dispatch; it was committed, so the poller delivers, soon.
async fn case_18_lost_answer_of_a_commit<F: Sea + Served>() {
    let mut shop = Shop::<F>::open().await;
    let (db, _tasks) = through(&shop.fixture.url(), Cut::After).await;
    let lost = event("Lost");
    let mut tx = shop.outbox.begin_on(&db).await.unwrap();
    place(&*tx, 1).await;
    tx.write(&lost).await.unwrap();
    let error = tx.commit().await.unwrap_err();
    assert!(matches!(error, CommitError::Unknown(Error::Unavailable(_))), "{error:?}");
    assert_eq!(shop.witness.told(), [told("unknown", &[&lost])]);
    let delivery = shop.inbox.next().await;
    assert_eq!((delivery.id(), delivery.path()), (lost.id(), Path::Cold));
    assert_eq!(placed(&shop.db).await, [1]);
    shop.close().await;
}

/// The connection was lost before the commit: the same error, and nothing is ever delivered.
async fn case_18_lost_commit<F: Sea + Served>() {
    let shop = Shop::<F>::open().await;
    let (db, _tasks) = through(&shop.fixture.url(), Cut::Before).await;
    let lost = event("Lost");
    let mut tx = shop.outbox.begin_on(&db).await.unwrap();
    place(&*tx, 1).await;
    tx.write(&lost).await.unwrap();
    let error = tx.commit().await.unwrap_err();
    assert!(matches!(error, CommitError::Unknown(Error::Unavailable(_))), "{error:?}");
    assert_eq!(shop.witness.told(), [told("unknown", &[&lost])]);
    assert_eq!((shop.rows().await, placed(&shop.db).await), (0, vec![]));
    shop.close().await;
}
