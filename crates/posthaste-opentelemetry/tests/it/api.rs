//! With the API of OpenTelemetry alone.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, Value};
use posthaste_core::listener::{Listener, batch, blocking};
use posthaste_core::{Delivery, Event, Failure, MemoryStore, Outbox, Outcome, RetryPolicy};
use tokio::sync::Barrier;
use tokio::time::sleep;

use crate::{Spans, assert_child, attribute, outbox, placed, span_of, text, until, write, write_in, writer};

#[tokio::test(start_paused = true)]
async fn the_trace_of_the_write_goes_on_hot_and_cold() {
    for path in ["hot", "cold"] {
        let (store, spans) = (MemoryStore::new(), Spans::new());
        let request = spans.request("POST /orders");
        if path == "cold" {
            write_in(&request, &writer(&store, &spans.context()).await, placed().id("e-1")).await;
        }
        let tracer = spans.provider.tracer("mailer");
        let listener = move |_: Delivery| {
            let tracer = tracer.clone();
            async move {
                sleep(Duration::from_secs(1)).await;
                tracer.start("mail");
            }
        };
        let outbox = outbox(&store, &spans.context(), listener).await;
        if path == "hot" {
            write_in(&request, &outbox, placed().id("e-1")).await;
        }
        until(&store, "it is done", |counts| counts.done == 1).await;
        outbox.shutdown().await;

        let delivery = spans.one("process Order/OrderPlaced");
        assert_child(&delivery, &span_of(&request));
        assert!(delivery.parent_span_is_remote);
        assert_eq!((&delivery.span_kind, &delivery.status), (&SpanKind::Consumer, &Status::Ok));
        for (key, value) in [
            ("messaging.system", "posthaste"),
            ("messaging.operation.type", "process"),
            ("messaging.operation.name", "process"),
            ("messaging.destination.name", "Order/OrderPlaced"),
            ("messaging.message.id", "e-1"),
            ("posthaste.path", path),
            ("posthaste.outcome", "done"),
        ] {
            assert_eq!(text(&delivery, key), value, "{key}");
        }
        assert_eq!(attribute(&delivery, "posthaste.attempt"), Some(Value::I64(1)));
        assert_eq!(delivery.attributes.len(), 8, "{:?}", delivery.attributes);
        // What the listener does is below it, also after it has waited.
        assert_child(&spans.one("mail"), &delivery.span_context);
        assert!(!Context::current().has_active_span());
    }
}

#[tokio::test]
async fn an_event_without_an_aggregate_is_named_by_its_type() {
    let (store, spans) = (MemoryStore::new(), Spans::new());
    let outbox = outbox(&store, &spans.context(), |_: Delivery| async {}).await;
    write_in(&spans.request("tick"), &outbox, Event::of_json("ShopOpened", "{}")).await;
    outbox.shutdown().await;
    assert_eq!(text(&spans.one("process ShopOpened"), "messaging.destination.name"), "ShopOpened");
}

#[tokio::test(start_paused = true)]
async fn every_attempt_is_a_span_of_its_own_under_the_same_parent() {
    let (store, spans) = (MemoryStore::new(), Spans::new());
    let listener = |event: Delivery| async move {
        match event.attempt() {
            1 => panic!("no mail server"),
            2 => std::future::pending().await,
            _ => Err::<(), _>(Failure::retryable("x".repeat(5000))),
        }
    };
    let policy = RetryPolicy::fixed([Duration::from_secs(1), Duration::from_secs(2)]);
    let listener = listener.with_retry(policy).with_time_limit(Duration::from_secs(3));
    let outbox = outbox(&store, &spans.context(), listener).await;
    let request = spans.request("POST /orders");
    write_in(&request, &outbox, placed()).await;
    until(&store, "it is dead", |counts| counts.dead == 1).await;
    outbox.shutdown().await;

    let attempts = spans.deliveries();
    assert_eq!(attempts.len(), 3);
    for (number, (span, outcome)) in (1..).zip(attempts.iter().zip(["retry", "retry", "dead"])) {
        assert_child(span, &span_of(&request));
        assert_eq!(attribute(span, "posthaste.attempt"), Some(Value::I64(number)));
        assert_eq!(text(span, "posthaste.outcome"), outcome);
        assert_eq!(text(span, "error.type"), "_OTHER");
    }
    let ids: Vec<SpanId> = attempts.iter().map(|span| span.span_context.span_id()).collect();
    assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2], "{ids:?}");
    assert_eq!(attempts[0].status, Status::error("the listener panicked: no mail server"));
    assert!(matches!(&attempts[1].status, Status::Error { description } if description.contains("time limit of 3s")));
    assert_eq!(attempts[2].status, Status::error("x".repeat(1000)));
}

#[tokio::test(start_paused = true)]
async fn what_is_wanted_later_is_no_error_and_what_is_given_up_is() {
    let (store, spans) = (MemoryStore::new(), Spans::new());
    let asked = Arc::new(OnceLock::new());
    let listener = move |_: Delivery| {
        let first = asked.set(()).is_ok();
        async move {
            if first { Outcome::RetryAfter(Duration::from_secs(60)) } else { Outcome::Dead("no such address".into()) }
        }
    };
    let outbox = outbox(&store, &spans.context(), listener).await;
    write_in(&spans.request("POST /orders"), &outbox, placed()).await;
    until(&store, "it is dead", |counts| counts.dead == 1).await;
    outbox.shutdown().await;
    let [later, dead] = &spans.deliveries()[..] else { panic!("two deliveries") };
    assert_eq!((text(later, "posthaste.outcome"), &later.status), ("later".into(), &Status::Unset));
    assert_eq!((text(dead, "posthaste.outcome"), &dead.status), ("dead".into(), &Status::error("no such address")));
}

#[tokio::test]
async fn an_event_that_nobody_listens_for_is_dead_in_its_trace() {
    let (store, spans) = (MemoryStore::new(), Spans::new());
    let trace = spans.context();
    let builder = Outbox::builder(store.clone()).hook(trace.clone()).instrument(trace);
    let outbox = builder.listen("Invoice", "*", |_: Delivery| async {}).start().await.unwrap();
    let request = spans.request("POST /orders");
    write_in(&request, &outbox, placed()).await;
    outbox.shutdown().await;
    let delivery = spans.one("process Order/OrderPlaced");
    assert_child(&delivery, &span_of(&request));
    assert!(matches!(&delivery.status, Status::Error { description } if description.contains("no listener")));
}

#[tokio::test(start_paused = true)]
async fn what_a_shutdown_cuts_short_says_so() {
    let (store, spans) = (MemoryStore::new(), Spans::new());
    let outbox = outbox(&store, &spans.context(), |_: Delivery| std::future::pending::<()>()).await;
    write_in(&spans.request("POST /orders"), &outbox, placed()).await;
    outbox.shutdown().await;
    let delivery = spans.one("process Order/OrderPlaced");
    assert_eq!(text(&delivery, "posthaste.outcome"), "cut short");
    assert!(matches!(&delivery.status, Status::Error { description } if description.contains("shut down")));
}

#[tokio::test]
async fn with_links_a_delivery_is_a_trace_of_its_own() {
    let (store, spans) = (MemoryStore::new(), Spans::new());
    let outbox = outbox(&store, &spans.context().with_links(), |_: Delivery| async {}).await;
    let request = spans.request("POST /orders");
    write_in(&request, &outbox, placed().id("e-1")).await;
    outbox.shutdown().await;
    let delivery = spans.one("process Order/OrderPlaced");
    assert_ne!(delivery.span_context.trace_id(), span_of(&request).trace_id());
    assert_eq!(delivery.parent_span_id, SpanId::INVALID);
    assert_eq!(delivery.links.len(), 1);
    assert_eq!(delivery.links[0].span_context.span_id(), span_of(&request).span_id());
    assert_eq!(delivery.links[0].span_context.trace_id(), span_of(&request).trace_id());
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_linked_to_each_of_its_events() {
    let (store, spans) = (MemoryStore::new(), Spans::new());
    let requests = [spans.request("POST /orders"), spans.request("POST /orders")];
    let writer = writer(&store, &spans.context()).await;
    for (id, request) in ["done", "dead"].into_iter().zip(&requests) {
        write_in(request, &writer, placed().id(id)).await;
    }
    write(&writer, placed().id("retry")).await; // outside of any trace
    let answer = |event: &Delivery| match event.id().as_str() {
        "dead" => Err(Failure::permanent("no such address")),
        "retry" if event.attempt() == 1 => Err(Failure::retryable("busy")),
        _ => Ok(Outcome::Done),
    };
    let listener = batch(move |events: Vec<Delivery>| async move { events.iter().map(answer).collect() });
    let outbox = outbox(&store, &spans.context(), listener).await;
    until(&store, "all are over", |counts| counts.pending() == 0).await;
    outbox.shutdown().await;

    // The second attempt of the third is without a context, alone, and without a span.
    let delivery = spans.one("process Order/OrderPlaced");
    assert_eq!(delivery.parent_span_id, SpanId::INVALID);
    assert_eq!(attribute(&delivery, "messaging.batch.message_count"), Some(Value::I64(3)));
    assert_eq!(attribute(&delivery, "messaging.message.id"), None);
    let linked: Vec<(SpanContext, String)> =
        delivery.links.iter().map(|link| (link.span_context.clone(), link.attributes[0].value.to_string())).collect();
    for ((link, id), (request, expected)) in linked.iter().zip(requests.iter().zip(["done", "dead"])) {
        assert_eq!((link.trace_id(), link.span_id()), (span_of(request).trace_id(), span_of(request).span_id()));
        assert_eq!(id, expected);
    }
    assert_eq!(linked.len(), 2);
    assert_eq!(text(&delivery, "posthaste.outcome"), "dead");
    assert_eq!(delivery.status, Status::error("2 of 3 events failed: no such address"));
    let told: Vec<Vec<String>> = delivery
        .events
        .iter()
        .map(|event| event.attributes.iter().map(|attribute| attribute.value.to_string()).collect())
        .collect();
    assert_eq!(told, [["dead", "dead", "no such address"], ["retry", "retry", "busy"]]);
}

#[tokio::test(start_paused = true)]
async fn a_batch_of_several_destinations_has_none_in_its_name() {
    let (store, spans) = (MemoryStore::new(), Spans::new());
    let writer = writer(&store, &spans.context()).await;
    write_in(&spans.request("POST /orders"), &writer, placed()).await;
    write_in(&spans.request("POST /orders"), &writer, Event::of_json("ShopOpened", "{}")).await;
    let listener = batch(|events: Vec<Delivery>| async move { events.iter().map(|_| Ok(Outcome::Done)).collect() });
    let outbox = outbox(&store, &spans.context(), listener).await;
    until(&store, "both are done", |counts| counts.done == 2).await;
    outbox.shutdown().await;
    let delivery = spans.one("process");
    assert_eq!((attribute(&delivery, "messaging.destination.name"), &delivery.status), (None, &Status::Ok));
}

#[tokio::test]
async fn a_batch_of_one_goes_on_with_its_trace() {
    let (store, spans) = (MemoryStore::new(), Spans::new());
    let listener = batch(|events: Vec<Delivery>| async move { events.iter().map(|_| Ok(Outcome::Done)).collect() });
    let outbox = outbox(&store, &spans.context(), listener).await;
    let request = spans.request("POST /orders");
    write_in(&request, &outbox, placed()).await;
    outbox.shutdown().await;
    assert_child(&spans.one("process Order/OrderPlaced"), &span_of(&request));
}

#[tokio::test(start_paused = true)]
async fn traces_that_take_turns_on_a_thread_do_not_mix() {
    let (store, spans) = (MemoryStore::new(), Spans::new());
    let tracer = spans.provider.tracer("mailer");
    let together = Arc::new(Barrier::new(2));
    let listener = move |event: Delivery| {
        let (tracer, together) = (tracer.clone(), together.clone());
        async move {
            for _ in 0..50 {
                // Both wait for each other, so each runs between two steps of the other.
                together.wait().await;
                let mut span = tracer.start("step");
                opentelemetry::trace::Span::set_attribute(
                    &mut span,
                    opentelemetry::KeyValue::new("event", event.id().to_string()),
                );
            }
        }
    };
    let outbox = outbox(&store, &spans.context(), listener).await;
    let requests = [spans.request("POST /orders"), spans.request("POST /orders")];
    for (id, request) in ["first", "second"].into_iter().zip(&requests) {
        write_in(request, &outbox, placed().id(id)).await;
    }
    until(&store, "both are done", |counts| counts.done == 2).await;
    outbox.shutdown().await;

    let steps = spans.named("step");
    assert_eq!(steps.len(), 100);
    for (id, request) in ["first", "second"].into_iter().zip(&requests) {
        let deliveries = spans.deliveries();
        let delivery = deliveries.iter().find(|span| text(span, "messaging.message.id") == id).unwrap();
        assert_child(delivery, &span_of(request));
        let own: Vec<_> = steps.iter().filter(|step| text(step, "event") == id).collect();
        assert_eq!(own.len(), 50);
        for step in own {
            assert_child(step, &delivery.span_context);
        }
    }
}

#[tokio::test]
async fn a_blocking_listener_is_inside_too() {
    let (store, spans) = (MemoryStore::new(), Spans::new());
    let seen = Arc::new(Mutex::new(None));
    let listener = {
        let seen = seen.clone();
        blocking(move |_: &Delivery| *seen.lock().unwrap() = Some(span_of(&Context::current())))
    };
    let outbox = outbox(&store, &spans.context(), listener).await;
    write_in(&spans.request("POST /orders"), &outbox, placed()).await;
    outbox.shutdown().await;
    assert_eq!(seen.lock().unwrap().clone(), Some(spans.one("process Order/OrderPlaced").span_context));
}

#[tokio::test(start_paused = true)]
async fn what_a_listener_writes_goes_on_below_it() {
    let (store, spans) = (MemoryStore::new(), Spans::new());
    let own = Arc::new(OnceLock::<Outbox<MemoryStore>>::new());
    let listener = {
        let own = own.clone();
        move |event: Delivery| {
            let own = own.clone();
            async move {
                if event.event_type() == "OrderPlaced" {
                    write(own.get().unwrap(), Event::of_json("InvoiceSent", "{}")).await;
                }
            }
        }
    };
    let outbox = outbox(&store, &spans.context(), listener).await;
    own.set(outbox.clone()).unwrap();
    write_in(&spans.request("POST /orders"), &outbox, placed()).await;
    until(&store, "both are done", |counts| counts.done == 2).await;
    outbox.shutdown().await;
    assert_child(&spans.one("process InvoiceSent"), &spans.one("process Order/OrderPlaced").span_context);
}
