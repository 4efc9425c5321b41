//! The lanes of the memory store, and who has them.

use std::collections::BTreeMap;

use crate::event::Event;
use crate::order::Ordered;
use crate::store::{Lane, LaneHolders, LaneLease, RelayHere, RelayOfLanes, Renewed};
use crate::time::Timestamp;

/// How many lanes there are. A power of two.
pub(super) const COUNT: u16 = 64;

/// The lane of an event: by its aggregate id, or by its own id if it has none.
pub(super) fn lane_of(event: &Event) -> Lane {
    // FNV-1a.
    let text = event.aggregate_id().unwrap_or(event.id().as_str());
    let hash = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    Lane(u16::try_from(hash % u64::from(COUNT)).expect("it is less than their number"))
}

/// Who has each lane, and who is there.
#[derive(Debug)]
pub(super) struct Lanes {
    lanes: Vec<Leased>,
    relays: BTreeMap<String, Relay>,
}

#[derive(Debug)]
struct Relay {
    until: Timestamp,
    /// Empty for one that has said nothing of it, or may not be.
    settings: String,
}

#[derive(Clone, Debug, Default)]
struct Leased {
    owner: Option<(String, Timestamp)>,
    epoch: i64,
}

impl Default for Lanes {
    fn default() -> Self {
        Self { lanes: vec![Leased::default(); usize::from(COUNT)], relays: BTreeMap::new() }
    }
}

impl Lanes {
    pub(super) fn lease(&mut self, owner: &str, wanted: usize, now: Timestamp, until: Timestamp) -> Vec<LaneLease> {
        let free = |lane: &Leased| lane.owner.as_ref().is_none_or(|(_, until)| *until < now);
        let lanes = (0..).map(Lane).zip(&mut self.lanes).filter(|(_, lane)| free(lane)).take(wanted);
        let lease = |(number, lane): (Lane, &mut Leased)| {
            lane.owner = Some((owner.to_owned(), until));
            lane.epoch += 1;
            LaneLease { lane: number, epoch: lane.epoch }
        };
        lanes.map(lease).collect()
    }

    pub(super) fn renew(&mut self, owner: &str, leases: &[LaneLease], now: Timestamp, until: Timestamp) -> Renewed {
        let held = leases.iter().map(|lease| self.set(owner, *lease, Some((owner.to_owned(), until)))).collect();
        // One that comes too late has no settings any more.
        self.forget_gone(now);
        let relay = self.relays.entry(owner.to_owned()).or_insert_with(|| Relay { until, settings: String::new() });
        relay.until = until;
        let settings = relay.settings.clone();
        let to_agree = settings.is_empty() || !self.others(owner, &settings, now).is_empty();
        self.forget_gone(now);
        Renewed { held, relays: self.relays.keys().cloned().collect(), to_agree }
    }

    /// Those that are there and have other settings.
    fn others(&self, owner: &str, settings: &str, now: Timestamp) -> Vec<RelayOfLanes> {
        let mut others = self.relays(now);
        others.retain(|other| other.owner != owner && !other.settings.is_empty() && other.settings != settings);
        others
    }

    fn forget_gone(&mut self, now: Timestamp) {
        self.relays.retain(|_, relay| relay.until > now);
    }

    pub(super) fn relays(&self, now: Timestamp) -> Vec<RelayOfLanes> {
        let there = self.relays.iter().filter(|(_, relay)| relay.until > now);
        there.map(|(owner, relay)| RelayOfLanes { owner: owner.clone(), settings: relay.settings.clone() }).collect()
    }

    pub(super) fn agree(&mut self, owner: &str, settings: &str, now: Timestamp, until: Timestamp) -> Vec<RelayOfLanes> {
        self.forget_gone(now);
        let others = self.others(owner, settings, now);
        if others.is_empty() {
            self.relays.insert(owner.to_owned(), Relay { until, settings: settings.to_owned() });
        } else if let Some(relay) = self.relays.get_mut(owner) {
            relay.settings.clear();
        }
        others
    }

    pub(super) fn holders(&self, now: Timestamp) -> LaneHolders {
        let here = self.relays.iter().filter(|(_, relay)| relay.until > now);
        LaneHolders {
            now,
            lanes: (0..).map(Lane).zip(&self.lanes).map(|(number, lane)| (number, lane.owner.clone())).collect(),
            relays: here
                .map(|(owner, relay)| RelayHere {
                    owner: owner.clone(),
                    ordered: Ordered::of_settings(&relay.settings),
                })
                .collect(),
        }
    }

    pub(super) fn give_back(&mut self, owner: &str, leases: &[LaneLease]) {
        for lease in leases {
            self.set(owner, *lease, None);
        }
    }

    /// Whether this owner has the lane under that epoch, also if the lease has run out and nobody has taken the lane since.
    pub(super) fn is_held(&self, owner: &str, lease: LaneLease) -> bool {
        let lane = self.lanes.get(usize::from(lease.lane.0));
        lane.is_some_and(|lane| {
            lane.epoch == lease.epoch && lane.owner.as_ref().is_some_and(|(holder, _)| holder == owner)
        })
    }

    fn set(&mut self, owner: &str, lease: LaneLease, to: Option<(String, Timestamp)>) -> bool {
        let held = self.is_held(owner, lease);
        if held {
            self.lanes[usize::from(lease.lane.0)].owner = to;
        }
        held
    }
}
