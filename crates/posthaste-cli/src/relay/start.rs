//! Waiting for what is away at the start.

use std::time::Duration;

use posthaste::outbox::StartError;
use posthaste::publishers::PublishErrorKind;
use posthaste::store::{self, Store};
use posthaste::{Outbox, OutboxBuilder};
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::{Connected, Holds, Signals};
use crate::database::Database;
use crate::exit::{Failed, Status};
use crate::settings::{self, Destination};

/// How long to wait before the next try; each wait is twice as long as the one before, up to the longest.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);

/// How often it is said that something is still away.
const REMIND: Duration = Duration::from_secs(30);

/// Connects to the database, when it is there, and checks its table, and whether it is prepared if there is order. It is waited for up
/// to the limit, if there is one.
pub(super) async fn database(
    settings: &settings::Database,
    in_order: bool,
    limit: Option<Duration>,
) -> Result<Database, Failed> {
    let who = format!("the database {}", settings::shown(&settings.url));
    let mut waiting = Waiting::new(limit);
    let database = loop {
        match Database::open(settings).await {
            Ok(database) => break database,
            Err(error @ store::Error::Unavailable(_)) => waiting.for_database(&who, error).await?,
            Err(error) => return Err(error.into()),
        }
    };
    loop {
        let checked = match database.make_ready(settings).await {
            Ok(()) if in_order => check_lanes(&database, settings).await,
            checked => checked,
        };
        match checked {
            Ok(()) => break,
            Err(error) if error.is_transient() => waiting.for_database(&who, error).await?,
            Err(error) => return Err(error.into()),
        }
    }
    waiting.over(&who);
    Ok(database)
}

/// Learns what is paused. A relay that may not look would not heed what it is told, so that is an error.
pub(super) async fn holds(holds: &Holds, database: &Database, limit: Option<Duration>) -> Result<(), Failed> {
    let mut waiting = Waiting::new(limit);
    while let Err(error) = holds.look(database).await {
        match error {
            error if error.is_transient() => waiting.for_database("the table of pauses", error).await?,
            // The migrations were checked before: there is one of that name that they found, and did not make.
            store::Error::Schema { table, reason } => {
                let reason = format!(
                    "there is a table {table}_pause that is not ours ({}); rename it, or choose another name for the outbox \
                     with database.table",
                    reason.trim_end_matches("; call migrate() first")
                );
                return Err(store::Error::Schema { table, reason }.into());
            }
            error => return Err(error.into()),
        }
    }
    waiting.over("the table of pauses");
    Ok(())
}

/// Prepares the table for order if the settings say so, and checks that it is.
async fn check_lanes(database: &Database, settings: &settings::Database) -> Result<(), store::Error> {
    // Whether it is prepared can be seen by who may not prepare it.
    match database.count_lanes().await {
        Err(store::Error::Schema { .. }) if settings.migrate => database.prepare_lanes().await,
        Err(store::Error::Schema { table, .. }) => Err(store::Error::Schema {
            table,
            reason: "it is not prepared for order; posthaste migrate up --lanes prepares it".to_owned(),
        }),
        checked => checked,
    }
}

/// Waits until every destination has answered, but for those that are said to come later. One that refuses us is not waited for. With a
/// limit, which is that of all together, those that are away for longer are left out. Says how long was waited.
pub(super) async fn destinations(
    settings: &[Destination],
    connected: &[Connected],
    limit: Option<Duration>,
) -> Result<Duration, Failed> {
    let mut waited = Duration::ZERO;
    for (settings, connected) in settings.iter().zip(connected).filter(|(settings, _)| !settings.lazy) {
        let who = format!("the destination {}", settings.name);
        let mut waiting = Waiting::new(limit.map(|limit| limit.saturating_sub(waited)));
        while let Err(error) = connected.check().await {
            let text = crate::text_of(&error);
            if error.kind() == PublishErrorKind::Permanent {
                return Err(Failed::new(Status::Destination, settings.fault(format!("it refuses us: {text}"))));
            }
            if !waiting.for_a_while(&who, &settings.told(text)).await {
                break;
            }
        }
        waiting.over(&who);
        waited += waiting.so_far();
    }
    Ok(waited)
}

/// Starts an outbox, and waits for a database that goes away meanwhile. Nothing if a signal came first.
pub(super) async fn outbox<S: Store>(
    build: impl Fn() -> OutboxBuilder<S>,
    limit: Option<Duration>,
    signals: &mut Signals,
) -> Result<Option<Outbox<S>>, Failed> {
    let mut waiting = Waiting::new(limit);
    loop {
        let error = match build().start().await {
            Ok(outbox) => return Ok(Some(outbox)),
            Err(StartError::Lanes(error) | StartError::Store(error)) => error,
            Err(error) => return Err(could_not_start(error)),
        };
        if !error.is_transient() {
            return Err(error.into());
        }
        tokio::select! {
            waited = waiting.for_database("the database", error) => waited?,
            signal = signals.next() => {
                info!(signal, "ended before anything was claimed");
                return Ok(None);
            }
        }
    }
}

/// Why an outbox does not start whose database is there.
fn could_not_start(error: StartError) -> Failed {
    let status = match error {
        StartError::Options(_)
        | StartError::OtherSettings { .. }
        | StartError::NotOrdered
        | StartError::NoLanes
        | StartError::NoParking => Status::Settings,
        _ => Status::CouldNotRun,
    };
    Failed::new(status, error)
}

/// A wait that is told of, but not too often.
struct Waiting {
    pause: Duration,
    told_at: Option<Instant>,
    since: Instant,
    limit: Option<Duration>,
    is_over: bool,
}

impl Waiting {
    fn new(limit: Option<Duration>) -> Self {
        Self { pause: SHORTEST, told_at: None, since: Instant::now(), limit, is_over: false }
    }

    /// For how long.
    fn so_far(&self) -> Duration {
        if self.told_at.is_some() { self.since.elapsed() } else { Duration::ZERO }
    }

    /// Says no if it was for as long as it may be.
    async fn for_a_while(&mut self, whom: &str, error: &str) -> bool {
        let waited = self.since.elapsed();
        let left = self.limit.map_or(Duration::MAX, |limit| limit.saturating_sub(waited));
        if left.is_zero() {
            warn!(?waited, error, "{whom} cannot be reached; not waiting for it any longer");
            (self.told_at, self.is_over) = (Some(Instant::now()), true);
            return false;
        }
        if self.told_at.is_none_or(|told_at| told_at.elapsed() >= REMIND) {
            warn!(?waited, error, "{whom} cannot be reached; waiting for it");
            self.told_at = Some(Instant::now());
        }
        sleep(self.pause.min(left)).await;
        self.pause = (self.pause * 2).min(LONGEST);
        true
    }

    /// The same for the database, without which there is nothing to do.
    async fn for_database(&mut self, whom: &str, error: store::Error) -> Result<(), Failed> {
        match self.for_a_while(whom, &crate::text_of(&error)).await {
            true => Ok(()),
            false => Err(error.into()),
        }
    }

    fn over(&self, whom: &str) {
        if self.told_at.is_some() && !self.is_over {
            info!(waited = ?self.since.elapsed(), "{whom} is there");
        }
    }
}
