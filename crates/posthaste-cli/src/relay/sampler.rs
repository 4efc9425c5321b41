//! What metrics say of the whole table, and of the process.

use std::sync::Arc;
use std::time::Duration;

use metrics::gauge;
use posthaste::store::{self, Counts, Filter, Page};
use posthaste::{Status, Timestamp};
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use super::condition::Condition;
use crate::database::Database;

/// To read the table is work for the database. At most this part of the time is spent on it.
const SHARE: u32 = 10;

/// How long a relay that has just started delivers before it reads the table, unless somebody wants to know.
const FIRST: Duration = Duration::from_secs(5);

/// Reads the table, again and again, for as long as it is let.
pub(super) async fn sample(database: Database, condition: Arc<Condition>, interval: Duration) {
    let mut is_told = false;
    tell_of_process();
    let _ = condition.ready().await;
    // To count a large table takes long, and there is a backlog to deliver.
    let _ = timeout(interval.min(FIRST), condition.until_asked()).await;
    loop {
        let begun = Instant::now();
        tell_of_process();
        // Says at once if nobody answers, which to count might not for long.
        let _ = condition.ready().await;
        match read(&database).await {
            Ok((counts, oldest)) => {
                if std::mem::take(&mut is_told) {
                    info!("the table can be read for metrics again");
                }
                tell(counts, oldest);
            }
            Err(error) => {
                if !std::mem::replace(&mut is_told, true) {
                    warn!(error = crate::text_of(&error), "the table cannot be read for metrics; trying again");
                }
            }
        }
        sleep(interval.max(begun.elapsed() * SHARE)).await;
    }
}

async fn read(database: &Database) -> Result<(Counts, Duration), store::Error> {
    let store = database.admin();
    let counts = store.counts().await?;
    if counts.pending() == 0 {
        return Ok((counts, Duration::ZERO));
    }
    let pending = Filter { statuses: vec![Status::New, Status::Retry], ..Filter::default() };
    let oldest = store.list(&pending, &Page { limit: 1, ..Page::default() }).await?;
    let Some(oldest) = oldest.first() else { return Ok((counts, Duration::ZERO)) };
    Ok((counts, database.now().await?.since(oldest.state.created_at)))
}

fn tell(counts: Counts, oldest: Duration) {
    for status in Status::ALL {
        gauge!("posthaste_rows", "status" => status.name()).set(counts.of(status) as f64);
    }
    gauge!("posthaste_oldest_pending_seconds").set(oldest.as_secs_f64());
    gauge!("posthaste_sampled_timestamp_seconds").set(seconds(Timestamp::now()));
}

/// What is known from the start.
pub(super) fn tell_of_start() {
    gauge!("posthaste_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    gauge!("process_start_time_seconds").set(seconds(Timestamp::now()));
    gauge!("posthaste_database_up").set(0.0);
    tell_of_process();
}

fn tell_of_process() {
    let resident = std::fs::read_to_string("/proc/self/status").ok().and_then(|status| {
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<f64>().ok()
    });
    if let Some(kibibytes) = resident {
        gauge!("process_resident_memory_bytes").set(kibibytes * 1024.0);
    }
}

fn seconds(moment: Timestamp) -> f64 {
    moment.as_micros() as f64 / 1e6
}
