//! Which events this process has in hand.

use std::collections::hash_map::Entry as MapEntry;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::HashMap;
use tokio::time::Instant;

use crate::event::EventId;
use crate::store::Lease;
use crate::sync::Mutex;

/// Which events this process has in hand, from the queue to the settlement, and under which lease.
///
/// It only saves work: the row decides who may settle. An event that is in hand is not started a second time, even when
/// its lease ran out and this very process claimed it again; the attempt under way then goes on under the new lease.
#[derive(Debug)]
pub struct InFlight {
    entries: Mutex<Entries>,
    ttl: Option<Duration>,
}

#[derive(Debug, Default)]
struct Entries {
    by_id: HashMap<EventId, Entry>,
    last_token: u64,
}

#[derive(Debug)]
struct Entry {
    token: Token,
    lease: Lease,
    /// A moment at which the lease was certainly not yet taken or renewed.
    leased_at: Instant,
    acquired_at: Instant,
    /// How often the event had failed when the lease was taken. Others may have had it before it was adopted.
    failed: u32,
    /// Whether the lease was adopted since an attempt began. Meanwhile the event may have died elsewhere and been redriven.
    adopted: bool,
    /// The row is known to have another owner, or none.
    lost: bool,
}

impl Entries {
    fn hold(&mut self, id: &EventId, token: Token, now: Instant, duration: Duration) -> Option<u32> {
        let entry = self.by_id.get_mut(id).filter(|entry| entry.token == token)?;
        entry.adopted = false;
        let held = !entry.lost && now.saturating_duration_since(entry.leased_at) < duration;
        let failed = entry.failed;
        if !held {
            self.by_id.remove(id);
        }
        held.then_some(failed)
    }
}

/// Names one acquisition, so that a late release cannot end a newer one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(u64);

/// The lease under which an acquisition goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) lease: Lease,
    /// How often the event had failed when the lease was taken.
    pub(crate) failed: u32,
    /// Whether it is another lease than the one under which the attempt began.
    pub(crate) adopted: bool,
}

impl InFlight {
    /// A tracker that forgets an acquisition after `ttl`, or never.
    pub fn new(ttl: Option<Duration>) -> Self {
        Self { entries: Mutex::default(), ttl }
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an event in hand. Nothing if it is in hand already; that acquisition then goes on under the given lease.
    pub fn acquire(&self, id: &EventId, lease: &Lease, leased_at: Instant) -> Option<Token> {
        self.acquire_failed(id, lease, leased_at, 0)
    }

    /// Like [`acquire`](Self::acquire), for an event that has failed so often.
    pub(crate) fn acquire_failed(&self, id: &EventId, lease: &Lease, leased_at: Instant, failed: u32) -> Option<Token> {
        let now = Instant::now();
        self.acquire_one(&mut self.entries(), now, id, lease, leased_at, failed)
    }

    /// The same for many events under one lease, each with how often it has failed.
    pub(crate) fn acquire_all<'a>(
        &self,
        events: impl IntoIterator<Item = (&'a EventId, u32)>,
        lease: &Lease,
        leased_at: Instant,
    ) -> Vec<Option<Token>> {
        let now = Instant::now();
        let mut entries = self.entries();
        events
            .into_iter()
            .map(|(id, failed)| self.acquire_one(&mut entries, now, id, lease, leased_at, failed))
            .collect()
    }

    fn acquire_one(
        &self,
        entries: &mut Entries,
        now: Instant,
        id: &EventId,
        lease: &Lease,
        leased_at: Instant,
        failed: u32,
    ) -> Option<Token> {
        entries.last_token += 1;
        let token = Token(entries.last_token);
        let fresh =
            Entry { token, lease: lease.clone(), leased_at, acquired_at: now, failed, adopted: false, lost: false };
        match entries.by_id.entry(id.clone()) {
            MapEntry::Vacant(vacant) => {
                vacant.insert(fresh);
                Some(token)
            }
            MapEntry::Occupied(mut occupied) => {
                let entry = occupied.get_mut();
                if self.ttl.is_some_and(|ttl| now.duration_since(entry.acquired_at) >= ttl) {
                    *entry = fresh;
                    return Some(token);
                }
                let adopted = Entry { adopted: true, token: entry.token, acquired_at: entry.acquired_at, ..fresh };
                *entry = adopted;
                None
            }
        }
    }

    /// Lets an event go. Does nothing, and says so, when the acquisition is not the current one.
    pub fn release(&self, id: &EventId, token: Token) -> bool {
        match self.entries().by_id.entry(id.clone()) {
            MapEntry::Occupied(occupied) if occupied.get().token == token => {
                occupied.remove();
                true
            }
            _ => false,
        }
    }

    /// Lets events go that were settled, each under that lease. False, and nothing is let go, where the acquisition is the
    /// current one but goes on under another lease.
    pub(crate) fn finish<'a>(&self, settled: impl IntoIterator<Item = (&'a EventId, Token, &'a Lease)>) -> Vec<bool> {
        let mut entries = self.entries();
        let let_go = |(id, token, lease): (&EventId, Token, &Lease)| {
            let current = entries.by_id.get(id).filter(|entry| entry.token == token);
            let under_it = current.is_none_or(|entry| entry.lease == *lease);
            if current.is_some() && under_it {
                entries.by_id.remove(id);
            }
            under_it
        };
        settled.into_iter().map(let_go).collect()
    }

    /// The lease under which an acquisition goes on, if it is the current one.
    pub fn lease(&self, id: &EventId, token: Token) -> Option<Lease> {
        self.standings([(id, token)]).pop()?.map(|standing| standing.lease)
    }

    /// The same for many, with what is known of their rows since those leases were taken.
    pub(crate) fn standings<'a>(
        &self,
        acquisitions: impl IntoIterator<Item = (&'a EventId, Token)>,
    ) -> Vec<Option<Standing>> {
        let entries = self.entries();
        let standing = |(id, token)| {
            let entry = entries.by_id.get(id).filter(|entry| entry.token == token)?;
            Some(Standing { lease: entry.lease.clone(), failed: entry.failed, adopted: entry.adopted })
        };
        acquisitions.into_iter().map(standing).collect()
    }

    /// Lets an event go unless its lease, which lasts for `duration`, certainly still stands. Says whether it does.
    pub fn hold(&self, id: &EventId, token: Token, duration: Duration) -> bool {
        self.hold_failed(id, token, duration).is_some()
    }

    /// The same for an attempt that begins, and says how often the event had failed when that lease was taken.
    pub(crate) fn hold_failed(&self, id: &EventId, token: Token, duration: Duration) -> Option<u32> {
        self.entries().hold(id, token, Instant::now(), duration)
    }

    /// The same for attempts that begin together, in their order.
    pub(crate) fn hold_all<'a>(
        &self,
        acquisitions: impl IntoIterator<Item = (&'a EventId, Token)>,
        duration: Duration,
        held: &mut Vec<Option<u32>>,
    ) {
        let (mut entries, now) = (self.entries(), Instant::now());
        held.extend(acquisitions.into_iter().map(|(id, token)| entries.hold(id, token, now, duration)));
    }

    /// The leases to renew: taken or renewed at least `age` ago, of events not in hand for longer than the `ttl`.
    pub fn to_renew(&self, age: Duration) -> Vec<(EventId, Lease)> {
        let now = Instant::now();
        let entries = self.entries();
        let due = entries.by_id.iter().filter(|(_, entry)| {
            let forgotten = self.ttl.is_some_and(|ttl| now.duration_since(entry.acquired_at) >= ttl);
            !forgotten && now.duration_since(entry.leased_at) >= age
        });
        due.map(|(id, entry)| (id.clone(), entry.lease.clone())).collect()
    }

    /// Notes that a lease was renewed at or after `leased_at`.
    pub fn renewed(&self, id: &EventId, lease: &Lease, leased_at: Instant) {
        if let Some(entry) = self.entries().by_id.get_mut(id).filter(|entry| entry.lease == *lease) {
            entry.leased_at = leased_at;
        }
    }

    /// Notes that a lease does not stand in its row any more.
    pub fn lost(&self, id: &EventId, lease: &Lease) {
        if let Some(entry) = self.entries().by_id.get_mut(id).filter(|entry| entry.lease == *lease) {
            entry.lost = true;
        }
    }

    /// Everything in hand, which is then no longer.
    pub fn drain(&self) -> Vec<(EventId, Lease)> {
        self.entries().by_id.drain().map(|(id, entry)| (id, entry.lease)).collect()
    }

    /// How many events are in hand.
    pub fn len(&self) -> usize {
        self.entries().by_id.len()
    }

    /// Whether nothing is in hand.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use shuttle::thread;

    use super::*;
    use crate::sync::explore;

    fn lease(number: u64) -> Lease {
        Lease::new("me", number)
    }

    #[test]
    fn what_comes_back_from_others_has_failed_as_often_as_it_did_there() {
        let (in_flight, id, now) = (InFlight::new(None), EventId::from_row("e"), Instant::now());
        let token = in_flight.acquire_failed(&id, &lease(1), now, 1).unwrap();
        assert_eq!(in_flight.hold_failed(&id, token, Duration::from_secs(9)), Some(1));
        assert_eq!(in_flight.acquire_failed(&id, &lease(2), now, 3), None);
        assert_eq!(in_flight.hold_failed(&id, token, Duration::from_secs(9)), Some(3));
        let standing = || in_flight.standings([(&id, token)]);
        assert_eq!(standing(), [Some(Standing { lease: lease(2), failed: 3, adopted: false })]);
        // Again, while the attempt is under way.
        assert_eq!(in_flight.acquire_failed(&id, &lease(3), now, 0), None);
        assert_eq!(standing(), [Some(Standing { lease: lease(3), failed: 0, adopted: true })]);
    }

    #[tokio::test(start_paused = true)]
    async fn of_attempts_that_begin_together_those_are_held_whose_leases_stand() {
        let (in_flight, limit) = (InFlight::new(None), Duration::from_secs(9));
        let ids = ["old", "lost", "other", "new"].map(EventId::from_row);
        let mut tokens = ids.each_ref().map(|id| in_flight.acquire_failed(id, &lease(1), Instant::now(), 2).unwrap());
        tokio::time::sleep(limit).await;
        in_flight.renewed(&ids[1], &lease(1), Instant::now());
        in_flight.renewed(&ids[3], &lease(1), Instant::now());
        in_flight.lost(&ids[1], &lease(1));
        tokens[2] = Token(99);
        let mut held = Vec::new();
        in_flight.hold_all(ids.iter().zip(tokens), limit, &mut held);
        assert_eq!(held, [None, None, None, Some(2)]);
        // What is another's is left alone; what ran out or was lost is let go.
        assert_eq!(in_flight.len(), 2);
    }

    #[test]
    fn in_any_order_an_event_is_in_hand_once() {
        explore(|| {
            let (in_flight, id) = (Arc::new(InFlight::new(None)), EventId::from_row("e"));
            let claim = |number| {
                let (in_flight, id) = (Arc::clone(&in_flight), id.clone());
                thread::spawn(move || in_flight.acquire(&id, &lease(number), Instant::now()))
            };
            let tokens: Vec<_> =
                [claim(1), claim(2), claim(3)].into_iter().map(|claim| claim.join().unwrap()).collect();
            let held: Vec<_> = tokens.into_iter().flatten().collect();
            assert_eq!(held.len(), 1);
            assert!(in_flight.hold(&id, held[0], Duration::from_secs(1)));
        });
    }

    #[test]
    fn in_any_order_a_claim_is_either_new_or_known_to_who_settles() {
        explore(|| {
            let (in_flight, id) = (Arc::new(InFlight::new(None)), EventId::from_row("e"));
            let token = in_flight.acquire(&id, &lease(1), Instant::now()).unwrap();
            let claim = {
                let (in_flight, id) = (Arc::clone(&in_flight), id.clone());
                thread::spawn(move || in_flight.acquire(&id, &lease(2), Instant::now()))
            };
            // Settled under the lease that it had then.
            let under = in_flight.lease(&id, token).unwrap();
            let finished = in_flight.finish([(&id, token, &under)]) == [true];
            let claimed = claim.join().unwrap();
            match (finished, claimed) {
                // Let go first, so the claim is a new attempt; or claimed first, and settled under the new lease.
                (true, Some(new)) => assert_eq!(in_flight.lease(&id, new), Some(lease(2))),
                (true, None) => assert_eq!(under, lease(2)),
                // Claimed in between: whoever settles hears of it, and goes on under the new lease.
                (false, None) => assert_eq!(in_flight.lease(&id, token), Some(lease(2))),
                (false, Some(_)) => panic!("in hand twice"),
            }
        });
    }
}
