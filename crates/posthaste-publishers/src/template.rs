//! Addresses made of what an event says.

use std::fmt;

use posthaste_core::Event;

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
#[derive(Clone, Debug, PartialEq, Eq)]
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

impl Template {
    /// The address for an event.
    ///
    /// # Errors
    /// When the event lacks one of its places, or has nothing in it.
    pub fn render(&self, event: &Event) -> Result<String, EmptyPlace> {
        if let Some(text) = self.fixed() {
            return Ok(text.to_owned());
        }
        let mut address = String::with_capacity(self.text.len() + 32);
        for part in &self.parts {
            let value = match part {
                Part::Text(text) => Some(text.as_str()),
                Part::AggregateType => Some(event.aggregate_type()),
                Part::AggregateId => event.aggregate_id(),
                Part::EventType => Some(event.event_type()),
                Part::TenantId => event.tenant_id(),
                Part::Topic => event.topic(),
                Part::Header(name) => event.header(name),
            };
            match value.filter(|value| !value.is_empty()) {
                Some(value) => address.push_str(value),
                None => return Err(EmptyPlace { template: self.text.clone(), place: part.to_string() }),
            }
        }
        Ok(address)
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
        let lonely = |brace, at| TemplateError::Brace { template: text.to_owned(), brace, at: at + 1 };
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
                _ => return Err(TemplateError::UnknownPlace { template: template.to_owned(), place }),
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
}
