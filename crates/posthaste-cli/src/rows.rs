//! Rows of an outbox, as commands choose and show them.

use std::process::ExitCode;
use std::time::Duration;

use base64::Engine;
use posthaste::store::{self, AdminStore, Cursor, Filter, Lease, Order, Page, Record};
use posthaste::{Event, EventId, Status, Timestamp};
use serde_json::{Value, json};

use crate::database::Database;
use crate::exit::Failed;
use crate::output::{Output, tell};

/// How many rows are asked for at once.
const PAGE: usize = 500;

/// Which rows.
#[derive(clap::Args, Clone, Default)]
pub(crate) struct Wanted {
    /// Of this event type.
    #[arg(long = "type", value_name = "NAME")]
    event_type: Option<String>,

    /// Of this aggregate type.
    #[arg(long, value_name = "NAME")]
    aggregate_type: Option<String>,

    /// Of this aggregate.
    #[arg(long, value_name = "ID")]
    aggregate_id: Option<String>,

    /// Of this tenant.
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,

    /// Inserted at or after this moment (2026-01-31T08:15:00Z), or within so long before now (90m).
    #[arg(long, value_name = "WHEN", value_parser = moment)]
    since: Option<When>,

    /// Inserted before this moment, or longer ago than that.
    #[arg(long, value_name = "WHEN", value_parser = moment)]
    until: Option<When>,

    /// With an error that contains this text.
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
}

impl Wanted {
    pub(crate) async fn filter(self, statuses: Vec<Status>, database: &Database) -> Result<Filter, store::Error> {
        Ok(Filter {
            statuses,
            event_type: self.event_type,
            aggregate_type: self.aggregate_type,
            aggregate_id: self.aggregate_id,
            tenant_id: self.tenant,
            created_from: When::of(self.since, database).await?,
            created_before: When::of(self.until, database).await?,
            ended_before: None,
            error_contains: self.error,
        })
    }

    /// Whether nothing was said.
    pub(crate) fn is_everything(&self) -> bool {
        let texts = [&self.event_type, &self.aggregate_type, &self.aggregate_id, &self.tenant, &self.error];
        texts.iter().all(|text| text.is_none()) && self.since.is_none() && self.until.is_none()
    }
}

/// A moment.
#[derive(Clone, Copy, Debug)]
enum When {
    At(Timestamp),
    /// So long ago by the clock of the database, which is the one that rows have their moments from.
    Ago(Duration),
}

impl When {
    async fn of(when: Option<Self>, database: &Database) -> Result<Option<Timestamp>, store::Error> {
        Ok(match when {
            Some(Self::At(moment)) => Some(moment),
            Some(Self::Ago(length)) => Some(database.now().await? - length),
            None => None,
        })
    }
}

/// A moment, or how long ago.
fn moment(text: &str) -> Result<When, String> {
    if let Ok(ago) = length(text) {
        return Ok(When::Ago(ago));
    }
    let moment: jiff::Timestamp = text
        .parse()
        .map_err(|_| "give a moment such as 2026-01-31T08:15:00Z, or a length of time such as 90m".to_owned())?;
    Ok(When::At(Timestamp::from_micros(moment.as_microsecond())))
}

/// A length of time.
pub(crate) fn length(text: &str) -> Result<Duration, String> {
    let parsed = jiff::fmt::friendly::SpanParser::new().parse_unsigned_duration(text);
    parsed.map_err(|_| "give a length of time, such as 500ms, 90m or 168h".to_owned())
}

/// An id of an event.
pub(crate) fn id(text: &str) -> Result<EventId, String> {
    EventId::new(text).map_err(|error| error.to_string())
}

/// Goes through the rows that fit, a page at a time, up to so many.
pub(crate) async fn each(
    store: &dyn AdminStore,
    filter: &Filter,
    (order, most): (Order, Option<usize>),
    mut row: impl FnMut(Record) -> Result<(), Failed>,
) -> Result<usize, Failed> {
    let (mut page, mut seen) = (Page { limit: PAGE, after: None, order }, 0);
    loop {
        page.limit = most.map_or(PAGE, |most| most - seen).min(PAGE);
        if page.limit == 0 {
            return Ok(seen);
        }
        let records = store.list(filter, &page).await?;
        let Some(last) = records.last() else { return Ok(seen) };
        page.after = Some(Cursor::from(last));
        seen += records.len();
        for record in records {
            row(record)?;
        }
    }
}

/// Prints the rows that fit, up to so many, without their payloads.
pub(crate) async fn list(
    store: &dyn AdminStore,
    filter: &Filter,
    (order, most): (Order, Option<usize>),
    output: Output,
) -> Result<ExitCode, Failed> {
    let (mut printed, mut count) = (output.rows(COLUMNS), 0);
    // One more shows whether there are more.
    let asked = most.map(|most| most.saturating_add(1));
    let seen = each(store, filter, (order, asked), |record| {
        count += 1;
        if most.is_none_or(|most| count <= most) {
            printed.push(cells(&record), document(&record, false))?;
        }
        Ok(())
    })
    .await?;
    printed.print()?;
    if let Some(most) = most.filter(|most| seen > *most) {
        tell(format_args!("there are more than these {most}; --limit shows more"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether the database finds that a row fits: each has its own way to compare texts.
pub(crate) async fn fits(store: &dyn AdminStore, filter: &Filter, record: &Record) -> Result<bool, Failed> {
    let from_there = Page { limit: 1, after: Some(Cursor(record.state.seq - 1)), order: Order::OldestFirst };
    let found = store.list(filter, &from_there).await?;
    Ok(found.first().is_some_and(|found| found.id == record.id))
}

/// A status by its name.
pub(crate) fn status(text: &str) -> Result<Status, String> {
    let found = Status::ALL.into_iter().find(|status| status.name().eq_ignore_ascii_case(text));
    found.ok_or_else(|| "a status is new, retry, done or dead".to_owned())
}

/// The columns of a list.
pub(crate) const COLUMNS: &[&str] =
    &["SEQ", "ID", "STATUS", "TYPE", "AGGREGATE", "TENANT", "TRIES", "CREATED", "ERROR"];

/// The longest error in a list.
const LONGEST_ERROR: usize = 60;

/// A row of a list.
pub(crate) fn cells(record: &Record) -> Vec<String> {
    let state = &record.state;
    let of_event = |get: fn(&Event) -> String| record.event.as_ref().map_or_else(|_| "?".to_owned(), get);
    let error = record.event.as_ref().err().or(state.last_error.as_ref()).cloned().unwrap_or_default();
    vec![
        state.seq.to_string(),
        record.id.to_string(),
        state.status.to_string(),
        of_event(|event| event.event_type().to_owned()),
        of_event(|event| match event.aggregate_id() {
            Some(id) => format!("{}/{id}", event.aggregate_type()),
            None => event.aggregate_type().to_owned(),
        }),
        of_event(|event| event.tenant_id().unwrap_or("-").to_owned()),
        state.attempts.to_string(),
        state.created_at.to_string(),
        if error.is_empty() { "-".to_owned() } else { crate::output::cut(&error, LONGEST_ERROR) },
    ]
}

/// A row as JSON, with its payload or without.
pub(crate) fn document(record: &Record, with_payload: bool) -> Value {
    let state = &record.state;
    let mut document = json!({
        "id": record.id.as_str(),
        "seq": state.seq,
        "status": state.status.name(),
        "attempts": state.attempts,
        "created_at": state.created_at.to_string(),
        "available_at": state.available_at.to_string(),
        "done_at": state.done_at.map(|at| at.to_string()),
        "last_error": state.last_error,
        "leased_by": state.lease.as_ref().map(|(lease, _)| Lease::owner_of(lease)),
        "leased_at": state.lease.as_ref().map(|(_, at)| at.to_string()),
    });
    let more = match &record.event {
        Err(reason) => json!({ "malformed": reason }),
        Ok(event) => {
            let mut more = json!({
                "event_type": event.event_type(),
                "aggregate_type": event.aggregate_type(),
                "aggregate_id": event.aggregate_id(),
                "tenant_id": event.tenant_id(),
                "topic": event.topic(),
                "content_type": event.content_type(),
                "headers": event.headers(),
                "occurred_at": event.occurred_at().to_string(),
                "payload_bytes": event.payload().len(),
            });
            if with_payload {
                let (name, payload) = payload(event);
                more[name] = payload;
            }
            more
        }
    };
    if let (Value::Object(document), Value::Object(more)) = (&mut document, more) {
        document.extend(more);
    }
    document
}

/// The payload as it is: JSON as its text, byte for byte, anything else as base64.
fn payload(event: &Event) -> (&'static str, Value) {
    match event.payload().as_json() {
        Some(text) => ("payload", text.into()),
        None => {
            let encoded = base64::engine::general_purpose::STANDARD.encode(event.payload().as_bytes());
            ("payload_base64", encoded.into())
        }
    }
}
