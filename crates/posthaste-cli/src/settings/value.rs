//! Values that know where they come from, and what is made of them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::de::value::StrDeserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error as _, IntoDeserializer, MapAccess, SeqAccess, Visitor,
};
use serde::forward_to_deserialize_any;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::fault::{Fault, Origin};

/// A value, and where it comes from.
#[derive(Clone)]
pub(crate) struct Value {
    pub(crate) origin: Origin,
    pub(crate) kind: Kind,
}

#[derive(Clone)]
pub(crate) enum Kind {
    Text(String),
    /// Of a variable or a flag, which have text only: a number if one is wanted.
    Untyped(String),
    /// What a reference led to.
    Secret {
        text: String,
        reference: String,
    },
    Integer(i64),
    Float(f64),
    Bool(bool),
    List(Vec<Value>),
    Table(Table),
}

/// A table: each value with the place of its key.
#[derive(Clone, Default)]
pub(crate) struct Table(BTreeMap<String, (Origin, Value)>);

impl Table {
    /// Reads a file.
    pub(super) fn parse(path: &str, text: &str) -> Result<Self, Fault> {
        let places = Places { path: path.into(), text };
        let table = DeTable::parse(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let message = error.message().lines().collect::<Vec<_>>().join("; ");
            Fault::new(&places.of(at), "", format!("this is no TOML: {message}"))
        })?;
        places.table(table.get_ref())
    }

    pub(super) fn iter_values(&self) -> impl Iterator<Item = &Value> {
        self.0.values().map(|(_, value)| value)
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key).map(|(_, value)| value)
    }

    pub(crate) fn get_mut(&mut self, key: &str) -> Option<&mut Value> {
        self.0.get_mut(key).map(|(_, value)| value)
    }

    pub(crate) fn set(&mut self, key: &str, value: Value) {
        self.0.insert(key.to_owned(), (value.origin.clone(), value));
    }

    pub(crate) fn take(&mut self, key: &str) -> Option<Value> {
        self.0.remove(key).map(|(_, value)| value)
    }

    /// The table of that name, which is made if it is not there.
    pub(super) fn table_mut(&mut self, key: &str) -> Option<&mut Table> {
        let empty = Value { origin: Origin::Default, kind: Kind::Table(Table::default()) };
        match &mut self.0.entry(key.to_owned()).or_insert_with(|| (Origin::Default, empty)).1.kind {
            Kind::Table(table) => Some(table),
            _ => None,
        }
    }

    /// What is in it, with the places of the keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Origin, &Value)> {
        self.0.iter().map(|(key, (origin, value))| (&**key, origin, value))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&str, &mut Value)> {
        self.0.iter_mut().map(|(key, (_, value))| (&**key, value))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Turns offsets of a file into places.
struct Places<'a> {
    path: Arc<str>,
    text: &'a str,
}

impl Places<'_> {
    fn of(&self, offset: usize) -> Origin {
        let before = self.text.get(..offset).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Origin::File { path: Arc::clone(&self.path), line, column }
    }

    fn table(&self, table: &DeTable<'_>) -> Result<Table, Fault> {
        let mut entries = BTreeMap::new();
        for (key, value) in table {
            let at = self.of(key.span().start);
            let value = self.value(value, &at).map_err(|fault| fault.within(key.get_ref(), &at))?;
            entries.insert(key.get_ref().to_string(), (at, value));
        }
        Ok(Table(entries))
    }

    fn value(&self, value: &Spanned<DeValue<'_>>, key: &Origin) -> Result<Value, Fault> {
        let origin = self.of(value.span().start);
        let kind = match value.get_ref() {
            DeValue::String(text) => Kind::Text(text.to_string()),
            DeValue::Integer(number) => Kind::Integer(
                i64::from_str_radix(&number.as_str().replace('_', ""), number.radix())
                    .map_err(|_| Fault::new(&origin, "", "this number is too large"))?,
            ),
            DeValue::Float(number) => Kind::Float(
                number
                    .as_str()
                    .replace('_', "")
                    .parse()
                    .map_err(|_| Fault::new(&origin, "", "this is no number that can be used"))?,
            ),
            DeValue::Boolean(truth) => Kind::Bool(*truth),
            DeValue::Datetime(moment) => Kind::Text(moment.to_string()),
            DeValue::Array(list) => {
                let place = |value: &Spanned<DeValue<'_>>| self.of(value.span().start);
                Kind::List(list.iter().map(|value| self.value(value, &place(value))).collect::<Result<_, _>>()?)
            }
            // A table has no place of its own where its header is: that of its name is meant.
            DeValue::Table(table) => {
                return Ok(Value { origin: key.clone(), kind: Kind::Table(self.table(table)?) });
            }
        };
        Ok(Value { origin, kind })
    }
}

impl Value {
    /// What a variable or a flag says.
    pub(super) fn untyped(text: impl Into<String>, origin: Origin) -> Self {
        Self { origin, kind: Kind::Untyped(text.into()) }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        match &self.kind {
            Kind::Text(text) | Kind::Untyped(text) | Kind::Secret { text, .. } => Some(text),
            _ => None,
        }
    }

    pub(crate) fn as_table(&self) -> Option<&Table> {
        match &self.kind {
            Kind::Table(table) => Some(table),
            _ => None,
        }
    }

    /// Whether something in it is to be found in that variable.
    pub(super) fn refers_to(&self, variable: &str) -> bool {
        match &self.kind {
            Kind::Text(text) | Kind::Untyped(text) => text.strip_prefix("env:") == Some(variable),
            Kind::Secret { reference, .. } => reference.strip_prefix("env:") == Some(variable),
            Kind::List(list) => list.iter().any(|value| value.refers_to(variable)),
            Kind::Table(table) => table.iter_values().any(|value| value.refers_to(variable)),
            _ => false,
        }
    }

    /// All secrets in it.
    pub(super) fn secrets(&self) -> Vec<String> {
        match &self.kind {
            Kind::Secret { text, .. } => vec![text.clone()],
            Kind::List(list) => list.iter().flat_map(Value::secrets).collect(),
            Kind::Table(table) => table.iter().flat_map(|(_, _, value)| value.secrets()).collect(),
            _ => Vec::new(),
        }
    }

    /// One of a list.
    pub(crate) fn item(&self, at: usize) -> Option<&Value> {
        match &self.kind {
            Kind::List(list) => list.get(at),
            _ => None,
        }
    }

    /// Where one of a list stands.
    pub(crate) fn place(&self, at: usize) -> &Origin {
        match &self.kind {
            Kind::List(list) => list.get(at).map_or(&self.origin, |value| &value.origin),
            _ => &self.origin,
        }
    }

    /// Makes a value of the program of it. The field is what it is called in full.
    pub(crate) fn read<T: DeserializeOwned>(&self, field: &str) -> Result<T, Fault> {
        T::deserialize(Reader(self)).map_err(|fault| fault.within(field, &self.origin))
    }
}

impl Value {
    /// Reads a table, and where something in it is wrong, reads it again without that, so that all of it is found. Nothing if there
    /// was a fault, also if it is among those that are known already.
    pub(super) fn read_through<T>(
        &self,
        field: &str,
        faults: &mut Vec<Fault>,
        read: impl Fn(&Self) -> Result<T, Fault>,
    ) -> Option<T> {
        let (mut rest, mut taken, mut is_misnamed) = (self.clone(), Vec::new(), false);
        for known in faults.iter().filter_map(|fault| fault.place_in(field)) {
            taken.extend(rest.remove(known));
        }
        loop {
            let fault = match read(&rest) {
                Ok(value) => return taken.is_empty().then_some(value),
                Err(fault) => fault,
            };
            // What was taken away is missing, which is no fault of its own; and what is called wrong may be what is missing.
            if taken.iter().any(|key| fault.is_of_missing(key)) || is_misnamed && fault.is_of_missing("") {
                return None;
            }
            is_misnamed |= fault.is_of_unknown();
            let removed = fault.place_in(field).and_then(|place| rest.remove(place));
            faults.push(fault);
            taken.push(removed?);
        }
    }

    /// Takes away what is at a place such as `match.headers` or `to[2]`: as little as can be. Says what it was called.
    fn remove(&mut self, place: &str) -> Option<String> {
        let Kind::Table(table) = &mut self.kind else { return None };
        let fits = |key: &&String| {
            place.strip_prefix(&***key).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        // A key may have a dot in it.
        let key = table.0.keys().filter(fits).max_by_key(|key| key.len())?.clone();
        let within = place[key.len()..].strip_prefix('.');
        let inner = within.and_then(|within| table.get_mut(&key)?.remove(within));
        if inner.is_none() {
            table.take(&key);
        }
        inner.or(Some(key))
    }
}

/// Reads a value by serde.
#[derive(Clone, Copy)]
struct Reader<'a>(&'a Value);

/// What numbers and truths of variables and flags are read with.
macro_rules! untyped {
    ($($method:ident: $type:ty => $visit:ident, $expected:literal;)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
            match &self.0.kind {
                Kind::Untyped(text) => match text.trim().parse::<$type>() {
                    Ok(value) => visitor.$visit(value),
                    Err(_) => Err(Fault::custom(concat!("must be ", $expected))),
                },
                _ => self.deserialize_any(visitor),
            }
        }
    )*};
}

impl<'de> Deserializer<'de> for Reader<'_> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.0.kind {
            Kind::Text(text) | Kind::Untyped(text) => visitor.visit_str(text),
            Kind::Secret { text, .. } => visitor.visit_str(text).map_err(|fault: Fault| fault.without(text)),
            Kind::Integer(number) => match u64::try_from(*number) {
                Ok(number) => visitor.visit_u64(number),
                Err(_) => visitor.visit_i64(*number),
            },
            Kind::Float(number) => visitor.visit_f64(*number),
            Kind::Bool(truth) => visitor.visit_bool(*truth),
            Kind::List(list) => visitor.visit_seq(Items { items: list.iter(), next: 1 }),
            Kind::Table(table) => visitor.visit_map(Entries { entries: table.0.iter(), current: None }),
        }
        .map_err(|fault| fault.at(&self.0.origin))
    }

    untyped! {
        deserialize_bool: bool => visit_bool, "true or false";
        deserialize_u8: u8 => visit_u8, "a whole number, such as 8";
        deserialize_u16: u16 => visit_u16, "a whole number, such as 8";
        deserialize_u32: u32 => visit_u32, "a whole number, such as 8";
        deserialize_u64: u64 => visit_u64, "a whole number, such as 8";
        deserialize_i8: i8 => visit_i8, "a whole number, such as 8";
        deserialize_i16: i16 => visit_i16, "a whole number, such as 8";
        deserialize_i32: i32 => visit_i32, "a whole number, such as 8";
        deserialize_i64: i64 => visit_i64, "a whole number, such as 8";
        deserialize_f32: f32 => visit_f32, "a number";
        deserialize_f64: f64 => visit_f64, "a number";
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        match self.0.text() {
            Some(text) => {
                let reader: StrDeserializer<'_, Fault> = text.into_deserializer();
                let read = reader.deserialize_enum(name, variants, visitor);
                // What is not among the variants is told.
                read.map_err(
                    |fault| if matches!(self.0.kind, Kind::Secret { .. }) { fault.without(text) } else { fault },
                )
            }
            None => self.deserialize_any(visitor),
        }
    }

    forward_to_deserialize_any! {
        i128 u128 char str string bytes byte_buf unit unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

struct Items<'a> {
    items: std::slice::Iter<'a, Value>,
    /// The place of the next one; the first is 1.
    next: usize,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = Fault;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Fault> {
        let Some(value) = self.items.next() else { return Ok(None) };
        let place = format!("[{}]", self.next);
        self.next += 1;
        seed.deserialize(Reader(value)).map(Some).map_err(|fault| fault.within(&place, &value.origin))
    }
}

struct Entries<'a> {
    entries: std::collections::btree_map::Iter<'a, String, (Origin, Value)>,
    current: Option<(&'a str, &'a Value)>,
}

impl<'de> MapAccess<'de> for Entries<'_> {
    type Error = Fault;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Fault> {
        let Some((key, (origin, value))) = self.entries.next() else { return Ok(None) };
        self.current = Some((key, value));
        let name: StrDeserializer<'_, Fault> = key.as_str().into_deserializer();
        seed.deserialize(name).map(Some).map_err(|fault| fault.within(key, origin).advised_for(key))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Fault> {
        let (key, value) = self.current.take().expect("a value is asked for after its key");
        seed.deserialize(Reader(value)).map_err(|fault| fault.within(key, &value.origin))
    }
}

/// As it would stand in a file, on one line; secrets as what they refer to.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Text(text) | Kind::Untyped(text) => write!(f, "{text:?}"),
            Kind::Secret { reference, .. } => write!(f, "{reference:?}"),
            Kind::Integer(number) => write!(f, "{number}"),
            Kind::Float(number) => write!(f, "{number:?}"),
            Kind::Bool(truth) => write!(f, "{truth}"),
            Kind::List(list) => {
                let items: Vec<String> = list.iter().map(Value::to_string).collect();
                write!(f, "[{}]", items.join(", "))
            }
            Kind::Table(table) => {
                let entries: Vec<String> = table.iter().map(|(key, _, value)| format!("{key} = {value}")).collect();
                write!(f, "{{ {} }}", entries.join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Mechanism {
        Plain,
    }

    #[test]
    fn a_secret_in_place_of_one_of_a_few_names_is_not_told() {
        let secret = |text: &str| Value {
            origin: Origin::Default,
            kind: Kind::Secret { text: text.to_owned(), reference: "env:KAFKA_PASSWORD".to_owned() },
        };
        let fault = secret("hunter2").read::<Mechanism>("sasl.mechanism").unwrap_err().to_string();
        assert!(fault.contains("sasl.mechanism: ") && fault.contains("plain") && !fault.contains("hunter2"), "{fault}");
        assert!(matches!(secret("plain").read("sasl.mechanism"), Ok(Mechanism::Plain)));
    }
}
