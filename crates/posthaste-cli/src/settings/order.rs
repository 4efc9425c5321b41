//! What is delivered in order, and what an event that cannot be delivered does to those behind it.

use std::fmt;

use posthaste::{OnDead, Ordered};
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::fault::{Fault, Origin};
use super::value::{Kind, Value};

/// What a relay delivers in order. Nothing, unless it is said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) ordered: Option<Ordered>,
    /// Where the route does not say.
    pub(crate) on_dead: Policy,
}

/// `true`, `false`, or the types: a list of them, or a text with commas, which is all that variables and flags have.
struct Which(Option<Ordered>);

impl<'de> Deserialize<'de> for Which {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Which;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false, or a list of aggregate types")
            }

            fn visit_bool<E: serde::de::Error>(self, all: bool) -> Result<Which, E> {
                Ok(Which(all.then_some(Ordered::All)))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Which, E> {
                match text.trim() {
                    "true" => self.visit_bool(true),
                    "false" => self.visit_bool(false),
                    types => of_types(types.split(',').map(|name| name.trim().to_owned()).collect()),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Which, A::Error> {
                let mut types = Vec::new();
                while let Some(name) = list.next_element()? {
                    types.push(name);
                }
                of_types(types)
            }
        }
        deserializer.deserialize_any(Any)
    }
}

fn of_types<E: serde::de::Error>(types: Vec<String>) -> Result<Which, E> {
    if types.is_empty() {
        return Err(E::custom("the list is empty; say true for all aggregates, or name types of them"));
    }
    if types.iter().any(String::is_empty) {
        return Err(E::custom("a type has no name"));
    }
    Ok(Which(Some(Ordered::types(types))))
}

/// What becomes of an aggregate with an event that cannot be delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Policy {
    #[default]
    Park,
    Block,
    Skip,
}

impl Policy {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Park => "park",
            Self::Block => "block",
            Self::Skip => "skip",
        }
    }
}

impl From<Policy> for OnDead {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::Park => Self::Park,
            Policy::Block => Self::Block,
            Policy::Skip => Self::Skip,
        }
    }
}

impl Order {
    /// Takes it out of the settings of the relay, the rest of which are options of the library.
    pub(super) fn take(relay: &mut Value) -> Result<Self, Fault> {
        let Kind::Table(table) = &mut relay.kind else { return Ok(Self::default()) };
        let (ordered, on_dead) = (table.take("ordered"), table.take("on_dead"));
        let which = ordered.map(|value| value.read::<Which>("relay.ordered")).transpose()?;
        let which = which.and_then(|Which(ordered)| ordered);
        if let (None, Some(value)) = (&which, &on_dead) {
            return Err(without_order(&value.origin, "relay.on_dead"));
        }
        let policy = on_dead.map(|value| value.read("relay.on_dead")).transpose()?;
        Ok(Self { ordered: which, on_dead: policy.unwrap_or_default() })
    }

    /// As it would stand in the file.
    pub(crate) fn shown(&self) -> String {
        match &self.ordered {
            Some(Ordered::All) => "true".to_owned(),
            Some(Ordered::Types(types)) => format!("{types:?}"),
            _ => "false".to_owned(),
        }
    }
}

pub(super) fn without_order(origin: &Origin, field: &str) -> Fault {
    let message = "this means something only for what is delivered in order; say with relay.ordered what is";
    Fault::new(origin, field, message)
}
