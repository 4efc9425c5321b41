//! What relays and the sink say to each other: one JSON object a line, and one answer a line.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpStream, ToSocketAddrs};

use crate::history::Message;

/// What the sink is asked.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// To take messages. Answered by an [`Answer`] for each.
    Take(Vec<Parcel>),
    /// To behave differently from now on. Answered by what it has done so far.
    Behave(Behaviour),
}

/// A message with its payload; the hash in it is left to the sink.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Parcel {
    pub(crate) message: Message,
    pub(crate) payload: String,
}

/// What the sink says to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    Taken,
    Refused,
}

/// How the sink misbehaves.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Behaviour {
    /// How long it thinks before it answers.
    pub(crate) slow_ms: u64,
    /// Which part of the messages it refuses.
    pub(crate) refuse: f64,
    /// In which part of the requests it takes the messages and then hangs up.
    pub(crate) hang_up: f64,
}

/// What the misbehaviour has led to.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Misdeeds {
    pub(crate) slow: u64,
    pub(crate) refused: u64,
    pub(crate) hung_up: u64,
}

/// A connection on which lines are exchanged.
pub(crate) struct Lines {
    stream: BufReader<TcpStream>,
}

impl Lines {
    pub(crate) async fn connect(to: impl ToSocketAddrs) -> std::io::Result<Self> {
        TcpStream::connect(to).await.map(Self::new)
    }

    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { stream: BufReader::new(stream) }
    }

    pub(crate) async fn send(&mut self, what: &(impl Serialize + Sync)) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(what)?;
        line.push(b'\n');
        self.stream.write_all(&line).await
    }

    /// The next line, or nothing at the end.
    pub(crate) async fn receive<T: DeserializeOwned>(&mut self) -> std::io::Result<Option<T>> {
        let mut line = String::new();
        if self.stream.read_line(&mut line).await? == 0 {
            return Ok(None);
        }
        Ok(Some(serde_json::from_str(&line)?))
    }

    pub(crate) async fn ask<T: DeserializeOwned>(&mut self, what: &(impl Serialize + Sync)) -> std::io::Result<T> {
        self.send(what).await?;
        self.receive().await?.ok_or_else(|| std::io::ErrorKind::UnexpectedEof.into())
    }
}

/// A hash that is the same in every process and on every machine (FNV-1a).
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
