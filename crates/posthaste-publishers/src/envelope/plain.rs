//! The payload, and headers.

use posthaste_core::Delivery;

use super::{Binding, Header, Wrapped, occurred_at, with_payload};

pub(super) fn wrap(binding: Binding, event: &Delivery) -> Wrapped {
    let occurred_at = occurred_at(event);
    let ours = [
        ("event-id", Some(event.id().as_str())),
        ("event-type", Some(event.event_type())),
        ("aggregate-type", Some(event.aggregate_type())),
        ("aggregate-id", event.aggregate_id()),
        ("tenant-id", event.tenant_id()),
        ("occurred-at", occurred_at.as_deref()),
    ];
    let is_ours = |name: &str| ours.iter().any(|(own, _)| own.eq_ignore_ascii_case(name));
    let own = ours.into_iter().filter_map(|(name, value)| Some(binding.own(name, value?)));
    let others = event.headers().iter().filter(|(name, _)| !is_ours(name));
    let mut headers: Vec<Header> = Vec::with_capacity(ours.len() + event.headers().len());
    headers.extend(own);
    for header in others.filter_map(|(name, value)| binding.header(name, value)) {
        if !headers.iter().any(|(other, _)| binding.is_one_name(other, &header.0)) {
            headers.push(header);
        }
    }
    with_payload(binding, event, headers)
}
