//! Sends a batch, and waits for its acknowledgements.

use std::collections::HashSet;
use std::pin::{Pin, pin};
use std::time::Duration;

use async_nats::client::PublishErrorKind;
use async_nats::header::HeaderMap;
use async_nats::{StatusCode, Subject};
use bytes::Bytes;
use futures_util::FutureExt;
use tokio::sync::{MutexGuard, broadcast};
use tokio::task::coop::unconstrained;
use tokio::time::{Instant, Sleep, sleep_until};

use super::connection::{Connection, News};
use super::error::{Trouble, answered, lost, too_large};
use super::headers::{CONTENT_TYPE, EXPECTED_LAST_MESSAGE_ID, EXPECTED_STREAM, Lines};
use super::inbox::{Answer, Inbox};
use crate::publisher::{Message, PublishError};

/// How many bytes the headers of a message have in all, or a little less.
const USUAL: usize = 320;

/// By what a stream knows a message. It may have several of the subjects that an event goes to: it is a repeat only if the subject
/// is the same.
fn id_of(message: &Message) -> String {
    let (id, to) = (message.id.as_str(), message.to.as_str());
    let mut text = String::with_capacity(id.len() + 1 + to.len());
    text.push_str(id);
    text.push('/');
    text.push_str(to);
    text
}

/// What goes over the connection for a message.
pub(super) struct Prepared {
    subject: Subject,
    headers: HeaderMap,
    body: Bytes,
}

/// Prepares the messages of a batch, most of which go to the same subject.
#[derive(Default)]
pub(super) struct Preparing {
    last: Option<Subject>,
}

impl Preparing {
    /// What goes over the connection for a message that has to be stored by that stream, if it has to be a certain one, and right
    /// behind another, if it has to be.
    pub(super) fn prepared(
        &mut self,
        message: &Message,
        expected_stream: Option<&str>,
        behind: Option<&Message>,
    ) -> Result<Prepared, PublishError> {
        let subject = self.subject(&message.to)?;
        let mut lines = Lines::new(&id_of(message), USUAL)?;
        // Before those of the event: the server looks for the first place where such a name stands, be it within a value.
        if let Some(behind) = behind {
            lines.push(EXPECTED_LAST_MESSAGE_ID, &id_of(behind))?;
        }
        if let Some(stream) = expected_stream {
            lines.push(EXPECTED_STREAM, stream)?;
        }
        lines.push(CONTENT_TYPE, &message.content_type)?;
        lines.push_all(&message.headers)?;
        Ok(Prepared { subject, headers: lines.into_headers(), body: message.body.to_bytes() })
    }

    fn subject(&mut self, to: &str) -> Result<Subject, PublishError> {
        if let Some(last) = self.last.as_ref().filter(|last| last.as_str() == to) {
            return Ok(last.clone());
        }
        if !is_subject(to) {
            return Err(no_subject(to));
        }
        Ok(self.last.insert(Subject::from(to)).clone())
    }
}

/// Waits for acknowledgements of a batch, and for what makes waiting vain.
pub(super) struct Watch {
    news: broadcast::Receiver<News>,
    known: Known,
}

/// What is known of a connection while a batch waits.
struct Known {
    denied: HashSet<String>,
    lost: bool,
    /// Nothing came for too long.
    silent: bool,
    patience: Duration,
    until: Instant,
    /// Ends when patience may have ended. It is not set anew each time that something comes.
    alarm: Pin<Box<Sleep>>,
}

impl Known {
    /// Something came: the next has as much time again.
    fn go_on(&mut self) {
        self.until = Instant::now() + self.patience;
    }

    /// Waits until patience ends.
    async fn wait(&mut self) {
        loop {
            self.alarm.as_mut().await;
            if Instant::now() >= self.until {
                self.silent = true;
                return;
            }
            self.alarm.as_mut().reset(self.until);
        }
    }

    fn heard(&mut self, word: Result<News, broadcast::error::RecvError>) {
        match word {
            Ok(News::Denied(subject)) => {
                self.denied.insert(subject);
            }
            Ok(News::Lost) | Err(broadcast::error::RecvError::Closed) => self.lost = true,
            Err(broadcast::error::RecvError::Lagged(_)) => {}
        }
    }

    /// The other end of what leads to the connection is gone.
    fn is_gone(&mut self, connection: &Connection) {
        connection.set_lost();
        self.lost = true;
    }

    /// Whether there may be messages for which there is nothing to wait.
    fn is_any_vain(&self) -> bool {
        self.lost || self.silent || !self.denied.is_empty()
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
}

impl Watch {
    pub(super) fn new(connection: &Connection, patience: Duration) -> Self {
        let (news, until) = (connection.news.subscribe(), Instant::now() + patience);
        // Who listens only now has not heard that.
        let lost = connection.is_lost();
        let alarm = Box::pin(sleep_until(until));
        Self { news, known: Known { denied: HashSet::new(), lost, silent: false, patience, until, alarm } }
    }

    /// Whether nothing came for too long.
    pub(super) fn is_silent(&self) -> bool {
        self.known.silent
    }

    /// Waits for news, or until patience ends.
    async fn look(&mut self) {
        tokio::select! {
            word = self.news.recv() => self.known.heard(word),
            () = self.known.wait() => {}
        }
    }

    /// Sends what was prepared, and waits for its acknowledgements. Each message that is stored is told of as soon as it is known. Says
    /// of each whether the stream had it already. With a turn, nothing is sent right behind one of its key that was not.
    pub(super) async fn exchanged(
        &mut self,
        connection: &Connection,
        turn: Option<MutexGuard<'_, ()>>,
        messages: &[&Message],
        prepared: Vec<Result<Prepared, Trouble>>,
        stored: &(impl Fn(&[usize]) + Sync),
    ) -> Vec<Result<bool, Trouble>> {
        let Some(mut inbox) = self.inbox(connection).await else {
            let vain = |message: &Message| self.known.vain(&message.to).unwrap_or(Trouble::Silence);
            let not_sent = |(publish, message): (Result<_, _>, &&Message)| publish.and_then(|_| Err(vain(message)));
            return prepared.into_iter().zip(messages).map(not_sent).collect();
        };
        let (first, answers_to) = inbox.numbered(messages.len());
        let mut sent: Vec<Result<(), Trouble>> = Vec::with_capacity(messages.len());
        for (place, (publish, answer_to)) in prepared.into_iter().zip(answers_to).enumerate() {
            let is_behind = turn.is_some() && of_its_key_before(messages, place).is_some();
            sent.push(match publish {
                Ok(_) if is_behind && sent.last().is_some_and(Result::is_err) => Err(Trouble::NotSent),
                Ok(publish) => self.handed_over(connection, publish, answer_to).await,
                Err(trouble) => Err(trouble),
            });
        }
        let awaited = Awaited::new(messages, first, sent, stored, turn.is_some());
        drop(turn);
        let answers = self.acknowledged(connection, &mut inbox, awaited).await;
        // What is still on its way to one that was given up, nobody knows.
        if !self.known.is_any_vain() {
            connection.inboxes.give_back(inbox);
        }
        answers
    }

    /// An inbox, unless waiting for one is vain.
    async fn inbox(&mut self, connection: &Connection) -> Option<Inbox> {
        let opening = connection.inboxes.take(&connection.client);
        tokio::pin!(opening);
        while !self.known.lost && !self.known.silent {
            tokio::select! {
                biased;
                opened = &mut opening => match opened {
                    Ok(inbox) => return Some(inbox),
                    Err(_) => self.known.is_gone(connection),
                },
                () = self.look() => {}
            }
        }
        None
    }

    /// Hands a message over to the connection, behind those before it.
    async fn handed_over(
        &mut self,
        connection: &Connection,
        publish: Prepared,
        answer_to: Subject,
    ) -> Result<(), Trouble> {
        let Prepared { subject, headers, body } = publish;
        let sending = connection.client.publish_with_reply_and_headers(subject.clone(), answer_to, headers, body);
        let mut sending = pin!(sending);
        let mut waiting = false;
        loop {
            // What was not handed over while the server was silent is not sent behind it.
            if (self.known.lost || self.known.silent)
                && let Some(trouble) = self.known.vain(&subject)
            {
                return Err(trouble);
            }
            let sent = match waiting {
                false => sending.as_mut().now_or_never(),
                true => tokio::select! {
                    biased;
                    sent = &mut sending => Some(sent),
                    () = self.look() => None,
                },
            };
            match sent.map(|sent| sent.map_err(|error| (error.kind(), error))) {
                Some(Ok(())) => return Ok(()),
                Some(Err((PublishErrorKind::MaxPayloadExceeded, error))) => {
                    return Err(Trouble::Told(too_large(&error)));
                }
                // The subject is right.
                Some(Err((PublishErrorKind::Send | PublishErrorKind::InvalidSubject, _))) => {
                    self.known.is_gone(connection);
                }
                // Those before it were handed over.
                None if !waiting => {
                    waiting = true;
                    self.known.go_on();
                }
                None => {}
            }
        }
    }

    /// Waits for the acknowledgements of what was sent.
    async fn acknowledged<F: Fn(&[usize])>(
        &mut self,
        connection: &Connection,
        inbox: &mut Inbox,
        mut awaited: Awaited<'_, F>,
    ) -> Vec<Result<bool, Trouble>> {
        let Self { news, known } = self;
        known.go_on();
        loop {
            // Asked once for each word, and not each time that something else comes.
            let mut word = pin!(news.recv());
            let word = loop {
                if known.is_any_vain() {
                    // What is there counts, whatever else is known.
                    unconstrained(inbox.answers(|answer| awaited.answered(answer))).now_or_never();
                    awaited.tell();
                    awaited.give_up(|subject| known.vain(subject));
                }
                if awaited.left == 0 {
                    let known = |result: Option<_>| result.expect("each has an answer, or a reason to have none");
                    return awaited.results.into_iter().map(known).collect();
                }
                tokio::select! {
                    biased;
                    more = inbox.answers(|answer| awaited.answered(answer)) => {
                        awaited.tell();
                        if more { known.go_on() } else { known.is_gone(connection) }
                    }
                    word = &mut word => break word,
                    () = known.wait() => {}
                }
            };
            known.heard(word);
        }
    }
}

/// What is known of messages that were sent.
struct Awaited<'a, F> {
    messages: &'a [&'a Message],
    /// The number of the first of them in their inbox.
    first: u64,
    results: Vec<Option<Result<bool, Trouble>>>,
    /// Of how many nothing is known.
    left: usize,
    /// Is told of those that are stored.
    stored: F,
    /// Those of which nobody was told as yet.
    untold: Vec<usize>,
    /// Which were told of, where each is told of behind those of its key only.
    told: Option<Vec<bool>>,
}

impl<'a, F: Fn(&[usize])> Awaited<'a, F> {
    fn new(messages: &'a [&'a Message], first: u64, sent: Vec<Result<(), Trouble>>, stored: F, in_order: bool) -> Self {
        let results: Vec<_> = sent.into_iter().map(|sent| sent.err().map(Err)).collect();
        let left = results.iter().filter(|result| result.is_none()).count();
        let told = in_order.then(|| vec![false; messages.len()]);
        Self { messages, first, results, left, stored, untold: Vec::new(), told }
    }

    fn answered(&mut self, Answer { number, message }: Answer) {
        let place = number.checked_sub(self.first).and_then(|place| usize::try_from(place).ok());
        // It may be for a batch before this one.
        let Some(place) = place.filter(|place| matches!(self.results.get(*place), Some(None))) else { return };
        let answer = match message.status == Some(StatusCode::NO_RESPONDERS) {
            true => Err(Trouble::Nobody),
            false => answered(&self.messages[place].to, &message.payload),
        };
        let is_stored = answer.is_ok();
        self.results[place] = Some(answer);
        self.left -= 1;
        if is_stored {
            self.is_stored(place);
        }
    }

    /// Tells of those that are stored.
    fn tell(&mut self) {
        if !self.untold.is_empty() {
            (self.stored)(&self.untold);
            self.untold.clear();
        }
    }

    /// A message that is stored is to be told of. In order that is when those of its key before it were told of, and those behind
    /// it that had to wait follow; other keys wait for nothing.
    fn is_stored(&mut self, place: usize) {
        let Some(told) = &mut self.told else { return self.untold.push(place) };
        let is_stored = |place: usize| matches!(self.results.get(place), Some(Some(Ok(_))));
        let may_be_told = |told: &[bool], place| of_its_key_before(self.messages, place).is_none() || told[place - 1];
        let mut place = place;
        while is_stored(place) && may_be_told(told, place) {
            told[place] = true;
            self.untold.push(place);
            place += 1;
            if place == self.messages.len() || of_its_key_before(self.messages, place).is_none() {
                break;
            }
        }
    }

    /// Waits no longer for those of which it is known why that is vain.
    fn give_up(&mut self, vain: impl Fn(&str) -> Option<Trouble>) {
        for (message, result) in self.messages.iter().zip(&mut self.results).filter(|(_, result)| result.is_none()) {
            *result = vain(&message.to).map(Err);
            self.left -= usize::from(result.is_some());
        }
    }
}

/// The message right before one, if it has the same key.
pub(super) fn of_its_key_before<'a>(messages: &[&'a Message], place: usize) -> Option<&'a Message> {
    let before = messages[place.checked_sub(1)?];
    (before.key.is_some() && before.key == messages[place].key).then_some(before)
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use posthaste_core::EventId;

    use super::*;

    fn of_key(key: &str) -> Message {
        let (id, content_type, headers) = (EventId::generate(), "text/plain".into(), crate::Headers::default());
        Message { id, to: "s".into(), key: Some(key.into()), content_type, headers, body: Bytes::new().into() }
    }

    fn answer(number: u64, payload: &'static str) -> Answer {
        let message = async_nats::Message {
            subject: Subject::from_static("inbox"),
            reply: None,
            payload: Bytes::from_static(payload.as_bytes()),
            headers: None,
            status: None,
            description: None,
            length: payload.len(),
        };
        Answer { number, message }
    }

    #[test]
    fn in_order_a_message_is_told_of_behind_those_of_its_key_and_waits_for_no_other_key() {
        let messages = ["a", "a", "a", "b", "b", "c"].map(of_key);
        let messages: Vec<&Message> = messages.iter().collect();
        let told = Mutex::new(Vec::new());
        let stored = |places: &[usize]| told.lock().unwrap().extend_from_slice(places);
        let sent = messages.iter().map(|_| Ok(())).collect();
        let mut awaited = Awaited::new(&messages, 10, sent, stored, true);
        let mut after = |number, payload| {
            awaited.answered(answer(number, payload));
            awaited.tell();
            told.lock().unwrap().clone()
        };
        let stored = r#"{"stream": "s", "seq": 1}"#;
        assert_eq!(after(13, stored), [3], "another key has no answer yet");
        assert_eq!(after(12, stored), [3]);
        assert_eq!(after(11, stored), [3], "the first of its key has no answer yet");
        assert_eq!(after(15, stored), [3, 5]);
        assert_eq!(after(10, stored), [3, 5, 0, 1, 2]);
        assert_eq!(after(14, stored), [3, 5, 0, 1, 2, 4]);
        assert_eq!(awaited.left, 0);

        // Nothing is told of behind one that was refused.
        let told = Mutex::new(Vec::new());
        let sent = messages.iter().map(|_| Ok(())).collect();
        let stored = |places: &[usize]| told.lock().unwrap().extend_from_slice(places);
        let mut awaited = Awaited::new(&messages, 10, sent, stored, true);
        awaited.answered(answer(10, r#"{"error": {"code": 400, "err_code": 10077, "description": "no"}}"#));
        for number in 11..16 {
            awaited.answered(answer(number, r#"{"stream": "s", "seq": 1}"#));
        }
        awaited.tell();
        assert_eq!(told.into_inner().unwrap(), [3, 4, 5]);
    }

    #[test]
    fn what_a_stream_looks_for_stands_before_what_an_event_says() {
        let (mut message, before) = (of_key("a"), of_key("a"));
        message.headers.push("note", "Nats-Expected-Stream: other");
        message.headers.push("remark", "Nats-Expected-Last-Msg-Id: other");
        let prepared = Preparing::default().prepared(&message, Some("ours"), Some(&before)).ok().unwrap();
        let sent = prepared.headers.get("Nats-Msg-Id").unwrap().as_str();
        let names: Vec<_> = sent.split("\r\n").skip(1).map(|line| line.split_once(": ").unwrap().0).collect();
        assert_eq!(
            names,
            ["Nats-Expected-Last-Msg-Id", "Nats-Expected-Stream", "content-type", "note", "remark"],
            "{sent}"
        );
    }

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
