//! The payload, and beside it what is known of the event.

use posthaste_core::Delivery;

use super::{Binding, When, Wrapped, with_payload};
use crate::message::Headers;

/// What our own headers are called.
const OURS: [&str; 6] = ["event-id", "event-type", "aggregate-type", "aggregate-id", "tenant-id", "occurred-at"];

/// How many bytes the names and values of an event's own headers have, or a little less.
const USUAL: usize = 64;

pub(super) fn wrap(binding: Binding, event: &Delivery) -> Wrapped {
    let occurred_at = When::of(event);
    let values = [
        Some(event.id().as_str()),
        Some(event.event_type()),
        Some(event.aggregate_type()),
        event.aggregate_id(),
        event.tenant_id(),
        occurred_at.as_ref().map(When::as_str),
    ];
    let others = event.headers();
    let bytes: usize = values.iter().flatten().map(|value| value.len()).sum();
    let mut headers = Headers::with_capacity(OURS.len() + others.len(), bytes + others.len() * USUAL);
    for (name, value) in OURS.into_iter().zip(values) {
        if let Some(value) = value {
            binding.own(&mut headers, name, value);
        }
    }
    let is_ours = |name: &str| OURS.iter().any(|own| own.eq_ignore_ascii_case(name));
    for (name, value) in others.iter().filter(|(name, _)| !is_ours(name)) {
        if let Some(name) = binding.header_name(name)
            && !headers.iter().any(|(other, _)| binding.is_one_name(other, &name))
        {
            headers.push(name, binding.value(value));
        }
    }
    with_payload(binding, event, headers)
}
