//! What operators have paused: kept in the database, and heeded by every relay.

use std::collections::BTreeSet;
use std::time::Duration;

use metrics::gauge;
use posthaste::listener::Hold;
use posthaste::store::{self, Paused};
use tokio::time::sleep;
use tracing::{info, warn};

use crate::database::Database;
use crate::settings::{Route, Settings};

/// How often a relay looks what is paused.
const LOOK: Duration = Duration::from_millis(500);

/// A hold for each route and each destination, in their order.
pub(crate) struct Holds {
    routes: Vec<Hold>,
    destinations: Vec<Hold>,
    /// The same with what they are: first the routes, then the destinations.
    named: Vec<(Paused, Hold)>,
}

impl Holds {
    pub(crate) fn new(settings: &Settings) -> Self {
        let mut named = Vec::new();
        let mut hold = |what: Paused| {
            let hold = Hold::new();
            named.push((what, hold.clone()));
            hold
        };
        let routes = settings.routes.iter().map(|route| hold(Paused::Route(route.name.clone()))).collect();
        let destinations = settings.destinations.iter().map(|to| hold(Paused::Destination(to.name.clone()))).collect();
        Self { routes, destinations, named }
    }

    /// What may keep events from a route: a pause of it, or of one of its destinations.
    pub(super) fn of(&self, place: usize, route: &Route) -> impl Iterator<Item = Hold> {
        let destinations = route.to.iter().map(|&place| &self.destinations[place]);
        [&self.routes[place]].into_iter().chain(destinations).cloned()
    }

    /// What keeps events from a route now, if something does.
    pub(super) fn on(&self, place: usize, route: &Route) -> Option<&Paused> {
        let destinations = route.to.iter().map(|&place| self.routes.len() + place);
        let mut may_hold = [place].into_iter().chain(destinations).map(|place| &self.named[place]);
        may_hold.find(|(_, hold)| hold.is_held()).map(|(what, _)| what)
    }

    /// Does as the database says.
    pub(super) async fn look(&self, database: &Database) -> Result<(), store::Error> {
        let pauses = database.admin().pauses().await?;
        let paused: BTreeSet<&Paused> = pauses.iter().map(|pause| &pause.what).collect();
        for (what, hold) in &self.named {
            let is_paused = paused.contains(what);
            let (kind, name) = (kind(what), what.name().to_owned());
            gauge!("posthaste_paused", "kind" => kind, "name" => name).set(if is_paused { 1.0 } else { 0.0 });
            match is_paused {
                true if hold.hold() => info!("paused: {what}; its events wait"),
                false if hold.release() => info!("resumed: {what}"),
                _ => {}
            }
        }
        Ok(())
    }

    /// Looks again and again, for as long as it is let. While nobody can be asked, what is paused stays so.
    pub(super) async fn watch(&self, database: &Database) {
        let mut is_told = false;
        loop {
            sleep(LOOK).await;
            match self.look(database).await {
                Ok(()) => is_told = false,
                Err(error) => {
                    if !std::mem::replace(&mut is_told, true) {
                        let error = crate::text_of(&error);
                        warn!(error, "it cannot be seen what is paused; it stays as it is, and is looked at again");
                    }
                }
            }
        }
    }
}

pub(crate) fn kind(what: &Paused) -> &'static str {
    match what {
        Paused::Route(_) => "route",
        Paused::Destination(_) => "destination",
    }
}
