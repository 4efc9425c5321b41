//! Named points at which a test ends the process, as SIGKILL would. Only with the feature `failpoints`, and never for
//! production.
//!
//! The variable `POSTHASTE_KILL_AT` names one of [`POINTS`]: `commit.after` ends the process when it is there for the first
//! time, `commit.after:3` when it is there for the third time. A line on the standard error says so before. Without the
//! variable nothing happens; with a wrong one the process exits with the status 2 at the first point, at the latest when its
//! outbox starts, so that no test misses its point in silence.

use std::num::NonZeroU64;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The variable that names the point.
pub const VARIABLE: &str = "POSTHASTE_KILL_AT";

/// Every point, in about the order in which an event passes them.
///
/// Those inside of a step exist only in stores that need several statements for it: `insert.between`, `claim.locked`,
/// `claim.leased`, `settle.between`, `settle.applied` and `renew.applied`.
pub const POINTS: &[&str] = &[
    // A version of the table is to be made, or is made and not yet recorded.
    "migrate.before",
    "migrate.after",
    // An outbox starts.
    "start.before",
    // One that is alone has yet to take over, or has taken over, what its predecessor had leased.
    "take_over.before",
    "take_over.after",
    // A transaction has begun.
    "begin.after",
    "insert.before",
    // Some rows of a slice are inserted, the rest is not.
    "insert.between",
    "insert.after",
    "commit.before",
    // Committed, also by somebody else who tells with a receipt, and not yet in the hot queue.
    "commit.after",
    "hot.enqueued",
    "claim.before",
    // Rows to claim are locked, not leased.
    "claim.locked",
    // They are leased, which is not committed.
    "claim.leased",
    // Something is leased, and not yet in the cold queue.
    "claim.after",
    "cold.enqueued",
    // With lanes: some are to be, or are, leased; their rows are to be read, or are read and not yet in hand; lanes of which
    // nothing is under way are to be, or are, given back.
    "lease.before",
    "lease.after",
    "read.before",
    "read.after",
    "give_back.before",
    "give_back.after",
    // Rows that are no events are to be made, or are, DEAD.
    "bury.before",
    "bury.after",
    // Rows that were claimed and not wanted are to be, or are, released.
    "refuse.before",
    "refuse.after",
    "listener.before",
    // Published, and nobody knows yet.
    "listener.after",
    "settle.before",
    // What is DONE is written, other outcomes of the same batch are not.
    "settle.between",
    // All is written, and not committed.
    "settle.applied",
    "settle.after",
    // Leases of events in hand are to be, or are, renewed.
    "renew.before",
    "renew.applied",
    "renew.after",
    // Leases that nobody will use are to be, or are, given back.
    "handback.before",
    "handback.after",
    "shutdown.before",
    // No listener runs any more; what they said is not settled.
    "shutdown.drained",
    // The settler has ended.
    "shutdown.settled",
    // What is still in hand is to be, or is, released.
    "release.before",
    "release.after",
    "shutdown.after",
];

/// Ends the process if this is the point, and the time, that the variable names. What `kill_point!` calls.
pub fn reached(point: &str) {
    static KILL: OnceLock<Option<Kill>> = OnceLock::new();
    let kill = KILL.get_or_init(|| {
        let text = std::env::var(VARIABLE).ok()?;
        Some(Kill::parse(&text).unwrap_or_else(|reason| {
            eprintln!("{VARIABLE} is {text:?}: {reason}");
            std::process::exit(2);
        }))
    });
    if kill.as_ref().is_some_and(|kill| kill.is_now(point)) {
        eprintln!("{}", last_words(point));
        end();
    }
}

/// What the process says on its standard error before it ends.
pub fn last_words(point: &str) -> String {
    format!("killed at {point}")
}

/// Whether there is a point of that name.
pub const fn is_point(name: &str) -> bool {
    let mut index = 0;
    while index < POINTS.len() {
        if same(POINTS[index].as_bytes(), name.as_bytes()) {
            return true;
        }
        index += 1;
    }
    false
}

/// Comparison of texts, which the language does not do in constants.
const fn same(mut left: &[u8], mut right: &[u8]) -> bool {
    while let ([first, left_rest @ ..], [second, right_rest @ ..]) = (left, right) {
        if *first != *second {
            return false;
        }
        (left, right) = (left_rest, right_rest);
    }
    left.is_empty() && right.is_empty()
}

/// At which point, and how often that has to be reached yet.
struct Kill {
    point: String,
    left: AtomicU64,
}

impl Kill {
    fn parse(text: &str) -> Result<Self, String> {
        let (point, time) = text.split_once(':').unwrap_or((text, "1"));
        if !is_point(point) {
            return Err(format!("there is no such point; the points are {}", POINTS.join(", ")));
        }
        let time: NonZeroU64 = time.parse().map_err(|_| "after the colon belongs a number from 1 on".to_owned())?;
        Ok(Self { point: point.to_owned(), left: AtomicU64::new(time.get()) })
    }

    fn is_now(&self, point: &str) -> bool {
        point == self.point && self.left.fetch_sub(1, Ordering::Relaxed) == 1
    }
}

/// Ends the process at once: no destructor runs, nothing is flushed.
fn end() -> ! {
    #[cfg(unix)]
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    // The nearest to it where there are no signals.
    std::process::abort();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_counted() {
        let third = Kill::parse("commit.after:3").unwrap();
        assert_eq!(["commit.after"; 5].map(|point| third.is_now(point)), [false, false, true, false, false]);
        let first = Kill::parse("commit.after").unwrap();
        assert_eq!(["commit.before", "commit.after"].map(|point| first.is_now(point)), [false, true]);
    }

    #[test]
    fn what_cannot_happen_is_refused() {
        let refused = |text| Kill::parse(text).err().unwrap();
        assert!(refused("commit.aftr").contains("the points are migrate.before, "));
        assert!(refused("").contains("no such point"));
        for text in ["commit.after:", "commit.after:0", "commit.after:often", "commit.after:1:1"] {
            assert!(refused(text).contains("a number from 1 on"), "{text}");
        }
    }

    #[test]
    fn every_point_has_a_name_of_its_own() {
        let names: std::collections::HashSet<_> = POINTS.iter().collect();
        assert_eq!(names.len(), POINTS.len());
        assert!(POINTS.iter().all(|point| is_point(point)));
        assert!(!is_point("commit.afte") && !is_point("commit.after.") && !is_point(""));
    }
}
