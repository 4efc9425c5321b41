//! Events that wait: under leases that ran out, for a relay, or because something is paused.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use posthaste::store::{Filter, Key, Lease, Order, Pause, Paused, Record};
use posthaste::{Event, Status, Timestamp};
use sqlx::AssertSqlSafe;

use super::finding::Findings;
use super::order::InOrder;
use super::{mysql, postgres, sqlite};
use crate::database::Database;
use crate::rows;
use crate::settings::Settings;

/// How many pending events are looked at one by one, where something may hold them back, or there are too many to be counted.
const LOOKED_AT: usize = 10_000;

/// What a database says of everything that is pending: events whose leases ran out, since when the oldest, of whom; events that are
/// due and nobody has, since when the oldest; and what time it is.
pub(super) type Figures = (i64, f64, Option<String>, i64, f64, i64);

/// Events that somebody should have taken.
#[derive(Default)]
struct Left {
    expired: u64,
    /// Since when the oldest lease is out, in seconds.
    expired_for: f64,
    owner: Option<String>,
    due: u64,
    /// How long the oldest is due, in seconds.
    due_for: f64,
    /// Whether only some of very many were looked at, so that there may be more.
    or_more: bool,
}

pub(super) async fn look(
    database: &Database,
    settings: &Settings,
    in_order: &InOrder,
    found: &mut Findings,
) -> anyhow::Result<()> {
    let (figures, or_more) = match count(database, settings, None).await {
        // So many are pending that a server does not come to the end of them in time.
        Err(error) if postgres::is_cut_off(&error) => (count(database, settings, Some(LOOKED_AT)).await?, true),
        counted => (counted?, false),
    };
    let (expired, expired_for, owner, due, due_for, now) = figures;
    let left = Left { expired: expired.unsigned_abs(), expired_for, owner, due: due.unsigned_abs(), due_for, or_more };
    let pauses = match database.admin().pauses().await {
        Ok(pauses) => pauses,
        Err(error) => {
            let what = format!("it cannot be seen what is paused: {}", crate::text_of(&error));
            found.note("pauses", what, "let this user read the table of pauses, or ask as another");
            Vec::new()
        }
    };
    if pauses.is_empty() && !in_order.is_some() {
        found.fine_unless_found("pauses", "nothing is paused");
        left.judge(settings, None, found);
        return Ok(());
    }
    // Now it takes the events themselves to know which of them wait for good reason.
    let mut each = Each::new(settings, &pauses, in_order, Timestamp::from_micros(now));
    let pending = Filter { statuses: vec![Status::New, Status::Retry], ..Filter::default() };
    let note = |record| {
        each.note(&record);
        Ok(())
    };
    let seen = rows::each(database.admin(), &pending, (Order::OldestFirst, Some(LOOKED_AT)), note).await;
    each.left.or_more = seen.map_err(|failed| failed.error)? == LOOKED_AT;
    each.tell_of_pauses(found);
    each.tell_of_leases(found);
    if in_order.is_some() {
        let relays = in_order.relays;
        found.fine_unless_found("order", format!("{relays} relay(s) are there, and none has anything else in order"));
    }
    let held = each.held.values().sum::<u64>() + each.parked;
    each.left.judge(settings, Some(held), found);
    Ok(())
}

/// Counts all that are pending; on PostgreSQL, where no question takes longer than it may, so many of them at most.
async fn count(database: &Database, settings: &Settings, most: Option<usize>) -> Result<Figures, sqlx::Error> {
    let lease = settings.relay.lease.as_secs_f64();
    match database {
        Database::Postgres(store) => {
            let query = sqlx::query_as(AssertSqlSafe(postgres::waiting(store.table(), lease, most)));
            query.fetch_one(&mut postgres::connection(store).await?).await
        }
        Database::MySql(store) => {
            sqlx::query_as(AssertSqlSafe(mysql::waiting(store.table(), lease))).fetch_one(store.pool()).await
        }
        Database::Sqlite(store) => {
            sqlx::query_as(AssertSqlSafe(sqlite::waiting(store.table(), lease))).fetch_one(store.pool()).await
        }
    }
}

/// What is noted while events are looked at one by one.
struct Each<'a> {
    settings: &'a Settings,
    pauses: &'a [Pause],
    in_order: &'a InOrder,
    now: Timestamp,
    /// Keys of which an event was seen. Those behind it wait for it.
    keys: HashSet<Key>,
    left: Left,
    /// How many events each pause holds back.
    held: BTreeMap<Paused, u64>,
    /// How many are of aggregates that are parked.
    parked: u64,
    /// Who has leases on single events that stand.
    owners: BTreeSet<String>,
}

impl<'a> Each<'a> {
    fn new(settings: &'a Settings, pauses: &'a [Pause], in_order: &'a InOrder, now: Timestamp) -> Self {
        let (keys, held, owners) = (HashSet::new(), BTreeMap::new(), BTreeSet::new());
        Self { settings, pauses, in_order, now, keys, left: Left::default(), held, parked: 0, owners }
    }

    fn note(&mut self, record: &Record) {
        let lease = record.state.lease.as_ref().map(|(lease, at)| (Lease::owner_of(lease), self.now.since(*at)));
        let is_out = |age: Duration| age > self.settings.relay.lease;
        if let Some((owner, age)) = lease
            && !is_out(age)
        {
            self.owners.insert(owner.to_owned());
            return;
        }
        if let Ok(event) = &record.event
            && self.is_held(event)
        {
            return;
        }
        match lease {
            Some((owner, age)) => {
                let out_for = age.saturating_sub(self.settings.relay.lease).as_secs_f64();
                self.left.expired += 1;
                if out_for >= self.left.expired_for {
                    (self.left.expired_for, self.left.owner) = (out_for, Some(owner.to_owned()));
                }
            }
            None if record.state.available_at <= self.now => {
                let due_for = self.now.since(record.state.available_at).as_secs_f64();
                self.left.due += 1;
                self.left.due_for = self.left.due_for.max(due_for);
            }
            None => {}
        }
    }

    /// Whether it is not for a relay to take it now: its aggregate is parked, or another event of it comes first, or where it goes is
    /// paused.
    fn is_held(&mut self, event: &Event) -> bool {
        if let Some(key) = Key::of(event).filter(|key| self.in_order.includes(&key.aggregate_type)) {
            if self.in_order.parked.contains(&key) {
                self.parked += 1;
                return true;
            }
            if !self.keys.insert(key) {
                return true;
            }
        }
        let Some(route) = self.settings.routes.iter().find(|route| route.fits(event)) else { return false };
        let paused = self.pauses.iter().find(|pause| self.settings.holds(&pause.what, route));
        if let Some(pause) = paused {
            *self.held.entry(pause.what.clone()).or_default() += 1;
        }
        paused.is_some()
    }

    /// A pause is what somebody wanted, and may have forgotten.
    fn tell_of_pauses(&self, found: &mut Findings) {
        for Pause { what, reason, since } in self.pauses {
            let reason = reason.as_ref().map_or_else(String::new, |reason| format!(" ({reason})"));
            let is_known = match what {
                Paused::Route(name) => self.settings.routes.iter().any(|route| route.name == *name),
                Paused::Destination(name) => self.settings.destinations.iter().any(|to| to.name == *name),
            };
            let whom = match self.held.get(what) {
                _ if !is_known => "these settings have none of that name".to_owned(),
                held => {
                    let at_least = self.left.at_least();
                    format!("{at_least}{} pending event(s) are held back by it", held.unwrap_or(&0))
                }
            };
            found.note(
                "pauses",
                format!("{what} is paused since {since}{reason}: {whom}"),
                format!("posthaste resume {what}"),
            );
        }
        found.fine_unless_found("pauses", "nothing is paused");
    }

    /// Relays that own lanes lease no single events, and whoever does delivers out of order beside them.
    fn tell_of_leases(&self, found: &mut Findings) {
        if self.in_order.relays > 0 && !self.owners.is_empty() {
            let owners = self.owners.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            let what =
                format!("{owners} leases events one by one beside relays that own lanes: these come out of order");
            found.warning("order", what, "end it, and start it with the same relay.ordered as the others");
        }
    }
}

/// How long something may be due before somebody should have taken it.
fn patience(settings: &Settings) -> Duration {
    (settings.relay.poll_interval * 3).max(Duration::from_secs(15))
}

impl Left {
    /// What stands before a number of events.
    fn at_least(&self) -> &'static str {
        if self.or_more { "at least " } else { "" }
    }

    /// Tells what is left. Those that are held back for good reason are not among it, if it was looked for that.
    fn judge(self, settings: &Settings, held: Option<u64>, found: &mut Findings) {
        let at_least = self.at_least();
        let Self { expired, expired_for, owner, due, due_for, or_more } = self;
        // What is beyond those was not looked at.
        let among = if or_more { format!(" among the first {LOOKED_AT} that are pending") } else { String::new() };
        if expired > 0 {
            let owner = owner.as_deref().map(Lease::owner_of).unwrap_or("nobody known");
            let what = format!(
                "{at_least}{expired} event(s) have leases that ran out, the oldest {expired_for:.0} s ago, of {owner}"
            );
            let fix = "a relay takes them over at its next poll: see that one runs (posthaste relay)";
            found.warning("leases", what, fix);
        } else {
            found.fine("leases", format!("no lease has run out{among}"));
        }
        let but = match held {
            Some(held) if held > 0 => format!("; {at_least}{held} event(s) are held back, see pauses and keys"),
            _ => String::new(),
        };
        if due > 0 && due_for > patience(settings).as_secs_f64() {
            let what = format!(
                "{at_least}{due} event(s) are due and nobody has claimed them, the oldest for {due_for:.0} s{but}"
            );
            found.warning(
                "relays",
                what,
                "see that a relay runs (posthaste relay), and that it can keep up (posthaste stats)",
            );
        } else {
            found.fine("relays", format!("nothing that is due waits for long{among}{but}"));
        }
    }
}
