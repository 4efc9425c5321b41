//! What a type looks like as an event, once everything about it has been checked.

use std::collections::HashSet;

use proc_macro2::TokenTree;
use syn::spanned::Spanned;
use syn::{
    Attribute, Data, DeriveInput, Error, Fields, Ident, LitStr, Path, Result, Token, Type, Variant, parse_quote,
};

use crate::attributes::{Attributes, Place};
use crate::field::{Field, FieldPath};

/// A type that is an event.
pub(crate) struct Shape<'a> {
    pub(crate) name: &'a Ident,
    pub(crate) krate: Path,
    pub(crate) aggregate: Option<LitStr>,
    pub(crate) from: Vec<Type>,
    pub(crate) events: Events<'a>,
}

/// One event, or a family of them.
pub(crate) enum Events<'a> {
    One(Event),
    /// With the name of each variant.
    Family(Vec<(&'a Ident, Event)>),
}

/// What is said of one type of event.
pub(crate) struct Event {
    pub(crate) event_type: LitStr,
    pub(crate) version: u32,
    pub(crate) key: Option<Field>,
    pub(crate) tenant: Option<Field>,
    pub(crate) topic: Option<LitStr>,
}

impl<'a> Shape<'a> {
    pub(crate) fn of(input: &'a DeriveInput) -> Result<Self> {
        if !input.generics.params.is_empty() {
            return Err(Error::new(
                input.generics.params.span(),
                "an event cannot be generic, since its type stands for one event type; derive `Event` for a type \
                 without parameters that owns its data",
            ));
        }
        match &input.data {
            Data::Struct(data) => Self::of_struct(input, &data.fields),
            Data::Enum(data) => Self::of_enum(input, data.variants.iter().collect()),
            Data::Union(data) => Err(Error::new(
                data.union_token.span(),
                "a union cannot be an event; derive `Event` for a struct or an enum",
            )),
        }
    }

    fn of_struct(input: &'a DeriveInput, fields: &Fields) -> Result<Self> {
        let mut said = Attributes::of(&input.attrs, Place::Struct)?;
        refuse_on_fields(fields)?;
        key_needs_aggregate(said.key.as_ref(), &said)?;
        let event = Event {
            event_type: event_type(said.event_type.take(), &input.ident)?,
            version: said.version.unwrap_or(1),
            key: said.key.as_ref().map(|key| key.among(fields)).transpose()?,
            tenant: said.tenant.as_ref().map(|tenant| tenant.among(fields)).transpose()?,
            topic: said.topic.take(),
        };
        Ok(Self::new(input, said, Events::One(event)))
    }

    fn of_enum(input: &'a DeriveInput, variants: Vec<&'a Variant>) -> Result<Self> {
        let mut said = Attributes::of(&input.attrs, Place::Enum)?;
        key_needs_aggregate(said.key.as_ref(), &said)?;
        refuse_forms_of_serde(&input.attrs)?;
        if variants.is_empty() {
            return Err(Error::new(input.ident.span(), "a family of events needs at least one variant"));
        }
        // A mistake in one variant does not hide those in others.
        let mut mistakes: Option<Error> = None;
        let mut events = Vec::new();
        let mut seen = HashSet::new();
        for variant in variants {
            let event = member(variant, &mut said).and_then(|event| match seen.insert(event.event_type.value()) {
                true => Ok(event),
                false => Err(Error::new(event.event_type.span(), "another variant has this `type`; give each its own")),
            });
            match (event, &mut mistakes) {
                (Ok(event), _) => events.push((&variant.ident, event)),
                (Err(mistake), Some(mistakes)) => mistakes.combine(mistake),
                (Err(mistake), none) => *none = Some(mistake),
            }
        }
        match mistakes {
            Some(mistakes) => Err(mistakes),
            None => Ok(Self::new(input, said, Events::Family(events))),
        }
    }

    fn new(input: &'a DeriveInput, said: Attributes, events: Events<'a>) -> Self {
        Self {
            name: &input.ident,
            krate: said.krate.unwrap_or_else(|| parse_quote!(::posthaste)),
            aggregate: said.aggregate,
            from: said.from,
            events,
        }
    }
}

fn event_type(said: Option<LitStr>, name: &Ident) -> Result<LitStr> {
    said.ok_or_else(|| {
        let what_to_do = format!("add `#[event(type = \"{name}\")]`, the name under which its events are stored");
        Error::new(name.span(), format!("the event type is missing; {what_to_do}"))
    })
}

/// A variant, which has what its enum has, unless it says otherwise.
fn member(variant: &Variant, family: &mut Attributes) -> Result<Event> {
    let mut said = Attributes::of(&variant.attrs, Place::Variant)?;
    refuse_on_fields(&variant.fields)?;
    refuse_skipping(&variant.attrs)?;
    if matches!(&variant.fields, Fields::Unnamed(fields) if fields.unnamed.len() != 1) {
        let name = &variant.ident;
        return Err(Error::new(
            variant.fields.span(),
            format!(
                "a payload has names for what it holds; name the fields, `{name} {{ … }}`, or put them in a struct, \
                 `{name}(Details)`"
            ),
        ));
    }
    key_needs_aggregate(said.key.as_ref(), family)?;
    family.from.append(&mut said.from);
    Ok(Event {
        event_type: event_type(said.event_type, &variant.ident)?,
        version: said.version.or(family.version).unwrap_or(1),
        key: own_or_inherited("key", said.key.as_ref(), family.key.as_ref(), variant)?,
        tenant: own_or_inherited("tenant", said.tenant.as_ref(), family.tenant.as_ref(), variant)?,
        topic: said.topic.or_else(|| family.topic.clone()),
    })
}

/// The field that the variant names, or else the one that the family names. What has no fields has none of the
/// family's; where there are some, it is not left out unnoticed.
fn own_or_inherited(
    name: &str,
    own: Option<&FieldPath>,
    inherited: Option<&FieldPath>,
    variant: &Variant,
) -> Result<Option<Field>> {
    match (own, inherited) {
        (Some(own), _) => own.among(&variant.fields).map(Some),
        (None, Some(inherited)) if !variant.fields.is_empty() => {
            inherited.among(&variant.fields).map(Some).map_err(|_| {
                let missing = format!("there is no field `{}`, the `{name}` of the family", inherited.first());
                Error::new(
                    variant.ident.span(),
                    format!("{missing}; add it, or give this variant a `{name}` of its own"),
                )
            })
        }
        (None, _) => Ok(None),
    }
}

fn key_needs_aggregate(key: Option<&FieldPath>, said: &Attributes) -> Result<()> {
    match key {
        Some(key) if said.aggregate.is_none() => Err(Error::new(
            key.span(),
            "`key` says which aggregate changed; say also what it is, such as `aggregate = \"Order\"`",
        )),
        _ => Ok(()),
    }
}

fn refuse_on_fields(fields: &Fields) -> Result<()> {
    let misplaced = |attribute: &&Attribute| attribute.path().is_ident("event");
    match fields.iter().flat_map(|field| &field.attrs).find(misplaced) {
        None => Ok(()),
        Some(attribute) => Err(Error::new(
            attribute.path().span(),
            "fields have no `#[event]`; name the field on the type, such as `#[event(key = \"id\")]`",
        )),
    }
}

/// The event type says which variant it is. Forms in which the payload would say so, too, are refused.
fn refuse_forms_of_serde(attributes: &[Attribute]) -> Result<()> {
    refuse_in_serde(
        attributes,
        &["tag", "content", "untagged", "from", "try_from", "into"],
        "in a family the event type says which variant it is; remove this",
    )
}

fn refuse_skipping(attributes: &[Attribute]) -> Result<()> {
    refuse_in_serde(
        attributes,
        &["skip", "skip_serializing", "skip_deserializing", "untagged", "other"],
        "every variant of a family is written and read by its event type; remove this, or move the variant elsewhere",
    )
}

fn refuse_in_serde(attributes: &[Attribute], refused: &[&str], reason: &str) -> Result<()> {
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("serde")) {
        attribute.parse_nested_meta(|meta| {
            if refused.iter().any(|name| meta.path.is_ident(name)) {
                return Err(Error::new(meta.path.span(), reason));
            }
            while !meta.input.is_empty() && !meta.input.peek(Token![,]) {
                let _: TokenTree = meta.input.parse()?;
            }
            Ok(())
        })?;
    }
    Ok(())
}
