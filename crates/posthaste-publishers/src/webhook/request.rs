//! One request, and what its answer means.

use std::borrow::Cow;
use std::pin::Pin;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use posthaste_core::EventId;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode, Url};
use tokio::time::{Instant, Sleep, sleep};

use super::address::{NotPublic, not_public, written_as_private};
use super::options::WebhookOptions;
use super::signature::{Secret, sign};
use crate::address::brief;
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

/// How many of these there are in a request, and what the client adds by itself.
const OTHERS: usize = 8;

const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");

/// What opens doors. An event that somebody else wrote must not bring keys along, nor replace those of the URL.
const CREDENTIALS: [&str; 2] = ["authorization", "cookie"];

/// A message that can be sent.
pub(super) struct Request {
    /// Which of the batch it is.
    pub(super) place: usize,
    pub(super) url: Url,
    /// What has to stay in order.
    pub(super) key: Option<String>,
    pub(super) id: EventId,
    headers: HeaderMap,
    body: Bytes,
}

impl Request {
    /// A request to the URL of the message.
    pub(super) fn new(
        place: usize,
        url: Url,
        message: Message,
        options: &WebhookOptions,
    ) -> Result<Self, PublishError> {
        let id = message.id;
        if !options.secrets.is_empty() && id.as_str().contains('.') {
            // The signature is of id, timestamp and body with a full stop between.
            return Err(PublishError::permanent(
                "an event whose id has a full stop in it cannot be signed as a webhook",
            ));
        }
        let mut headers = HeaderMap::with_capacity(message.headers.len() + OTHERS);
        for (name, value) in message.headers {
            let is_one_of = |names: &[&str]| names.iter().any(|other| other.eq_ignore_ascii_case(&name));
            if !is_one_of(&OURS) && (options.allow_credentials || !is_one_of(&CREDENTIALS)) {
                let value = header_value(&name, value)?;
                headers.append(header_name(&name)?, value);
            }
        }
        headers.insert(CONTENT_TYPE, header_value("content-type", message.content_type.into_owned())?);
        headers.insert(WEBHOOK_ID, header_value("webhook-id", id.as_str().to_owned())?);
        Ok(Self { place, url, key: message.key, id, headers, body: message.body })
    }

    /// Sends it, once. Each attempt has a time and a signature of its own.
    pub(super) async fn send(&mut self, client: &Client, secrets: &[Secret], limit: &mut Limit) -> Answer {
        limit.begin();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut headers = std::mem::take(&mut self.headers);
        headers.insert(WEBHOOK_TIMESTAMP, HeaderValue::from(now));
        if !secrets.is_empty() {
            let signature =
                HeaderValue::try_from(sign(secrets, self.id.as_str(), now, &self.body)).expect("it is base64");
            headers.insert(WEBHOOK_SIGNATURE, signature);
        }
        let sending = async {
            let mut request = client.post(self.url.clone()).body(self.body.clone()).build()?;
            // What the client makes of a user in the URL.
            for (name, value) in std::mem::replace(request.headers_mut(), headers) {
                if let Some(name) = name {
                    request.headers_mut().entry(name).or_insert(value);
                }
            }
            client.execute(request).await
        };
        let sent = tokio::select! {
            biased;
            sent = sending => sent,
            () = limit.over() => return Answer::Silence(limit.exceeded()),
        };
        match sent {
            Ok(response) => judge(response, limit).await,
            Err(error) => {
                // A URL may have a token in it.
                let error = error.without_url();
                match not_public(&error) {
                    Some(refused) => Answer::Refused(private(refused)),
                    None if error.is_connect() => Answer::Away(error),
                    // It may be this event that it cannot bear.
                    None => Answer::Silence(PublishError::retryable(error)),
                }
            }
        }
    }
}

/// What became of a request.
pub(super) enum Answer {
    Judged(Result<(), PublishError>),
    /// It takes nothing just now, says the other end, or somebody before it.
    Unavailable(PublishError),
    /// Somebody was there, and gave no answer.
    Silence(PublishError),
    /// Nothing may be sent there.
    Refused(PublishError),
    /// Nobody was there.
    Away(reqwest::Error),
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

#[expect(clippy::ptr_arg, reason = "whether it lives for ever is what matters")]
fn header_name(name: &Cow<'static, str>) -> Result<HeaderName, PublishError> {
    let plain = |name: &str| {
        !name.is_empty() && name.bytes().all(|sign| sign.is_ascii_lowercase() || sign.is_ascii_digit() || sign == b'-')
    };
    match name {
        // Nearly all of them, which need no memory.
        Cow::Borrowed(name) if plain(name) => Ok(HeaderName::from_static(name)),
        name => HeaderName::from_bytes(name.as_bytes()).map_err(|_| no_header(name)),
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
    /// One for all of them: to move its end costs much less than to make one.
    sleep: Pin<Box<Sleep>>,
}

impl Limit {
    pub(super) fn new(each: Duration) -> Self {
        Self { each, sleep: Box::pin(sleep(each)) }
    }

    /// The time of the next one begins.
    fn begin(&mut self) {
        // One that is never over need not be moved.
        if let Some(end) = Instant::now().checked_add(self.each) {
            self.sleep.as_mut().reset(end);
        }
    }

    /// Waits until its time is over.
    async fn over(&mut self) {
        self.sleep.as_mut().await;
    }

    fn exceeded(&self) -> PublishError {
        PublishError::retryable(format!("the endpoint has not answered within {:?}", self.each))
    }
}

async fn judge(mut response: Response, limit: &mut Limit) -> Answer {
    let status = response.status();
    let pause = response.headers().get(RETRY_AFTER).and_then(|value| retry_after(value.to_str().ok()?));
    let mut body = Vec::new();
    loop {
        // What was said in time counts.
        let piece = tokio::select! {
            biased;
            piece = response.chunk() => piece,
            () = limit.over() => break,
        };
        let Ok(Some(piece)) = piece else { break };
        body.extend_from_slice(&piece[..piece.len().min(READ - body.len())]);
        if body.len() >= READ {
            break;
        }
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
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS => {
            PublishError::retryable(text)
        }
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
    fn an_answer_is_kept_in_one_short_line() {
        assert_eq!(excerpt(b" no\r\n\tsuch \x07 order "), ": no such order");
        assert_eq!(excerpt(b"\n"), "");
        assert_eq!(excerpt("ü".repeat(10_000).as_bytes()).chars().count(), 2 + EXCERPT);
    }
}
