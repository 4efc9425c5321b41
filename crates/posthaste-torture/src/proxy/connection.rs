//! One connection through the proxy: a task with a loop for each direction.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::time::{Instant, sleep_until, timeout};

use super::search::Remains;
use super::{PIECE, Shared};

/// A reply is over when the target has been silent for so long. Its first bytes may still belong to an earlier request.
const SILENCE: Duration = Duration::from_millis(50);
/// For a target that is never silent.
const PATIENCE: Duration = Duration::from_secs(2);

/// Runs until both sides have closed, or something is broken.
pub(super) async fn run(id: u64, client: TcpStream, shared: Arc<Shared>) {
    let open = Open { id, shared: &shared };
    let target = shared.controls.borrow().target;
    let Ok(target) = TcpStream::connect(target).await else {
        shared.counters.refused.fetch_add(1, Ordering::Relaxed);
        return;
    };
    shared.counters.total.fetch_add(1, Ordering::Relaxed);
    let connection = Connection {
        shared: &shared,
        losing: AtomicBool::new(false),
        holed: AtomicBool::new(false),
        answered: AtomicBool::new(true),
    };
    let broken = tokio::select! {
        end = connection.carry(client, target) => matches!(end, Err(End::Cut)),
        () = connection.mended_with_a_hole() => true,
    };
    // Not if all were cut in the meantime, and this one counted with them.
    if open.close() && broken {
        shared.counters.cut.fetch_add(1, Ordering::Relaxed);
    }
}

/// An entry in the list of open connections.
struct Open<'a> {
    id: u64,
    shared: &'a Shared,
}

impl Open<'_> {
    /// Whether it was still in the list.
    fn close(&self) -> bool {
        self.shared.connections().remove(&self.id).is_some()
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.close();
    }
}

/// Why a direction ended before its stream did.
enum End {
    Broken,
    Cut,
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> Self {
        Self::Broken
    }
}

struct Connection<'a> {
    shared: &'a Shared,
    /// The next reply is not handed on.
    losing: AtomicBool,
    /// Bytes were swallowed: no more may follow.
    holed: AtomicBool,
    /// The target spoke last, or nobody has: what comes from the client begins another turn.
    answered: AtomicBool,
}

impl Connection<'_> {
    async fn carry(&self, mut client: TcpStream, mut target: TcpStream) -> Result<(), End> {
        client.set_nodelay(true)?;
        target.set_nodelay(true)?;
        let (from_client, to_client) = client.split();
        let (from_target, to_target) = target.split();
        tokio::try_join!(self.up(from_client, to_target), self.down(from_target, to_client))?;
        Ok(())
    }

    async fn up(&self, mut from: ReadHalf<'_>, mut to: WriteHalf<'_>) -> Result<(), End> {
        let (mut buffer, mut remains) = (vec![0; PIECE], Remains::default());
        loop {
            let length = from.read(&mut buffer).await?;
            let piece = &buffer[..length];
            self.hold_back().await;
            if !self.swallows(piece) {
                let lose = self.is_to_be_lost(piece, &mut remains);
                if !piece.is_empty() && self.answered.swap(false, Ordering::Relaxed) {
                    self.shared.counters.turns.fetch_add(1, Ordering::Relaxed);
                }
                hand_on(piece, &mut to, &self.shared.counters.bytes_up).await?;
                // Only from here on: what came before answers another request.
                self.losing.fetch_or(lose, Ordering::Relaxed);
            }
            if piece.is_empty() {
                return Ok(());
            }
        }
    }

    async fn down(&self, mut from: ReadHalf<'_>, mut to: WriteHalf<'_>) -> Result<(), End> {
        let mut buffer = vec![0; PIECE];
        loop {
            let length = from.read(&mut buffer).await?;
            let piece = &buffer[..length];
            if self.losing.load(Ordering::Relaxed) && !piece.is_empty() {
                return self.lose_reply(from, &mut buffer).await;
            }
            self.hold_back().await;
            if !self.swallows(piece) {
                self.answered.store(true, Ordering::Relaxed);
                hand_on(piece, &mut to, &self.shared.counters.bytes_down).await?;
            }
            if piece.is_empty() {
                return Ok(());
            }
        }
    }

    /// Waits as long as the delay says, which may change in the meantime.
    async fn hold_back(&self) {
        let read_at = Instant::now();
        let mut controls = self.shared.controls.subscribe();
        loop {
            let delay = controls.borrow_and_update().delay;
            if read_at.elapsed() >= delay {
                return;
            }
            tokio::select! {
                () = sleep_until(read_at + delay) => {}
                _ = controls.changed() => {}
            }
        }
    }

    /// Whether a black hole takes the piece, or has taken one before it.
    fn swallows(&self, piece: &[u8]) -> bool {
        let swallows = self.shared.controls.borrow().black_hole || self.holed.load(Ordering::Relaxed);
        if swallows {
            self.holed.store(true, Ordering::Relaxed);
            self.shared.counters.bytes_swallowed.fetch_add(piece.len() as u64, Ordering::Relaxed);
        }
        swallows
    }

    /// Returns when the black hole has ended and this connection cannot go on.
    async fn mended_with_a_hole(&self) {
        let mut controls = self.shared.controls.subscribe();
        while controls.borrow_and_update().black_hole || !self.holed.load(Ordering::Relaxed) {
            controls.changed().await.expect("the controls live as long as the connection");
        }
    }

    fn is_to_be_lost(&self, piece: &[u8], remains: &mut Remains) -> bool {
        let mut needle = self.shared.needle();
        // It happens once.
        needle.take_if(|needle| needle.is_in(piece, remains)).is_some()
    }

    async fn lose_reply(&self, mut from: ReadHalf<'_>, buffer: &mut [u8]) -> Result<(), End> {
        let until_silent = async { while matches!(timeout(SILENCE, from.read(buffer)).await, Ok(Ok(1..))) {} };
        let _ = timeout(PATIENCE, until_silent).await;
        self.shared.counters.replies_lost.fetch_add(1, Ordering::Relaxed);
        Err(End::Cut)
    }
}

/// Writes a piece; the empty one is the end of the stream.
async fn hand_on(piece: &[u8], to: &mut WriteHalf<'_>, counter: &AtomicU64) -> io::Result<()> {
    if piece.is_empty() {
        return to.shutdown().await;
    }
    to.write_all(piece).await?;
    counter.fetch_add(piece.len() as u64, Ordering::Relaxed);
    Ok(())
}
