//! What lines look like, and the room that they are made in.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::de::IgnoredAny;

use crate::envelope::{STRUCTURED, TRACE, base64, is_json};
use crate::publisher::Message;

/// What a line of usual length has beside the body.
const BESIDE_BODY: usize = 512;

/// How many batches are kept for others to come, and how large those are at most.
const SPARE: (usize, usize) = (8, 4 << 20);

/// Lines of a batch, one behind the other, each with its end.
#[derive(Default)]
pub(super) struct Lines {
    pub(super) text: Vec<u8>,
    /// How many bytes it takes to the end of each.
    pub(super) ends: Vec<usize>,
}

impl Lines {
    fn add(&mut self, messages: &[Message]) {
        self.text.reserve(messages.iter().map(|message| message.body.len() + BESIDE_BODY).sum());
        self.ends.reserve(messages.len());
        for message in messages {
            push_line(&mut self.text, message);
            self.end();
        }
    }

    fn end(&mut self) {
        self.text.push(b'\n');
        self.ends.push(self.text.len());
    }

    /// Lines of just these texts.
    #[cfg(test)]
    pub(super) fn of(texts: &[Vec<u8>]) -> Self {
        let mut lines = Self::default();
        for text in texts {
            lines.text.extend_from_slice(text);
            lines.end();
        }
        lines
    }
}

/// Room of lines that were written, for those of batches to come.
#[derive(Clone, Default)]
pub(super) struct Spare(Arc<Mutex<Vec<Lines>>>);

impl Spare {
    pub(super) fn lines_of(&self, messages: &[Message]) -> Lines {
        let mut lines = self.all().pop().unwrap_or_default();
        lines.add(messages);
        lines
    }

    pub(super) fn keep(&self, mut lines: Lines) {
        let (most, largest) = SPARE;
        let mut all = self.all();
        if all.len() < most && lines.text.capacity() + lines.ends.capacity() * size_of::<usize>() <= largest {
            lines.text.clear();
            lines.ends.clear();
            all.push(lines);
        }
    }

    fn all(&self) -> MutexGuard<'_, Vec<Lines>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds the line of a message, without its end.
fn push_line(line: &mut Vec<u8>, message: &Message) {
    let json = Some(&*message.body).filter(|_| is_json(&message.content_type) && has_json(message));
    if let Some(event) = json.filter(|_| is_structured(message)) {
        return push_on_one_line(line, event);
    }
    push(line, b"{\"id\":", message.id.as_str());
    if let Some(key) = &message.key {
        push(line, b",\"key\":", key);
    }
    push(line, b",\"content_type\":", &message.content_type);
    line.extend_from_slice(b",\"headers\":{");
    for (at, (name, value)) in message.headers.iter().enumerate() {
        push(line, if at == 0 { b"" } else { b"," }, name);
        push(line, b":", value);
    }
    match json {
        Some(body) => {
            line.extend_from_slice(b"},\"body\":");
            push_on_one_line(line, body);
        }
        None => push(line, b"},\"body_base64\":", &base64(&message.body)),
    }
    line.push(b'}');
}

/// Whether the body is JSON, which is known of nearly every event.
fn has_json(message: &Message) -> bool {
    let is_read = |text| serde_json::from_str::<IgnoredAny>(text).is_ok();
    message.body.is_known_as_json() || std::str::from_utf8(&message.body).is_ok_and(is_read)
}

/// Whether the message is in the envelope whose body has everything. An event may be called so, too, but has headers then.
fn is_structured(message: &Message) -> bool {
    message.content_type == STRUCTURED && message.headers.iter().all(|(name, _)| TRACE.contains(&name))
}

fn push(line: &mut Vec<u8>, before: &[u8], text: &str) {
    line.extend_from_slice(before);
    // All of it is looked at, which is quicker than to ask each time whether to go on.
    let is_odd = |byte: u8| (byte < 0x20) | (byte == b'"') | (byte == b'\\');
    if text.bytes().fold(false, |odd, byte| odd | is_odd(byte)) {
        return serde_json::to_writer(line, text).expect("text can be written to memory as JSON");
    }
    line.push(b'"');
    line.extend_from_slice(text.as_bytes());
    line.push(b'"');
}

/// Adds JSON on one line. Between its tokens a line break is as good as a space, and inside of strings there is none.
fn push_on_one_line(line: &mut Vec<u8>, json: &[u8]) {
    let (start, is_break) = (line.len(), |byte: u8| (byte == b'\n') | (byte == b'\r'));
    line.extend_from_slice(json);
    if json.iter().fold(false, |found, byte| found | is_break(*byte)) {
        line[start..].iter_mut().filter(|byte| is_break(**byte)).for_each(|byte| *byte = b' ');
    }
}
