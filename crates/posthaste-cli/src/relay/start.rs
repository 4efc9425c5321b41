//! Waiting for what is away at the start.

use std::time::Duration;

use posthaste::publishers::PublishErrorKind;
use posthaste::store;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::{Connected, Holds};
use crate::database::Database;
use crate::exit::{Failed, Status};
use crate::settings::{self, Destination};

/// How long to wait before the next try; each wait is twice as long as the one before, up to the longest.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);

/// How often it is said that something is still away.
const REMIND: Duration = Duration::from_secs(30);

/// Connects to the database, when it is there, and checks its table, and whether it is prepared if there is order.
pub(super) async fn database(settings: &settings::Database, in_order: bool) -> Result<Database, Failed> {
    let shown = settings::shown(&settings.url);
    let mut waiting = Waiting::new();
    let database = loop {
        match Database::open(settings).await {
            Ok(database) => break database,
            Err(error @ store::Error::Unavailable(_)) => {
                waiting.for_a_while(&format!("the database {shown}"), &error).await;
            }
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
            Err(error) if error.is_transient() => waiting.for_a_while(&format!("the database {shown}"), &error).await,
            Err(error) => return Err(error.into()),
        }
    }
    waiting.over(&format!("the database {shown}"));
    Ok(database)
}

/// Learns what is paused. A relay that may not look would not heed what it is told, so that is an error.
pub(super) async fn holds(holds: &Holds, database: &Database) -> Result<(), Failed> {
    let mut waiting = Waiting::new();
    while let Err(error) = holds.look(database).await {
        match error {
            error if error.is_transient() => waiting.for_a_while("the table of pauses", &error).await,
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

/// Waits until every destination has answered, but for those that are said to come later.
pub(super) async fn destinations(settings: &[Destination], connected: &[Connected]) -> Result<(), Failed> {
    for (settings, connected) in settings.iter().zip(connected) {
        if settings.lazy {
            continue;
        }
        let who = format!("the destination {}", settings.name);
        let mut waiting = Waiting::new();
        while let Err(error) = connected.check().await {
            if error.kind() == PublishErrorKind::Permanent {
                let fault = settings.fault(format!("it refuses us: {}", crate::text_of(&error)));
                return Err(Failed::new(Status::Destination, fault));
            }
            waiting.for_a_while(&who, &error).await;
        }
        waiting.over(&who);
    }
    Ok(())
}

/// A wait that is told of, but not too often.
struct Waiting {
    pause: Duration,
    told_at: Option<Instant>,
    since: Instant,
}

impl Waiting {
    fn new() -> Self {
        Self { pause: SHORTEST, told_at: None, since: Instant::now() }
    }

    async fn for_a_while(&mut self, whom: &str, error: &dyn std::error::Error) {
        if self.told_at.is_none_or(|told_at| told_at.elapsed() >= REMIND) {
            let (waited, error) = (self.since.elapsed(), crate::text_of(error));
            warn!(?waited, error, "{whom} cannot be reached; waiting for it");
            self.told_at = Some(Instant::now());
        }
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LONGEST);
    }

    fn over(&self, whom: &str) {
        if self.told_at.is_some() {
            info!(waited = ?self.since.elapsed(), "{whom} is there");
        }
    }
}
