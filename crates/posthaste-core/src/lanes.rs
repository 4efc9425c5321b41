//! The relay that owns rows by lanes of keys: it leases lanes, reads their rows in order, and settles under their epochs.
//!
//! `docs/design/ordering.md` says why it is as it is, and proves it. Here are its tasks: who keeps the lanes (`share`), who reads
//! (`reader`, from a `cursor`), the workers, and who settles; between them is what is in hand (`keys`).

mod close;
pub(crate) mod cursor;
mod reader;
mod settle;
pub(crate) mod share;
mod worker;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use tokio::sync::{Semaphore, mpsc};

use crate::dispatcher::caller::Caller;
use crate::dispatcher::close::spawn;
use crate::instrument::Instrument;
use crate::interceptor::AnyInterceptor;
use crate::keys::Keys;
use crate::listener::call;
use crate::metrics::{self, Metrics};
use crate::options::Options;
use crate::order::{OnDead, Ordered};
use crate::registry::Registry;
use crate::retry::Jitter;
use crate::store::{ContainedLanes, LaneStore, NewRow};
use crate::wake::Wake;

/// What a relay of lanes is made of.
pub(crate) struct Setup {
    pub(crate) store: Arc<dyn LaneStore>,
    /// How many lanes there are.
    pub(crate) lanes: u16,
    /// Its name, under which it has agreed with others.
    pub(crate) owner: String,
    pub(crate) ordered: Ordered,
    pub(crate) on_dead: OnDead,
    pub(crate) registry: Registry,
    pub(crate) interceptors: Vec<Arc<dyn AnyInterceptor>>,
    pub(crate) instruments: Vec<Arc<dyn Instrument>>,
    pub(crate) options: Options,
    pub(crate) metrics: Arc<dyn Metrics>,
    pub(crate) jitter: Jitter,
}

/// A relay that owns rows by lanes. Dropped without a close its tasks end where they are: nothing is lost, but its lanes wait
/// until their leases run out.
pub(crate) struct LaneRelay {
    store: Arc<dyn LaneStore>,
    keys: Arc<Keys>,
    owner: Arc<share::Owner>,
    reader: Wake,
    /// How many events are with a listener.
    with_listeners: Arc<AtomicUsize>,
    tasks: close::Tasks,
}

impl Setup {
    /// Starts all tasks on the current tokio runtime. The options are right.
    pub(crate) fn start(self) -> Arc<LaneRelay> {
        let options = self.options;
        let (reader_wake, owner_wake) = (Wake::new(), Wake::new());
        let store: Arc<dyn LaneStore> = Arc::new(ContainedLanes::new(self.store, options.lane_lease));
        let metrics: Arc<dyn Metrics> = Arc::new(metrics::Contained(self.metrics));
        let settings = self.ordered.settings();
        let keys = Keys::new(options.cold_queue, self.ordered, reader_wake.clone(), owner_wake.clone());
        let keys = Arc::new(keys);
        let name: Box<str> = self.owner.into();
        let blocking = Arc::new(Semaphore::new(options.workers));
        let owner = Arc::new(share::Owner {
            store: Arc::clone(&store),
            owner: name.clone(),
            settings,
            keys: Arc::clone(&keys),
            lanes: self.lanes.into(),
            lane_lease: options.lane_lease,
            wake: owner_wake,
            blocking: Arc::clone(&blocking),
            workers: options.workers,
        });
        let reader = reader::Reader {
            store: Arc::clone(&store),
            owner: name.clone(),
            keys: Arc::clone(&keys),
            gates: self.registry.gates(),
            metrics: Arc::clone(&metrics),
            jitter: self.jitter.clone(),
            wake: reader_wake.clone(),
            interval: options.poll_interval,
            row_lease: options.lease,
            batch: options.cold_queue.div_ceil(2),
        };
        let tasks = close::Tasks::new(options.shutdown_deadline);
        let settler = settle::Settler {
            store: Arc::clone(&store),
            owner: name,
            keys: Arc::clone(&keys),
            metrics: Arc::clone(&metrics),
            jitter: self.jitter.clone(),
            max_batch: options.settle_batch,
            // What lingers must be written long before its lane may be another's.
            linger: options.settle_linger.min(options.lane_lease / 4),
            lane_lease: options.lane_lease,
            closing: tasks.closing.clone(),
        };
        // One batch being written, one being gathered, and a place for every event that is with a listener.
        let places = options.settle_batch * 2 + options.workers * self.registry.largest_batch();
        let settlers = (0..store.settles_at_once().max(1)).map(|_| mpsc::channel(places));
        let (outcomes, to_settle): (Vec<_>, Vec<_>) = settlers.unzip();
        let with_listeners = Arc::<AtomicUsize>::default();
        let worker = worker::Worker {
            keys: Arc::clone(&keys),
            caller: Caller {
                registry: Arc::new(self.registry),
                interceptors: self.interceptors.into(),
                instruments: self.instruments.into(),
                retry: options.retry_policy(),
                time_limit: options.listener_time_limit,
                metrics,
                jitter: self.jitter,
            },
            on_dead: self.on_dead,
            outcomes: outcomes.into(),
            with_listeners: Arc::clone(&with_listeners),
        };
        for _ in 0..options.workers {
            spawn(&tasks.workers, call::by_worker(Arc::clone(&blocking), worker.clone().run()));
        }
        // The settlers end when the last worker has gone, so nobody else may hold a sender.
        drop(worker);
        for outcomes in to_settle {
            spawn(&tasks.settler, settler.clone().run(outcomes));
        }
        spawn(&tasks.reader, reader.run(tasks.closing.clone()));
        spawn(&tasks.owner, share::Owner::watch(Arc::clone(&keys), options.lane_lease));
        spawn(&tasks.owner, {
            let (owner, stop) = (Arc::clone(&owner), tasks.stop_owner.clone());
            async move { owner.run(stop).await }
        });
        Arc::new(LaneRelay { store, keys, owner, reader: reader_wake, with_listeners, tasks })
    }
}

impl LaneRelay {
    /// How many events are queued, with a listener, or waiting for their settlement.
    pub(crate) fn in_flight(&self) -> usize {
        self.keys.in_hand()
    }

    /// The handle that wakes the reader when there is something to read.
    pub(crate) fn wake(&self) -> Wake {
        self.reader.clone()
    }

    /// Rows were committed, or may have been: the hot path is to read them at once. Says whether some may be others' to deliver.
    pub(crate) fn committed(&self, rows: &[NewRow]) -> bool {
        if rows.is_empty() {
            return false;
        }
        let mine = |row: &NewRow| self.store.lane_of(&row.event).map(|lane| self.keys.holds(lane));
        let (mut wakes, mut tells) = (false, false);
        for row in rows {
            match mine(row) {
                Some(true) => wakes = true,
                Some(false) => tells = true,
                // Who cannot tell looks, and tells.
                None => (wakes, tells) = (true, true),
            }
        }
        if wakes {
            self.reader.now();
        }
        tells
    }
}
