//! Where acknowledgements come in.

use std::sync::{Mutex, PoisonError};
use std::task::Poll;

use async_nats::{Client, Message, Subject, SubscribeError, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;

/// How many inboxes are kept for batches to come.
const KEPT: usize = 64;

/// A subscription to which the acknowledgements of one batch come, and to nobody else: so there is nothing to look up for each of
/// them, and nobody to wake but who waits. Its messages are numbered on from batch to batch, so that what comes for an earlier one is known
/// as such.
pub(super) struct Inbox {
    subscriber: Subscriber,
    /// What subjects of answers begin with.
    prefix: String,
    /// The number of the next message.
    next: u64,
}

/// An answer, and the number of the message that it is for.
pub(super) struct Answer {
    pub(super) number: u64,
    pub(super) message: Message,
}

impl Inbox {
    async fn open(client: &Client) -> Result<Self, SubscribeError> {
        let prefix = format!("{}.", client.new_inbox());
        let subscriber = client.subscribe(format!("{prefix}*")).await?;
        Ok(Self { subscriber, prefix, next: 0 })
    }

    /// Subjects for the answers to so many messages, and the number of the first of them. They share one piece of memory.
    pub(super) fn numbered(&mut self, messages: usize) -> (u64, Vec<Subject>) {
        let first = self.next;
        self.next += messages as u64;
        let room = messages * (self.prefix.len() + digits_of(self.next));
        let (mut text, mut ends) = (String::with_capacity(room), Vec::with_capacity(messages));
        for number in first..self.next {
            text.push_str(&self.prefix);
            push_number(&mut text, number);
            ends.push(text.len());
        }
        let (bytes, mut begin) = (Bytes::from(text), 0);
        let subject = |end| {
            let part = bytes.slice(begin..end);
            begin = end;
            Subject::from_utf8(part).expect("a part of a string")
        };
        (first, ends.into_iter().map(subject).collect())
    }

    /// Waits for answers, and hands on all that are there. False when there will be none. Dropped, it has taken none.
    pub(super) async fn answers(&mut self, mut each: impl FnMut(Answer)) -> bool {
        let Self { subscriber, prefix, .. } = self;
        std::future::poll_fn(move |context| {
            let mut came = false;
            loop {
                match subscriber.poll_next_unpin(context) {
                    Poll::Ready(Some(message)) => {
                        if let Some(answer) = Answer::read(prefix, message) {
                            came = true;
                            each(answer);
                        }
                    }
                    Poll::Ready(None) if !came => return Poll::Ready(false),
                    Poll::Pending if !came => return Poll::Pending,
                    Poll::Ready(None) | Poll::Pending => return Poll::Ready(true),
                }
            }
        })
        .await
    }
}

/// How many digits a number has.
fn digits_of(number: u64) -> usize {
    number.checked_ilog10().map_or(1, |digits| digits as usize + 1)
}

/// The number as it is shown.
fn push_number(text: &mut String, mut number: u64) {
    let (mut digits, count) = ([b'0'; 20], digits_of(number));
    for digit in digits[..count].iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
    text.push_str(std::str::from_utf8(&digits[..count]).expect("they are digits"));
}

impl Answer {
    fn read(prefix: &str, message: Message) -> Option<Self> {
        let number = message.subject.strip_prefix(prefix)?.parse().ok()?;
        Some(Self { number, message })
    }
}

/// Inboxes that no batch has just now. One that was not answered in full does not come back: nobody knows what is still on its way
/// to it.
#[derive(Default)]
pub(super) struct Inboxes(Mutex<Vec<Inbox>>);

impl Inboxes {
    pub(super) async fn take(&self, client: &Client) -> Result<Inbox, SubscribeError> {
        let kept = self.all().pop();
        match kept {
            Some(inbox) => Ok(inbox),
            None => Inbox::open(client).await,
        }
    }

    pub(super) fn give_back(&self, inbox: Inbox) {
        let mut all = self.all();
        if all.len() < KEPT {
            all.push(inbox);
        }
    }

    fn all(&self) -> std::sync::MutexGuard<'_, Vec<Inbox>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_they_are_shown() {
        let powers = (0..20).map(|power| 10_u64.pow(power));
        for number in powers.flat_map(|power| [power - 1, power, power + 1]).chain([u64::MAX]) {
            let mut text = "inbox.".to_owned();
            push_number(&mut text, number);
            assert_eq!(text, format!("inbox.{number}"));
        }
    }
}
