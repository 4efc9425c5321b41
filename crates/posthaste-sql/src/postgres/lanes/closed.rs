//! Which keys may be closed, as far as whoever has their lanes can know without asking for each row.
//!
//! Only a settlement under the epoch of a lane closes keys of it, and all of them go through the store that has leased the lane. So
//! what was closed when the lane was leased, and what was sent to be closed since, is all that can be closed. A key that is not among
//! that is open, and a read of many rows looks for the others only. See `docs/design/ordering.md`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use posthaste_core::store::{Lane, LaneLease};
use tokio::time::Instant;

/// How often it is asked which keys are closed, at most. While some are being closed all the time, reads look for each row.
const REST: Duration = Duration::from_secs(1);

/// With more closed keys than this, reads look for each row, and it is asked after a while whether there are fewer.
pub(super) const MOST: usize = 100_000;
const REST_OF_MANY: Duration = Duration::from_secs(60);

/// How many bits there are for each closed key, at least, and how many altogether.
const BITS_EACH: usize = 8;
const FEWEST_BITS: usize = 1 << 12;
const MOST_BITS: usize = 1 << 19;

/// What is known of the closed keys of lanes that were leased through this store.
#[derive(Default)]
pub(super) struct ClosedKeys(Mutex<State>);

#[derive(Default)]
struct State {
    lanes: HashMap<Lane, Known>,
    bits: Bits,
    ask_at: Option<Instant>,
}

/// What is known of a lane.
struct Known {
    epoch: i64,
    /// How many settlements that close keys of it were begun.
    begun: u64,
    /// How many of them are under way.
    under_way: u32,
    /// Whether one of them has ended without an answer. It may be carried out at any time.
    unsure: bool,
    /// The hashes of its closed keys and maybe of others, unless some were sent to be closed since somebody asked.
    hashes: Option<Vec<i64>>,
}

/// Lanes of which it is asked which keys are closed, each with how many settlements had been begun.
pub(super) struct Asking(Vec<(LaneLease, u64)>);

impl Asking {
    pub(super) fn leases(&self) -> Vec<LaneLease> {
        self.0.iter().map(|(lease, _)| *lease).collect()
    }
}

/// What a read can know.
pub(super) struct Filter {
    /// Of each lane that is read, how many settlements had been begun, if it is known which keys may be closed, and some may.
    begun: Vec<Option<u64>>,
    bits: Bits,
}

/// A bit for each hash, which is set if a key with that hash may be closed.
#[derive(Clone)]
pub(super) struct Bits(Arc<[u8]>);

impl ClosedKeys {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lanes were leased. Nothing that was known of them counts any more.
    pub(super) fn leased(&self, leases: &[LaneLease]) {
        let known = |lease: &LaneLease| {
            (lease.lane, Known { epoch: lease.epoch, begun: 0, under_way: 0, unsure: false, hashes: None })
        };
        self.state().lanes.extend(leases.iter().map(known));
    }

    /// Of which of these lanes it has to be asked which keys are closed, if it is time for it.
    pub(super) fn to_ask(&self, leases: &[LaneLease]) -> Option<Asking> {
        let now = Instant::now();
        let state = &mut *self.state();
        if state.ask_at.is_some_and(|at| now < at) {
            return None;
        }
        let to_ask = |lease: &LaneLease| {
            let known = state.lanes.get(&lease.lane).filter(|known| known.epoch == lease.epoch)?;
            (known.is_settled() && known.hashes.is_none()).then_some((*lease, known.begun))
        };
        let asking: Vec<_> = leases.iter().filter_map(to_ask).collect();
        if asking.is_empty() {
            return None;
        }
        state.ask_at = Some(now + REST);
        Some(Asking(asking))
    }

    /// The hashes of the keys that are closed, unless there are more than are of use.
    pub(super) fn told(&self, asking: &Asking, hashes: &[(Lane, i64)]) {
        let state = &mut *self.state();
        if hashes.len() > MOST {
            state.ask_at = Some(Instant::now() + REST_OF_MANY);
            return;
        }
        let mut by_lane: HashMap<Lane, Vec<i64>> = HashMap::new();
        for (lane, hash) in hashes {
            by_lane.entry(*lane).or_default().push(*hash);
        }
        for (lease, begun) in &asking.0 {
            let known = state.lanes.get_mut(&lease.lane);
            // Whatever was begun since may not be in the answer.
            let known = known.filter(|known| (known.epoch, known.begun) == (lease.epoch, *begun) && known.is_settled());
            if let Some(known) = known {
                known.hashes = Some(by_lane.remove(&lease.lane).unwrap_or_default());
            }
        }
        let all: Vec<_> = state.lanes.values().filter_map(|known| known.hashes.as_deref()).collect();
        state.bits = Bits::of(&all);
    }

    /// What a read of these lanes can know.
    pub(super) fn filter(&self, leases: &[LaneLease]) -> Filter {
        let state = self.state();
        let begun = |lease: &LaneLease| {
            let known = state.lanes.get(&lease.lane).filter(|known| known.epoch == lease.epoch)?;
            // Where there is none, the table says so for the whole lane.
            known.hashes.as_ref().is_some_and(|hashes| !hashes.is_empty()).then_some(known.begun)
        };
        Filter { begun: leases.iter().map(begun).collect(), bits: state.bits.clone() }
    }

    /// Whether nothing was sent to be closed since that filter was made, of the lanes that it was used for.
    pub(super) fn stands(&self, leases: &[LaneLease], filter: &Filter) -> bool {
        let state = self.state();
        let same = |(lease, begun): (&LaneLease, &Option<u64>)| {
            let Some(begun) = begun else { return true };
            state.lanes.get(&lease.lane).is_some_and(|known| (known.epoch, known.begun) == (lease.epoch, *begun))
        };
        leases.iter().zip(&filter.begun).all(same)
    }

    /// The server was away. Another may answer from now on, or already does, which has lost the last transactions. So it is asked
    /// again, and no filter that is under way stands.
    pub(super) fn forget(&self) {
        for known in self.state().lanes.values_mut() {
            known.begun += 1;
            known.hashes = None;
        }
    }

    /// The same, unless there is an answer.
    pub(super) fn forget_unless_answered(&self) -> Forgetting<'_> {
        Forgetting(Some(self))
    }

    /// Keys of these lanes are about to be closed.
    pub(super) fn closing(&self, leases: impl Iterator<Item = LaneLease>) -> Closing<'_> {
        let mut leases: Vec<_> = leases.collect();
        leases.sort_unstable();
        leases.dedup();
        let closing = Closing { keys: self, leases, has_answer: false };
        closing.each(|known| {
            known.begun += 1;
            known.under_way += 1;
            known.hashes = None;
        });
        closing
    }
}

impl Known {
    /// Whether everything that was sent to be closed is closed by now, or never will be.
    fn is_settled(&self) -> bool {
        self.under_way == 0 && !self.unsure
    }
}

/// Something that is asked of the server. If it fails, or is given up, nothing that was known counts any more.
#[must_use = "what is known is forgotten when it is dropped"]
pub(super) struct Forgetting<'a>(Option<&'a ClosedKeys>);

impl Forgetting<'_> {
    /// The server has answered.
    pub(super) fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for Forgetting<'_> {
    fn drop(&mut self) {
        if let Some(keys) = self.0 {
            keys.forget();
        }
    }
}

/// A settlement that closes keys.
#[must_use = "it is under way until it is dropped"]
pub(super) struct Closing<'a> {
    keys: &'a ClosedKeys,
    leases: Vec<LaneLease>,
    has_answer: bool,
}

impl Closing<'_> {
    /// The server has said what it did.
    pub(super) fn answered(mut self) {
        self.has_answer = true;
    }

    fn each(&self, change: impl Fn(&mut Known)) {
        let lanes = &mut self.keys.state().lanes;
        for lease in &self.leases {
            if let Some(known) = lanes.get_mut(&lease.lane).filter(|known| known.epoch == lease.epoch) {
                change(known);
            }
        }
    }
}

/// One that is given up, or has failed, may be carried out later.
impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.each(|known| {
            known.under_way = known.under_way.saturating_sub(1);
            known.unsure |= !self.has_answer;
        });
    }
}

impl Filter {
    /// One that knows nothing of so many lanes.
    pub(super) fn none(lanes: usize) -> Self {
        Self { begun: vec![None; lanes], bits: Bits::default() }
    }

    /// Of each lane, whether it is known which keys may be closed.
    pub(super) fn knows(&self) -> Vec<bool> {
        self.begun.iter().map(Option::is_some).collect()
    }

    pub(super) fn bits(&self) -> &[u8] {
        &self.bits.0
    }

    /// Which part of a hash is the number of its bit.
    pub(super) fn mask(&self) -> i64 {
        self.bits.mask()
    }
}

impl Default for Bits {
    fn default() -> Self {
        Self(Arc::new([0]))
    }
}

impl Bits {
    fn of(hashes: &[&[i64]]) -> Self {
        let keys: usize = hashes.iter().map(|hashes| hashes.len()).sum();
        if keys == 0 {
            return Self::default();
        }
        let bits = (keys * BITS_EACH).next_power_of_two().clamp(FEWEST_BITS, MOST_BITS);
        let mut bytes = vec![0_u8; bits / 8];
        let mask = mask(bytes.len());
        for hash in hashes.iter().copied().flatten() {
            let (byte, bit) = place(*hash, mask);
            bytes[byte] |= 1 << bit;
        }
        Self(bytes.into())
    }

    fn mask(&self) -> i64 {
        mask(self.0.len())
    }
}

fn mask(bytes: usize) -> i64 {
    i64::try_from(bytes * 8 - 1).unwrap_or(0)
}

/// The byte of a hash, and the bit in it, counted as `get_bit` does.
fn place(hash: i64, mask: i64) -> (usize, u32) {
    let number = hash & mask;
    (usize::try_from(number / 8).unwrap_or(0), u32::try_from(number % 8).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: LaneLease = LaneLease { lane: Lane(3), epoch: 7 };
    const OTHER: LaneLease = LaneLease { lane: Lane(4), epoch: 1 };

    fn asked(keys: &ClosedKeys, hashes: &[(Lane, i64)]) -> usize {
        let Some(asking) = keys.to_ask(&[LEASE, OTHER]) else { return 0 };
        keys.told(&asking, hashes);
        asking.0.len()
    }

    fn knows(keys: &ClosedKeys) -> [bool; 2] {
        let state = keys.state();
        [LEASE, OTHER].map(|lease| state.lanes.get(&lease.lane).is_some_and(|known| known.hashes.is_some()))
    }

    fn may_be_closed(keys: &ClosedKeys, hash: i64) -> bool {
        let filter = keys.filter(&[LEASE, OTHER]);
        let (byte, bit) = place(hash, filter.mask());
        filter.bits()[byte] & (1 << bit) != 0
    }

    #[tokio::test(start_paused = true)]
    async fn lanes_are_asked_about_once_and_again_when_keys_were_closed() {
        let keys = ClosedKeys::default();
        assert_eq!(asked(&keys, &[]), 0, "nothing is known of lanes that others have leased");
        keys.leased(&[LEASE, OTHER]);
        assert_eq!(knows(&keys), [false, false]);
        assert_eq!(asked(&keys, &[(Lane(3), 1 << 11), (Lane(4), -1)]), 2);
        assert_eq!(knows(&keys), [true, true]);
        assert!(may_be_closed(&keys, 1 << 11) && may_be_closed(&keys, -1) && !may_be_closed(&keys, 1 << 10));
        assert_eq!(keys.filter(&[LEASE, OTHER]).knows(), [true, true]);
        tokio::time::sleep(REST).await;
        assert_eq!(asked(&keys, &[]), 0, "all is known");

        let closing = keys.closing([LEASE, LEASE].into_iter());
        assert_eq!(knows(&keys), [false, true]);
        assert_eq!(asked(&keys, &[]), 0, "an answer would say nothing of what is under way");
        closing.answered();
        assert_eq!(knows(&keys), [false, true]);
        assert_eq!(asked(&keys, &[(Lane(3), 1 << 10)]), 1);
        assert_eq!(knows(&keys), [true, true]);
        assert!(may_be_closed(&keys, 1 << 10) && may_be_closed(&keys, -1));
        keys.closing([OTHER].into_iter()).answered();
        assert_eq!(asked(&keys, &[]), 0, "not so soon");
        tokio::time::sleep(REST).await;
        assert_eq!(asked(&keys, &[]), 1);
        keys.forget();
        assert_eq!(knows(&keys), [false, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_sent_to_be_closed_meanwhile_counts() {
        let keys = ClosedKeys::default();
        keys.leased(&[LEASE, OTHER]);
        // While the question is under way.
        let asking = keys.to_ask(&[LEASE, OTHER]).unwrap();
        keys.closing([LEASE].into_iter()).answered();
        keys.told(&asking, &[]);
        assert_eq!(knows(&keys), [false, true]);
        assert_eq!(keys.filter(&[LEASE, OTHER]).knows(), [false, false], "where there is none, nothing is looked for");
        // While a read is.
        keys.forget();
        tokio::time::sleep(REST).await;
        assert_eq!(asked(&keys, &[(Lane(3), 5), (Lane(4), 6)]), 2);
        let filter = keys.filter(&[LEASE, OTHER]);
        assert!(keys.stands(&[LEASE, OTHER], &filter));
        keys.closing([OTHER].into_iter()).answered();
        assert!(!keys.stands(&[LEASE, OTHER], &filter));
        assert!(keys.stands(&[LEASE], &keys.filter(&[LEASE])), "of another lane");
        assert!(keys.stands(&[LEASE, OTHER], &Filter::none(2)), "who looks for each row does not mind");
        // While the server changes.
        let filter = keys.filter(&[LEASE]);
        keys.forget_unless_answered().answered();
        assert!(keys.stands(&[LEASE], &filter));
        drop(keys.forget_unless_answered());
        assert!(!keys.stands(&[LEASE], &filter), "another may have answered");
    }

    #[tokio::test(start_paused = true)]
    async fn a_settlement_without_an_answer_is_never_over_under_its_epoch() {
        let keys = ClosedKeys::default();
        keys.leased(&[LEASE, OTHER]);
        drop(keys.closing([LEASE].into_iter()));
        assert_eq!(asked(&keys, &[]), 1, "the other lane");
        tokio::time::sleep(REST).await;
        assert_eq!(asked(&keys, &[]), 0);
        assert_eq!(knows(&keys), [false, true]);
        // The fence stops it under the next one, and what is heard of it late says nothing.
        let late = keys.closing([LEASE].into_iter());
        let next = LaneLease { epoch: 8, ..LEASE };
        keys.leased(&[next]);
        drop(late);
        let asking = keys.to_ask(&[next]).unwrap();
        keys.told(&asking, &[(Lane(3), 5)]);
        assert_eq!(keys.filter(&[next]).knows(), [true]);
        assert_eq!(keys.filter(&[LEASE]).knows(), [false]);
    }

    #[tokio::test(start_paused = true)]
    async fn too_many_closed_keys_are_looked_for_row_by_row() {
        let keys = ClosedKeys::default();
        keys.leased(&[LEASE]);
        assert_eq!(asked(&keys, &vec![(Lane(3), 0); MOST + 1]), 1);
        assert_eq!(knows(&keys), [false, false]);
        tokio::time::sleep(REST).await;
        assert!(keys.to_ask(&[LEASE]).is_none());
        tokio::time::sleep(REST_OF_MANY).await;
        assert_eq!(asked(&keys, &vec![(Lane(3), 0); MOST]), 1);
        assert_eq!(keys.filter(&[LEASE]).bits().len() * 8, MOST_BITS);
    }
}
