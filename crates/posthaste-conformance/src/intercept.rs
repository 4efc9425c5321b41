//! Part D: interceptors.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use posthaste_core::listener::{Delivery, Failure, Outcome, Verdict};
use posthaste_core::store::Store;
use posthaste_core::{Interceptor, Options, Outbox, Status};
use tracing::Level;

use crate::fixture::Fixture;
use crate::journal::Journal;
use crate::meter::Meter;
use crate::outboxes::{no_interval, write};
use crate::rows::{assert_at, event};

const HOUR: Duration = Duration::from_secs(3600);

/// What was called, in order.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Vec<String>>>);

impl Calls {
    fn note(&self, call: String) {
        self.0.lock().unwrap().push(call);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

/// An interceptor that notes its calls, and does what the type of the event asks of one with its name.
struct Named(&'static str, Calls);

impl Named {
    fn act(&self, step: &str, event: &Delivery) -> Result<(), Failure> {
        let asked = |what: &str| event.event_type() == format!("{what} {} {step}", self.0);
        if asked("fail") {
            return Err(Failure::retryable("an interceptor failed"));
        }
        assert!(!asked("panic"), "an interceptor panicked");
        Ok(())
    }
}

impl Interceptor for Named {
    async fn before(&self, event: &Delivery) -> Result<(), Failure> {
        self.1.note(format!("{} before", self.0));
        self.act("before", event)
    }

    async fn after(&self, event: &Delivery, verdict: &Verdict) -> Result<(), Failure> {
        let verdict = if verdict.is_ok() { "ok" } else { "failure" };
        self.1.note(format!("{} after {verdict}", self.0));
        self.act("after", event)
    }
}

async fn intercepted<S: Store>(store: S, calls: &Calls) -> (Outbox<S>, Meter) {
    let meter = Meter::new();
    let noted = calls.clone();
    let outbox = Outbox::builder(store)
        .options(Options { workers: 1, retry_base: HOUR, retry_max: HOUR, ..no_interval() })
        .metrics(meter.clone())
        .interceptor(Named("a", calls.clone()))
        .interceptor(Named("b", calls.clone()))
        .interceptor(Named("c", calls.clone()))
        .listen_all(move |event: Delivery| {
            noted.note("listener".into());
            async move {
                if event.event_type() == "Fails" {
                    Err(Failure::retryable("listener failed"))
                } else {
                    Ok(Outcome::Done)
                }
            }
        })
        .start()
        .await
        .unwrap();
    (outbox, meter)
}

/// Before in order, after in reverse, with the verdict.
pub async fn case_44_order<F: Fixture>(fixture: F) {
    let calls = Calls::default();
    let (outbox, meter) = intercepted(fixture.store(), &calls).await;
    write(&outbox, event("Fine")).await;
    meter.until("it is delivered", |tally| tally.delivered == 1).await;
    let expected = ["a before", "b before", "c before", "listener", "c after ok", "b after ok", "a after ok"];
    assert_eq!(calls.take(), expected);
    write(&outbox, event("Fails")).await;
    meter.until("it failed", |tally| tally.failed == 1).await;
    assert_eq!(calls.take()[4..], ["c after failure", "b after failure", "a after failure"]);
    outbox.shutdown().await;
}

/// A failure before the listener takes the retry path; only those whose own before succeeded are called afterwards.
pub async fn case_44_before_fails<F: Fixture>(fixture: F) {
    let calls = Calls::default();
    let (outbox, meter) = intercepted(fixture.store(), &calls).await;
    let id = write(&outbox, event("fail b before")).await;
    meter.until("it failed", |tally| tally.failed == 1).await;
    assert_eq!(calls.take(), ["a before", "b before", "a after failure"]);
    let row = assert_at(outbox.store(), &id, Status::Retry, 1).await;
    assert_eq!(row.last_error.as_deref(), Some("interceptor 2: an interceptor failed"));
    outbox.shutdown().await;
}

/// A failure after the listener is logged, changes nothing, and keeps no other from being called.
pub async fn case_44_after_fails<F: Fixture>(fixture: F) {
    for what in ["fail", "panic"] {
        let journal = Journal::keep();
        let calls = Calls::default();
        let (outbox, meter) = intercepted(fixture.store(), &calls).await;
        let id = write(&outbox, event(&format!("{what} b after"))).await;
        meter.until("it is delivered", |tally| tally.delivered == 1).await;
        assert_eq!(calls.take()[4..], ["c after ok", "b after ok", "a after ok"]);
        assert_at(outbox.store(), &id, Status::Done, 0).await;
        assert!(journal.has(Level::ERROR, "an interceptor"), "{what}: it was not logged");
        outbox.shutdown().await;
    }
}

/// A panic in an interceptor is one failed attempt like any other, and the worker lives on.
pub async fn case_46_panic_in_an_interceptor<F: Fixture>(fixture: F) {
    let calls = Calls::default();
    let (outbox, meter) = intercepted(fixture.store(), &calls).await;
    let id = write(&outbox, event("panic b before")).await;
    meter.until("it failed", |tally| tally.failed == 1).await;
    assert_eq!(calls.take(), ["a before", "b before", "a after failure"]);
    let row = assert_at(outbox.store(), &id, Status::Retry, 1).await;
    assert!(row.last_error.unwrap().contains("an interceptor panicked"));
    write(&outbox, event("Fine")).await;
    meter.until("the worker lives on", |tally| tally.delivered == 1).await;
    outbox.shutdown().await;
}
