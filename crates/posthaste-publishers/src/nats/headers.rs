//! The headers of a message, one below the other, as they go over the connection.

use std::sync::LazyLock;

use async_nats::header::{HeaderMap, HeaderValue, NATS_MESSAGE_ID};
use serde::Deserialize;
use serde::de::value::{Error, StringDeserializer};

use crate::message::Headers;
use crate::publisher::PublishError;

/// The names that only we say: what a stream does with a message depends on them.
pub(super) const MESSAGE_ID: &str = "Nats-Msg-Id";
pub(super) const EXPECTED_LAST_MESSAGE_ID: &str = "Nats-Expected-Last-Msg-Id";
pub(super) const EXPECTED_STREAM: &str = "Nats-Expected-Stream";
pub(super) const CONTENT_TYPE: &str = "content-type";
const OURS: [&str; 4] = [MESSAGE_ID, EXPECTED_LAST_MESSAGE_ID, EXPECTED_STREAM, CONTENT_TYPE];

const END_OF_LINE: &str = "\r\n";
const BEFORE_VALUE: &str = ": ";

/// Headers of which the first is the id of the message, which the server looks for in each.
pub(super) struct Lines {
    /// The value of the first, and below it the others.
    text: String,
}

impl Lines {
    /// By what a stream knows a message, and room for so many bytes of other headers.
    ///
    /// # Errors
    /// When it cannot be carried.
    pub(super) fn new(id: &str, others: usize) -> Result<Self, PublishError> {
        let mut lines = Self { text: String::with_capacity(id.len() + others) };
        lines.push_value(MESSAGE_ID, id)?;
        Ok(lines)
    }

    /// Adds one whose name is known to be right.
    ///
    /// # Errors
    /// When the value cannot be carried.
    pub(super) fn push(&mut self, name: &str, value: &str) -> Result<(), PublishError> {
        self.text.push_str(END_OF_LINE);
        self.text.push_str(name);
        self.text.push_str(BEFORE_VALUE);
        self.push_value(name, value)
    }

    /// Adds those of a message, but for names that only we say. Of several with one name the last is sent.
    ///
    /// # Errors
    /// When one of them cannot be carried.
    pub(super) fn push_all(&mut self, headers: &Headers) -> Result<(), PublishError> {
        for (place, (name, value)) in headers.entries().enumerate() {
            let is_known = name.is_ok_and(|name| KNOWN.contains(&name));
            let name = name.unwrap_or_else(|name| name);
            if !is_known && !is_name(name) {
                return Err(PublishError::permanent(format!(
                    "{name:?} is no name for a header in NATS, which has visible ASCII without colons"
                )));
            }
            let is_ours = !is_known && OURS.contains(&name);
            if !is_ours && !headers.iter().skip(place + 1).any(|(later, _)| later == name) {
                self.push(name, value)?;
            }
        }
        Ok(())
    }

    fn push_value(&mut self, name: &str, value: &str) -> Result<(), PublishError> {
        if value.bytes().any(|byte| matches!(byte, b'\r' | b'\n')) {
            let reason = format!("the header {name:?} has a line break, which NATS cannot carry");
            return Err(PublishError::permanent(reason));
        }
        self.text.push_str(value);
        Ok(())
    }

    /// What the client sends as these lines.
    ///
    /// It would make a table of them, with a piece of memory for each name, each value and each list of values, only to write one
    /// below the other. A value goes over the connection as it is, so all lines are in the first one where the client lets them.
    pub(super) fn into_headers(self) -> HeaderMap {
        if !*TAKES_LINES {
            return self.into_table();
        }
        let lines = unread(self.text).expect("it takes lines");
        HeaderMap::from_iter([(NATS_MESSAGE_ID, lines)])
    }

    /// The same by the table.
    fn into_table(self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let mut lines = self.text.split(END_OF_LINE);
        headers.insert(NATS_MESSAGE_ID, lines.next().unwrap_or_default());
        for (name, value) in lines.filter_map(|line| line.split_once(BEFORE_VALUE)) {
            headers.insert(name, value);
        }
        headers
    }
}

/// Whether the client takes a value of several lines.
static TAKES_LINES: LazyLock<bool> = LazyLock::new(|| {
    let lines = "1\r\nx: 2";
    unread(lines.to_owned()).is_some_and(|value| value.as_str() == lines)
});

/// A value that the client does not look at.
fn unread(value: String) -> Option<HeaderValue> {
    HeaderValue::deserialize(StringDeserializer::<Error>::new(value)).ok()
}

/// Names of which nothing is left to find out: nearly all that are sent.
const KNOWN: [&str; 6] = ["event-id", "event-type", "aggregate-type", "aggregate-id", "tenant-id", "occurred-at"];

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|sign| sign.is_ascii_graphic() && sign != b':')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(headers: &Headers) -> Result<Lines, PublishError> {
        let mut lines = Lines::new("id/subject", 0)?;
        lines.push(CONTENT_TYPE, "text/plain")?;
        lines.push_all(headers)?;
        Ok(lines)
    }

    fn sent(headers: &HeaderMap) -> String {
        let each = headers.iter().flat_map(|(name, values)| values.iter().map(move |value| (name, value)));
        let mut lines: Vec<_> = each.map(|(name, value)| format!("{name}: {value}")).collect();
        lines.sort();
        lines.join("\r\n")
    }

    #[test]
    fn all_of_them_are_lines_of_the_first() {
        let headers = Headers::from([("event-id", "1"), ("x", "a: b"), ("y", "")]);
        let expected = "Nats-Msg-Id: id/subject\r\ncontent-type: text/plain\r\nevent-id: 1\r\nx: a: b\r\ny: ";
        let together = lines(&headers).unwrap().into_headers();
        assert_eq!((together.len(), sent(&together).as_str()), (1, expected));
        // A client that looks at values gets them one by one.
        let apart = lines(&headers).unwrap().into_table();
        let mut expected: Vec<_> = expected.split("\r\n").collect();
        expected.sort_unstable();
        assert_eq!((apart.len(), sent(&apart)), (5, expected.join("\r\n")));
    }

    #[test]
    fn nobody_else_says_what_a_stream_looks_for_and_nothing_is_said_twice() {
        let headers = Headers::from([
            ("Nats-Msg-Id", "other"),
            ("Nats-Expected-Stream", "other"),
            ("x", "1"),
            ("event-id", "1"),
            ("content-type", "other"),
            ("event-id", "2"),
            ("x", "2"),
        ]);
        let expected = "Nats-Msg-Id: id/subject\r\ncontent-type: text/plain\r\nevent-id: 2\r\nx: 2";
        assert_eq!(sent(&lines(&headers).unwrap().into_headers()), expected);
    }

    #[test]
    fn no_header_brings_a_line_of_its_own() {
        for (name, value) in [
            ("", "1"),
            ("a b", "1"),
            ("a:b", "1"),
            ("a\r\nb", "1"),
            ("größe", "1"),
            ("x", "1\r\nNats-Msg-Id: other"),
            ("x", "1\n2"),
            ("event-id", "1\r2"),
        ] {
            let refused = |headers: Headers| lines(&headers).is_err_and(|error| error.to_string().contains("NATS"));
            assert!(refused(Headers::from([(name, value)])), "{name:?}: {value:?}");
            assert!(refused(Headers::from([(name.to_owned(), value)])), "{name:?}: {value:?}");
        }
        assert!(Lines::new("1\r\nx: 2", 0).is_err());
    }
}
