//! Part C: what was written is what is stored.

use posthaste_core::event::Availability;
use posthaste_core::store::Status;
use posthaste_core::{Event, Outbox, Timestamp};
use posthaste_tokio_postgres::OutboxExt;

use crate::support::Database;

fn assert_same(read: &Event, written: &Event) {
    assert_eq!(read.availability(), Availability::Now);
    assert_eq!(read.payload(), written.payload(), "payloads differ");
    assert_eq!(read.headers(), written.headers());
    assert_eq!(read.id(), written.id());
    assert_eq!(read.event_type(), written.event_type());
    assert_eq!(read.aggregate_type(), written.aggregate_type());
    assert_eq!(read.aggregate_id(), written.aggregate_id());
    assert_eq!(read.tenant_id(), written.tenant_id());
    assert_eq!(read.topic(), written.topic());
    assert_eq!(read.content_type(), written.content_type());
    assert_eq!(read.occurred_at(), written.occurred_at());
}

#[tokio::test]
async fn case_20_fields_round_trip() {
    let nasty = "ÄÖ 🦀 \u{feff}' \" \\ ` -- %s {} ; ?1 $1 \r\n\t\u{7f}";
    let everything = || {
        Event::builder(nasty)
            .aggregate(nasty, nasty)
            .tenant_id(nasty)
            .topic(nasty)
            .content_type("application/json; charset=utf-8")
            .header("a'\"\\key 🦀", nasty)
            .header("empty", "")
            .header("B", "after a in no order of ours")
            .occurred_at(Timestamp::from_micros(1_700_000_000_123_457))
            .json_text(
                "{ \"z\" : 1,  \"a\":\"\\u0000 \\ud83e\\udd80 \\/\", \"a\": 1.10,\n\t\"n\": 123456789012345678901 } ",
            )
            .build()
            .unwrap()
    };
    let bytes: Vec<u8> = (0..=255).collect();
    let shapes: [&dyn Fn() -> Event; 5] = [
        &everything,
        &|| Event::builder("Bare").bytes(Vec::new()).build().unwrap(),
        &|| Event::builder("E").aggregate_id("").tenant_id("").topic("").json_text("null").build().unwrap(),
        &|| Event::builder("Bytes").content_type("image/png").bytes(bytes.clone()).build().unwrap(),
        &|| Event::builder("Old").occurred_at(Timestamp::from_micros(-1)).json_text("\"x\"").build().unwrap(),
    ];
    let database = Database::new().await;
    let outbox = Outbox::writer_only(database.store().await).start().await.unwrap();
    let mut client = database.client().await;
    // One, statements of several rows, and more than one statement.
    for size in [1, 2, 5, 40, 700] {
        let written: Vec<Event> = (0..size).map(|number| shapes[number % shapes.len()]()).collect();
        let mut tx = outbox.begin_on(&mut client).await.unwrap();
        assert_eq!(tx.write_all(&written).await.unwrap().len(), size);
        tx.commit().await.unwrap();
        for event in &written {
            let record = outbox.admin().find(event.id()).await.unwrap().unwrap();
            assert_same(&record.event.unwrap(), event);
            assert_eq!((record.state.status, record.state.attempts), (Status::New, 0));
            assert_eq!(record.state.available_at, record.state.created_at);
            assert_eq!((record.state.done_at, record.state.last_error, record.state.lease), (None, None, None));
        }
    }
}
