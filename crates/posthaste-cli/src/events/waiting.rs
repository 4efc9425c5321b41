//! Why an event is not delivered yet, as far as the database knows.

use posthaste::store::{Filter, Key, LaneHolders, Lease, Page, Record, Stall};
use posthaste::{Event, Status};
use serde_json::{Value, json};

use crate::database::Database;
use crate::exit::Failed;
use crate::keys::{age, name};

/// One thing that an event waits for, in words for people and for programs.
pub(super) struct Reason {
    pub(super) text: String,
    pub(super) document: Value,
}

/// Everything that it waits for. Nothing, if it is DONE.
pub(super) async fn reasons(database: &Database, record: &Record) -> Result<Vec<Reason>, Failed> {
    let store = database.admin();
    let mut reasons = Vec::new();
    let mut reason = |kind: &str, text: String, mut document: Value| {
        document["reason"] = kind.into();
        document["text"] = text.clone().into();
        reasons.push(Reason { text, document });
    };
    let state = &record.state;
    if state.status == Status::Done {
        return Ok(reasons);
    }
    let event = record.event.as_ref().ok();
    let key = event.and_then(Key::of);
    let holders = store.lane_holders().await?;
    let closed = match &key {
        Some(key) if holders.is_some() => {
            store.closed_keys(usize::MAX).await?.into_iter().find(|closed| closed.key == *key)
        }
        _ => None,
    };
    if state.status == Status::Dead {
        let head = closed.as_ref().filter(|closed| closed.head_id == record.id && !closed.reopened);
        let text = match head {
            Some(closed) => format!(
                "it is DEAD, and {0} is parked for it; posthaste keys release {0} delivers it again, keys skip {0} goes on without it",
                name(&closed.key)
            ),
            None => "it is DEAD, and waits for an operator; posthaste dead redrive delivers it again".to_owned(),
        };
        reason("dead", text, json!({ "error": state.last_error }));
        return Ok(reasons);
    }
    let now = match &holders {
        Some(holders) => holders.now,
        None => database.now().await?,
    };
    if state.available_at > now {
        let left = age(state.available_at.since(now));
        let why = match (state.status, &state.last_error) {
            (Status::Retry, Some(error)) => format!(", since attempt {} failed: {error}", state.attempts),
            _ => String::new(),
        };
        let text = format!("it is not due before {}, in {left}{why}", state.available_at);
        reason("not_due", text, json!({ "until": state.available_at.to_string() }));
    }
    if let Some((lease, at)) = &state.lease {
        let owner = Lease::owner_of(lease);
        let text = format!("{owner} has leased it, {} ago, and delivers it, or has died", age(now.since(*at)));
        reason("leased", text, json!({ "owner": owner, "leased_at": at.to_string() }));
    }
    let Some(holders) = holders else {
        if reasons.is_empty() {
            let text =
                format!("nothing: it is due for {}, and no relay has taken it yet", age(now.since(state.available_at)));
            reasons.push(Reason { document: json!({ "reason": "no_relay", "text": text }), text });
        }
        return Ok(reasons);
    };
    if let Some(closed) = closed {
        let (of, since) = (name(&closed.key), age(now.since(closed.since)));
        let (stall, text) = if closed.reopened {
            (
                Stall::Reopened,
                format!("{of} was parked and let go on; the relay that has its lane is yet to hear of it"),
            )
        } else {
            let why = closed.reason.as_deref().unwrap_or("no error was kept");
            let text = format!(
                "{of} is parked, {since} ago, because event {} is DEAD: {why}; posthaste keys release {of} delivers that one \
                 again, keys skip {of} goes on behind it",
                closed.head_id
            );
            (Stall::Parked, text)
        };
        let kind = if stall == Stall::Parked { "key_parked" } else { "key_released" };
        let document = json!({ "key": of, "head_id": closed.head_id.as_str(), "since": closed.since.to_string(), "error": closed.reason });
        reason(kind, text, document);
    }
    match (&key, event.and_then(|event| holders.orders(event.aggregate_type()))) {
        (None, _) | (_, Some(false)) => {
            let why = match &key {
                None => "it has no aggregate id",
                Some(_) => "its aggregate type is not delivered in order",
            };
            reason("not_ordered", format!("{why}, so it waits for no other event"), json!({}));
        }
        (Some(key), ordered) => {
            if let Some((text, document)) = behind(database, key, record, ordered).await? {
                reason("behind", text, document);
            }
        }
    }
    if let Some((kind, text, document)) = lane(database, event, &holders).await {
        reason(kind, text, document);
    }
    Ok(reasons)
}

/// The event of its key that comes first, if it is another.
async fn behind(
    database: &Database,
    key: &Key,
    record: &Record,
    ordered: Option<bool>,
) -> Result<Option<(String, Value)>, Failed> {
    let pending = Filter {
        statuses: vec![Status::New, Status::Retry],
        aggregate_type: Some(key.aggregate_type.to_string()),
        aggregate_id: Some(key.aggregate_id.to_string()),
        ..Filter::default()
    };
    let first = database.admin().list(&pending, &Page { limit: 1, ..Page::default() }).await?;
    let Some(head) = first.first().filter(|head| head.state.seq < record.state.seq) else { return Ok(None) };
    let state = &head.state;
    let stands = match (state.status, &state.last_error) {
        (Status::Retry, Some(error)) => {
            format!(
                "which has failed {} times and is tried again at {}, unless posthaste keys skip {} gives it up: {error}",
                state.attempts,
                state.available_at,
                name(key)
            )
        }
        _ => format!("which is {} since {}", state.status, state.created_at),
    };
    let condition = if ordered.is_none() { " (if this type is delivered in order, which no relay says)" } else { "" };
    let text = format!("it is behind event {} of {}, {stands}{condition}", head.id, name(key));
    let document = json!({
        "key": name(key),
        "head_id": head.id.as_str(),
        "head_seq": state.seq,
        "head_status": state.status.name(),
        "error": state.last_error,
    });
    Ok(Some((text, document)))
}

/// Who is to deliver it.
async fn lane(
    database: &Database,
    event: Option<&Event>,
    holders: &LaneHolders,
) -> Option<(&'static str, String, Value)> {
    if holders.relays.is_empty() {
        let text = "no relay that delivers by lanes is there".to_owned();
        return Some(("no_relay", text, json!({})));
    }
    let lane = database.lane_of(event?).await?;
    Some(match holders.of(lane) {
        Some((owner, until)) => {
            let text = format!("its lane, {}, is held by {owner} until {until}", lane.0);
            ("lane", text, json!({ "lane": lane.0, "owner": owner, "until": until.to_string() }))
        }
        None => {
            let text = format!("nobody holds its lane, {}; a relay takes it in a moment", lane.0);
            ("lane_free", text, json!({ "lane": lane.0 }))
        }
    })
}
