//! Decides about keys that wait for an event which is refused for good.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use posthaste_core::EventId;
use posthaste_core::store::{Error, Stall, StalledKey};
use tokio::time::sleep;

use crate::config::Policy;
use crate::database::Database;
use crate::history::{Recorder, What};
use crate::role::is_poison;
use crate::world::World;

/// How often he looks: rarely enough that others wait for him, often enough that a run comes to its end.
const LOOKS: Duration = Duration::from_millis(700);

/// One in so many events that a key is parked for is tried once more before it is skipped.
const RELEASED: u8 = 3;

/// After how many failures he gives up what a key is blocked by.
const FAILURES: u32 = 4;

/// Keys that he looks at at once.
const KEYS: usize = 1000;

/// Who decides, by what every operator has: the administration of the store.
pub(crate) struct Operator<'a, D: Database> {
    world: &'a World<D>,
    recorder: Recorder,
    rng: fastrand::Rng,
    /// What was released once.
    released: HashSet<EventId>,
    in_a_hurry: bool,
}

impl<'a, D: Database> Operator<'a, D> {
    pub(crate) fn new(world: &'a World<D>, directory: &Path, seed: u64) -> std::io::Result<Self> {
        let recorder = Recorder::open(&directory.join("operator.ndjson"), "operator")?;
        let rng = fastrand::Rng::with_seed(seed ^ 0x6f70);
        Ok(Self { world, recorder, rng, released: HashSet::new(), in_a_hurry: false })
    }

    /// From now on everything is skipped that can be: the run is to end.
    pub(crate) fn hurry(&mut self) {
        self.in_a_hurry = true;
    }

    /// Decides now and then, for ever; never, where nobody waits for it.
    pub(crate) async fn decide(&mut self) {
        if self.world.plan.on_dead == Policy::Skip {
            return std::future::pending().await;
        }
        loop {
            sleep(LOOKS).await;
            // The database may be broken just then, and he has no more luck than others. He looks again.
            if let Err(error) = self.look().await {
                tracing::info!(%error, "the operator could not decide");
            }
        }
    }

    async fn look(&mut self) -> Result<(), Error> {
        for key in self.world.store.stalled_keys(KEYS).await? {
            match key.stall {
                Stall::Parked => self.reopen(&key).await?,
                Stall::Blocked => self.give_up(&key).await?,
                Stall::Reopened => {}
            }
        }
        Ok(())
    }

    async fn reopen(&mut self, key: &StalledKey) -> Result<(), Error> {
        // The first one always, so that no run is without.
        let tries_again = self.released.is_empty() || !self.in_a_hurry && self.rng.u8(..RELEASED) == 0;
        let releases = tries_again && self.released.insert(key.head_id.clone());
        if releases {
            self.note(&key.head_id, "release");
            self.world.store.release_key(&key.key, &key.head_id).await?;
        } else {
            self.note(&key.head_id, "skip");
            self.world.store.skip_head(&key.key, &key.head_id).await?;
        }
        Ok(())
    }

    /// Gives up what will never be taken. What a sink refuses that misbehaves for a while is left to be tried again.
    async fn give_up(&self, key: &StalledKey) -> Result<(), Error> {
        let store = &self.world.store;
        let Some(record) = store.find(&key.head_id).await? else { return Ok(()) };
        if self.world.plan.on_dead != Policy::Block || record.state.attempts < FAILURES {
            return Ok(());
        }
        if record.event.as_ref().is_ok_and(is_poison) {
            self.note(&key.head_id, "give up");
            store.give_up_head(&key.key, &key.head_id).await?;
        }
        Ok(())
    }

    /// Before it happens: whatever comes of it comes afterwards.
    fn note(&self, id: &EventId, decision: &str) {
        self.recorder.record(What::Decided { id: id.to_string(), decision: decision.to_owned() });
    }
}
