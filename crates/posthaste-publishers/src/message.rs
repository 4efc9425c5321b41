//! What a message is made of. Most of it is what the event has, and is not copied.

use std::borrow::Cow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use posthaste_core::Event;
use posthaste_core::event::limit;

/// An address, or a key: text of its own, or what several messages or the event share. A `&str` for whoever reads it.
#[derive(Clone)]
pub struct Text(Words);

#[derive(Clone)]
enum Words {
    Own(String),
    Shared(Arc<str>),
    /// The id of the event's aggregate.
    AggregateId(Event),
}

impl Text {
    /// The id of the event's aggregate, if it has one.
    pub fn aggregate_id(event: &Event) -> Option<Self> {
        event.aggregate_id().map(|_| Self(Words::AggregateId(event.clone())))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Words::Own(text) => text,
            Words::Shared(text) => text,
            Words::AggregateId(event) => event.aggregate_id().unwrap_or_default(),
        }
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self(Words::Own(text))
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(Words::Own(text.to_owned()))
    }
}

impl From<&String> for Text {
    fn from(text: &String) -> Self {
        text.as_str().into()
    }
}

impl From<Arc<str>> for Text {
    fn from(text: Arc<str>) -> Self {
        Self(Words::Shared(text))
    }
}

impl From<Text> for String {
    fn from(text: Text) -> Self {
        match text.0 {
            Words::Own(text) => text,
            _ => text.as_str().to_owned(),
        }
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Words::Shared(one), Words::Shared(other)) if Arc::ptr_eq(one, other) => true,
            _ => self.as_str() == other.as_str(),
        }
    }
}

impl Eq for Text {}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl PartialEq<String> for Text {
    fn eq(&self, other: &String) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<Text> for String {
    fn eq(&self, other: &Text) -> bool {
        self == other.as_str()
    }
}

impl Hash for Text {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Names and values beside the body, in their order. All of them are in one piece of memory.
///
/// ```
/// use posthaste_publishers::Headers;
///
/// let mut headers = Headers::from([("event-id", "order-42")]);
/// headers.push("region", "eu");
/// assert_eq!(headers.iter().collect::<Vec<_>>(), [("event-id", "order-42"), ("region", "eu")]);
/// assert_eq!(headers.get("region"), Some("eu"));
/// ```
#[derive(Clone, Default)]
pub struct Headers {
    text: String,
    each: Vec<Header>,
}

#[derive(Clone)]
struct Header {
    name: Name,
    /// Where its value ends. It begins where its name ends, or else where the one before ends.
    end: usize,
}

#[derive(Clone)]
enum Name {
    Lasting(&'static str),
    /// In the text, up to there.
    To(usize),
}

impl Headers {
    /// No headers, and room for so many, with so many bytes in all their values.
    pub(crate) fn with_capacity(headers: usize, bytes: usize) -> Self {
        Self { text: String::with_capacity(bytes), each: Vec::with_capacity(headers) }
    }

    /// Adds one behind the others.
    pub fn push(&mut self, name: impl Into<Cow<'static, str>>, value: impl AsRef<str>) {
        self.push_with(name, |text| text.push_str(value.as_ref()));
    }

    /// Adds one whose value is what is written behind the text.
    pub(crate) fn push_with(&mut self, name: impl Into<Cow<'static, str>>, write: impl FnOnce(&mut String)) {
        let name = match name.into() {
            Cow::Borrowed(name) => Name::Lasting(name),
            Cow::Owned(name) => {
                self.text.push_str(&name);
                Name::To(self.text.len())
            }
        };
        write(&mut self.text);
        self.each.push(Header { name, end: self.text.len() });
    }

    /// Names and values, in their order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.entries().map(|(name, value)| (name.unwrap_or_else(|name| name), value))
    }

    /// The same, with what is known of the names: those that live for ever are `Ok`.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (Result<&'static str, &str>, &str)> {
        let mut begin = 0;
        self.each.iter().map(move |header| {
            let (name, from) = match header.name {
                Name::Lasting(name) => (Ok(name), begin),
                Name::To(end) => (Err(&self.text[begin..end]), end),
            };
            begin = header.end;
            (name, &self.text[from..header.end])
        })
    }

    /// The value of the first one with that name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(other, _)| *other == name).map(|(_, value)| value)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.each.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.each.is_empty()
    }
}

impl<N: Into<Cow<'static, str>>, V: AsRef<str>> Extend<(N, V)> for Headers {
    fn extend<I: IntoIterator<Item = (N, V)>>(&mut self, headers: I) {
        for (name, value) in headers {
            self.push(name, value);
        }
    }
}

impl<N: Into<Cow<'static, str>>, V: AsRef<str>> FromIterator<(N, V)> for Headers {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(headers: I) -> Self {
        let mut all = Self::default();
        all.extend(headers);
        all
    }
}

impl<N: Into<Cow<'static, str>>, V: AsRef<str>, const LEN: usize> From<[(N, V); LEN]> for Headers {
    fn from(headers: [(N, V); LEN]) -> Self {
        headers.into_iter().collect()
    }
}

impl PartialEq for Headers {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Headers {}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The body of a message: the payload of the event, or what an envelope has made of it. A `&[u8]` for whoever reads it.
#[derive(Clone)]
pub struct Body(Content);

#[derive(Clone)]
enum Content {
    Payload(Event),
    Json(Bytes),
    Bytes(Bytes),
}

impl Body {
    /// The payload of that event, which is not copied.
    pub fn payload(event: &Event) -> Self {
        Self(Content::Payload(event.clone()))
    }

    /// What was just made as JSON.
    pub(crate) fn json(text: Vec<u8>) -> Self {
        Self(Content::Json(text.into()))
    }

    /// Whether it is known to be JSON, without a look at it. What is not known to be may be all the same.
    pub fn is_known_as_json(&self) -> bool {
        match &self.0 {
            // Of a row that others wrote, a text over the limit of ours was not looked at.
            Content::Payload(event) => event.payload().as_json().is_some_and(|text| text.len() <= limit::PAYLOAD),
            Content::Json(_) => true,
            Content::Bytes(_) => false,
        }
    }

    /// The bytes, which share its memory.
    pub fn to_bytes(&self) -> Bytes {
        match &self.0 {
            Content::Payload(event) => event.shared_payload(),
            Content::Json(bytes) | Content::Bytes(bytes) => bytes.clone(),
        }
    }

    /// The same, from one that is not needed any more.
    pub fn into_bytes(self) -> Bytes {
        match self.0 {
            Content::Payload(event) => event.shared_payload(),
            Content::Json(bytes) | Content::Bytes(bytes) => bytes,
        }
    }
}

impl Deref for Body {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Content::Payload(event) => event.payload().as_bytes(),
            Content::Json(bytes) | Content::Bytes(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for Body {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl<T: Into<Bytes>> From<T> for Body {
    fn from(bytes: T) -> Self {
        Self(Content::Bytes(bytes.into()))
    }
}

impl PartialEq<[u8]> for Body {
    fn eq(&self, other: &[u8]) -> bool {
        **self == *other
    }
}

impl PartialEq<&[u8]> for Body {
    fn eq(&self, other: &&[u8]) -> bool {
        **self == **other
    }
}

/// Never prints what it is: it may hold what no log should.
impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Body({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_as_they_were_added_whatever_they_are() {
        let mut headers = Headers::with_capacity(1, 1);
        let expected =
            [("event-id", ""), ("größe", "€ 😀"), ("", ""), ("x", "1"), ("", "2"), ("x", "3"), ("y\n", "\0")];
        for (at, (name, value)) in expected.into_iter().enumerate() {
            match at % 2 {
                0 => headers.push(name, value),
                _ => headers.push(name.to_owned(), value),
            }
        }
        assert!(headers.iter().eq(expected) && headers.len() == expected.len());
        assert_eq!((headers.get("x"), headers.get("z")), (Some("1"), None));
        assert_eq!(headers, expected.into_iter().collect());
        assert_ne!(headers, Headers::default());
        let lasting: Vec<_> = headers.entries().map(|(name, _)| name.is_ok()).collect();
        assert_eq!(lasting, [true, false, true, false, true, false, true]);
    }

    #[test]
    fn only_a_payload_that_was_checked_is_known_as_json() {
        let json = Event::builder("E").json_text("{ }").build().unwrap();
        let bytes = Event::builder("E").bytes(*b"{ }").build().unwrap();
        let (json, bytes, made) = (Body::payload(&json), Body::payload(&bytes), Body::from("{ }"));
        assert!(json.is_known_as_json() && !bytes.is_known_as_json() && !made.is_known_as_json());
        for body in [json, bytes, made] {
            assert!(body == *b"{ }".as_slice() && body.to_bytes() == body.clone().into_bytes());
        }
    }

    #[test]
    fn texts_are_equal_whatever_they_are_made_of() {
        let event = Event::builder("E").aggregate("Order", "a").json_text("{}").build().unwrap();
        let texts =
            [Text::aggregate_id(&event).unwrap(), "a".into(), "a".to_owned().into(), Arc::<str>::from("a").into()];
        assert!(texts.iter().all(|text| *text == texts[0] && *text == "a"));
        assert!(texts[3] != "b");
        assert_eq!(Text::aggregate_id(&Event::of_json("E", "{}").unwrap()), None);
    }
}
