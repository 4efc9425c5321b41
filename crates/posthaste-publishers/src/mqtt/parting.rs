//! What a broker says when it ends a connection.
//!
//! Their client reads DISCONNECT, but not its short form, with a reason and nothing behind it, which Mosquitto sends: it waits for
//! more until the connection is over. So what comes is listened to on its way.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use rumqttc::DisconnectReasonCode;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::prompt::Socket;

/// The types of packets, in the upper half of their first byte.
const CONNACK: u8 = 2;
const DISCONNECT: u8 = 14;

/// The reason, once it was given.
pub(super) type Reason = Arc<OnceLock<DisconnectReasonCode>>;

/// A connection that is listened to.
pub(super) struct Overheard<S> {
    pub(super) stream: S,
    pub(super) ear: Ear,
    /// Ends with the stream.
    pub(super) _socket: Arc<Socket>,
}

/// Follows the packets that come, and takes down the reason in DISCONNECT.
pub(super) struct Ear {
    reason: Reason,
    at: At,
}

/// Where in the packets it is.
#[derive(Clone, Copy)]
enum At {
    /// Before the first, which has to be CONNACK: over TLS nothing is understood.
    Beginning,
    /// Before another.
    Packet,
    /// In the length of one of that type.
    Length { packet: u8, length: usize, shift: u32 },
    /// In its body, of which so much is to come.
    Body { packet: u8, left: usize },
    /// Nothing is understood any more, or there is nothing more to say.
    Lost,
}

impl Ear {
    pub(super) fn new(reason: Reason) -> Self {
        Self { reason, at: At::Beginning }
    }

    fn hear(&mut self, mut bytes: &[u8]) {
        while let [first, rest @ ..] = bytes {
            self.at = match self.at {
                At::Lost => return,
                At::Beginning if first >> 4 != CONNACK => At::Lost,
                At::Beginning | At::Packet => At::Length { packet: first >> 4, length: 0, shift: 0 },
                // A length has four bytes at most.
                At::Length { shift: 28.., .. } => At::Lost,
                At::Length { packet, length, shift } => {
                    let length = length | (usize::from(first & 0x7f) << shift);
                    match (first & 0x80, length) {
                        (0, 0) => At::Packet,
                        (0, left) => At::Body { packet, left },
                        _ => At::Length { packet, length, shift: shift + 7 },
                    }
                }
                At::Body { packet: DISCONNECT, .. } => {
                    if let Ok(reason) = DisconnectReasonCode::try_from(*first) {
                        let _ = self.reason.set(reason);
                    }
                    At::Lost
                }
                At::Body { packet, left } => {
                    let skipped = left.min(bytes.len());
                    bytes = &bytes[skipped..];
                    self.at = if skipped == left { At::Packet } else { At::Body { packet, left: left - skipped } };
                    continue;
                }
            };
            bytes = rest;
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Overheard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.ear.hear(buffer.filled().get(before..).unwrap_or_default());
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Overheard<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is heard of these bytes if they come in pieces of that size.
    fn heard(bytes: &[u8], piece: usize) -> Option<DisconnectReasonCode> {
        let reason = Reason::default();
        let mut ear = Ear::new(Arc::clone(&reason));
        bytes.chunks(piece).for_each(|piece| ear.hear(piece));
        reason.get().copied()
    }

    #[test]
    fn the_reason_is_heard_behind_any_packets_and_in_both_forms() {
        use DisconnectReasonCode as Reason;
        let connack = [0x20, 3, 0, 0, 0];
        // A PUBLISH of 200 bytes that looks like many DISCONNECTs, PINGRESP, PUBACK.
        let publish = [&[0x30, 0xc8, 0x01][..], &[0xe0, 1, 0x87].repeat(67)[..200]].concat();
        let between = [&publish[..], &[0xd0, 0], &[0x40, 2, 0, 1]].concat();
        for (bytes, expected) in [
            (vec![0xe0, 1, 0x9b], Some(Reason::QoSNotSupported)),
            (vec![0xe0, 2, 0x97, 0], Some(Reason::QuotaExceeded)),
            (vec![0xe0, 0], None),
            (vec![0xe0, 1, 0x01], None),
            (vec![], None),
        ] {
            let bytes = [&connack[..], &between[..], &bytes].concat();
            for piece in [1, 2, 7, 1000] {
                assert_eq!(heard(&bytes, piece), expected, "{bytes:?} in pieces of {piece}");
            }
        }
    }

    #[test]
    fn what_is_not_understood_is_not_taken_for_a_reason() {
        for bytes in [&[0x16, 3, 3, 0, 1, 0xe0, 1, 0x87][..], &[0x20, 0xff, 0xff, 0xff, 0xff, 0x01, 0xe0, 1, 0x87]] {
            assert_eq!(heard(bytes, 1), None);
        }
    }
}
