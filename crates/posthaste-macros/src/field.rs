//! A field that an attribute names.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::{Error, Fields, Ident, Index, LitStr, Member, Result};

/// A field, or a path to one inside of it, as it was named.
pub(crate) struct FieldPath {
    literal: LitStr,
    members: Vec<Member>,
}

/// A field that exists: how to reach it from the value of the first member.
pub(crate) struct Field {
    literal: LitStr,
    first: Member,
    rest: Vec<Member>,
}

impl FieldPath {
    pub(crate) fn span(&self) -> Span {
        self.literal.span()
    }

    pub(crate) fn parse(literal: LitStr) -> Result<Self> {
        let members = literal.value().split('.').map(|name| member(name, &literal)).collect::<Result<_>>()?;
        Ok(Self { literal, members })
    }

    /// The name of the first field on the path.
    pub(crate) fn first(&self) -> String {
        plain(&self.members[0])
    }

    /// Finds it among the fields. In a newtype, a name is looked up in what it wraps.
    pub(crate) fn among(&self, fields: &Fields) -> Result<Field> {
        let (first, rest) = self.members.split_first().expect("splitting a text gives at least one part");
        let (first, rest) = match (fields, first) {
            (Fields::Unnamed(fields), Member::Named(_)) if fields.unnamed.len() == 1 => {
                (Member::Unnamed(Index::from(0)), self.members.clone())
            }
            // With the spelling of the field itself, which may be raw.
            _ => match fields.members().find(|member| plain(member) == plain(first)) {
                Some(member) => (moved(member, self.literal.span()), rest.to_vec()),
                None => return Err(self.missing(fields)),
            },
        };
        Ok(Field { literal: self.literal.clone(), first, rest })
    }

    fn missing(&self, fields: &Fields) -> Error {
        let there = fields.members().map(|member| format!("`{}`", plain(&member))).collect::<Vec<_>>();
        let there = match there.as_slice() {
            [] => "there are no fields here".to_owned(),
            [one] => format!("there is {one}"),
            [all @ .., last] => format!("there are {} and {last}", all.join(", ")),
        };
        Error::new(self.literal.span(), format!("there is no field `{}`; {there}", self.first()))
    }
}

impl Field {
    /// Its text, where `self` is the value.
    pub(crate) fn text_of_self(&self) -> TokenStream {
        let (first, rest) = (&self.first, &self.rest);
        quote_spanned!(at(self.literal.span())=> ::std::string::ToString::to_string(&self.#first #(.#rest)*))
    }

    /// The pattern of a variant that binds it.
    pub(crate) fn pattern(&self) -> TokenStream {
        let first = &self.first;
        quote!({ #first: __field, .. })
    }

    /// Its text, where the pattern was matched.
    pub(crate) fn text_of_pattern(&self) -> TokenStream {
        let rest = &self.rest;
        quote_spanned!(at(self.literal.span())=> ::std::string::ToString::to_string(&(*__field) #(.#rest)*))
    }
}

fn member(name: &str, literal: &LitStr) -> Result<Member> {
    let refused = || {
        let hint = "name a field, or a path to one, such as \"id\", \"customer.id\" or \"0\"";
        Error::new(literal.span(), format!("`{name}` is not the name of a field; {hint}"))
    };
    if !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit()) {
        let index = name.parse().map_err(|_| refused())?;
        return Ok(Member::Unnamed(Index { index, span: literal.span() }));
    }
    let ident = literal_ident(name, literal).ok_or_else(refused)?;
    Ok(Member::Named(ident))
}

/// The name as an identifier, a raw one if it is a keyword. No field has the name of a keyword that cannot be raw.
fn literal_ident(name: &str, literal: &LitStr) -> Option<Ident> {
    let parsed = syn::parse::Parser::parse_str(Ident::parse_any, name).ok()?.unraw();
    let text = parsed.to_string();
    if matches!(text.as_str(), "self" | "Self" | "super" | "crate" | "_") {
        return None;
    }
    let is_keyword = syn::parse_str::<Ident>(&text).is_err();
    Some(if is_keyword { Ident::new_raw(&text, literal.span()) } else { Ident::new(&text, literal.span()) })
}

/// The same member, so that what is wrong with it is told where it was named.
fn moved(member: Member, to: Span) -> Member {
    match member {
        Member::Named(mut ident) => {
            ident.set_span(to);
            Member::Named(ident)
        }
        Member::Unnamed(index) => Member::Unnamed(Index { span: to, ..index }),
    }
}

/// The place of something that was written, for code that was not: lints leave it alone.
pub(crate) fn at(span: Span) -> Span {
    Span::call_site().located_at(span)
}

/// A member as it is read: without `r#`.
fn plain(member: &Member) -> String {
    match member {
        Member::Named(ident) => ident.unraw().to_string(),
        Member::Unnamed(index) => index.to_token_stream().to_string(),
    }
}
