//! What is wrong with an event before it is written.

use std::collections::BTreeMap;
use std::time::Duration;

use posthaste::event::{Error, EventId};
use posthaste::{Event, EventBuilder, Timestamp};

use super::Book;

fn event() -> EventBuilder {
    Event::builder("OrderPlaced").json_text("{}")
}

pub(super) fn write(book: &mut Book) {
    let mut add = |call: &str, built: Result<Event, Error>| {
        let error = built.unwrap_err();
        book.see("event", &format!("{:?}", error.mistake));
        book.add("error of an event", call, &error);
    };

    add(r#"Event::builder("").json_text("{}").build()"#, Event::builder("").json_text("{}").build());
    add(r#"Event::of_json("OrderPlaced", "{id:1}")"#, Event::of_json("OrderPlaced", "{id:1}"));
    add("….id of 40 characters", event().id("x".repeat(40)).build());
    add(r#"….id("")"#, event().id("").build());
    add(r#"….aggregate_type("")"#, event().aggregate_type("").build());
    add("….aggregate_id of 129 characters", event().aggregate_id("9".repeat(129)).build());
    add(r#"….tenant_id("shop\0")"#, event().tenant_id("shop\0").build());
    add("….topic of 256 characters", event().topic("t".repeat(256)).build());
    add(r#"….content_type("")"#, event().content_type("").build());
    add(r#"….header("", "x")"#, event().header("", "x").build());
    add(r#"….header("trace", "7f\0")"#, event().header("trace", "7f\0").build());
    add("….header of 70,000 characters", event().header("trace", "x".repeat(70_000)).build());

    add("….version(0)", event().version(0).build());

    add(r#"Event::builder("OrderPlaced").build()"#, Event::builder("OrderPlaced").build());
    add("….json_text and bytes", event().bytes([1]).build());
    add("….bytes, 1,048,577 of them", Event::builder("OrderPlaced").bytes(vec![0; 1_048_577]).build());
    let by_pair = BTreeMap::from([((1, 2), 3)]);
    add("….json of a map whose keys are pairs", Event::builder("OrderPlaced").json(&by_pair).build());

    let (day, next_day) = (Timestamp::from_micros(0), Timestamp::from_micros(86_400_000_000));
    add("….available_at before occurred_at", event().occurred_at(next_day).available_at(day).build());
    let two = event().available_at(next_day).deliver_after(Duration::from_secs(1));
    add("….available_at and deliver_after", two.build());
    add("….deliver_after(Duration::ZERO)", event().deliver_after(Duration::ZERO).build());
    add("….deliver_after(Duration::MAX)", event().deliver_after(Duration::MAX).build());

    book.add("event", r#"EventId::new("")"#, &EventId::new("").unwrap_err());
}
