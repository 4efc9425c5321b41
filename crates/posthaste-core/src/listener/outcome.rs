//! What a listener answers.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use crate::event::{DecodeError, Mismatch};

/// What a listener answers: an [`Outcome`], or a [`Failure`] that counts as an attempt.
pub type Verdict = Result<Outcome, Failure>;

/// What became of an event that did not fail.
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// use std::time::Duration;
///
/// use posthaste::{Delivery, Outcome};
///
/// async fn ship(event: Delivery) -> Outcome {
///     match event.header("warehouse") {
///         Some("closed") => Outcome::RetryAfter(Duration::from_secs(600)),
///         Some(_) => Outcome::Done,
///         None => Outcome::Dead("no warehouse".into()),
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// Delivered. The row becomes DONE.
    Done,
    /// Not now: deliver it again after this long. Does not count as an attempt.
    RetryAfter(Duration),
    /// Never: the row becomes DEAD with this reason, for an operator to look at.
    Dead(String),
}

/// Why a delivery failed, and what kind of failure it was. Counts as one attempt.
///
/// Every error turns into a retryable failure through `?`, as do `anyhow::Error`, `String` and `&str`; only a
/// [`DecodeError`](crate::event::DecodeError) is an undecodable one. What should not be tried again says so with
/// [`Failure::permanent`]; nothing is ever guessed from an error's text.
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// use std::time::Duration;
///
/// use posthaste::listener::FailureKind;
/// use posthaste::{Delivery, Failure};
///
/// async fn charge(event: Delivery) -> Result<(), Failure> {
///     let cents: u64 = event.header("cents").unwrap_or("0").parse()?; // tried again
///     match cents {
///         0 => Err(Failure::permanent("nothing to charge")), // DEAD at once
///         1_000_000.. => Err(Failure::retryable("over the limit of today").retry_in(Duration::from_secs(3600))),
///         _ => Ok(()),
///     }
/// }
/// assert_eq!(Failure::from("no route to host").kind(), FailureKind::Retryable);
/// ```
pub struct Failure {
    kind: FailureKind,
    /// Whose it is, unless the listener's: the place of an interceptor, the first being 1.
    interceptor: Option<u16>,
    delay: Option<Duration>,
    /// The policy may ask for longer.
    at_least: bool,
    source: Box<dyn Error + Send + Sync>,
}

/// What kind of failure it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureKind {
    /// May work later: tried again until the attempts are used up.
    Retryable,
    /// Will never work: DEAD at once.
    Permanent,
    /// Nobody listens for this type of event: DEAD at once.
    Unroutable,
    /// The row or its payload cannot be decoded: DEAD at once.
    Undecodable,
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Retryable => "retryable",
            Self::Permanent => "permanent",
            Self::Unroutable => "unroutable",
            Self::Undecodable => "undecodable",
        })
    }
}

impl Failure {
    /// A failure that may not happen next time.
    pub fn retryable(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(FailureKind::Retryable, source)
    }

    /// A failure that will happen every time.
    pub fn permanent(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(FailureKind::Permanent, source)
    }

    /// A payload that does not decode.
    pub fn undecodable(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(FailureKind::Undecodable, source)
    }

    /// A failure of the given kind.
    pub fn new(kind: FailureKind, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { kind, interceptor: None, delay: None, at_least: false, source: source.into() }
    }

    /// Tries again after this long, instead of what the retry policy says. Still counts as an attempt.
    #[must_use]
    pub fn retry_in(mut self, delay: Duration) -> Self {
        (self.delay, self.at_least) = (Some(delay), false);
        self
    }

    /// Tries again after this long, or when the retry policy says, whichever is later: for a pause that somebody else asks for.
    #[must_use]
    pub fn retry_not_before(mut self, delay: Duration) -> Self {
        (self.delay, self.at_least) = (Some(delay), true);
        self
    }

    /// The delay before the next attempt, where the policy says so much.
    pub(crate) fn delay_instead_of(&self, policy: Duration) -> Duration {
        match self.delay {
            Some(delay) if self.at_least => delay.max(policy),
            Some(delay) => delay,
            None => policy,
        }
    }

    /// The same, as the failure of an interceptor.
    pub(crate) fn of_interceptor(mut self, place: usize) -> Self {
        self.interceptor = Some(u16::try_from(place).unwrap_or(u16::MAX));
        self
    }

    /// What kind of failure it was.
    pub fn kind(&self) -> FailureKind {
        self.kind
    }

    /// The delay that this failure asks for.
    pub fn delay(&self) -> Option<Duration> {
        self.delay
    }

    /// The error behind it.
    pub fn source(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.source
    }

    /// The error and all its causes in one line, as kept in the row. Names the interceptor whose failure it is.
    pub fn text(&self) -> String {
        let text = chain(&*self.source);
        match self.interceptor {
            Some(place) => format!("interceptor {place}: {text}"),
            None => text,
        }
    }
}

/// An error and all its causes.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// An error and all its causes in one line.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    for cause in causes(error) {
        let cause = cause.to_string();
        // Some errors print their cause themselves; saying it twice helps nobody.
        if !text.ends_with(&cause) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&cause);
        }
    }
    text
}

impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for Failure {
    fn from(error: E) -> Self {
        let failure = Self::retryable(error);
        let undecodable = causes(&*failure.source).any(|cause| cause.is::<DecodeError>() || cause.is::<Mismatch>());
        Self { kind: if undecodable { FailureKind::Undecodable } else { failure.kind }, ..failure }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failure: {}", self.kind, self.text())
    }
}

/// What a closure may return: nothing, an [`Outcome`], or a `Result` of either with any error.
pub trait IntoVerdict {
    /// Makes the verdict.
    fn into_verdict(self) -> Verdict;
}

impl IntoVerdict for () {
    fn into_verdict(self) -> Verdict {
        Ok(Outcome::Done)
    }
}

impl IntoVerdict for Outcome {
    fn into_verdict(self) -> Verdict {
        Ok(self)
    }
}

impl<T: IntoVerdict, E: Into<Failure>> IntoVerdict for Result<T, E> {
    fn into_verdict(self) -> Verdict {
        self.map_err(Into::into).and_then(IntoVerdict::into_verdict)
    }
}
