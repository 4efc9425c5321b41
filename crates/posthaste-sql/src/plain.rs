//! Rows of the usual kind.

use posthaste_core::Event;
use posthaste_core::event::Availability;
use posthaste_core::store::NewRow;

/// Whether fewer columns say all there is to say of these rows: JSON of one content type, to be delivered at once, without
/// anything that an event need not have.
pub(crate) fn are_plain(rows: &[NewRow]) -> bool {
    let content_type = rows.first().map(|row| row.event.content_type());
    rows.iter().all(|row| is_plain(&row.event) && Some(row.event.content_type()) == content_type)
}

fn is_plain(event: &Event) -> bool {
    event.tenant_id().is_none()
        && event.topic().is_none()
        && event.headers().is_empty()
        && event.payload().as_json().is_some()
        && event.availability() == Availability::Now
}
