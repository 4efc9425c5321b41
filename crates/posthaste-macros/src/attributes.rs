//! What `#[event(…)]` says, on a type or on a variant.

use proc_macro2::Span;
use syn::meta::ParseNestedMeta;
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::{Attribute, Error, LitInt, LitStr, Path, Result, Type};

use crate::field::FieldPath;

/// Where an `#[event(…)]` stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Struct,
    Enum,
    Variant,
}

/// What one or more `#[event(…)]` of a type or variant say together.
#[derive(Default)]
pub(crate) struct Attributes {
    pub(crate) event_type: Option<LitStr>,
    pub(crate) version: Option<u32>,
    pub(crate) aggregate: Option<LitStr>,
    pub(crate) key: Option<FieldPath>,
    pub(crate) tenant: Option<FieldPath>,
    pub(crate) topic: Option<LitStr>,
    pub(crate) from: Vec<Type>,
    pub(crate) krate: Option<Path>,
}

impl Attributes {
    pub(crate) fn of(attributes: &[Attribute], place: Place) -> Result<Self> {
        let mut said = Self::default();
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("event")) {
            attribute.parse_nested_meta(|meta| said.take(&meta, place))?;
        }
        Ok(said)
    }

    fn take(&mut self, meta: &ParseNestedMeta<'_>, place: Place) -> Result<()> {
        let name = meta.path.get_ident().map(ToString::to_string).unwrap_or_default();
        match (name.as_str(), place) {
            ("type", Place::Enum) => Err(meta.error("each variant has its own `type`; give it there")),
            ("aggregate" | "crate", Place::Variant) => {
                Err(meta.error(format!("`{name}` is the same for all variants; give it on the enum")))
            }
            ("type", _) => once(&mut self.event_type, meta, |meta| text(meta, "OrderPlaced", 128)),
            ("version", _) => once(&mut self.version, meta, version),
            ("aggregate", _) => once(&mut self.aggregate, meta, |meta| text(meta, "Order", 64)),
            ("key", _) => once(&mut self.key, meta, |meta| text(meta, "id", usize::MAX).and_then(FieldPath::parse)),
            ("tenant", _) => once(&mut self.tenant, meta, |meta| text(meta, "shop", usize::MAX).and_then(FieldPath::parse)),
            ("topic", _) => once(&mut self.topic, meta, |meta| text(meta, "orders", 255)),
            ("crate", _) => once(&mut self.krate, meta, |meta| {
                value(meta, "expected a path without quotes: `crate = posthaste_core`", Path::parse_mod_style)
            }),
            ("from", _) => {
                let old = value(meta, "expected a type without quotes: `from = OrderPlacedV1`", Type::parse)?;
                self.from.push(old);
                Ok(())
            }
            _ => Err(meta.error(
                "there is no such attribute; there are `type`, `version`, `aggregate`, `key`, `tenant`, `topic`, `from` and `crate`",
            )),
        }
    }
}

fn once<T>(
    place: &mut Option<T>,
    meta: &ParseNestedMeta<'_>,
    read: impl FnOnce(&ParseNestedMeta<'_>) -> Result<T>,
) -> Result<()> {
    if place.is_some() {
        return Err(meta.error("this is given twice; remove one of them"));
    }
    *place = Some(read(meta)?);
    Ok(())
}

/// What stands behind `=`, if it can be read.
fn value<T>(meta: &ParseNestedMeta<'_>, expected: &str, read: fn(ParseStream<'_>) -> Result<T>) -> Result<T> {
    let value = meta.value().map_err(|_| Error::new(meta.path.span(), expected))?;
    value.call(read).map_err(|error| Error::new(error.span(), expected))
}

/// A text in quotes that an event can have in the place it is meant for.
fn text(meta: &ParseNestedMeta<'_>, example: &str, limit: usize) -> Result<LitStr> {
    let name = meta.path.get_ident().map(ToString::to_string).unwrap_or_default();
    let in_quotes = |span: Span| Error::new(span, format!("expected a text in quotes: `{name} = \"{example}\"`"));
    let value = meta.value().map_err(|_| in_quotes(meta.path.span()))?;
    let literal: LitStr = value.parse().map_err(|error| in_quotes(error.span()))?;
    let refused = match literal.value() {
        text if text.is_empty() => format!("`{name}` is empty; give it at least one character"),
        text if text == "*" && matches!(name.as_str(), "type" | "aggregate") => {
            format!("`*` stands for any {name} when listening; give this one a name")
        }
        text if text.contains('\0') => {
            format!("`{name}` holds the character U+0000, which not every database can store; remove it")
        }
        text if text.chars().count() > limit => {
            format!("`{name}` has {} characters, the limit is {limit}; shorten it", text.chars().count())
        }
        _ => return Ok(literal),
    };
    Err(Error::new(literal.span(), refused))
}

fn version(meta: &ParseNestedMeta<'_>) -> Result<u32> {
    let expected = |span: Span| Error::new(span, "expected a whole number from 1 on: `version = 2`");
    let value = meta.value().map_err(|_| expected(meta.path.span()))?;
    let literal: LitInt = value.parse().map_err(|error| expected(error.span()))?;
    match literal.base10_parse() {
        Ok(version) if version > 0 => Ok(version),
        _ => Err(expected(literal.span())),
    }
}
