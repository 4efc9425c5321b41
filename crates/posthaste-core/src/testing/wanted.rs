//! Which events a test asks for.

use std::fmt;

use crate::event::{AggregateType, Event, EventId, EventType, TypedEvent};

/// Which events a test asks for. What is not said is not looked at; what is said must all hold.
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// use posthaste::testing::Wanted;
///
/// let wanted = Wanted::event("OrderPlaced")
///     .aggregate("Order", 42)
///     .header("trace", "7f3a")
///     .json(|order| order["total"] == 3);
/// assert_eq!(wanted.to_string(), "OrderPlaced of Order 42 with trace: 7f3a and a payload that fits the condition given");
/// ```
#[must_use = "hand it to an assertion"]
#[derive(Default)]
pub struct Wanted<'a> {
    id: Option<EventId>,
    /// Any of these; none means every type.
    kinds: Vec<Kind>,
    aggregate_type: Option<String>,
    aggregate_id: Option<String>,
    tenant_id: Option<String>,
    headers: Vec<(String, String)>,
    times: Option<usize>,
    checks: Vec<Check<'a>>,
}

/// An event type, and the aggregate type to which it belongs if that is known: aggregates may share the name of an event.
struct Kind {
    event_type: String,
    aggregate_type: Option<String>,
}

/// A condition of the user's. An error says why it could not be asked.
type Check<'a> = Box<dyn Fn(&Event) -> Result<bool, String> + Send + Sync + 'a>;

/// Whether an event is wanted.
pub(super) enum Fit {
    Fits,
    Other,
    /// It would be the one, but for a payload that cannot be read.
    Unreadable(String),
}

impl<'a> Wanted<'a> {
    /// Any event.
    pub fn any() -> Self {
        Self::default()
    }

    /// An event of this type.
    pub fn event(event_type: impl EventType) -> Self {
        let kind = Kind { event_type: event_type.name().to_owned(), aggregate_type: None };
        Self { kinds: vec![kind], ..Self::default() }
    }

    /// The event with this id.
    pub fn id(id: &EventId) -> Self {
        Self { id: Some(id.clone()), ..Self::default() }
    }

    /// A typed event for which the closure says yes; for a family, any of it.
    pub fn typed<T: TypedEvent>(fits: impl Fn(&T) -> bool + Send + Sync + 'a) -> Self {
        let upcasts = T::upcasts();
        let kind = |(aggregate_type, event_type): (&str, &str)| Kind {
            event_type: event_type.to_owned(),
            aggregate_type: Some(aggregate_type.to_owned()),
        };
        let kinds = upcasts.routes().into_iter().map(kind).collect();
        let read = move |event: &Event| match upcasts.read(event) {
            Ok(payload) => Ok(fits(&payload)),
            Err(error) => Err(crate::listener::chain(&error)),
        };
        Self { kinds, checks: vec![Box::new(read)], ..Self::default() }
    }

    /// Of this aggregate.
    #[expect(clippy::needless_pass_by_value, reason = "as everywhere, numbers and ids are passed by value")]
    pub fn aggregate(mut self, aggregate_type: impl AggregateType, aggregate_id: impl ToString) -> Self {
        self.aggregate_type = Some(aggregate_type.name().to_owned());
        self.aggregate_id = Some(aggregate_id.to_string());
        self
    }

    /// Of this tenant.
    pub fn tenant_id(mut self, tenant_id: impl Into<String>) -> Self {
        self.tenant_id = Some(tenant_id.into());
        self
    }

    /// With this header.
    pub fn header(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((key.into(), value.into()));
        self
    }

    /// With a JSON payload for which the closure says yes.
    pub fn json(self, fits: impl Fn(&serde_json::Value) -> bool + Send + Sync + 'a) -> Self {
        self.check(move |event| match event.decode() {
            Ok(json) => Ok(fits(&json)),
            Err(error) => Err(crate::listener::chain(&error)),
        })
    }

    /// For which the closure says yes, whatever it looks at.
    pub fn that(self, fits: impl Fn(&Event) -> bool + Send + Sync + 'a) -> Self {
        self.check(move |event| Ok(fits(event)))
    }

    /// Exactly so many of them. Default: at least one.
    pub fn times(mut self, times: usize) -> Self {
        self.times = Some(times);
        self
    }

    fn check(mut self, check: impl Fn(&Event) -> Result<bool, String> + Send + Sync + 'a) -> Self {
        self.checks.push(Box::new(check));
        self
    }

    /// Whether so many are as many as are wanted.
    pub(super) fn is_satisfied_by(&self, count: usize) -> bool {
        self.times.map_or(count > 0, |times| count == times)
    }

    pub(super) fn count(&self) -> Option<usize> {
        self.times
    }

    pub(super) fn fit(&self, event: &Event) -> Fit {
        let said = |wanted: &Option<String>, is: Option<&str>| wanted.is_none() || wanted.as_deref() == is;
        let named = self.id.as_ref().is_none_or(|id| id == event.id())
            && (self.kinds.is_empty() || self.kinds.iter().any(|kind| kind.is_of(event)))
            && said(&self.aggregate_type, Some(event.aggregate_type()))
            && said(&self.aggregate_id, event.aggregate_id())
            && said(&self.tenant_id, event.tenant_id())
            && self.headers.iter().all(|(key, value)| event.header(key) == Some(value));
        if !named {
            return Fit::Other;
        }
        for check in &self.checks {
            match check(event) {
                Ok(true) => {}
                Ok(false) => return Fit::Other,
                Err(reason) => return Fit::Unreadable(reason),
            }
        }
        Fit::Fits
    }
}

impl Kind {
    fn is_of(&self, event: &Event) -> bool {
        let aggregate_type = self.aggregate_type.as_deref();
        self.event_type == event.event_type() && aggregate_type.is_none_or(|wanted| wanted == event.aggregate_type())
    }
}

impl From<EventId> for Wanted<'_> {
    fn from(id: EventId) -> Self {
        Self::id(&id)
    }
}

impl From<&EventId> for Wanted<'_> {
    fn from(id: &EventId) -> Self {
        Self::id(id)
    }
}

impl fmt::Display for Wanted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let types: Vec<_> = self.kinds.iter().map(|kind| kind.event_type.as_str()).collect();
        match &*types {
            [] => f.write_str("any event")?,
            types => f.write_str(&types.join(" or "))?,
        }
        if let (Some(aggregate_type), Some(aggregate_id)) = (&self.aggregate_type, &self.aggregate_id) {
            write!(f, " of {aggregate_type} {aggregate_id}")?;
        }
        let id = self.id.iter().map(|id| format!("id {id}"));
        let tenant = self.tenant_id.iter().map(|tenant| format!("tenant {tenant}"));
        let headers = self.headers.iter().map(|(key, value)| format!("{key}: {value}"));
        let checks = self.checks.first().map(|_| "a payload that fits the condition given".to_owned());
        for (n, condition) in id.chain(tenant).chain(headers).chain(checks).enumerate() {
            write!(f, " {} {condition}", if n == 0 { "with" } else { "and" })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Wanted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}
