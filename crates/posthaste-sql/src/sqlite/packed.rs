//! Rows in two values: a JSON array, and the payload.
//!
//! The driver keeps a copy of every value of a row, two or three allocations each, made on SQLite's thread and freed on ours. Of a row
//! with fifteen columns that was more than what SQLite does to find and to lease it.
//!
//! SQLite keeps a value of any type in a column of any type. What is not as it is in the row of an event is not made sense of here: such
//! rows are read again, with every column by itself, by [`row`](super::row).

use std::borrow::Cow;

use posthaste_core::EventId;
use posthaste_core::store::{Key, RawRow};
use serde::Deserialize;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use super::fault;
use super::row::Values;
use crate::lanes::key;

/// The array, in the order of the columns.
#[derive(Deserialize)]
struct Columns<'a> {
    #[serde(borrow)]
    event_id: Text<'a>,
    event_type: String,
    aggregate_type: Option<String>,
    aggregate_id: Option<String>,
    tenant_id: Option<String>,
    topic: Option<String>,
    #[serde(borrow)]
    content_type: Option<Text<'a>>,
    headers: Option<String>,
    occurred_at: Option<i64>,
    created_at: i64,
    seq: i64,
    attempts: u32,
    available_at: i64,
    payload: u8,
    leased_at: Option<i64>,
}

/// A text that needs no memory of its own, unless something in it is escaped.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// What says which column the payload is from; with anything else, something is not as it should be.
mod payload {
    pub(super) const NONE: u8 = 0;
    pub(super) const TEXT: u8 = 1;
    pub(super) const BYTES: u8 = 2;
}

/// Reads a row; none if anything in it is not as it is in the row of an event.
pub(super) fn values(row: &SqliteRow) -> Option<Values> {
    let columns: Columns<'_> = serde_json::from_str(row.try_get(0).ok()?).ok()?;
    let (payload, payload_bytes) = match columns.payload {
        payload::NONE => (None, None),
        payload::TEXT => (Some(row.try_get(1).ok()?), None),
        payload::BYTES => (None, Some(row.try_get(1).ok()?)),
        _ => return None,
    };
    let id = EventId::from_row(columns.event_id.0);
    Some(Values {
        raw: Ok(RawRow {
            event_id: id.clone(),
            event_type: columns.event_type,
            aggregate_type: columns.aggregate_type,
            aggregate_id: columns.aggregate_id,
            tenant_id: columns.tenant_id,
            topic: columns.topic,
            content_type: columns.content_type.map(|Text(text)| RawRow::content_type(&text)),
            payload,
            payload_bytes,
            headers: columns.headers,
            occurred_at: columns.occurred_at,
            created_at: columns.created_at,
        }),
        id,
        seq: columns.seq,
        attempts: Ok(columns.attempts),
        available_at: columns.available_at,
        leased_at: columns.leased_at,
    })
}

/// The key of a row that can be read so.
pub(super) fn key_of(row: &SqliteRow) -> Option<Key> {
    let raw = values(row)?.raw.ok()?;
    key(raw.aggregate_type.as_deref(), raw.aggregate_id.as_deref())
}

/// Whether SQLite may have refused to pack a row: what cannot be in JSON, or is too large there, where one character of a text may
/// take six. The same without packing tells.
pub(super) fn may_be_refused(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(fault::may_be_of_a_value)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use posthaste_core::Event;
    use posthaste_core::store::{Claim, LaneStore, Lease, NewRow, ReadLane, ReadLanes, RelayStore, WriteStore};
    use sqlx::AssertSqlSafe;

    use super::super::sql::{DIALECT, PACKED_AND_WIDE};
    use super::*;
    use crate::SqliteStore;

    /// What an event has, and what may stand in a row besides: as SQL, in any column.
    const VALUES: [&str; 19] = [
        "NULL",
        "''",
        "'plain'",
        "'a \"quote\", a \\ and a /, \u{1F980} and \u{7f}'",
        "char(9, 10, 31, 8232, 65533)",
        "'nul' || char(0) || 'inside'",
        "CAST(x'ff41' AS TEXT)",
        "x'ff41'",
        "x''",
        // In the binary form that SQLite has for JSON: a text, a number, and an object.
        "x'1741'",
        "x'1337'",
        "x'0c'",
        "0",
        "-7",
        "9223372036854775807",
        "4294967296",
        "1.5",
        "9e999",
        "'{\"a\": \"b \\u0000 \\\" c\"}'",
    ];

    const COLUMNS: [&str; 15] = [
        "event_id",
        "event_type",
        "aggregate_type",
        "aggregate_id",
        "tenant_id",
        "topic",
        "content_type",
        "payload",
        "payload_bytes",
        "headers",
        "occurred_at",
        "created_at",
        "attempts",
        "available_at",
        "locked_at",
    ];

    async fn store() -> SqliteStore {
        let store = SqliteStore::connect("sqlite::memory:").await.unwrap();
        store.migrate().await.unwrap();
        store
    }

    async fn insert(store: &SqliteStore, events: impl IntoIterator<Item = Event>) {
        let rows: Vec<_> = events.into_iter().map(NewRow::new).collect();
        let mut tx = store.begin().await.unwrap();
        store.insert(&mut *tx, &rows).await.unwrap();
        store.commit(tx).await.unwrap();
    }

    async fn set(store: &SqliteStore, id: &str, column: &str, value: &str) -> bool {
        let sql = format!("UPDATE outbox_event SET {column} = {value} WHERE event_id = '{id}'");
        sqlx::query(AssertSqlSafe(sql)).execute(store.pool()).await.is_ok()
    }

    fn event(id: &str) -> Event {
        Event::builder("A")
            .id(id)
            .aggregate("B", "C")
            .tenant_id("D")
            .topic("E")
            .header("f", "g")
            .json_text("{}")
            .build()
            .unwrap()
    }

    /// The one row, as a statement with these columns has it.
    async fn the_row(store: &SqliteStore, columns: &str) -> Result<SqliteRow, sqlx::Error> {
        let sql = DIALECT.fill(&format!("SELECT {columns} FROM {{table}} AS t"), store.table());
        sqlx::query(AssertSqlSafe(sql)).fetch_one(store.pool()).await
    }

    fn shown(values: &Values) -> String {
        let Values { id, seq, available_at, attempts, leased_at, raw } = values;
        format!("{id} {seq} {available_at} {attempts:?} {leased_at:?} {raw:?}")
    }

    #[tokio::test]
    async fn what_is_packed_is_read_as_if_it_were_not() {
        let [packed_columns, wide_columns] = PACKED_AND_WIDE;
        let (mut packed, mut refused, mut unread) = (0, 0, 0);
        for column in COLUMNS {
            for value in VALUES {
                let store = store().await;
                insert(&store, [event("1")]).await;
                // What the table itself refuses need not be read.
                if !set(&store, "1", column, value).await {
                    continue;
                }
                let wide = Values::of(&the_row(&store, wide_columns).await.unwrap());
                match the_row(&store, packed_columns).await {
                    Ok(row) => match values(&row) {
                        Some(values) => {
                            packed += 1;
                            assert_eq!(shown(&values), shown(&wide), "{column} = {value}");
                        }
                        None => unread += 1,
                    },
                    Err(error) => {
                        assert!(may_be_refused(&error), "{column} = {value}: {error}");
                        refused += 1;
                    }
                }
            }
        }
        // Most of it is nothing out of the ordinary; and there is something of every kind.
        assert!(packed > 100 && refused > 10 && unread > 20, "{packed} {refused} {unread}");
    }

    #[tokio::test]
    async fn rows_of_events_are_packed() {
        let store = store().await;
        let bytes = Event::builder("A").id("bytes").content_type("a/b; c=\"d\"").bytes(vec![0, 255]).build().unwrap();
        insert(&store, [event("json"), bytes]).await;
        let sql = DIALECT.fill(&format!("SELECT {} FROM {{table}} ORDER BY seq", PACKED_AND_WIDE[0]), store.table());
        let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(store.pool()).await.unwrap();
        let raws: Vec<_> = rows.iter().map(|row| values(row).unwrap().raw.unwrap()).collect();
        assert_eq!((raws[0].payload.as_deref(), &raws[0].payload_bytes), (Some("{}"), &None));
        assert_eq!((&raws[1].payload, raws[1].payload_bytes.as_deref()), (&None, Some(&[0, 255][..])));
        assert_eq!(raws[1].content_type.as_deref(), Some("a/b; c=\"d\""));
        assert_eq!(key_of(&rows[0]), key(Some("B"), Some("C")));
    }

    #[tokio::test]
    async fn beside_what_cannot_be_packed_all_of_a_lane_is_read() {
        for value in ["x'ff41'", "x'1741'", "CAST(x'ff41' AS TEXT)"] {
            let store = store().await;
            store.prepare_lanes().await.unwrap();
            insert(&store, ["1", "2", "3"].map(event)).await;
            assert!(set(&store, "2", "headers", value).await);
            let lease = store.lease_lanes("a", 1, Duration::from_secs(30)).await.unwrap()[0];
            let part = ReadLane { lease, after: 0, until: None, limit: 10, key: None };
            let mut read = ReadLanes {
                owner: "a".into(),
                parts: vec![part],
                in_hand: Vec::new(),
                passed: Vec::new(),
                lease_duration: Duration::from_secs(30),
            };
            let found = store.read_lanes(&read).await.unwrap();
            let bad = found.rows[1].row.as_ref().unwrap_err();
            assert_eq!((bad.malformed.id.as_str(), &bad.key), ("2", &key(Some("B"), Some("C"))), "{value}");
            assert!(found.rows.len() == 3 && found.rows[0].row.is_ok() && found.rows[2].row.is_ok(), "{value}");
            // Nor is it read by whoever does not hold the lane.
            read.owner = "b".into();
            let found = store.read_lanes(&read).await.unwrap();
            assert!(found.rows.is_empty() && found.lost.len() == 1, "{value}");
        }
    }

    /// One bad row keeps nobody else's from being claimed, and is given as far as it can be read.
    #[tokio::test]
    async fn beside_what_cannot_be_packed_everything_is_claimed() {
        for (column, value, reason) in [
            ("headers", "x'ff41'", "headers is not text in UTF-8"),
            ("topic", "x'1741'", "topic is not text in UTF-8"),
            ("headers", "CAST(x'ff41' AS TEXT)", "headers is not text in UTF-8"),
            ("attempts", "-1", "attempts is negative or too large"),
            ("payload_bytes", "x'01'", "payload and payload_bytes are both set; exactly one must be set"),
        ] {
            let store = store().await;
            insert(&store, ["1", "2", "3"].map(event)).await;
            assert!(set(&store, "2", column, value).await);
            let claim = |number| Claim {
                lease: Lease::new("test", number),
                lease_duration: Duration::from_secs(30),
                limit: 10,
                skip_recent: Duration::ZERO,
            };
            let claimed = store.claim(&claim(1)).await.unwrap();
            let ids: Vec<_> = claimed.rows.iter().map(|row| row.event.id().as_str()).collect();
            assert_eq!(ids, ["1", "3"], "{column} = {value}");
            assert_eq!((claimed.malformed[0].id.as_str(), claimed.malformed[0].reason.as_str()), ("2", reason));
            // All three are leased.
            let claimed = store.claim(&claim(2)).await.unwrap();
            assert!(claimed.rows.is_empty() && claimed.malformed.is_empty());
        }
    }

    /// Between others, before and behind it, and also in another order than that of the numbers.
    #[tokio::test]
    async fn beside_what_cannot_be_packed_the_rows_of_the_claim_are_read_and_no_others() {
        for value in ["x'ff41'", "x'1741'", "CAST(x'ff41' AS TEXT)"] {
            let store = store().await;
            insert(&store, (1..=9).map(|n| event(&n.to_string()))).await;
            assert!(set(&store, "5", "headers", value).await);
            // Somebody has some of them, and one was available first.
            for held in ["1", "2", "4"] {
                assert!(set(&store, held, "locked_by", "'other', locked_at = available_at").await);
            }
            assert!(set(&store, "8", "available_at", "available_at - 1000000").await);
            let mut claims = Vec::new();
            for number in 1..=3 {
                let claim = Claim {
                    lease: Lease::new("test", number),
                    lease_duration: Duration::from_secs(30),
                    limit: 3,
                    skip_recent: Duration::ZERO,
                };
                let claimed = store.claim(&claim).await.unwrap();
                let rows: Vec<_> = claimed.rows.iter().map(|row| row.event.id().to_string()).collect();
                let malformed: Vec<_> = claimed.malformed.iter().map(|row| row.id.to_string()).collect();
                claims.push((rows.join(" "), malformed.join(" ")));
            }
            let expected = [("8 3", "5"), ("6 7 9", ""), ("", "")];
            assert_eq!(claims, expected.map(|(rows, malformed)| (rows.to_owned(), malformed.to_owned())), "{value}");
        }
    }
}
