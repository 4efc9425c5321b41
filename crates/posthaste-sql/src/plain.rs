//! Rows of the usual kind.

use posthaste_core::Event;
use posthaste_core::event::Availability;
use posthaste_core::store::{Lease, NewRow};

/// Whether fewer columns say all there is to say of these rows: JSON of one content type, to be delivered at once, without
/// anything that an event need not have.
pub(crate) fn are_plain(rows: &[NewRow]) -> bool {
    let content_type = rows.first().map(|row| row.event.content_type());
    rows.iter().all(|row| is_plain(&row.event) && Some(row.event.content_type()) == content_type)
}

/// Whether these rows have one type, and one lease or none.
pub(crate) fn are_alike(rows: &[NewRow]) -> bool {
    fn shared(row: &NewRow) -> (&str, &str, Option<&Lease>) {
        (row.event.event_type(), row.event.aggregate_type(), row.lease.as_ref())
    }
    rows.windows(2).all(|pair| shared(&pair[0]) == shared(&pair[1]))
}

fn is_plain(event: &Event) -> bool {
    event.tenant_id().is_none()
        && event.topic().is_none()
        && event.headers().is_empty()
        && event.payload().as_json().is_some()
        && event.availability() == Availability::Now
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(aggregate: &str, event: &str, lease: Option<u64>) -> NewRow {
        let event = Event::builder(event).aggregate(aggregate, 1).json_text("{}").build().unwrap();
        let mut row = NewRow::new(event);
        row.lease = lease.map(|number| Lease::new("me", number));
        row
    }

    #[test]
    fn rows_are_alike_that_differ_in_nothing_but_what_each_has_for_itself() {
        let one = || row("Order", "Placed", Some(1));
        assert!(are_alike(&[]) && are_alike(&[one()]) && are_alike(&[one(), one(), one()]));
        assert!(are_alike(&[row("Order", "Placed", None), row("Order", "Placed", None)]));
        for other in [
            row("Order", "Paid", Some(1)),
            row("Parcel", "Placed", Some(1)),
            row("Order", "Placed", Some(2)),
            row("Order", "Placed", None),
        ] {
            assert!(!are_alike(&[one(), one(), other.clone()]) && !are_alike(&[other, one()]));
        }
    }
}
