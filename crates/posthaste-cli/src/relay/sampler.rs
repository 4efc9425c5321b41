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

/// Looks at the process and the table, again and again, for as long as it is let. What is sent somewhere is read in any case.
pub(super) async fn sample(database: Database, condition: Arc<Condition>, interval: Duration, is_sent: bool) {
    tokio::join!(watch(&condition, interval), read_again(&database, &condition, interval, is_sent));
}

/// What costs next to nothing, which also says at once if nobody answers.
async fn watch(condition: &Condition, interval: Duration) {
    loop {
        tell_of_process();
        let _ = condition.ready().await;
        sleep(interval).await;
    }
}

/// Reads the table once after the start, and then for whoever wants to know.
async fn read_again(database: &Database, condition: &Condition, interval: Duration, is_sent: bool) {
    let mut is_told = false;
    // To count a large table takes long, and there is a backlog to deliver.
    let _ = timeout(interval.min(FIRST), condition.until_asked()).await;
    loop {
        let begun = Instant::now();
        match read(database).await {
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
        condition.has_sampled();
        until_wanted(condition, interval.max(begun.elapsed() * SHARE), is_sent).await;
    }
}

/// Waits until the table is to be read again: not before its rest is over, and only if somebody has asked since, unless it is sent.
async fn until_wanted(condition: &Condition, rest: Duration, is_sent: bool) {
    sleep(rest).await;
    if !is_sent {
        condition.until_asked().await;
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

#[cfg(test)]
mod tests {
    use super::*;

    const REST: Duration = Duration::from_secs(15);

    /// The clock goes on by itself while everybody waits, so this takes no time.
    #[tokio::test(start_paused = true)]
    async fn the_table_is_read_again_only_if_somebody_has_asked_or_it_is_sent() {
        let condition = Condition::new();
        let day = Duration::from_secs(86_400);
        let wanted = async |is_sent| timeout(day, until_wanted(&condition, REST, is_sent)).await.is_ok();
        assert!(!wanted(false).await, "nobody has asked");
        assert!(wanted(true).await, "it is sent");
        condition.has_sampled();
        condition.asked_for_metrics().await;
        condition.asked_for_metrics().await;
        let begun = Instant::now();
        assert!(wanted(false).await, "somebody has asked since");
        assert!(begun.elapsed() >= REST, "it has its rest all the same: {:?}", begun.elapsed());
        condition.has_sampled();
        assert!(!wanted(false).await, "two who asked before are read for once");
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_asks_for_what_is_old_is_told_what_is_read_for_him_unless_that_takes_long() {
        for (takes, is_heard) in [(Duration::from_millis(300), true), (Duration::from_secs(300), false)] {
            let condition = Condition::new();
            let reading = async {
                until_wanted(&condition, REST, false).await;
                sleep(takes).await;
                condition.has_sampled();
                Instant::now()
            };
            let asking = async {
                // Long after it was read last.
                sleep(REST * 10).await;
                let begun = Instant::now();
                condition.asked_for_metrics().await;
                (begun.elapsed(), Instant::now())
            };
            let (read_at, (waited, told_at)) = tokio::join!(reading, asking);
            assert_eq!(told_at >= read_at, is_heard, "{takes:?}");
            assert!(waited < Duration::from_secs(2), "{waited:?}");
            // What is fresh is told at once.
            let begun = Instant::now();
            condition.asked_for_metrics().await;
            assert_eq!(begun.elapsed(), Duration::ZERO);
        }
    }
}
