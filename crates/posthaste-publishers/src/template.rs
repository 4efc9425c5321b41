//! Addresses made of what an event says.

use std::borrow::Cow;
use std::fmt;

use posthaste_core::Event;

use crate::address;
use crate::envelope::percent_encoded;

/// An address with places for what an event says: `orders.{event_type}`.
///
/// | place | what it becomes |
/// |---|---|
/// | `{aggregate_type}`, `{aggregate_id}`, `{event_type}`, `{tenant_id}`, `{topic}` | the field of the event |
/// | `{headers.x}` | its header `x` |
/// | `{{`, `}}` | a brace |
///
/// It is checked when it is made. A place that turns out empty is an error of that event, never a surprising address.
///
/// ```
/// use posthaste_core::Event;
/// use posthaste_publishers::Template;
///
/// let template: Template = "shop.{aggregate_type}.{event_type}".parse()?;
/// let event = Event::builder("OrderPlaced").aggregate("Order", 42).json_text("{}").build()?;
/// assert_eq!(template.render(&event)?, "shop.Order.OrderPlaced");
/// assert!("{color}".parse::<Template>().is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Template {
    text: String,
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    AggregateType,
    AggregateId,
    EventType,
    TenantId,
    Topic,
    Header(String),
}

/// What may be put into the places of an address.
///
/// An event must not choose another address than the template means: a tenant called `a.b` would have more words in a subject than
/// others, and one called `../admin` would lead elsewhere on a web server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Places {
    /// Everything, as it is.
    Free,
    /// Addresses are words with this character between. The aggregate id, the tenant and headers are a word, or a part of one,
    /// unless such a place is the whole address. Types and topics are names that programs give, and may be several words.
    Words(char),
    /// Addresses are URLs. A place at the beginning is a URL, or the beginning of one. In the host a place brings letters, digits
    /// and hyphens, and full stops if it is the whole host. Everywhere else it is percent-encoded, and no `.` or `..`.
    Url,
}

/// What is wrong with a template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// There is nothing in it.
    #[error("a template is empty; give an address, such as \"orders\" or \"shop.{{event_type}}\"")]
    Empty,
    /// A place that no event has.
    #[error(
        "the template {template:?} has the place {{{place}}}; there are {{aggregate_type}}, {{aggregate_id}}, \
         {{event_type}}, {{tenant_id}}, {{topic}} and {{headers.NAME}}"
    )]
    UnknownPlace {
        /// The template.
        template: String,
        /// What is between the braces.
        place: String,
    },
    /// A brace without its partner.
    #[error(
        "the template {template:?} has a {brace:?} at character {at} without its partner; write it twice for the sign itself"
    )]
    Brace {
        /// The template.
        template: String,
        /// Which brace.
        brace: char,
        /// Which character of the template it is, from 1 on.
        at: usize,
    },
}

/// An event lacks what a template needs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the template {template:?} needs {place}, which the event does not have; write the event with it, or change the template"
)]
pub struct EmptyPlace {
    /// The template.
    pub template: String,
    /// What is between the braces.
    pub place: String,
}

/// Why there is no address for an event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The event lacks what the template needs.
    #[error(transparent)]
    Empty(#[from] EmptyPlace),
    /// What the event has there would make another address of it.
    #[error("{place} of the event does not fit into the template {template:?}: {reason}")]
    Unfit {
        /// The template.
        template: String,
        /// What is between the braces.
        place: String,
        /// Why it does not fit.
        reason: String,
    },
}

impl Template {
    /// The address for an event, with whatever the event has in its places.
    ///
    /// # Errors
    /// When the event lacks one of its places, or has nothing in it.
    pub fn render(&self, event: &Event) -> Result<String, EmptyPlace> {
        self.filled(event, |_, _, value| Ok(Cow::Borrowed(value)))
    }

    /// The address for an event where places have rules.
    ///
    /// # Errors
    /// When the event lacks one of its places, or has in it what may not be there.
    pub fn address(&self, places: Places, event: &Event) -> Result<String, AddressError> {
        self.filled(event, |before, at, value| {
            let fitted = match places {
                Places::Free => Ok(Cow::Borrowed(value)),
                Places::Words(between) => self.as_word(at, value, between),
                Places::Url => self.as_part_of_url(before, at, value),
            };
            let unfit = |reason: String| {
                let (template, place) = (address::brief(&self.text).into_owned(), self.parts[at].to_string());
                AddressError::Unfit { template, place, reason }
            };
            fitted.map_err(unfit)
        })
    }

    /// Puts together what the places become, given what is before each, and which part of the template it is.
    fn filled<'e, E: From<EmptyPlace>>(
        &self,
        event: &'e Event,
        mut fit: impl FnMut(&str, usize, &'e str) -> Result<Cow<'e, str>, E>,
    ) -> Result<String, E> {
        let mut address = String::with_capacity(self.text.len() + 32);
        for (at, part) in self.parts.iter().enumerate() {
            let value = match part {
                Part::Text(text) => {
                    address.push_str(text);
                    continue;
                }
                Part::AggregateType => Some(event.aggregate_type()),
                Part::AggregateId => event.aggregate_id(),
                Part::EventType => Some(event.event_type()),
                Part::TenantId => event.tenant_id(),
                Part::Topic => event.topic(),
                Part::Header(name) => event.header(name),
            };
            let Some(value) = value.filter(|value| !value.is_empty()) else {
                let template = address::brief(&self.text).into_owned();
                return Err(EmptyPlace { template, place: part.to_string() }.into());
            };
            let value = fit(&address, at, value)?;
            address.push_str(&value);
        }
        Ok(address)
    }

    fn as_word<'e>(&self, at: usize, value: &'e str, between: char) -> Result<Cow<'e, str>, String> {
        // RabbitMQ has two addresses in one, with a control character between.
        let is_edge = |part: Option<&Part>, edge: fn(&str) -> Option<char>| match part {
            None => true,
            Some(Part::Text(text)) => edge(text).is_some_and(char::is_control),
            Some(_) => false,
        };
        let before = at.checked_sub(1).and_then(|before| self.parts.get(before));
        let is_whole = is_edge(before, |text| text.chars().next_back())
            && is_edge(self.parts.get(at + 1), |text| text.chars().next());
        let is_name = matches!(self.parts[at], Part::AggregateType | Part::EventType | Part::Topic);
        if value.contains(char::is_control) {
            return Err("it has a control character in it".to_owned());
        }
        if !is_whole && !is_name && value.contains(between) {
            return Err(format!(
                "it has a {between:?} in it, and would be several words of the address; write the event without"
            ));
        }
        Ok(Cow::Borrowed(value))
    }

    fn as_part_of_url<'e>(&self, before: &str, at: usize, value: &'e str) -> Result<Cow<'e, str>, String> {
        const ENDS_OF_HOST: [char; 4] = ['/', '?', '#', '\\'];
        if at == 0 {
            return Ok(Cow::Borrowed(value));
        }
        let behind_scheme = before.split_once("://").map(|(_, rest)| rest);
        if behind_scheme.is_some_and(|rest| !rest.contains(ENDS_OF_HOST)) {
            let next = self.parts.get(at + 1);
            let is_whole = before.ends_with("://")
                && match next {
                    None => true,
                    Some(Part::Text(text)) => text.starts_with(ENDS_OF_HOST) || text.starts_with(':'),
                    Some(_) => false,
                };
            let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || (is_whole && c == '.');
            return if value.chars().all(fits) {
                Ok(Cow::Borrowed(value))
            } else {
                Err("a host is made of letters, digits and hyphens".to_owned())
            };
        }
        let in_path = behind_scheme.is_none_or(|rest| !rest.contains(['?', '#']));
        if in_path && matches!(value, "." | "..") {
            return Err("it leads to another path".to_owned());
        }
        let encoded = percent_encoded(value, |c| c.is_ascii_alphanumeric() || "-._~".contains(c));
        Ok(Cow::Owned(encoded))
    }

    /// An address as it may look, with `x` in each place.
    pub fn example(&self) -> String {
        let text = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            _ => "x".to_owned(),
        };
        self.parts.iter().map(text).collect()
    }

    /// Whether its beginning depends on the event.
    pub fn begins_with_place(&self) -> bool {
        !matches!(self.parts.first(), None | Some(Part::Text(_)))
    }

    /// Whether it is the same address for every event.
    pub fn is_fixed(&self) -> bool {
        self.fixed().is_some()
    }

    /// The address, if it is the same for every event.
    pub(crate) fn fixed(&self) -> Option<&str> {
        match self.parts.as_slice() {
            [Part::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl std::str::FromStr for Template {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, TemplateError> {
        if text.is_empty() {
            return Err(TemplateError::Empty);
        }
        let lonely =
            |brace, at| TemplateError::Brace { template: address::brief(text).into_owned(), brace, at: at + 1 };
        let (mut parts, mut literal) = (Vec::new(), String::new());
        let mut rest = text.chars().enumerate().peekable();
        while let Some((at, next)) = rest.next() {
            match next {
                '{' | '}' if rest.next_if(|(_, following)| *following == next).is_some() => literal.push(next),
                '}' => return Err(lonely('}', at)),
                '{' => {
                    let mut place = String::new();
                    loop {
                        match rest.next() {
                            Some((_, '}')) => break,
                            Some((_, inside)) if inside != '{' => place.push(inside),
                            _ => return Err(lonely('{', at)),
                        }
                    }
                    if !literal.is_empty() {
                        parts.push(Part::Text(std::mem::take(&mut literal)));
                    }
                    parts.push(Part::of(text, place)?);
                }
                other => literal.push(other),
            }
        }
        if !literal.is_empty() {
            parts.push(Part::Text(literal));
        }
        Ok(Self { text: text.to_owned(), parts })
    }
}

impl Part {
    fn of(template: &str, place: String) -> Result<Self, TemplateError> {
        Ok(match place.as_str() {
            "aggregate_type" => Self::AggregateType,
            "aggregate_id" => Self::AggregateId,
            "event_type" => Self::EventType,
            "tenant_id" => Self::TenantId,
            "topic" => Self::Topic,
            other => match other.strip_prefix("headers.") {
                Some(name) if !name.is_empty() => Self::Header(name.to_owned()),
                _ => {
                    return Err(TemplateError::UnknownPlace { template: address::brief(template).into_owned(), place });
                }
            },
        })
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text(_) => "text",
            Self::AggregateType => "aggregate_type",
            Self::AggregateId => "aggregate_id",
            Self::EventType => "event_type",
            Self::TenantId => "tenant_id",
            Self::Topic => "topic",
            Self::Header(name) => return write!(f, "headers.{name}"),
        })
    }
}

/// Of a URL only where it leads to: what follows may be secret.
impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Template").field(&address::brief(&self.text)).finish()
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> Event {
        let event = Event::builder("OrderPlaced").aggregate("Order", 42).tenant_id("acme").topic("orders");
        event.header("region", "eu").header("nothing", "").json_text("{}").build().unwrap()
    }

    fn rendered(template: &str) -> Result<String, EmptyPlace> {
        template.parse::<Template>().unwrap().render(&event())
    }

    #[test]
    fn every_place_is_filled() {
        let all = "{aggregate_type}/{aggregate_id}/{event_type}/{tenant_id}/{topic}/{headers.region}";
        assert_eq!(rendered(all).unwrap(), "Order/42/OrderPlaced/acme/orders/eu");
        assert_eq!(rendered("plain").unwrap(), "plain");
        assert_eq!(rendered("{{{topic}}}").unwrap(), "{orders}");
        assert_eq!(rendered("a}}{{b").unwrap(), "a}{b");
    }

    #[test]
    fn what_an_event_lacks_is_an_error_that_names_it() {
        for (template, place) in [("{headers.none}", "headers.none"), ("x{headers.nothing}y", "headers.nothing")] {
            let error = rendered(template).unwrap_err();
            assert_eq!((error.template.as_str(), error.place.as_str()), (template, place));
        }
        let bare = Event::of_json("Tick", "{}").unwrap();
        for place in ["aggregate_id", "tenant_id", "topic"] {
            let template: Template = format!("{{{place}}}").parse().unwrap();
            assert_eq!(template.render(&bare).unwrap_err().place, place);
        }
    }

    #[test]
    fn a_wrong_template_is_refused_with_the_way_out() {
        let refused = |template: &str| template.parse::<Template>().unwrap_err().to_string();
        assert!(refused("").contains("is empty"));
        assert!(refused("{color}").contains("{color}; there are {aggregate_type}"));
        assert!(refused("{headers.}").contains("{headers.}"));
        assert!(refused("{}").contains("{}"));
        assert!(refused("ab{topic").contains("'{' at character 3"));
        assert!(refused("ab}").contains("'}' at character 3"));
        assert!(refused("{a{topic}}").contains("'{' at character 1"));
    }

    fn addressed(template: &str, places: Places, value: &str) -> Result<String, String> {
        let event = Event::builder("order.placed").aggregate("Order", value).tenant_id(value).topic("a.b/c");
        let event = event.header("x", value).json_text("{}").build().unwrap();
        template.parse::<Template>().unwrap().address(places, &event).map_err(|error| error.to_string())
    }

    #[test]
    fn data_is_one_word_of_an_address_and_names_may_be_several() {
        for (template, value, address) in [
            ("events.{tenant_id}.{event_type}", "acme", Some("events.acme.order.placed")),
            ("events.{tenant_id}.{event_type}", "a.b", None),
            ("events.{aggregate_id}", "a/b", Some("events.a/b")),
            ("{headers.x}s", "a.b", None),
            ("{headers.x}", "a.b", Some("a.b")),
            ("exchange\0{headers.x}", "a.b", Some("exchange\0a.b")),
            ("{headers.x}\0key", "a.b", Some("a.b\0key")),
            ("exchange\0x{headers.x}", "a.b", None),
            ("exchange\0{headers.x}", "a\nb", None),
            ("x.{topic}", "-", Some("x.a.b/c")),
        ] {
            assert_eq!(
                addressed(template, Places::Words('.'), value).ok().as_deref(),
                address,
                "{template} of {value}"
            );
        }
        assert!(addressed("a/{tenant_id}/b", Places::Words('/'), "x/y").unwrap_err().contains("has a '/' in it"));
        assert_eq!(addressed("a/{tenant_id}", Places::Words('/'), "x.y").unwrap(), "a/x.y");
        assert_eq!(addressed("a.{tenant_id}", Places::Free, "x.y").unwrap(), "a.x.y");
    }

    #[test]
    fn an_event_does_not_choose_where_a_url_leads() {
        for (template, value, address) in [
            ("https://{tenant_id}.hooks.example/x", "acme", Some("https://acme.hooks.example/x")),
            ("https://{tenant_id}.hooks.example/x", "evil.example/", None),
            ("https://{tenant_id}.hooks.example/x", "evil.example#", None),
            ("https://{tenant_id}.hooks.example/x", "user@evil", None),
            ("https://{tenant_id}.hooks.example/x", "evil.example", None),
            ("https://{tenant_id}/x", "acme.example", Some("https://acme.example/x")),
            ("https://{tenant_id}:8443", "acme.example", Some("https://acme.example:8443")),
            ("https://{tenant_id}/x", "acme.example:1", None),
            ("https://{tenant_id}", "acme.example/x", None),
            ("https://a.example\\{tenant_id}", "../b", Some("https://a.example\\..%2Fb")),
            ("https://a.example/{tenant_id}", "../admin", Some("https://a.example/..%2Fadmin")),
            ("https://a.example/{tenant_id}", "a?x=1", Some("https://a.example/a%3Fx%3D1")),
            ("https://a.example/{tenant_id}", "a#b%2F", Some("https://a.example/a%23b%252F")),
            ("https://a.example/{tenant_id}", "größe", Some("https://a.example/gr%C3%B6%C3%9Fe")),
            ("https://a.example/{tenant_id}/x", "..", None),
            ("https://a.example/.{tenant_id}/x", ".", None),
            ("https://a.example/x?of={tenant_id}", "..", Some("https://a.example/x?of=..")),
            ("https://a.example/x?of={tenant_id}", "a&b=c", Some("https://a.example/x?of=a%26b%3Dc")),
            ("{tenant_id}", "https://b.example/a?b=c", Some("https://b.example/a?b=c")),
            ("{tenant_id}/{tenant_id}", "https://b.example", Some("https://b.example/https%3A%2F%2Fb.example")),
        ] {
            assert_eq!(addressed(template, Places::Url, value).ok().as_deref(), address, "{template} of {value}");
        }
    }

    #[test]
    fn of_a_url_only_where_it_leads_to_is_shown() {
        let secret = "https://me:pass@hooks.example/T0/{headers.none}?token=hush";
        let template: Template = secret.parse().unwrap();
        assert_eq!(template.as_str(), secret);
        assert_eq!(template.example(), "https://me:pass@hooks.example/T0/x?token=hush");
        let lacking = template.render(&event()).unwrap_err();
        assert_eq!(lacking.template, "https://hooks.example/…");
        let wrong = format!("{secret}{{color}}").parse::<Template>().unwrap_err();
        let unfit = "https://hooks.example/{topic}?token=hush".parse::<Template>().unwrap();
        let odd = Event::builder("E").topic("..").json_text("{}").build().unwrap();
        let unfit = unfit.address(Places::Url, &odd).unwrap_err();
        for shown in [format!("{template:?}"), lacking.to_string(), wrong.to_string(), unfit.to_string()] {
            let hidden = !["pass", "T0", "hush"].iter().any(|secret| shown.contains(secret));
            assert!(shown.contains("https://hooks.example/…") && hidden, "{shown}");
        }
    }
}
