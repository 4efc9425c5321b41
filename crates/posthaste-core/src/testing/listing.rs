//! What is in the table, for the messages of tests that fail.

use std::fmt;

use super::wanted::{Fit, Wanted};
use crate::event::{Event, GLOBAL, Payload};
use crate::store::{AdminStore, Cursor, Error, Filter, Lease, Page, Record, Status};

/// The most rows that a message lists, and the most characters of a payload.
const MOST_ROWS: usize = 20;
const MOST_PAYLOAD: usize = 200;

/// Every row that fits the filter, oldest first.
pub(super) async fn rows(store: &dyn AdminStore, filter: &Filter) -> Result<Vec<Record>, Error> {
    let mut all = Vec::new();
    let mut page = Page { limit: 1000, ..Page::default() };
    loop {
        let records = store.list(filter, &page).await?;
        let last = records.len() < page.limit;
        page.after = records.last().map(Cursor::from);
        all.extend(records);
        if last {
            return Ok(all);
        }
    }
}

/// The rows of a table as a message shows them.
pub(super) struct Listing<'a> {
    pub(super) rows: &'a [Record],
    /// What was wanted, to say of which rows it could not be told.
    pub(super) wanted: Option<&'a Wanted<'a>>,
}

impl fmt::Display for Listing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rows.len() {
            0 => return f.write_str("the table is empty"),
            1 => f.write_str("the table holds 1 event:")?,
            count => write!(f, "the table holds {count} events:")?,
        }
        for record in self.rows.iter().take(MOST_ROWS) {
            write!(f, "\n  {}", Row(record))?;
            if let (Some(wanted), Ok(event)) = (self.wanted, &record.event)
                && let Fit::Unreadable(reason) = wanted.fit(event)
            {
                write!(f, "\n    cannot be looked at: {reason}")?;
            }
        }
        if self.rows.len() > MOST_ROWS {
            write!(f, "\n  and {} more", self.rows.len() - MOST_ROWS)?;
        }
        Ok(())
    }
}

/// One row: what it is, where it stands, and what it carries.
struct Row<'a>(&'a Record);

impl fmt::Display for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (record, state) = (self.0, &self.0.state);
        match &record.event {
            Ok(event) => write!(f, "{}", Name(event))?,
            Err(reason) => write!(f, "{}, which is no event: {reason}", record.id)?,
        }
        write!(f, ", {}", state.status)?;
        match state.attempts {
            0 => {}
            1 => f.write_str(" after 1 failure")?,
            failures => write!(f, " after {failures} failures")?,
        }
        if !state.status.is_final() {
            match &state.lease {
                Some((lease, _)) => write!(f, ", leased by {}", Lease::owner_of(lease))?,
                None if state.status == Status::Retry || state.available_at > state.created_at => {
                    write!(f, ", due at {}", state.available_at)?;
                }
                None => {}
            }
        }
        if let Some(error) = &state.last_error {
            write!(f, ", last error: {error}")?;
        }
        if let Ok(event) = &record.event {
            f.write_str("\n    ")?;
            match event.payload() {
                Payload::Json(json) => f.write_str(&cut(json))?,
                Payload::Bytes(bytes) => write!(f, "{} bytes of {}", bytes.len(), event.content_type())?,
            }
        }
        Ok(())
    }
}

/// Which event it is.
pub(super) struct Name<'a>(pub(super) &'a Event);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0.id(), self.0.event_type())?;
        match (self.0.aggregate_type(), self.0.aggregate_id()) {
            (GLOBAL, None) => Ok(()),
            (aggregate_type, None) => write!(f, " of {aggregate_type}"),
            (aggregate_type, Some(id)) => write!(f, " of {aggregate_type} {id}"),
        }
    }
}

fn cut(text: &str) -> String {
    let mut cut: String = text.chars().take(MOST_PAYLOAD).collect();
    if cut.len() < text.len() {
        cut.push('…');
    }
    cut
}
