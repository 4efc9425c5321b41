//! Answers of a broker that wait for each other.
//!
//! Mosquitto leaves Nagle's algorithm on. Of several answers it sends the first, and the others when TCP here has acknowledged that one,
//! which Linux puts off for 40 ms unless something is sent meanwhile. Who has nothing more to send asks for it.

use std::io;
use std::sync::{Arc, OnceLock, Weak};

use tokio::net::TcpStream;

/// Has TCP acknowledge at once what came over a connection. Does nothing where the system has no such thing.
#[derive(Clone, Default)]
pub(super) struct Prompt(Arc<OnceLock<Weak<Socket>>>);

impl Prompt {
    /// Takes this connection for its own, for as long as what it gives is kept beside the stream.
    pub(super) fn of(&self, stream: &TcpStream) -> io::Result<Arc<Socket>> {
        let socket = Arc::new(Socket::of(stream)?);
        let _ = self.0.set(Arc::downgrade(&socket));
        Ok(socket)
    }

    pub(super) fn acknowledge(&self) {
        if let Some(socket) = self.0.get().and_then(Weak::upgrade) {
            socket.acknowledge();
        }
    }
}

/// The same socket as that of a stream.
#[cfg(target_os = "linux")]
pub(super) struct Socket(std::net::TcpStream);

#[cfg(target_os = "linux")]
impl Socket {
    fn of(stream: &TcpStream) -> io::Result<Self> {
        use std::os::fd::AsFd;
        Ok(Self(stream.as_fd().try_clone_to_owned()?.into()))
    }

    fn acknowledge(&self) {
        use std::os::linux::net::TcpStreamExt;
        // Without it an answer comes later.
        let _ = self.0.set_quickack(true);
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) struct Socket;

#[cfg(not(target_os = "linux"))]
impl Socket {
    fn of(_: &TcpStream) -> io::Result<Self> {
        Ok(Self)
    }

    fn acknowledge(&self) {}
}
