//! Which events go to which destinations.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use jiff::fmt::serde::unsigned_duration::friendly::compact;
use posthaste::publishers::Envelope;
use posthaste::store::Paused;
use posthaste::{Event, RetryPolicy};
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::destination;
use super::fault::{Fault, Origin};
use super::order::{Policy, without_order};
use super::value::{Kind, Value};

/// Which events go to which destinations, and how.
pub(crate) struct Route {
    pub(crate) name: String,
    /// The places of its destinations among all.
    pub(crate) to: Vec<usize>,
    pub(crate) retry: RetryPolicy,
    pub(crate) concurrency: Option<usize>,
    pub(crate) rate: Option<Rate>,
    /// Instead of that of the relay.
    pub(crate) on_dead: Option<Policy>,
    /// Instead of that of the destinations.
    pub(crate) envelope: Option<Envelope>,
    matching: Match,
}

impl Route {
    /// Whether an event takes this route.
    pub(crate) fn fits(&self, event: &Event) -> bool {
        self.matching.fits(event)
    }

    /// Whether that pause keeps events from it: one of its own, or of a destination that it leads to, given what those are called.
    pub(crate) fn is_held_by<'a>(&self, paused: &Paused, name: impl Fn(usize) -> &'a str) -> bool {
        match paused {
            Paused::Route(route) => *route == self.name,
            Paused::Destination(destination) => self.to.iter().any(|&place| name(place) == destination),
        }
    }
}

/// As it stands in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Given {
    name: Option<String>,
    #[serde(default, rename = "match")]
    matching: Match,
    to: Texts,
    retry: Option<Retry>,
    concurrency: Option<usize>,
    rate: Option<Rate>,
    on_dead: Option<Policy>,
}

/// What an event must have. What is not said fits every event.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Match {
    aggregate_type: Option<Texts>,
    event_type: Option<Texts>,
    tenant: Option<Texts>,
    headers: BTreeMap<String, Texts>,
}

impl Match {
    fn fits(&self, event: &Event) -> bool {
        let fits = |patterns: &Option<Texts>, text: Option<&str>| match (patterns, text) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(patterns), Some(text)) => patterns.any_fits(text),
        };
        let has = |(name, patterns): (&String, &Texts)| event.header(name).is_some_and(|text| patterns.any_fits(text));
        fits(&self.aggregate_type, Some(event.aggregate_type()))
            && fits(&self.event_type, Some(event.event_type()))
            && fits(&self.tenant, event.tenant_id())
            && self.headers.iter().all(has)
    }
}

/// One text, or several.
struct Texts(Vec<String>);

impl Texts {
    fn any_fits(&self, text: &str) -> bool {
        self.0.iter().any(|pattern| fits(pattern, text))
    }
}

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMany;
        impl<'de> Visitor<'de> for OneOrMany {
            type Value = Texts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, or a list of texts")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Texts, E> {
                Ok(Texts(vec![text.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Texts, A::Error> {
                let mut texts = Vec::new();
                while let Some(text) = list.next_element()? {
                    texts.push(text);
                }
                if texts.is_empty() {
                    return Err(A::Error::custom("the list is empty; leave it out, or give a text"));
                }
                Ok(Texts(texts))
            }
        }
        deserializer.deserialize_any(OneOrMany)
    }
}

/// Whether a text is what a pattern says, in which `*` is any text and `?` is any character.
fn fits(pattern: &str, text: &str) -> bool {
    let (mut pattern, mut text) = (pattern.chars(), text.chars());
    // Where to go on if what is behind the last star does not fit: the star takes one character more.
    let mut again = None;
    loop {
        let rest = text.clone();
        match (pattern.next(), text.next()) {
            (None, None) => return true,
            (Some('*'), _) => {
                again = Some((pattern.clone(), rest.clone()));
                text = rest;
                if pattern.as_str().is_empty() {
                    return true;
                }
            }
            (Some('?'), Some(_)) => {}
            (Some(wanted), Some(found)) if wanted == found => {}
            _ => {
                let Some((behind_star, taken)) = &mut again else { return false };
                if taken.next().is_none() {
                    return false;
                }
                (pattern, text) = (behind_star.clone(), taken.clone());
            }
        }
    }
}

/// When to try again.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Retry {
    #[serde(default, with = "compact::optional")]
    base: Option<Duration>,
    #[serde(default, with = "compact::optional")]
    max: Option<Duration>,
    attempts: Option<u32>,
    delays: Option<Vec<Length>>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(transparent)]
struct Length(#[serde(with = "compact::required")] Duration);

impl Retry {
    fn policy(&self, otherwise: &RetryPolicy) -> Result<RetryPolicy, &'static str> {
        if self.attempts == Some(0) {
            return Err("attempts must be at least 1; 1 means no second attempt");
        }
        if let Some(delays) = &self.delays {
            if self.base.is_some() || self.max.is_some() {
                return Err("give delays, or base and max, but not both");
            }
            let policy = RetryPolicy::fixed(delays.iter().map(|length| length.0));
            return Ok(self.attempts.map_or(policy.clone(), |attempts| policy.max_attempts(attempts)));
        }
        if self.base.is_none() && self.max.is_none() {
            let attempts = self.attempts.unwrap_or(otherwise.attempts());
            return Ok(otherwise.clone().max_attempts(attempts));
        }
        let base = self.base.unwrap_or(RetryPolicy::BASE);
        let max = self.max.unwrap_or(RetryPolicy::MAX.max(base));
        if max < base {
            return Err("max must not be shorter than base");
        }
        Ok(RetryPolicy::exponential(base, max).max_attempts(self.attempts.unwrap_or(otherwise.attempts())))
    }
}

/// So many events in that time: `100/s`, `100/1m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) events: u32,
    pub(crate) period: Duration,
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text)
            .ok_or_else(|| D::Error::custom(format!("{text:?} is no rate, such as \"100/s\" or \"1000/10m\"")))
    }
}

impl Rate {
    fn parse(text: &str) -> Option<Self> {
        let (events, period) = text.split_once('/')?;
        let period = period.trim();
        let period =
            if period.starts_with(|c: char| c.is_ascii_digit()) { period.to_owned() } else { format!("1{period}") };
        let period = jiff::fmt::friendly::SpanParser::new().parse_unsigned_duration(&period).ok()?;
        let rate = Self { events: events.trim().parse().ok()?, period };
        (rate.events > 0 && !rate.period.is_zero()).then_some(rate)
    }
}

/// All routes. Without any, everything goes to the only destination. What the relay says counts for those that do not: when to
/// try again, and whether there is order.
pub(super) fn all(
    given: Option<&Value>,
    destinations: &[(&str, &Origin)],
    (retry, in_order): (&RetryPolicy, bool),
    faults: &mut Vec<Fault>,
) -> Vec<Route> {
    let Some(given) = given else {
        if let [_, (_, second), ..] = destinations {
            let message = "there are several destinations and no route; say with [[route]] what goes where";
            faults.push(Fault::new(second, "route", message));
        }
        let everything = Route {
            name: "everything".to_owned(),
            to: vec![0],
            retry: retry.clone(),
            concurrency: None,
            rate: None,
            on_dead: None,
            envelope: None,
            matching: Match::default(),
        };
        return vec![everything];
    };
    let Kind::List(list) = &given.kind else {
        faults.push(Fault::new(&given.origin, "route", "routes are a list: write [[route]] above each"));
        return Vec::new();
    };
    let mut routes: Vec<Route> = Vec::new();
    for (place, value) in (1..).zip(list) {
        let field = format!("route[{place}]");
        let read = |value: &Value| Route::of(value, place, &field, destinations, (retry, in_order));
        let Some(route) = value.read_through(&field, faults, read) else { continue };
        match routes.iter().find(|other| other.name == route.name) {
            Some(_) => {
                let message = format!("another route is called {:?}, too", route.name);
                faults.push(Fault::new(&value.origin, format!("{field}.name"), message));
            }
            None => routes.push(route),
        }
    }
    routes
}

impl Route {
    fn of(
        value: &Value,
        place: usize,
        field: &str,
        destinations: &[(&str, &Origin)],
        (retry, in_order): (&RetryPolicy, bool),
    ) -> Result<Self, Fault> {
        let mut value = value.clone();
        let envelope = match &mut value.kind {
            Kind::Table(table) => table.take("envelope"),
            _ => None,
        };
        let envelope =
            envelope.map(|envelope| destination::envelope(Some(envelope), &format!("{field}.envelope"))).transpose()?;
        let given: Given = value.read(field)?;
        let origin = |key: &str| match value.as_table().and_then(|table| table.get(key)) {
            Some(value) => value.origin.clone(),
            None => value.origin.clone(),
        };
        let wrong = |key: &str, message: String| Fault::new(&origin(key), format!("{field}.{key}"), message);
        if given.concurrency == Some(0) {
            return Err(wrong("concurrency", "must be at least 1".to_owned()));
        }
        if given.on_dead.is_some() && !in_order {
            return Err(without_order(&origin("on_dead"), &format!("{field}.on_dead")));
        }
        let retry = given.retry.map_or(Ok(retry.clone()), |given| given.policy(retry));
        let retry = retry.map_err(|message| wrong("retry", message.to_owned()))?;
        // Last, since nothing more is found where it is wrong.
        let mut to = Vec::new();
        for name in &given.to.0 {
            match destinations.iter().position(|(known, _)| known == name) {
                Some(at) if to.contains(&at) => return Err(wrong("to", format!("{name:?} stands there twice"))),
                Some(at) => to.push(at),
                None => {
                    let known: Vec<_> = destinations.iter().map(|(known, _)| known).collect();
                    let message = format!("there is no destination {name:?}; there are {known:?}");
                    return Err(wrong("to", message));
                }
            }
        }
        Ok(Self {
            name: given.name.unwrap_or_else(|| format!("route {place}")),
            to,
            retry,
            concurrency: given.concurrency,
            rate: given.rate,
            on_dead: given.on_dead,
            envelope,
            matching: given.matching,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_what_they_say() {
        for (pattern, text) in [
            ("OrderPlaced", "OrderPlaced"),
            ("Order*", "OrderPlaced"),
            ("Order*", "Order"),
            ("*", ""),
            ("*Placed", "OrderPlaced"),
            ("*a*b*c", "xxaxxbxxbxc"),
            ("Order?", "Orders"),
            ("größe.*", "größe.neu"),
            ("**", "x"),
        ] {
            assert!(fits(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("OrderPlaced", "OrderPlace"),
            ("OrderPlace", "OrderPlaced"),
            ("Order*", "order"),
            ("Order?", "Order"),
            ("*a*b*c", "abca"),
            ("", "x"),
            ("a*b", "ac"),
        ] {
            assert!(!fits(pattern, text), "{pattern} {text}");
        }
    }

    #[test]
    fn rates_are_read() {
        let rate = |text| Rate::parse(text).map(|rate| (rate.events, rate.period.as_secs()));
        assert_eq!(rate("100/s"), Some((100, 1)));
        assert_eq!(rate("5 / 10m"), Some((5, 600)));
        for wrong in ["100", "0/s", "x/s", "5/parsec", "5/0s", "/s"] {
            assert_eq!(rate(wrong), None, "{wrong}");
        }
    }
}
