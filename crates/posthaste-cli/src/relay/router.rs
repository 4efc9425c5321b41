//! Which listener an event goes to: the first route that fits.

use std::sync::Arc;
use std::time::Duration;

use posthaste::listener::{AnyListener, Delivery, Failure, FailureKind, FanOut, Gate, Listener, Room, Verdict};
use posthaste::{Event, Registry};

use super::meter::DestinationMeter;
use super::{Connected, Holds};
use crate::exit::{Failed, Status};
use crate::settings::{Destination, Fault, Route, Settings};

/// The listeners of all routes. Events that no route fits are DEAD, with what to do about it.
pub(crate) fn registry(
    settings: &Settings,
    connected: &[Connected],
    holds: &Holds,
    meters: Option<&Meters>,
) -> Result<Registry, Failed> {
    let mut listeners = Vec::with_capacity(settings.routes.len() + 1);
    for (place, route) in settings.routes.iter().enumerate() {
        let listener = listener(route, settings, connected, meters)?.held_by(holds.of(place, route));
        listeners.push(match route.on_dead {
            Some(policy) => listener.on_dead(policy.into()),
            None => listener,
        });
    }
    let nowhere = listeners.len();
    listeners.push(Nowhere.into());
    let routes = Arc::clone(&settings.routes);
    let choose = move |event: &Event| routes.iter().position(|route| route.fits(event)).or(Some(nowhere));
    let mut registry = Registry::new();
    registry.register_by(listeners, choose).map_err(|error| Failed::new(Status::Settings, error))?;
    Ok(registry)
}

/// What counts for each destination, in their order.
pub(crate) struct Meters(Vec<Arc<DestinationMeter>>);

impl Meters {
    pub(super) fn new(settings: &Settings) -> Self {
        Self(settings.destinations.iter().map(|to| Arc::new(DestinationMeter::new(to))).collect())
    }
}

/// One destination takes batches. Several of them, and limits, take events one by one.
fn listener(
    route: &Route,
    settings: &Settings,
    connected: &[Connected],
    meters: Option<&Meters>,
) -> Result<AnyListener, Failed> {
    let mut listeners = Vec::with_capacity(route.to.len());
    for &place in &route.to {
        let meter = meters.map(|Meters(meters)| &meters[place]);
        listeners.push(one(route, &settings.destinations[place], &connected[place], meter)?);
    }
    if listeners.len() == 1 && route.rate.is_none() && route.concurrency.is_none() {
        return Ok(listeners.remove(0));
    }
    let together = listeners.into_iter().fold(FanOut::new(), FanOut::and).with_retry(route.retry.clone());
    Ok(match (route.rate, route.concurrency) {
        (None, None) => together.into(),
        (Some(rate), None) => together.with_rate(rate.events, rate.period).into(),
        (None, Some(events)) => together.with_concurrency(events).into(),
        // Who has a turn has a place already, and begins.
        (Some(rate), Some(events)) => together.with_rate(rate.events, rate.period).with_concurrency(events).into(),
    })
}

/// What delivers to one destination of a route, or what is wrong with it.
fn one(
    route: &Route,
    destination: &Destination,
    connected: &Connected,
    meter: Option<&Arc<DestinationMeter>>,
) -> Result<AnyListener, Fault> {
    let envelope = route.envelope.as_ref().unwrap_or(&destination.envelope);
    let listener = connected.listener(destination, envelope, &route.retry, meter);
    match listener.mistake() {
        Some(mistake) => Err(destination.fault(format!("{mistake} (for the route {:?})", route.name))),
        None => Ok(listener),
    }
}

/// What is wrong with how routes lead to those destinations that there are.
pub(crate) fn mistakes(settings: &Settings, connected: &[Option<Connected>]) -> Vec<Fault> {
    let pairs = settings.routes.iter().flat_map(|route| route.to.iter().map(move |&place| (route, place)));
    let there = pairs.filter_map(|(route, place)| Some((route, place, connected[place].as_ref()?)));
    there.filter_map(|(route, place, to)| one(route, &settings.destinations[place], to, None).err()).collect()
}

/// For events that no route fits.
struct Nowhere;

impl Listener for Nowhere {
    async fn on_event(&self, event: &Delivery) -> Verdict {
        Err(Failure::new(
            FailureKind::Unroutable,
            format!(
                "no route fits aggregate type {:?} and event type {:?} (tenant {:?}); add a route, restart the relay, and \
                 redrive the event",
                event.aggregate_type(),
                event.event_type(),
                event.tenant_id().unwrap_or_default()
            ),
        ))
    }

    /// Nothing has to be claimed for it while all destinations are away.
    fn gate(&self) -> Option<Arc<dyn Gate>> {
        Some(Arc::new(Shut))
    }
}

struct Shut;

impl Gate for Shut {
    fn room(&self) -> Room {
        Room::ShutFor(Duration::from_secs(3600))
    }
}
