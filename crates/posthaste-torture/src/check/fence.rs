//! Who may change a row.
//!
//! A lease stands in a row at most once and ends with the settlement. So what the database noted can be held against
//! what the relays say: each settlement that was written must be the one change that ended its lease.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use super::evidence::{Changed, Claimed, Event, Evidence, Settled, is_final};
use super::judge::reasons;

/// By how many milliseconds the times of a lease may be rounded.
const ROUNDING_MS: i64 = 5;

/// What is wrong with the changes of a row, if anything.
pub(super) fn crossed(evidence: &Evidence<'_>, event: &Event<'_>) -> Option<String> {
    let lanes = evidence.lanes();
    let mut released = event.released;
    let by_relays = event.changed.iter().filter(|changed| !is_released(changed, &mut released));
    let mut wrong: Vec<_> = by_relays.filter_map(|changed| forbidden(changed, lanes)).collect();
    wrong.extend(event.changed.iter().filter_map(|changed| early(evidence, changed)));
    let ended = ended(event, &mut wrong);
    // If no change was noted at all, nobody was there to note them, which is a doubt and no proof.
    if evidence.ended && evidence.changes > 0 {
        wrong.extend(if lanes { ended_twice(event) } else { unfounded(event, ended) });
    }
    wrong.extend(shared(event));
    wrong.extend(event.claimed.iter().filter_map(|claimed| late(event, claimed)));
    reasons(wrong.into_iter())
}

/// Leases that were lost to another. A settlement that is refused for it says so only once more.
pub(super) fn lost_leases(event: &Event<'_>) -> u64 {
    event.changed.iter().filter(|changed| is_taken(changed)).count() as u64
}

/// The same of rows that are owned by lanes: how many times it was read under another lease than before.
pub(super) fn lost_lanes(event: &Event<'_>) -> u64 {
    let leases: HashSet<&str> = event.claimed.iter().map(|claimed| claimed.lease).collect();
    (leases.len() as u64).saturating_sub(1)
}

fn is_taken(changed: &Changed<'_>) -> bool {
    matches!(changed.lease, [Some(held), Some(next)] if held != next)
}

/// Whether it is the change that an operator makes who has a DEAD event tried again. Each decision is good for one.
fn is_released(changed: &Changed<'_>, released: &mut u64) -> bool {
    let is_released = *released > 0 && changed.status == ["dead", "new"] && changed.lease == [None, None];
    *released -= u64::from(is_released);
    is_released
}

/// A change that is wrong by itself.
fn forbidden(changed: &Changed<'_>, lanes: bool) -> Option<String> {
    let [before, after] = changed.status;
    let became = || format!("it went from {} to {}", before.to_uppercase(), after.to_uppercase());
    match changed.lease {
        _ if is_final(before) && before == after => {
            Some(format!("its lease was changed after {}", before.to_uppercase()))
        }
        _ if is_final(before) => Some(became()),
        [None, None] if lanes => None,
        [None, _] if before != after => Some(format!("{} without a lease", became())),
        [Some(_), Some(_)] if before != after => Some(format!("{} and was leased all the same", became())),
        _ => None,
    }
}

/// A lease that another took over before it had run out: two owned the row at once.
fn early(evidence: &Evidence<'_>, changed: &Changed<'_>) -> Option<String> {
    let (lease, held) = (evidence.run?.lease_ms, changed.held_ms?);
    let early = is_taken(changed) && held.saturating_add(ROUNDING_MS) < lease;
    early.then(|| format!("its lease was taken over after {held} ms of {lease}"))
}

/// A claim of a row that was done already.
fn late(event: &Event<'_>, claimed: &Claimed<'_>) -> Option<String> {
    let late = event.done_at.is_some_and(|done_at| claimed.asked_at > done_at.saturating_add(ROUNDING_MS * 1000));
    late.then(|| format!("it was claimed under lease {} after DONE", claimed.lease))
}

/// The change that ended each lease. No two leases are equal, so one that ends again had come back.
fn ended<'e, 'a>(event: &'e Event<'a>, wrong: &mut Vec<String>) -> HashMap<&'a str, &'e Changed<'a>> {
    let mut ended = HashMap::with_capacity(event.changed.len());
    for changed in &event.changed {
        let Some(lease) = changed.lease[0].filter(|held| changed.lease[1] != Some(held)) else { continue };
        match ended.entry(lease) {
            Entry::Vacant(free) => _ = free.insert(changed),
            Entry::Occupied(_) => wrong.push(format!("lease {lease} came back")),
        }
    }
    ended
}

/// Settlements said to be written, that are not what ended their lease.
fn unfounded(event: &Event<'_>, mut ended: HashMap<&str, &Changed<'_>>) -> Vec<String> {
    let mut wrong = Vec::new();
    for settled in event.settled.iter().filter(|settled| settled.applied) {
        let (action, lease) = (settled.action, settled.lease);
        match ended.remove(lease) {
            None => wrong.push(format!("{action} was written under lease {lease}, which the row did not have then")),
            Some(changed) if is_taken(changed) => {
                wrong.push(format!("{action} was written under lease {lease}, which another had taken over"));
            }
            Some(changed) if !is_outcome(settled, changed) => {
                let after = changed.status[1].to_uppercase();
                wrong.push(format!("{action} was written under lease {lease}, but the row became {after}"));
            }
            Some(_) => {}
        }
    }
    wrong
}

/// Of rows that are owned by lanes, which have no leases of their own: more settlements that were the last than there were decisions to
/// try it again, and one.
fn ended_twice(event: &Event<'_>) -> Vec<String> {
    let last = event.settled.iter().filter(|settled| settled.applied && is_final(settled.action));
    let last: Vec<_> = last.map(|settled| format!("{} under {}", settled.action, settled.lease)).collect();
    if last.len() as u64 > 1 + event.released {
        vec![format!("it was ended more than once: {}", last.join(", "))]
    } else {
        Vec::new()
    }
}

/// Whether a settlement leads to that change.
fn is_outcome(settled: &Settled<'_>, changed: &Changed<'_>) -> bool {
    let [before, after] = changed.status;
    match settled.action {
        "defer" | "release" => after == before,
        action => after == action,
    }
}

/// Leases under which two processes settled. Each makes its own, so one of them had no right to it.
fn shared(event: &Event<'_>) -> Vec<String> {
    let mut owners: HashMap<&str, &str> = HashMap::with_capacity(event.settled.len());
    let mut wrong = Vec::new();
    for settled in &event.settled {
        let owner = *owners.entry(settled.lease).or_insert(settled.who);
        if owner != settled.who {
            wrong.push(format!("{owner} and {} both settled under lease {}", settled.who, settled.lease));
        }
    }
    wrong
}
