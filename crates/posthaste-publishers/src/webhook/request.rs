//! One request, and what its answer means.

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{
    ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER,
    USER_AGENT,
};
use hyper::{Method, Response, StatusCode, Uri};
use percent_encoding::percent_decode_str;
use posthaste_core::EventId;
use tokio::time::{Instant, Sleep, sleep};
use url::{Position, Url};

use super::address::{NotPublic, not_public, written_as_private};
use super::connection::{BoxError, Connection, Failure, Line};
use super::in_one_line;
use super::options::WebhookOptions;
use super::signature::{Secret, sign};
use crate::address::brief;
use crate::envelope::percent_encoded;
use crate::message::Text;
use crate::publisher::{Message, PublishError};

/// How many bytes of an answer are read. More cost more than a new connection.
const READ: usize = 64 * 1024;

/// How many characters of an answer are kept.
const EXCERPT: usize = 300;

/// The longest pause that is granted.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// What belongs to the request itself, and no event may say.
const OURS: [&str; 15] = [
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "webhook-id",
    "webhook-signature",
    "webhook-timestamp",
];

/// Who says that he sends it.
const AGENT: HeaderValue = HeaderValue::from_static(concat!("posthaste/", env!("CARGO_PKG_VERSION")));

/// How many of these there are in a request, and what the client adds by itself.
const OTHERS: usize = 9;

const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");

/// What opens doors. An event that somebody else wrote must not bring keys along, nor replace those of the URL.
const CREDENTIALS: [&str; 2] = ["authorization", "cookie"];

/// Where requests of one URL go.
pub(super) struct Target {
    pub(super) url: Url,
    whole: Uri,
    /// What is asked for there.
    path: Uri,
    host: HeaderValue,
    /// Of a user in the URL.
    authorization: Option<HeaderValue>,
}

impl Target {
    /// # Errors
    /// When nothing is sent to such a URL.
    pub(super) fn new(text: &str, options: &WebhookOptions) -> Result<Self, PublishError> {
        let url = url(text, options)?;
        // It may have a token in it, and is not shown.
        let no_request = || PublishError::permanent("a URL that cannot be written into a request of HTTP");
        let uri = |part: &str| part.parse::<Uri>().map_err(|_| no_request());
        let whole = uri(&url[..Position::AfterQuery])?;
        let path = uri(&url[Position::BeforePath..Position::AfterQuery])?;
        let host = &url[Position::BeforeHost..Position::AfterPort];
        let host = HeaderValue::try_from(host).map_err(|_| no_request())?;
        let authorization = authorization(&url);
        Ok(Self { url, whole, path, host, authorization })
    }

    /// What to connect to.
    pub(super) fn whole(&self) -> &Uri {
        &self.whole
    }
}

/// The name and the password of a URL, as HTTP has them.
fn authorization(url: &Url) -> Option<HeaderValue> {
    let decoded = |part: &str| percent_decode_str(part).collect::<Vec<u8>>();
    let password = url.password();
    if url.username().is_empty() && password.is_none() {
        return None;
    }
    let pair = [decoded(url.username()), decoded(password.unwrap_or_default())].join(&b':');
    let mut value = HeaderValue::try_from(format!("Basic {}", BASE64_STANDARD.encode(pair))).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// A message that can be sent.
pub(super) struct Request {
    /// Which of the batch it is.
    pub(super) place: usize,
    pub(super) target: Arc<Target>,
    /// What has to stay in order.
    pub(super) key: Option<Text>,
    pub(super) id: EventId,
    /// The id as it is sent, which is what is signed.
    webhook_id: HeaderValue,
    headers: HeaderMap,
    body: Bytes,
}

impl Request {
    /// A request to the URL of the message.
    pub(super) fn new(
        place: usize,
        target: Arc<Target>,
        message: Message,
        options: &WebhookOptions,
    ) -> Result<Self, PublishError> {
        let id = message.id;
        if options.is_signed() && id.as_str().contains('.') {
            // The signature is of id, timestamp and body with a full stop between.
            return Err(PublishError::permanent(
                "an event whose id has a full stop in it cannot be signed as a webhook",
            ));
        }
        let mut headers = HeaderMap::with_capacity(message.headers.len() + OTHERS);
        for (lasting, value) in message.headers.entries() {
            let name = lasting.unwrap_or_else(|name| name);
            let is_one_of = |names: &[&str]| names.iter().any(|other| other.eq_ignore_ascii_case(name));
            if !is_one_of(&OURS) && (options.allow_credentials || !is_one_of(&CREDENTIALS)) {
                let value = header_value(name, value.to_owned())?;
                headers.append(header_name(lasting)?, value);
            }
        }
        let content_type = match message.content_type {
            // Nearly always, and it needs no memory.
            Cow::Borrowed(text) if is_printable(text) => HeaderValue::from_static(text),
            text => header_value("content-type", text.into_owned())?,
        };
        headers.insert(CONTENT_TYPE, content_type);
        let webhook_id = header_value("webhook-id", fit_id(id.as_str()).into_owned())?;
        headers.insert(WEBHOOK_ID, webhook_id.clone());
        if message.body.is_empty() {
            // Some servers refuse a request that does not say so.
            headers.insert(CONTENT_LENGTH, HeaderValue::from(0));
        }
        headers.insert(HOST, target.host.clone());
        headers.entry(USER_AGENT).or_insert(AGENT);
        headers.entry(ACCEPT).or_insert(HeaderValue::from_static("*/*"));
        if let Some(authorization) = &target.authorization {
            headers.entry(AUTHORIZATION).or_insert_with(|| authorization.clone());
        }
        Ok(Self { place, target, key: message.key, id, webhook_id, headers, body: message.body.into_bytes() })
    }

    /// Sends it, once. Each attempt has a time and a signature of its own.
    pub(super) async fn send(&mut self, line: &mut Line<'_>, secrets: &[Secret], limit: &mut Limit) -> Answer {
        limit.begin();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut headers = std::mem::take(&mut self.headers);
        headers.insert(WEBHOOK_TIMESTAMP, HeaderValue::from(now));
        if !secrets.is_empty() {
            let id = self.webhook_id.to_str().expect("it is printable");
            let signature = HeaderValue::try_from(sign(secrets, id, now, &self.body)).expect("it is base64");
            headers.insert(WEBHOOK_SIGNATURE, signature);
        }
        let mut request = hyper::Request::new(Full::new(self.body.clone()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.target.path.clone();
        *request.headers_mut() = headers;
        let sent = tokio::select! {
            biased;
            sent = line.send(&self.target.whole, request) => sent,
            () = limit.over() => return Answer::Silence(limit.exceeded()),
        };
        match sent {
            Ok((response, connection)) => judge(response, connection, line, limit).await,
            Err(Failure::Away(error)) => match not_public(&*error) {
                Some(refused) => Answer::Refused(private(refused)),
                None => Answer::Away(error),
            },
            // It may be this event that it cannot bear.
            Err(Failure::Broken(error)) => Answer::Silence(PublishError::retryable(in_one_line(&error))),
        }
    }
}

/// What became of a request.
pub(super) enum Answer {
    Judged(Result<(), PublishError>),
    /// It takes nothing just now, says the other end, or somebody before it.
    Unavailable(PublishError),
    /// It gets too many, says the other end, and perhaps for how long it wants none.
    TooMany(String, Option<Duration>),
    /// Somebody was there, and gave no answer.
    Silence(PublishError),
    /// Nothing may be sent there.
    Refused(PublishError),
    /// Nobody was there.
    Away(BoxError),
    /// Never again, says the other end.
    Gone,
}

/// The URL, unless nothing is sent to such a one. It may have a token in it, and is not shown.
pub(super) fn url(text: &str, options: &WebhookOptions) -> Result<Url, PublishError> {
    let wrong = |error| format!("not a URL such as https://partner.example/hooks: {error}");
    let url = Url::parse(text).map_err(|error| PublishError::permanent(wrong(error)))?;
    match url.scheme() {
        "https" => {}
        "http" if options.allow_http => {}
        "http" => {
            return Err(PublishError::permanent(
                "webhooks are sent to https:// only, unless http:// is allowed with allow_http",
            ));
        }
        other => return Err(PublishError::permanent(format!("webhooks are sent to https://, not to {other}:"))),
    }
    match written_as_private(&url) {
        Some(refused) if !options.allow_private_addresses => Err(private(refused)),
        _ => Ok(url),
    }
}

/// Whether something can be sent to such a URL. Its host and what is before it is as it will be.
pub(super) fn check(to: &str, options: &WebhookOptions) -> Result<(), PublishError> {
    let checked = url(to, options).and_then(|url| {
        // Otherwise what follows could be a host although it does not look like one.
        let host = to.get(url.scheme().len()..).and_then(|rest| rest.strip_prefix("://"));
        let begins = |host: &str| host.starts_with(|c: char| !matches!(c, '/' | '\\' | '?' | '#') && c > ' ');
        let is_plain = host.is_some_and(begins);
        is_plain
            .then_some(())
            .ok_or_else(|| PublishError::permanent("after the scheme of a URL comes ://, and then the host"))
    });
    let address = brief(to);
    checked.map_err(|error| PublishError::permanent(format!("the address {address:?} cannot be used: {error}")))
}

/// The option, or where the name leads, can be changed.
pub(super) fn private(refused: NotPublic) -> PublishError {
    PublishError::retryable(refused)
}

/// The id of an event as a header: of what is not ASCII receivers would read something else than was signed.
fn fit_id(id: &str) -> Cow<'_, str> {
    match is_printable(id) && id.trim_matches(' ').len() == id.len() {
        true => Cow::Borrowed(id),
        false => Cow::Owned(percent_encoded(id, |c| c.is_ascii_graphic() && c != '"' && c != '%')),
    }
}

fn is_printable(text: &str) -> bool {
    text.bytes().all(|sign| sign == b' ' || sign.is_ascii_graphic())
}

/// What lives for ever is `Ok`.
fn header_name(name: Result<&'static str, &str>) -> Result<HeaderName, PublishError> {
    let plain = |name: &str| {
        !name.is_empty() && name.bytes().all(|sign| sign.is_ascii_lowercase() || sign.is_ascii_digit() || sign == b'-')
    };
    match name {
        // Nearly all of them, which need no memory.
        Ok(name) if plain(name) => Ok(HeaderName::from_static(name)),
        Ok(name) | Err(name) => HeaderName::from_bytes(name.as_bytes()).map_err(|_| no_header(name)),
    }
}

fn header_value(name: &str, value: String) -> Result<HeaderValue, PublishError> {
    HeaderValue::try_from(value).map_err(|_| no_header(name))
}

fn no_header(name: &str) -> PublishError {
    PublishError::permanent(format!("the header {name:?} of the event cannot be a header of HTTP"))
}

/// How long requests that are sent one after the other may take, each for itself.
pub(super) struct Limit {
    each: Duration,
    /// When the time of the present one is over, if ever.
    end: Option<Instant>,
    /// One for all of them. It ends no later than they do, and is moved only then: few are waited for so long.
    sleep: Pin<Box<Sleep>>,
}

impl Limit {
    pub(super) fn new(each: Duration) -> Self {
        Self { each, end: None, sleep: Box::pin(sleep(each)) }
    }

    /// The time of the next one begins.
    fn begin(&mut self) {
        self.end = Instant::now().checked_add(self.each);
    }

    /// Waits until its time is over.
    async fn over(&mut self) {
        loop {
            self.sleep.as_mut().await;
            match self.end {
                Some(end) if Instant::now() < end => self.sleep.as_mut().reset(end),
                _ => return,
            }
        }
    }

    fn exceeded(&self) -> PublishError {
        PublishError::retryable(format!("the endpoint has not answered within {:?}", self.each))
    }
}

async fn judge(
    response: Response<Incoming>,
    mut connection: Connection,
    line: &mut Line<'_>,
    limit: &mut Limit,
) -> Answer {
    let (head, mut rest) = response.into_parts();
    let status = head.status;
    let pause = head.headers.get(RETRY_AFTER).and_then(|value| retry_after(value.to_str().ok()?));
    let (mut body, mut is_complete) = (Vec::new(), false);
    while body.len() < READ && !is_complete {
        // What was said in time counts.
        let piece = tokio::select! {
            biased;
            piece = connection.piece(&mut rest) => piece,
            () = limit.over() => break,
        };
        match piece {
            Ok(Some(piece)) => body.extend_from_slice(&piece[..piece.len().min(READ - body.len())]),
            Ok(None) => is_complete = true,
            Err(_) => break,
        }
    }
    if is_complete {
        if status.is_success() {
            tokio::select! {
                biased;
                () = connection.finish() => {}
                () = limit.over() => {}
            }
        }
        line.hand_back(connection).await;
    }
    if status.is_success() {
        return Answer::Judged(Ok(()));
    }
    let text = format!("the endpoint answered {status}{}", excerpt(&body));
    let later = |error: PublishError| match pause {
        Some(pause) => error.retry_after(pause),
        None => error,
    };
    let error = match status {
        StatusCode::GONE => return Answer::Gone,
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
            return Answer::Unavailable(later(PublishError::retryable(text)));
        }
        StatusCode::TOO_MANY_REQUESTS => return Answer::TooMany(text, pause),
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY => PublishError::retryable(text),
        _ if status.is_client_error() => PublishError::permanent(text),
        // Redirects as well: nothing is sent to where nobody has looked, but the URL can be put right.
        _ => PublishError::retryable(text),
    };
    Answer::Judged(Err(later(error)))
}

/// The beginning of an answer, in one line.
fn excerpt(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(4 * EXCERPT)]);
    let line = text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    let line: String = line.collect::<Vec<_>>().join(" ").chars().take(EXCERPT).collect();
    if line.is_empty() { line } else { format!(": {line}") }
}

/// Seconds, or a date.
fn retry_after(value: &str) -> Option<Duration> {
    let pause = match value.trim().parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let at = jiff::fmt::rfc2822::parse(value.trim()).ok()?.timestamp();
            Duration::try_from(at.duration_since(jiff::Timestamp::now())).unwrap_or_default()
        }
    };
    Some(pause.min(LONGEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_read_in_both_forms() {
        assert_eq!(retry_after("120"), Some(Duration::from_secs(120)));
        assert_eq!(retry_after("99999999999"), Some(LONGEST));
        assert_eq!(retry_after("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO));
        let soon = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(90);
        let date = soon.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
        let pause = retry_after(&date).unwrap();
        assert!(pause > Duration::from_secs(85) && pause <= Duration::from_secs(90), "{pause:?} until {date}");
        assert_eq!(retry_after("soon"), None);
        assert_eq!(retry_after("-5"), None);
    }

    #[test]
    fn an_id_is_sent_in_ascii() {
        for (id, sent) in [
            ("order-1", "order-1"),
            ("50% of 1", "50% of 1"),
            ("größe%", "gr%C3%B6%C3%9Fe%25"),
            (" x", "%20x"),
            ("a\tb", "a%09b"),
        ] {
            assert_eq!(fit_id(id), sent);
        }
    }

    #[test]
    fn an_answer_is_kept_in_one_short_line() {
        assert_eq!(excerpt(b" no\r\n\tsuch \x07 order "), ": no such order");
        assert_eq!(excerpt(b"\n"), "");
        assert_eq!(excerpt("ü".repeat(10_000).as_bytes()).chars().count(), 2 + EXCERPT);
    }
}
