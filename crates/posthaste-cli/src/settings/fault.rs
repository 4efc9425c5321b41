//! What is wrong with the settings, and where they say so.

use std::fmt;
use std::sync::Arc;

use serde::de::{Expected, Unexpected};

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Nobody has set it.
    Default,
    /// A place in the file; lines and columns count from 1.
    File { path: Arc<str>, line: usize, column: usize },
    /// A variable of the environment.
    Variable(String),
    /// A flag of the command line.
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line, column } => write!(f, "{path}:{line}:{column}"),
            Self::Variable(name) => write!(f, "variable {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// One thing that is wrong: where it stands, which field it is, and what would be right.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    origin: Option<Origin>,
    field: String,
    message: String,
}

impl Fault {
    /// What is wrong with a value.
    pub(crate) fn new(origin: &Origin, field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { origin: Some(origin.clone()), field: field.into(), message: message.into() }
    }

    /// Whether it is about that table, or something in it.
    pub(super) fn is_about(&self, table: &str) -> bool {
        self.field == table || self.place_in(table).is_some()
    }

    /// The field as it is called in that table, if it is in there.
    pub(super) fn place_in(&self, table: &str) -> Option<&str> {
        self.field.strip_prefix(table)?.strip_prefix('.')
    }

    /// Whether it is that nothing may be called as it is.
    pub(super) fn is_of_unknown(&self) -> bool {
        self.message.starts_with("unknown field")
    }

    /// Whether it is that there is nothing called so; without a name, that there is not something.
    pub(super) fn is_of_missing(&self, key: &str) -> bool {
        if key.is_empty() {
            return self.message.contains("missing");
        }
        let words = [
            format!("missing field `{key}`"),
            format!("`{key}` is missing"),
            format!("the {key} is missing"),
            format!("there is no {key}"),
            format!("say with relay.{key}"),
        ];
        words.iter().any(|words| self.message.contains(words))
    }

    /// The same, seen from the table or list that the value is in.
    pub(super) fn within(mut self, key: &str, origin: &Origin) -> Self {
        self.field = match &*self.field {
            "" => key.to_owned(),
            place if place.starts_with('[') => format!("{key}{place}"),
            field => format!("{key}.{field}"),
        };
        self.at(origin)
    }

    /// The same with a place, unless it has a more exact one.
    pub(super) fn at(mut self, origin: &Origin) -> Self {
        self.origin.get_or_insert_with(|| origin.clone());
        self
    }

    /// The same with what to do, if a variable has a name that would be that of something in a table.
    pub(super) fn advised_for(mut self, key: &str) -> Self {
        let is_expected = |part: &&str| self.message.contains(&format!("`{part}`"));
        let mut tables = key.rmatch_indices('_').map(|(at, _)| &key[..at]);
        if matches!(self.origin, Some(Origin::Variable(_)))
            && self.is_of_unknown()
            && let Some(table) = tables.find(is_expected)
        {
            self.message += &format!("; a variable for what is in `{table}` needs that table in the file");
        }
        self
    }

    /// The same with the names that the list in it leaves out, if it has one, and that is of this table: what is in a table of it has a
    /// list of its own.
    pub(super) fn with_more_fields(mut self, table: &str, fields: &str) -> Self {
        let is_of_table = self.place_in(table).is_some_and(|place| !place.contains(['.', '[']));
        if is_of_table && self.is_of_unknown() {
            self.message += &format!("; {fields}");
        }
        self
    }

    /// The same without a text that is nobody's business.
    pub(super) fn without(mut self, secret: &str) -> Self {
        self.message = without(self.message, secret);
        self
    }
}

/// A message without a text that is nobody's business.
pub(super) fn without(message: String, secret: &str) -> String {
    if secret.is_empty() {
        return message;
    }
    // Also as it is shown between quotation marks.
    let shown = format!("{secret:?}");
    message.replace(secret, "…").replace(shown.trim_matches('"'), "…")
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(origin) = &self.origin {
            write!(f, "{origin}: ")?;
        }
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for Fault {}

impl serde::de::Error for Fault {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self { origin: None, field: String::new(), message: message.to_string() }
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::custom(format!("invalid type: {}, expected {}", kind(found), in_words(expected)))
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::custom(format!("invalid value: {}, expected {}", kind(found), in_words(expected)))
    }
}

/// What was found. Not a text itself, which may be a secret that stands where none belongs.
fn kind(found: Unexpected<'_>) -> String {
    match found {
        Unexpected::Str(_) => "a text".to_owned(),
        found => found.to_string(),
    }
}

/// What is expected, in words of a file and not of a program.
fn in_words(expected: &dyn Expected) -> String {
    match expected.to_string() {
        number if ["usize", "u16", "u32", "u64"].contains(&&*number) => "a whole number".to_owned(),
        table if table.starts_with("struct ") => "a table".to_owned(),
        words => words,
    }
}

/// Everything that is wrong. There is at least one fault.
#[derive(Debug)]
pub(crate) struct Faults(Vec<Fault>);

impl Faults {
    /// Nothing, if there are none.
    pub(super) fn check(faults: Vec<Fault>) -> Result<(), Self> {
        if faults.is_empty() { Ok(()) } else { Err(Self(faults)) }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Fault> {
        self.0.iter()
    }
}

impl From<Fault> for Faults {
    fn from(fault: Fault) -> Self {
        Self(vec![fault])
    }
}

/// The first one; who wants to see all has a command for it.
impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, others @ ..] = &*self.0 else { return Ok(()) };
        write!(f, "{first}")?;
        match others.len() {
            0 => Ok(()),
            more => write!(f, " (and {more} more: see posthaste config check)"),
        }
    }
}

impl std::error::Error for Faults {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_fields_are_told_of_the_table_that_has_them_alone() {
        for (field, message, are_told) in [
            ("destination.x.urls", "unknown field `urls`", true),
            ("destination.x.sasl.mechanisms", "unknown field `mechanisms`", false),
            ("destination.x.bindings[2].key", "unknown field `key`", false),
            ("destination.x.bindings[2]", "unknown field `key`", false),
            ("destination.x.url", "invalid type: integer `4`, expected a string", false),
        ] {
            let fault = Fault::new(&Origin::Default, field, message);
            let told = fault.with_more_fields("destination.x", "type is a setting, too").to_string();
            assert_eq!(told.ends_with("; type is a setting, too"), are_told, "{told}");
        }
        let fault = Fault::new(&Origin::Default, "destination.my.shop.urls", "unknown field `urls`");
        let told = fault.with_more_fields("destination.my.shop", "type is a setting, too").to_string();
        assert!(told.ends_with("; type is a setting, too"), "a name may have a dot in it: {told}");
    }
}
