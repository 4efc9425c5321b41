//! Somebody between a client and its server.

use std::io;

use tokio::io::copy_bidirectional;
#[cfg(feature = "tls")]
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[derive(Clone, Copy)]
pub(crate) enum Between {
    /// Passes on everything.
    Honest,
    /// Says in the name of PostgreSQL that there is no TLS.
    #[cfg(all(feature = "postgres", feature = "tls"))]
    HidesTlsOfPostgres,
    /// Takes from the greeting of MySQL that there is TLS.
    #[cfg(all(feature = "mysql", feature = "tls"))]
    HidesTlsOfMySql,
}

impl Between {
    /// The port of 127.0.0.1 that leads to the server.
    pub(crate) async fn start(self, server: (String, u16)) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let server = TcpStream::connect(server.clone()).await.unwrap();
                tokio::spawn(self.join(client, server));
            }
        });
        port
    }

    async fn join(self, mut client: TcpStream, mut server: TcpStream) -> io::Result<()> {
        match self {
            Self::Honest => {}
            #[cfg(all(feature = "postgres", feature = "tls"))]
            Self::HidesTlsOfPostgres => {
                let mut first = [0; 8];
                client.read_exact(&mut first).await?;
                // The length, and a number that asks for TLS.
                if first == [0, 0, 0, 8, 4, 210, 22, 47] {
                    client.write_all(b"N").await?;
                } else {
                    server.write_all(&first).await?;
                }
            }
            #[cfg(all(feature = "mysql", feature = "tls"))]
            Self::HidesTlsOfMySql => {
                let mut header = [0; 4];
                server.read_exact(&mut header).await?;
                let mut greeting = vec![0; usize::from(header[0])];
                server.read_exact(&mut greeting).await?;
                // After the version come the number of the connection, half of a nonce and a zero, then the capabilities.
                let version_ends = greeting.iter().position(|byte| *byte == 0).unwrap();
                greeting[version_ends + 15] &= !0x08;
                client.write_all(&header).await?;
                client.write_all(&greeting).await?;
            }
        }
        copy_bidirectional(&mut client, &mut server).await.map(drop)
    }
}
