//! Why a message may come again.
//!
//! It is sent once under a lease. So it comes again only under another, and what ended the first without DONE explains it:
//!
//! - The lease was taken over, because it had run out: its process was killed, stopped, or could not write the outcome.
//! - The answer of the sink or the broker was lost, and the process put the event off.
//! - The process was ending, could not write the outcome in time, and gave the event back.
//! - The server crashed, and the lease was gone afterwards, because claims do not wait for the disk.
//!
//! Of rows that are owned by lanes it is once under each read of them.

use std::collections::HashMap;

use super::evidence::{Claimed, Event, Evidence, Settled};
use super::fence;

/// How many microseconds before its end a process may give back what it has in hand. It ends soon after that, but who
/// notes it waits for one process after the other.
const ENDING: i64 = 30_000_000;

/// How many microseconds PostgreSQL may take to write down what nobody waits for: three times its `wal_writer_delay`, and some.
const NOT_ON_DISK: i64 = 1_000_000;

/// How many repeats of an event are explained. Without faults, none.
pub(super) fn explained(evidence: &Evidence<'_>, event: &Event<'_>) -> u64 {
    if event.repeats() == 0 || evidence.faults.iter().all(|fault| fault.broken == 0) {
        return 0;
    }
    if evidence.lanes() {
        return event.repeats().min(event.answers_lost + held_again(event));
    }
    let reasons =
        fence::lost_leases(event) + event.answers_lost + given_back(evidence, event) + taken_back(evidence, event);
    event.repeats().min(reasons)
}

/// How many times a row was read from its lane once more: by the next who had the lane, or by the same after a settlement that
/// failed, of which nobody knows whether it was carried out. What is in hand is not read.
fn held_again(event: &Event<'_>) -> u64 {
    (event.claimed.len() as u64).saturating_sub(1)
}

/// Leases that a relay was told it had, right before the server crashed, and of whose end the database knows nothing: after
/// the crash nobody had the row.
fn taken_back(evidence: &Evidence<'_>, event: &Event<'_>) -> u64 {
    let ended = |lease: &str| event.changed.iter().any(|changed| changed.lease[0] == Some(lease));
    let gone = |claimed: &&Claimed<'_>| {
        !ended(claimed.lease) && evidence.taken_back_between(claimed.asked_at, claimed.at.saturating_add(NOT_ON_DISK))
    };
    event.claimed.iter().filter(gone).count() as u64
}

/// Leases that were given back at the end of a process; or nobody says by whom, because the database's answer was lost.
fn given_back(evidence: &Evidence<'_>, event: &Event<'_>) -> u64 {
    let written = event.settled.iter().filter(|settled| settled.applied);
    let written: HashMap<&str, &Settled<'_>> = written.map(|settled| (settled.lease, settled)).collect();
    let at_the_end =
        |settled: &Settled<'_>| settled.action == "release" && evidence.ended_within(settled.who, settled.at, ENDING);
    let given_back = event.changed.iter().filter(|changed| match changed.lease {
        [Some(lease), None] if changed.status[0] == changed.status[1] => {
            written.get(lease).is_none_or(|settled| at_the_end(settled))
        }
        _ => false,
    });
    given_back.count() as u64
}
