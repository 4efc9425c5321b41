//! The code that makes a type an event.

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Ident, LitInt, LitStr, Type};

use crate::field::{Field, at};
use crate::shape::{Event, Events, Shape};

pub(crate) fn expand(shape: &Shape<'_>) -> TokenStream {
    let Shape { name, krate, .. } = shape;
    let aggregate =
        shape.aggregate.as_ref().map(|name| quote!(const AGGREGATE_TYPE: &'static ::core::primitive::str = #name;));
    let events = match &shape.events {
        Events::One(event) => one(event, shape),
        Events::Family(events) => family(events, shape),
    };
    let upcasts = upcasts(shape);
    let told_apart = shape.from.iter().map(|old| told_apart(old, shape));
    quote! {
        // What must no longer be written is still read.
        #[automatically_derived]
        #[allow(deprecated)]
        impl #krate::event::TypedEvent for #name {
            #aggregate
            #events
            #upcasts
        }

        #[automatically_derived]
        #[allow(deprecated)]
        impl #krate::event::IntoEvent for &#name {
            fn into_event(self) -> ::core::result::Result<#krate::event::Event, #krate::event::Error> {
                #krate::event::TypedEvent::to_builder(self).build()
            }
        }

        #(#told_apart)*
    }
}

fn one(event: &Event, shape: &Shape<'_>) -> TokenStream {
    let krate = &shape.krate;
    let kind = kind(event, shape);
    let aggregate_id = event.key.as_ref().map(|key| {
        let text = key.text_of_self();
        quote! {
            fn aggregate_id(&self) -> ::core::option::Option<::std::string::String> {
                ::core::option::Option::Some(#text)
            }
        }
    });
    let topic = event.topic.iter();
    let tenant = event.tenant.iter().map(Field::text_of_self);
    quote! {
        const KINDS: &'static [#krate::event::Kind] = &[#kind];

        #aggregate_id

        fn encode(&self, __event: #krate::event::EventBuilder) -> #krate::event::EventBuilder {
            __event #(.topic(#topic))* #(.tenant_id(#tenant))* .json(self)
        }
    }
}

fn family(events: &[(&Ident, Event)], shape: &Shape<'_>) -> TokenStream {
    let krate = &shape.krate;
    let variants: Vec<_> = events.iter().map(|(variant, _)| variant).collect();
    let types = events.iter().map(|(_, event)| &event.event_type);
    let kinds = events.iter().map(|(_, event)| kind(event, shape));
    let places: Vec<_> = (0..events.len()).map(number).collect();
    let keys = texts(events, |event| event.key.as_ref());
    let tenants = events.iter().any(|(_, event)| event.tenant.is_some()).then(|| {
        let tenants = texts(events, |event| event.tenant.as_ref());
        quote! {
            let __tenant: ::core::option::Option<::std::string::String> = match self { #tenants };
            let __event = match __tenant {
                ::core::option::Option::Some(__tenant) => __event.tenant_id(__tenant),
                ::core::option::Option::None => __event,
            };
        }
    });
    let topics = events.iter().any(|(_, event)| event.topic.is_some()).then(|| {
        let topics = events.iter().map(|(variant, event)| with_topic(variant, event.topic.as_ref()));
        quote!(let __event = match self { #(#topics)* };)
    });
    quote! {
        const KINDS: &'static [#krate::event::Kind] = &[#(#kinds),*];

        fn kind(&self) -> #krate::event::Kind {
            <Self as #krate::event::TypedEvent>::KINDS[match self { #(Self::#variants { .. } => #places,)* }]
        }

        fn aggregate_id(&self) -> ::core::option::Option<::std::string::String> {
            match self { #keys }
        }

        fn encode(&self, __event: #krate::event::EventBuilder) -> #krate::event::EventBuilder {
            #tenants
            #topics
            __event.json(&#krate::event::family::payload(self))
        }

        fn decode(
            __event: &#krate::event::Event,
        ) -> ::core::result::Result<Self, #krate::event::DecodeError> {
            match __event.event_type() {
                #(#types => #krate::event::family::decode(__event, #places),)*
                _ => ::core::result::Result::Err(#krate::event::DecodeError::other("it is not in this family")),
            }
        }
    }
}

/// For each variant, the text of one of its fields, or nothing.
fn texts(events: &[(&Ident, Event)], field: impl Fn(&Event) -> Option<&Field>) -> TokenStream {
    let arms = events.iter().map(|(variant, event)| match field(event) {
        None => quote!(Self::#variant { .. } => ::core::option::Option::None,),
        Some(field) => {
            let (pattern, text) = (field.pattern(), field.text_of_pattern());
            quote!(Self::#variant #pattern => ::core::option::Option::Some(#text),)
        }
    });
    quote!(#(#arms)*)
}

fn with_topic(variant: &Ident, topic: Option<&LitStr>) -> TokenStream {
    let topic = topic.iter();
    quote!(Self::#variant { .. } => __event #(.topic(#topic))*,)
}

fn kind(event: &Event, shape: &Shape<'_>) -> TokenStream {
    let (krate, event_type, version) = (&shape.krate, &event.event_type, event.version);
    quote!(#krate::event::Kind::new(#event_type, #version))
}

fn upcasts(shape: &Shape<'_>) -> Option<TokenStream> {
    if shape.from.is_empty() {
        return None;
    }
    let krate = &shape.krate;
    // The span is the attribute's, so that a missing `From` is reported there.
    let steps = shape.from.iter().map(
        |old| quote_spanned!(at(old.span())=> .upcast(|__old: #old| <Self as ::core::convert::From<#old>>::from(__old))),
    );
    Some(quote! {
        fn upcasts() -> #krate::event::Upcasts<Self> {
            #krate::event::Upcasts::new() #(#steps)*
        }
    })
}

/// A check that a type and the one it is made of are not the same kind of event, and that it is the newer one. So no two of
/// the same event type are made of each other; with others in between, that is found when a listener is registered.
fn told_apart(old: &Type, shape: &Shape<'_>) -> TokenStream {
    let Shape { name, krate, .. } = shape;
    quote_spanned! {at(old.span())=>
        #[allow(deprecated)]
        const _: () = ::core::assert!(
            !#krate::event::Kind::overlap(
                <#name as #krate::event::TypedEvent>::KINDS,
                <#old as #krate::event::TypedEvent>::KINDS,
            ),
            "an event and the older type it is made of have the same type and version; raise `version`",
        );
        #[allow(deprecated)]
        const _: () = ::core::assert!(
            !#krate::event::Kind::newer(
                <#old as #krate::event::TypedEvent>::KINDS,
                <#name as #krate::event::TypedEvent>::KINDS,
            ),
            "the older type that an event is made of has a higher version; raise `version` above it, or remove `from`",
        );
    }
}

fn number(place: usize) -> LitInt {
    LitInt::new(&place.to_string(), Span::call_site())
}
