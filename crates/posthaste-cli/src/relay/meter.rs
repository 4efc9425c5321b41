//! What is counted of routes and of destinations.

use std::sync::Arc;
use std::time::Instant;

use metrics::{Counter, Histogram, counter, histogram};
use posthaste::Delivery;
use posthaste::instrument::{Instrument, Running};
use posthaste::listener::OfOneKey;
use posthaste::publishers::{Binding, Message, Places, PublishError, PublishErrorKind, Publisher, Results};
use posthaste::store::Action;

use crate::settings::{Destination, Route};

/// What events are counted under that no route fits.
const NO_ROUTE: &str = "(none)";

/// Counts what becomes of the events of each route.
pub(super) struct RouteMeter {
    routes: Arc<[Route]>,
    /// One for each route, and one for what none fits.
    series: Vec<Arc<RouteSeries>>,
}

struct RouteSeries {
    delivered: Counter,
    failed: Counter,
    deferred: Counter,
    dead: Counter,
    duration: Histogram,
}

impl RouteMeter {
    pub(super) fn new(routes: &Arc<[Route]>) -> Self {
        let names = routes.iter().map(|route| &*route.name).chain([NO_ROUTE]);
        let series = names.map(|name| Arc::new(RouteSeries::new(name))).collect();
        Self { routes: Arc::clone(routes), series }
    }
}

impl RouteSeries {
    fn new(route: &str) -> Self {
        let of = |outcome: &'static str| counter!("posthaste_route_events_total", "outcome" => outcome, "route" => route.to_owned());
        Self {
            delivered: of("delivered"),
            failed: of("failed"),
            deferred: of("deferred"),
            dead: of("dead"),
            duration: histogram!("posthaste_route_duration_seconds", "route" => route.to_owned()),
        }
    }
}

impl Instrument for RouteMeter {
    fn begin(&self, events: &[Delivery]) -> Option<Arc<dyn Running>> {
        // Those of one call have one listener, which is one route.
        let first = events.first()?;
        let place = self.routes.iter().position(|route| route.fits(first)).unwrap_or(self.routes.len());
        Some(Arc::new(OfRoute { series: Arc::clone(&self.series[place]), begun_at: Instant::now() }))
    }
}

struct OfRoute {
    series: Arc<RouteSeries>,
    begun_at: Instant,
}

impl Running for OfRoute {
    fn enter(&self, run: &mut dyn FnMut()) {
        run();
    }

    fn end(&self, actions: &[Action]) {
        let [mut delivered, mut failed, mut deferred, mut dead] = [0; 4];
        for action in actions {
            *match action {
                Action::Done => &mut delivered,
                Action::Retry { .. } => &mut failed,
                Action::Dead { .. } => &mut dead,
                _ => &mut deferred,
            } += 1;
        }
        let RouteSeries { duration, .. } = &*self.series;
        // What was put off as a whole has not been anywhere.
        if delivered + failed + dead > 0 {
            duration.record(self.begun_at.elapsed());
        }
        let counters = [
            (&self.series.delivered, delivered),
            (&self.series.failed, failed),
            (&self.series.deferred, deferred),
            (&self.series.dead, dead),
        ];
        for (counter, count) in counters.into_iter().filter(|(_, count)| *count > 0) {
            counter.increment(count);
        }
    }
}

/// Counts what a destination says.
pub(crate) struct DestinationMeter {
    #[cfg(feature = "otlp")]
    of: (&'static str, String),
    acknowledged: Counter,
    failed: Counter,
    dead: Counter,
    deferred: Counter,
    duration: Histogram,
}

impl DestinationMeter {
    pub(super) fn new(destination: &Destination) -> Self {
        #[cfg(feature = "otlp")]
        let system = destination.target.system();
        let destination = &*destination.name;
        let of = |outcome: &'static str| {
            let destination = destination.to_owned();
            counter!("posthaste_destination_events_total", "destination" => destination, "outcome" => outcome)
        };
        Self {
            #[cfg(feature = "otlp")]
            of: (system, destination.to_owned()),
            acknowledged: of("acknowledged"),
            failed: of("failed"),
            dead: of("dead"),
            deferred: of("deferred"),
            duration: histogram!("posthaste_destination_duration_seconds", "destination" => destination.to_owned()),
        }
    }

    /// Counts what was noted, and says how much of it is no acknowledgement.
    fn count(&self, results: &Results) -> usize {
        if results.are_all_acknowledged() {
            self.acknowledged.increment(results.messages() as u64);
            return 0;
        }
        let [mut acknowledged, mut failed, mut dead, mut deferred] = [0; 4];
        results.look(|result| {
            *match result {
                Some(Ok(())) => &mut acknowledged,
                Some(Err(error)) => match error.kind() {
                    PublishErrorKind::Retryable => &mut failed,
                    PublishErrorKind::Permanent => &mut dead,
                    _ => &mut deferred,
                },
                // No answer in time uses no attempt.
                None => &mut deferred,
            } += 1;
        });
        let counters = [
            (&self.acknowledged, acknowledged),
            (&self.failed, failed),
            (&self.dead, dead),
            (&self.deferred, deferred),
        ];
        for (counter, count) in counters.into_iter().filter(|(_, count)| *count > 0) {
            counter.increment(count);
        }
        usize::try_from(failed + dead + deferred).unwrap_or(usize::MAX)
    }
}

/// A publisher whose answers are counted, if anybody wants to know.
pub(super) struct Metered<P> {
    inner: Arc<P>,
    meter: Option<Arc<DestinationMeter>>,
}

impl<P> Metered<P> {
    pub(super) fn new(inner: Arc<P>, meter: Option<Arc<DestinationMeter>>) -> Self {
        Self { inner, meter }
    }
}

impl<P: Publisher> Publisher for Metered<P> {
    const BINDING: Binding = P::BINDING;
    const PLACES: Places = P::PLACES;
    const MAX_BATCH: usize = P::MAX_BATCH;
    const OF_ONE_KEY: OfOneKey = P::OF_ONE_KEY;

    fn name(&self) -> &str {
        self.inner.name()
    }

    async fn publish(&self, messages: Vec<Message>) -> Vec<Result<(), PublishError>> {
        self.inner.publish(messages).await
    }

    async fn publish_into(&self, messages: Vec<Message>, results: &Results) {
        let Some(meter) = &self.meter else { return self.inner.publish_into(messages, results).await };
        let _counting = Counting {
            results,
            meter,
            begun_at: Instant::now(),
            #[cfg(feature = "otlp")]
            span: super::otlp::sending(meter.of.0, &meter.of.1, &messages),
        };
        self.inner.publish_into(messages, results).await;
    }

    fn check_address(&self, to: &str) -> Result<(), PublishError> {
        self.inner.check_address(to)
    }

    async fn check(&self) -> Result<(), PublishError> {
        self.inner.check().await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

/// Counts results at the end, also when the time of the batch is over and its future is dropped.
struct Counting<'a> {
    results: &'a Results,
    meter: &'a DestinationMeter,
    begun_at: Instant,
    #[cfg(feature = "otlp")]
    span: Option<opentelemetry::Context>,
}

impl Drop for Counting<'_> {
    fn drop(&mut self) {
        self.meter.duration.record(self.begun_at.elapsed());
        let not_taken = self.meter.count(self.results);
        #[cfg(feature = "otlp")]
        if let Some(span) = &self.span {
            super::otlp::sent(span, not_taken);
        }
        #[cfg(not(feature = "otlp"))]
        let _ = not_taken;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use posthaste::EventId;
    use posthaste::publishers::Headers;
    use tokio::time::timeout;

    use super::*;

    /// Keeps order, notes what it was asked, takes the first of two messages, and never ends.
    #[derive(Default)]
    struct Probe {
        asked: Mutex<Vec<(bool, tokio::time::Instant)>>,
    }

    impl Publisher for Probe {
        const BINDING: Binding = Binding::Nats;
        const MAX_BATCH: usize = 7;
        const OF_ONE_KEY: OfOneKey = OfOneKey::Prefix;

        fn name(&self) -> &str {
            "probe"
        }

        async fn publish(&self, messages: Vec<Message>) -> Vec<Result<(), PublishError>> {
            messages.iter().map(|_| Ok(())).collect()
        }

        async fn publish_into(&self, _messages: Vec<Message>, results: &Results) {
            self.asked.lock().unwrap().push((results.is_in_order(), results.until()));
            results.note(0, Ok(()));
            std::future::pending::<()>().await;
        }

        fn check_address(&self, _to: &str) -> Result<(), PublishError> {
            Err(PublishError::permanent("there is no such address"))
        }

        async fn check(&self) -> Result<(), PublishError> {
            Ok(())
        }

        async fn close(&self) {}
    }

    /// One that says no more of itself than it has to.
    struct Plain;

    impl Publisher for Plain {
        const BINDING: Binding = Binding::Fields;

        fn name(&self) -> &str {
            "plain"
        }

        async fn publish(&self, messages: Vec<Message>) -> Vec<Result<(), PublishError>> {
            messages.iter().map(|_| Ok(())).collect()
        }

        async fn check(&self) -> Result<(), PublishError> {
            Ok(())
        }

        async fn close(&self) {}
    }

    fn meter() -> Arc<DestinationMeter> {
        Arc::new(DestinationMeter {
            #[cfg(feature = "otlp")]
            of: ("nats", "orders".to_owned()),
            acknowledged: Counter::noop(),
            failed: Counter::noop(),
            dead: Counter::noop(),
            deferred: Counter::noop(),
            duration: Histogram::noop(),
        })
    }

    fn messages() -> Vec<Message> {
        let message = |id: &str| Message {
            id: EventId::from_row(id),
            to: "orders".into(),
            key: Some("7".into()),
            content_type: "application/json".into(),
            headers: Headers::default(),
            body: "1".into(),
        };
        vec![message("1"), message("2")]
    }

    /// Whatever a publisher says of itself decides how events are handed to it, also where its answers are counted.
    #[test]
    fn a_publisher_is_what_it_was_when_it_is_counted() {
        let constants = (Metered::<Probe>::BINDING, Metered::<Probe>::MAX_BATCH, Metered::<Probe>::OF_ONE_KEY);
        let metered = Metered::new(Arc::new(Probe::default()), Some(meter()));
        assert_eq!(constants, (Binding::Nats, 7, OfOneKey::Prefix));
        assert_eq!(Metered::<Plain>::OF_ONE_KEY, OfOneKey::One);
        assert_eq!(metered.name(), "probe");
        assert!(metered.check_address("orders").is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn order_time_and_results_are_passed_on_whether_anybody_counts_or_not() {
        for meter in [None, Some(meter())] {
            let probe = Arc::new(Probe::default());
            let metered = Metered::new(Arc::clone(&probe), meter);
            let until = tokio::time::Instant::now() + Duration::from_secs(9);
            for in_order in [false, true] {
                let results = Results::new(2, until);
                let results = if in_order { results.in_order() } else { results };
                // It is cut off, and what was noted until then counts.
                let cut = timeout(Duration::from_secs(1), metered.publish_into(messages(), &results)).await;
                assert!(cut.is_err());
                let noted: Vec<_> =
                    results.into_noted().into_iter().map(|result| result.map(|it| it.is_ok())).collect();
                assert_eq!(noted, [Some(true), None]);
            }
            assert_eq!(*probe.asked.lock().unwrap(), [(false, until), (true, until)]);
        }
    }
}
