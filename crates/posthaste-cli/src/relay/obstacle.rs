//! What keeps events that are due from being delivered: a pause, or a destination that is away.

use std::collections::BTreeMap;
use std::time::Duration;

use posthaste::store::{Filter, Order};
use posthaste::{Event, Status};
use tracing::warn;

use super::{Connected, Holds};
use crate::database::Database;
use crate::exit::Failed;
use crate::rows;
use crate::settings::{Route, Settings};

/// Everything that may be in the way.
pub(super) struct Obstacles<'a> {
    pub(super) settings: &'a Settings,
    pub(super) holds: &'a Holds,
    pub(super) connected: &'a [Connected],
}

/// What is in the way of an event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Obstacle {
    /// An operator has paused it, in these words.
    Paused(String),
    /// The destination of this name does not answer.
    Away(String),
}

/// How long an event is put off at most because of one: a pause puts off many by five minutes and two more.
pub(super) const PUT_OFF: Duration = Duration::from_secs(420);

/// How many rows are looked at to say what is left.
const LOOKED_AT: usize = 10_000;

impl Obstacles<'_> {
    /// What keeps an event from going its way, if something does. For one that no route fits, nothing is claimed or read while
    /// something is in every way.
    pub(super) fn of(&self, event: &Event) -> Option<Obstacle> {
        let mut routes = self.settings.routes.iter().enumerate();
        match routes.clone().find(|(_, route)| route.fits(event)) {
            Some((place, route)) => self.on(place, route),
            // The last of them all: one that is away may be back sooner than one that is paused.
            None => {
                routes.try_fold(None, |last, (place, route)| Some(last.max(Some(self.on(place, route)?)))).flatten()
            }
        }
    }

    fn on(&self, place: usize, route: &Route) -> Option<Obstacle> {
        if let Some(paused) = self.holds.on(place, route) {
            return Some(Obstacle::Paused(paused.to_string()));
        }
        let away = route.to.iter().find(|&&place| self.connected[place].is_away())?;
        Some(Obstacle::Away(self.settings.destinations[*away].name.clone()))
    }

    /// Whether every route is paused, so that nothing is claimed.
    pub(super) fn is_all_paused(&self) -> bool {
        self.settings.routes.iter().enumerate().all(|(place, route)| self.holds.on(place, route).is_some())
    }

    /// Whether some route is.
    pub(super) fn is_any_paused(&self) -> bool {
        self.settings.routes.iter().enumerate().any(|(place, route)| self.holds.on(place, route).is_some())
    }

    /// Whether some destination is away.
    pub(super) fn is_any_away(&self) -> bool {
        self.connected.iter().any(Connected::is_away)
    }

    /// Says what is left of events that would be delivered by now, and why. Says whether there is any.
    pub(super) async fn tell_of_left(&self, database: &Database) -> Result<bool, Failed> {
        if !self.is_any_paused() && !self.is_any_away() {
            return Ok(false);
        }
        let pending = Filter { statuses: vec![Status::New, Status::Retry], ..Filter::default() };
        let (soon, mut left) = (database.now().await? + PUT_OFF, BTreeMap::<Obstacle, u64>::new());
        let seen = rows::each(database.admin(), &pending, (Order::OldestFirst, Some(LOOKED_AT)), |record| {
            // What is leased is with another relay.
            let is_ours = record.state.lease.is_none() && record.state.available_at <= soon;
            let obstacle = record.event.as_ref().ok().filter(|_| is_ours).and_then(|event| self.of(event));
            if let Some(obstacle) = obstacle {
                *left.entry(obstacle).or_default() += 1;
            }
            Ok(())
        })
        .await?;
        let more = seen == LOOKED_AT;
        for (obstacle, events) in &left {
            match obstacle {
                Obstacle::Paused(what) => warn!(events, or_more = more, "left, because it is paused: {what}"),
                Obstacle::Away(name) => warn!(events, or_more = more, "left, because it is away: destination {name}"),
            }
        }
        Ok(!left.is_empty())
    }
}
