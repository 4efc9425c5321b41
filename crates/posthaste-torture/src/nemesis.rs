//! Breaks things, and mends them.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::Context;
use posthaste_core::EventId;
use posthaste_core::store::{CommitError, NewRow};
use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use crate::broker::Broker;
use crate::config::{Kind, LEASE, LONGEST_PAUSE};
use crate::database::Database;
use crate::fault::Fault;
use crate::history::What;
use crate::proxy::Proxy;
use crate::role::{event, is_orderly, plan};
use crate::server::How;
use crate::wire::{Behaviour, Lines, Misdeeds, Request};
use crate::world::World;

/// The points at which a producer is killed.
const PRODUCER_POINTS: &[&str] = &["begin.after", "insert.before", "insert.after", "commit.before", "commit.after"];

/// The points at which a relay is killed.
const RELAY_POINTS: &[&str] =
    &["claim.before", "claim.after", "listener.before", "listener.after", "settle.before", "settle.after"];

/// The same of one that delivers in order.
const LANE_POINTS: &[&str] =
    &["read.before", "read.after", "listener.before", "listener.after", "settle.before", "settle.after"];

/// How long faults that have done nothing yet are given beyond the time of the run.
const EXTRA_TIME: Duration = Duration::from_secs(120);

/// What a producer says whom a full disk, or a server without a free place, has refused.
const FULL: &[&str] = &["disk is full", "No space left", "is full", "53100"];
const REFUSED: &[&str] = &["\"what\":\"failed\""];

/// The bytes by which a message to a broker is known: the name of a header that each has.
const EVENT: &[u8] = b"event-id";

/// From how many seconds on a run is long.
const LONG_RUN: u64 = 300;

/// How often a process passes a point, at most, before it is killed there.
const LONGEST_FUSE: u32 = 40;

/// One of the hands that break things.
pub(crate) struct Nemesis<'a, D: Database> {
    world: &'a World<D>,
    /// Shared by all hands: what one deals the others need not.
    deck: &'a Mutex<Deck>,
    rng: fastrand::Rng,
}

/// The faults that wait for their turn: every one comes before any comes again, and those that did nothing come again
/// until they did.
pub(crate) struct Deck {
    all: Vec<Fault>,
    waiting: Vec<Fault>,
    effective: HashSet<Fault>,
    rng: fastrand::Rng,
}

impl Deck {
    pub(crate) fn new(all: Vec<Fault>, seed: u64) -> Self {
        let (waiting, effective) = (Vec::new(), HashSet::new());
        Self { all, waiting, effective, rng: fastrand::Rng::with_seed(seed) }
    }

    /// The next fault; nothing when the time is over and each has done something.
    fn deal(&mut self, over: bool) -> Option<Fault> {
        if over {
            self.waiting.retain(|fault| !self.effective.contains(fault));
        }
        if self.waiting.is_empty() {
            let again = self.all.iter().filter(|fault| !over || !self.effective.contains(fault));
            self.waiting = again.copied().collect();
            self.rng.shuffle(&mut self.waiting);
        }
        self.waiting.pop()
    }
}

impl<'a, D: Database> Nemesis<'a, D> {
    pub(crate) fn new(world: &'a World<D>, deck: &'a Mutex<Deck>, seed: u64) -> Self {
        Self { world, deck, rng: fastrand::Rng::with_seed(seed) }
    }

    /// Breaks things until the time is over and every fault has done something, or will not.
    pub(crate) async fn rage(mut self, until: Instant) -> anyhow::Result<()> {
        while Instant::now() < until + EXTRA_TIME {
            sleep(self.millis(100..800)).await;
            let next = self.deck.lock().expect("nobody panics here").deal(Instant::now() >= until);
            let Some(fault) = next else { break };
            let name = fault.name();
            self.world.broken(fault, true);
            let effects = self.inflict(fault).await.with_context(|| name.clone())?;
            self.world.broken(fault, false);
            self.world.recorder.record(What::Mended { fault: name, effects });
            if effects > 0 {
                self.deck.lock().expect("nobody panics here").effective.insert(fault);
            }
        }
        Ok(())
    }

    fn millis(&mut self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_millis(self.rng.u64(range))
    }

    /// How long something is down. In a long run it is now and then for a minute or so.
    fn outage(&mut self, range: std::ops::Range<u64>) -> Duration {
        let long = self.world.plan.seconds >= LONG_RUN && self.rng.u8(..) < 64;
        self.millis(range) * if long { 15 } else { 1 }
    }

    fn note(&self, fault: Fault, detail: impl Into<String>) {
        self.world.recorder.record(What::Broken { fault: fault.name(), detail: detail.into() });
    }

    /// Breaks and mends. Says how often the fault can be shown to have done something.
    async fn inflict(&mut self, fault: Fault) -> anyhow::Result<u64> {
        match fault {
            Fault::ProducerKill | Fault::RelayKill => self.kill(fault).await,
            Fault::ProducerKillPoint | Fault::RelayKillPoint => self.kill_at_point(fault).await,
            Fault::RelayStop => self.stop(fault).await,
            Fault::RelayEnd => self.end(fault).await,
            Fault::SinkDown => self.sink_down(fault).await,
            Fault::SinkSlow => {
                let slow_ms = self.rng.u64(100..2500);
                let behaviour = Behaviour { slow_ms, ..Behaviour::default() };
                self.misbehave(fault, behaviour, |misdeeds| misdeeds.slow).await
            }
            Fault::SinkRefuses => {
                let behaviour = Behaviour { refuse: 0.05 + self.rng.f64() * 0.2, ..Behaviour::default() };
                self.misbehave(fault, behaviour, |misdeeds| misdeeds.refused).await
            }
            Fault::SinkHangsUp => {
                let behaviour = Behaviour { hang_up: 0.1 + self.rng.f64() * 0.5, ..Behaviour::default() };
                self.misbehave(fault, behaviour, |misdeeds| misdeeds.hung_up).await
            }
            Fault::SinkHalfOpen => Ok(self.half_open(fault).await),
            Fault::BrokerKill
            | Fault::BrokerPause
            | Fault::BrokerSlow
            | Fault::BrokerHalfOpen
            | Fault::BrokerCut
            | Fault::AcknowledgementsLost => self.break_broker(fault).await,
            Fault::MalformedRows => self.malformed(fault).await,
            Fault::LongTransaction => self.long_transaction(fault).await,
            Fault::TableLock => self.lock(fault).await,
            Fault::DatabaseRestart | Fault::DatabaseCrash => self.restart(fault).await,
            Fault::ConnectionsEnded => {
                self.note(fault, "");
                Ok(self.world.store.terminate_others().await.unwrap_or(0))
            }
            Fault::ConnectionsCut | Fault::CommitReplyLost | Fault::DatabaseSlow | Fault::DatabaseHalfOpen => {
                self.on_the_way(fault).await
            }
            Fault::ConnectionsUsedUp => self.use_up(fault).await,
            Fault::DiskFull => self.fill_disk(fault).await,
            Fault::ClockAhead | Fault::ClockBehind => self.shift_clock(fault).await,
        }
    }

    // -- Processes

    async fn kill(&mut self, fault: Fault) -> anyhow::Result<u64> {
        let mut victim = self.world.victim(fault, &mut self.rng).await;
        self.note(fault, &victim.config.name);
        let hit = victim.kill().await?;
        sleep(self.millis(0..1000)).await;
        victim.start()?;
        Ok(u64::from(hit))
    }

    async fn kill_at_point(&mut self, fault: Fault) -> anyhow::Result<u64> {
        let points = match fault {
            Fault::ProducerKillPoint => PRODUCER_POINTS,
            _ if self.world.plan.ordered => LANE_POINTS,
            _ => RELAY_POINTS,
        };
        let point = points[self.rng.usize(..points.len())];
        let mut victim = self.world.victim(fault, &mut self.rng).await;
        self.note(fault, format!("{} at {point}", victim.config.name));
        victim.kill().await?;
        let fuse = self.rng.u32(1..=LONGEST_FUSE);
        let last_words = format!("killed at {point}");
        let before = victim.log().matches(&last_words).count();
        victim.start_with(&[("POSTHASTE_KILL_AT", OsString::from(format!("{point}:{fuse}")))])?;
        victim.wait(Duration::from_secs(15)).await?;
        let reached = victim.log().matches(&last_words).count() > before;
        // A fuse that did not burn down, because something else was broken all the time, is no harm.
        victim.kill().await?;
        victim.start()?;
        Ok(u64::from(reached))
    }

    async fn stop(&mut self, fault: Fault) -> anyhow::Result<u64> {
        let mut victim = self.world.victim(fault, &mut self.rng).await;
        let name = victim.config.name.clone();
        self.note(fault, &name);
        // With something in hand: otherwise nobody would notice.
        for _ in 0..200 {
            victim.signal(Signal::STOP);
            if self.held_by(&name).await > 0 {
                break;
            }
            victim.signal(Signal::CONT);
            sleep(self.millis(1..40)).await;
        }
        let pause = LEASE + self.millis(500..2500);
        // Of rows it is noted what becomes of their leases; of a lane, who has it.
        let taken = async || match self.world.plan.ordered {
            true => -self.held_by(&name).await,
            false => self.world.store.taken_from(&name).await.unwrap_or(0),
        };
        let before = taken().await;
        sleep(pause).await;
        let after = taken().await;
        victim.signal(Signal::CONT);
        Ok(u64::try_from(after.saturating_sub(before)).unwrap_or(0))
    }

    /// How many pending rows a process has leased, or how many lanes.
    async fn held_by(&self, name: &str) -> i64 {
        if !self.world.plan.ordered {
            return self.world.store.leased_by(name).await.unwrap_or(0);
        }
        let Ok(Some(holders)) = self.world.store.lane_holders().await else { return 0 };
        let owners = holders.lanes.iter().filter_map(|(_, holder)| holder.as_ref());
        let held = owners.filter(|(owner, _)| owner.strip_prefix(name).is_some_and(|rest| rest.starts_with('-')));
        i64::try_from(held.count()).unwrap_or(i64::MAX)
    }

    async fn end(&mut self, fault: Fault) -> anyhow::Result<u64> {
        let mut victim = self.world.victim(fault, &mut self.rng).await;
        let twice = self.rng.bool();
        self.note(fault, format!("{}{}", victim.config.name, if twice { ", twice" } else { "" }));
        victim.signal(Signal::TERM);
        if twice {
            sleep(self.millis(1..100)).await;
            victim.signal(Signal::TERM);
        }
        let exit = victim.wait_for_end().await?;
        victim.start()?;
        Ok(u64::from(exit.and_then(|exit| exit.status).is_some_and(is_orderly)))
    }

    async fn shift_clock(&mut self, fault: Fault) -> anyhow::Result<u64> {
        let library = faketime().context("libfaketime was here before")?;
        let ahead = if fault == Fault::ClockAhead { 3600 } else { -3600 };
        let mut victim = self.world.victim(fault, &mut self.rng).await;
        self.note(fault, &victim.config.name);
        victim.kill().await?;
        victim.config.clock_ahead = ahead;
        victim.start_with(&[
            ("LD_PRELOAD", library.into_os_string()),
            ("FAKETIME", OsString::from(format!("{ahead:+}s"))),
            ("FAKETIME_DONT_FAKE_MONOTONIC", OsString::from("1")),
        ])?;
        let ended = victim.wait(LEASE + self.millis(1000..3000)).await?;
        victim.kill().await?;
        victim.config.clock_ahead = 0;
        victim.start()?;
        Ok(u64::from(ended.is_none()))
    }

    // -- The sink

    async fn sink_down(&mut self, fault: Fault) -> anyhow::Result<u64> {
        let mut sink = self.world.sink()?.lock().await;
        self.note(fault, "");
        let hit = sink.kill().await?;
        sleep(self.outage(500..5000)).await;
        sink.start()?;
        sink.wait_for_port().await?;
        Ok(u64::from(hit))
    }

    async fn misbehave(
        &mut self,
        fault: Fault,
        behaviour: Behaviour,
        effects: fn(Misdeeds) -> u64,
    ) -> anyhow::Result<u64> {
        // Nobody kills it meanwhile: it would forget how it is to behave.
        let sink = self.world.sink()?.lock().await;
        self.note(fault, format!("{behaviour:?}"));
        let mut lines = Lines::connect(sink.config.destination_at).await?;
        let before: Misdeeds = lines.ask(&Request::Behave(behaviour)).await?;
        let mut after = before;
        let pause = self.millis(1000..4000);
        // Long enough to show, and no longer than needed.
        for _ in 0..10 {
            sleep(pause).await;
            after = lines.ask(&Request::Behave(behaviour)).await?;
            if effects(after) > effects(before) {
                break;
            }
        }
        lines.ask::<Misdeeds>(&Request::Behave(Behaviour::default())).await?;
        Ok(effects(after) - effects(before))
    }

    // -- The broker

    /// One thing at a time, and not while nobody sends anything because of the last.
    async fn break_broker(&mut self, fault: Fault) -> anyhow::Result<u64> {
        let broker = self.world.broker()?.lock().await;
        let sent = || self.world.to_destination.stats().bytes_up;
        let (before, until) = (sent(), Instant::now() + LONGEST_PAUSE);
        while sent() == before && Instant::now() < until {
            sleep(Duration::from_millis(50)).await;
        }
        match fault {
            Fault::BrokerKill => self.kill_broker(fault, &broker).await,
            Fault::BrokerPause => Ok(self.pause_broker(fault, &broker).await),
            Fault::BrokerSlow => Ok(self.slow_broker(fault).await),
            Fault::BrokerHalfOpen => Ok(self.half_open(fault).await),
            Fault::AcknowledgementsLost => Ok(self.lose_acknowledgements(fault).await),
            _ => {
                self.note(fault, "");
                Ok(self.world.to_destination.cut())
            }
        }
    }

    async fn kill_broker(&mut self, fault: Fault, broker: &Broker) -> anyhow::Result<u64> {
        self.note(fault, "");
        let hit = broker.kill().await?;
        sleep(self.outage(500..5000)).await;
        broker.start_again().await?;
        Ok(u64::from(hit))
    }

    async fn pause_broker(&mut self, fault: Fault, broker: &Broker) -> u64 {
        self.note(fault, "");
        let sent = || self.world.to_destination.stats().bytes_up;
        let before = sent();
        let hit = broker.signal(Signal::STOP);
        sleep(self.outage(1000..6000)).await;
        // Somebody wanted something of it.
        let noticed = sent() > before;
        broker.signal(Signal::CONT);
        u64::from(hit && noticed)
    }

    async fn slow_broker(&mut self, fault: Fault) -> u64 {
        let proxy = &self.world.to_destination;
        let (delay, duration) = (self.millis(5..300), self.millis(1000..4000));
        self.note(fault, format!("{delay:?}"));
        let before = proxy.stats().bytes_up;
        proxy.delay(Some(delay));
        sleep(duration).await;
        proxy.delay(None);
        proxy.stats().bytes_up - before
    }

    async fn lose_acknowledgements(&mut self, fault: Fault) -> u64 {
        let proxy = &self.world.to_destination;
        self.note(fault, "");
        let lost = || proxy.stats().replies_lost;
        let first = lost();
        for _ in 0..self.rng.u32(1..=4) {
            let before = lost();
            proxy.lose_reply_to(EVENT, self.rng.u32(1..30));
            for _ in 0..50 {
                sleep(Duration::from_millis(100)).await;
                if lost() > before {
                    break;
                }
            }
        }
        proxy.lose_no_reply();
        lost() - first
    }

    // -- On the way to either

    async fn half_open(&mut self, fault: Fault) -> u64 {
        let proxy = &self.world.to_destination;
        self.note(fault, "");
        let before = proxy.stats().bytes_swallowed;
        proxy.black_hole(true);
        sleep(self.outage(1000..5000)).await;
        proxy.black_hole(false);
        let swallowed = proxy.stats().bytes_swallowed - before;
        // What was swallowed never comes: these connections are of no use to anybody.
        proxy.cut();
        swallowed
    }

    // -- The database

    async fn malformed(&mut self, fault: Fault) -> anyhow::Result<u64> {
        self.note(fault, "");
        let mut put = 0;
        for _ in 0..self.rng.u32(1..5) {
            let id = EventId::generate();
            if self.world.store.insert_malformed(id.as_str()).await.is_ok() || self.is_there(&id).await {
                self.world.recorder.record(What::Malformed { id: id.to_string() });
                put += 1;
            }
        }
        Ok(put)
    }

    /// Whether a row is in the table. Asks until the database answers.
    async fn is_there(&self, id: &EventId) -> bool {
        loop {
            sleep(Duration::from_millis(500)).await;
            if let Ok(found) = self.world.store.find(id).await {
                return found.is_some();
            }
        }
    }

    async fn long_transaction(&mut self, fault: Fault) -> anyhow::Result<u64> {
        // SQLite has room for one writer, and the others wait for 5 s.
        let open = if self.world.plan.database == Kind::Sqlite { 500..2000 } else { 2000..8000 };
        let open = self.millis(open);
        self.note(fault, format!("{open:?}"));
        let (mut message, payload) =
            plan(&mut self.rng, self.world.plan.workload, self.world.plan.destination.longest_payload());
        "nemesis".clone_into(&mut message.key);
        message.poison = false;
        let id = message.id.clone();
        let store = &self.world.store;
        let acked = || self.world.said("producer", &["\"what\":\"acked\""]);
        let before = acked();
        let written = async {
            let mut tx = store.begin().await?;
            D::insert_ledger(&mut tx, &message).await?;
            store.insert(&mut tx, &[NewRow::new(event(&message, &payload))]).await?;
            sleep(open).await;
            anyhow::Ok(tx)
        };
        let tx = match written.await {
            Ok(tx) => tx,
            Err(error) => {
                self.world.recorder.record(What::Failed { id, error: format!("{error:?}") });
                return Ok(0);
            }
        };
        let (what, effects) = match store.commit(tx).await {
            // On SQLite nobody commits beside it; there it is in the way, and that is all.
            Ok(()) => (What::Acked { id }, u64::from(self.world.to_database.is_none() || acked() > before)),
            Err(CommitError::NotCommitted(error)) => (What::Failed { id, error: format!("{error:?}") }, 0),
            Err(error) => (What::Unknown { id, error: format!("{error:?}") }, 0),
        };
        self.world.recorder.record(what);
        Ok(effects)
    }

    async fn lock(&mut self, fault: Fault) -> anyhow::Result<u64> {
        let duration = self.outage(500..4000);
        self.note(fault, format!("{duration:?}"));
        Ok(u64::from(self.world.store.lock_table(duration).await.is_ok()))
    }

    async fn restart(&mut self, fault: Fault) -> anyhow::Result<u64> {
        let how = if fault == Fault::DatabaseRestart { How::Fast } else { How::Immediate };
        let mut server = self.world.server.lock().await;
        let server = server.as_mut().context("no server")?;
        self.note(fault, "");
        server.stop(how).await?;
        sleep(self.outage(0..3000)).await;
        server.start_again().await?;
        Ok(1)
    }

    async fn on_the_way(&mut self, fault: Fault) -> anyhow::Result<u64> {
        let proxy = self.world.to_database.as_ref().context("no proxy")?;
        self.note(fault, "");
        Ok(match fault {
            Fault::ConnectionsCut => proxy.cut(),
            Fault::DatabaseSlow => {
                let before = proxy.stats().bytes_up;
                proxy.delay(Some(self.millis(5..200)));
                sleep(self.millis(1000..4000)).await;
                proxy.delay(None);
                proxy.stats().bytes_up - before
            }
            Fault::DatabaseHalfOpen => {
                let before = proxy.stats().bytes_swallowed;
                proxy.black_hole(true);
                sleep(self.millis(500..5000)).await;
                proxy.black_hole(false);
                proxy.cut();
                proxy.stats().bytes_swallowed - before
            }
            _ => self.lose_reply(proxy).await,
        })
    }

    /// Until a producer does not know how its transaction ended: relays commit, too.
    async fn lose_reply(&mut self, proxy: &Proxy) -> u64 {
        let before = self.world.said("producer", &["\"what\":\"unknown\""]);
        for _ in 0..10 {
            let lost = proxy.stats().replies_lost;
            proxy.lose_reply_to(self.world.commit, self.rng.u32(1..20));
            for _ in 0..30 {
                sleep(Duration::from_millis(100)).await;
                if proxy.stats().replies_lost > lost {
                    break;
                }
            }
            proxy.lose_no_reply();
            sleep(Duration::from_millis(300)).await;
            let unknown = self.world.said("producer", &["\"what\":\"unknown\""]) - before;
            if unknown > 0 {
                return unknown;
            }
        }
        0
    }

    async fn use_up(&mut self, fault: Fault) -> anyhow::Result<u64> {
        // A restart would end them.
        let _server = self.world.server.lock().await;
        self.note(fault, "");
        let before = self.world.said("producer", REFUSED);
        let mut taken = Vec::new();
        let until = Instant::now() + self.millis(2000..5000);
        while Instant::now() < until {
            match D::occupy(&self.world.direct_url).await {
                Ok(connection) => taken.push(connection),
                // Who comes back finds no place.
                Err(_) => {
                    self.world.to_database.as_ref().map(Proxy::cut);
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
        drop(taken);
        Ok(self.world.said("producer", REFUSED) - before)
    }

    /// Mends what a full disk has damaged. The server may have only just come back.
    async fn repair(&self) -> anyhow::Result<()> {
        let mut tries = 20;
        while let Err(error) = self.world.store.repair().await {
            tries -= 1;
            if tries == 0 {
                return Err(error).context("repairing what the full disk has damaged");
            }
            sleep(Duration::from_millis(500)).await;
        }
        Ok(())
    }

    async fn fill_disk(&mut self, fault: Fault) -> anyhow::Result<u64> {
        let mut server = self.world.server.lock().await;
        let disk = self.world.disk.lock().await;
        self.note(fault, "");
        let before = self.world.said("producer", FULL);
        let pause = self.millis(1000..4000);
        match (server.as_mut(), disk.as_ref()) {
            (Some(server), _) => {
                server.fill_disk().await?;
                sleep(pause).await;
                server.free_disk().await?;
                self.repair().await?;
            }
            (None, Some(disk)) => {
                disk.fill().await?;
                sleep(pause).await;
                disk.free()?;
            }
            (None, None) => return Ok(0),
        }
        Ok(self.world.said("producer", FULL) - before)
    }
}

/// The library that gives a process another clock.
pub(crate) fn faketime() -> Option<PathBuf> {
    let libraries = std::fs::read_dir("/usr/lib").ok()?;
    libraries
        .filter_map(|entry| Some(entry.ok()?.path().join("faketime/libfaketime.so.1")))
        .find(|library| library.exists())
}
