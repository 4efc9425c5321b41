//! Sends a batch, and waits for its acknowledgements.

use std::collections::HashSet;
use std::str::FromStr;
use std::time::Duration;

use async_nats::header::{
    HeaderMap, HeaderName, HeaderValue, NATS_EXPECTED_LAST_MESSAGE_ID, NATS_EXPECTED_STREAM, NATS_MESSAGE_ID,
};
use async_nats::jetstream::context::{self, PublishAckFuture, PublishErrorKind as Refusal};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::publish::PublishAck;
use futures_util::FutureExt;
use tokio::sync::broadcast;
use tokio::time::{Instant, sleep_until};

use super::connection::{Connection, News};
use super::error::{Trouble, lost, refused};
use crate::publisher::{Message, PublishError};

/// By what a stream knows a message. It may have several of the subjects that an event goes to: it is a repeat only if the subject
/// is the same.
fn id_of(message: &Message) -> String {
    format!("{}/{}", message.id, message.to)
}

/// What goes over the connection for a message that has to be stored by that stream, if it has to be a certain one, and right
/// behind another, if it has to be.
pub(super) fn prepared(
    message: &Message,
    expected_stream: Option<&str>,
    behind: Option<&Message>,
) -> Result<PublishMessage, PublishError> {
    if !is_subject(&message.to) {
        return Err(no_subject(&message.to));
    }
    let mut headers = HeaderMap::new();
    for (name, value) in &message.headers {
        let parsed = HeaderName::from_str(name).ok().filter(|_| !name.is_empty()).ok_or_else(|| {
            PublishError::permanent(format!(
                "{name:?} is no name for a header in NATS, which has visible ASCII without colons"
            ))
        })?;
        headers.insert(parsed, header_value(name, value)?);
    }
    headers.insert("content-type", header_value("content-type", &message.content_type)?);
    headers.insert(NATS_MESSAGE_ID, header_value("Nats-Msg-Id", &id_of(message))?);
    if let Some(behind) = behind {
        headers.insert(NATS_EXPECTED_LAST_MESSAGE_ID, header_value("Nats-Expected-Last-Msg-Id", &id_of(behind))?);
    }
    if let Some(stream) = expected_stream {
        headers.insert(NATS_EXPECTED_STREAM, header_value("Nats-Expected-Stream", stream)?);
    }
    Ok(PublishMessage::build().payload(message.body.clone()).headers(headers))
}

/// Waits for acknowledgements of a batch, and for what makes waiting vain.
pub(super) struct Watch {
    news: broadcast::Receiver<News>,
    denied: HashSet<String>,
    lost: bool,
    /// Nothing came for too long.
    pub(super) silent: bool,
    patience: Duration,
    until: Instant,
}

impl Watch {
    pub(super) fn new(connection: &Connection, patience: Duration) -> Self {
        let (news, until) = (connection.news.subscribe(), Instant::now() + patience);
        // Who listens only now has not heard that.
        let lost = connection.is_lost();
        Self { news, denied: HashSet::new(), lost, silent: false, patience, until }
    }

    /// Something came: the next has as much time again.
    fn judged<T>(&mut self, subject: &str, answer: Result<T, context::PublishError>) -> Result<T, Trouble> {
        let result = answer.map_err(|error| refused(subject, &error));
        if matches!(result, Err(Trouble::Silence)) {
            self.silent = true;
        } else {
            self.until = Instant::now() + self.patience;
        }
        result
    }

    /// Why there is nothing to wait for.
    fn vain(&self, subject: &str) -> Option<Trouble> {
        if self.denied.contains(subject) {
            let reason = format!("not permitted to publish to {subject:?}; the server has to permit it to this user");
            Some(Trouble::Told(PublishError::retryable(reason)))
        } else if self.lost {
            Some(Trouble::Told(lost()))
        } else if self.silent {
            Some(Trouble::Silence)
        } else {
            None
        }
    }

    /// Waits for news, or until patience ends.
    async fn look(&mut self) {
        tokio::select! {
            word = self.news.recv() => match word {
                Ok(News::Denied(subject)) => {
                    self.denied.insert(subject);
                }
                Ok(News::Lost) | Err(broadcast::error::RecvError::Closed) => self.lost = true,
                Err(broadcast::error::RecvError::Lagged(_)) => {}
            },
            () = sleep_until(self.until) => self.silent = true,
        }
    }

    /// Hands a message over to the connection, behind those before it.
    pub(super) async fn handed_over(
        &mut self,
        connection: &Connection,
        subject: &str,
        publish: PublishMessage,
    ) -> Result<PublishAckFuture, Trouble> {
        let sending = connection.jetstream.send_publish(subject.to_owned(), publish);
        tokio::pin!(sending);
        loop {
            // What was not handed over while the server was silent is not sent behind it.
            if (self.lost || self.silent)
                && let Some(trouble) = self.vain(subject)
            {
                return Err(trouble);
            }
            tokio::select! {
                biased;
                sent = &mut sending => {
                    // The subject is right, so that its end of the connection is gone.
                    if sent.as_ref().is_err_and(|error| error.kind() == Refusal::Other) {
                        connection.set_lost();
                        self.lost = true;
                        return Err(Trouble::Told(lost()));
                    }
                    return self.judged(subject, sent);
                }
                () = self.look() => {}
            }
        }
    }

    /// Waits for the acknowledgement of a message. Says whether the stream had it already.
    pub(super) async fn acknowledged(&mut self, subject: &str, pending: PublishAckFuture) -> Result<bool, Trouble> {
        let mut pending = pending.into_future();
        let is_repeat = |ack: PublishAck| ack.duplicate;
        loop {
            if let Some(trouble) = self.vain(subject) {
                let answer = (&mut pending).now_or_never();
                return answer
                    .map_or(Err(trouble), |answer| answer.map(is_repeat).map_err(|error| refused(subject, &error)));
            }
            tokio::select! {
                biased;
                answer = &mut pending => return self.judged(subject, answer.map(is_repeat)),
                () = self.look() => {}
            }
        }
    }
}

/// The longest subject, which leaves room in a line of 4096 bytes: a server ends the connection over more.
const LONGEST: usize = 1024;

/// What begins with these words is an order to the server, or an answer to somebody.
const OF_THE_SERVER: [&str; 3] = ["$JS", "$SYS", "_INBOX"];

pub(super) fn is_subject(text: &str) -> bool {
    let word = |word: &str| {
        !word.is_empty()
            && word != "*"
            && word != ">"
            && !word.contains(|sign: char| sign.is_whitespace() || sign.is_control())
    };
    let first = text.split('.').next().unwrap_or_default();
    text.len() <= LONGEST && !OF_THE_SERVER.contains(&first) && text.split('.').all(word)
}

pub(super) fn no_subject(text: &str) -> PublishError {
    PublishError::permanent(format!(
        "{text:?} is no subject of NATS to publish to: words between dots, without spaces and wildcards, {LONGEST} bytes at \
         most, and not the server's own ({})",
        OF_THE_SERVER.join(", ")
    ))
}

fn header_value(name: &str, value: &str) -> Result<HeaderValue, PublishError> {
    let broken = |_| PublishError::permanent(format!("the header {name:?} has a line break, which NATS cannot carry"));
    HeaderValue::from_str(value).map_err(broken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_are_words_between_dots() {
        for good in
            ["orders", "shop.Order.OrderPlaced", "a.b*c", "bestellung.größe", "$x", "$KV.a", "a.$JS", &"x".repeat(1024)]
        {
            assert!(is_subject(good), "{good}");
        }
        for bad in [
            "",
            ".",
            "a.",
            ".a",
            "a..b",
            "a b",
            "a.*",
            "a.>",
            "a\tb",
            "a\r\nPUB b 0",
            "$JS.API",
            "$SYS",
            "_INBOX.a",
            &"x".repeat(1025),
        ] {
            assert!(!is_subject(bad), "{bad:?}");
        }
    }
}
