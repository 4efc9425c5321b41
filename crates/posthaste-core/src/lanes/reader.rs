//! Reads the rows of the lanes that are held, in the order of their numbers, and takes them in hand.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use foldhash::HashSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error};

use super::cursor::Cursor;
use crate::keys::{CatchUp, KeyId, Keys, Taken};
use crate::listener::{Gates, Room, chain};
use crate::metrics::Metrics;
use crate::poller::rest_after;
use crate::retry::{Jitter, RetryPolicy};
use crate::store::{Error, Key, Lane, LaneLease, LaneRow, LaneRows, LaneStore, ReadLane, ReadLanes};
use crate::wake::Wake;

/// How many bytes of payload a read should bring at most, as far as the one before it tells.
const READ_BYTES: usize = 32 << 20;

/// With more keys to catch up with than this, their lanes are read again instead. No more than this are caught up with at once.
const MANY_BEHIND: usize = 16;

/// How often the lanes are swept from their beginning, how many rows of each a step of it looks at, and which part of the time
/// it may take.
const SWEEP: Duration = Duration::from_secs(5);
const SWEPT_AT_ONCE: usize = 200;
const SWEEP_SHARE: u32 = 20;

/// How much more than its share of a read a lane may bring, when lanes are read up to the same number.
const FROM_ONE_LANE: usize = 2;

/// How long to wait after a read of which something was not taken though there was room.
const REFUSED: Duration = Duration::from_millis(10);

/// How many keys are reopened at once, and how often in a row, before something else is read.
const REOPENED_AT_ONCE: usize = 1000;
const REOPENED_IN_A_ROW: usize = 10;

/// How long a sweep rests at most, however long it took.
const LONGEST_REST: Duration = Duration::from_secs(30);

/// How long ago a number was seen before lanes without a row are passed up to it. Some databases show no number that was taken a moment ago.
const PASSED_AFTER: Duration = Duration::from_secs(1);

/// The one task of a relay that reads, one read after the other: so each sees at least what those before it saw.
pub(crate) struct Reader {
    pub(crate) store: Arc<dyn LaneStore>,
    pub(crate) owner: Box<str>,
    pub(crate) keys: Arc<Keys>,
    pub(crate) gates: Gates,
    pub(crate) metrics: Arc<dyn Metrics>,
    pub(crate) jitter: Jitter,
    /// Wakes this reader.
    pub(crate) wake: Wake,
    pub(crate) interval: Duration,
    /// How long leases on single rows last, which relays without lanes may have.
    pub(crate) row_lease: Duration,
    /// How much room makes a read worth its trip.
    pub(crate) batch: usize,
}

/// What the reader knows from one read to the next.
struct Reading {
    cursors: BTreeMap<Lane, Cursor>,
    /// How many bytes a row of the last read had.
    row_bytes: usize,
    /// How many numbers there were to a row of the last read, where lanes had more than it brought.
    numbers_per_row: Option<i64>,
    sweep_at: Instant,
    /// When to ask again for keys that an operator has let go on.
    reopen_at: Instant,
    /// Whether there are lanes that were not there before.
    gained: bool,
    /// Whether somebody has said that rows have become due that were there before: they are not waited for.
    look_everywhere: bool,
    /// Keys that an operator has let go on, and that the store may not have forgotten yet.
    reopening: Vec<(LaneLease, Key)>,
    /// The highest number that was seen long enough ago.
    passable: Option<i64>,
    /// The highest that was seen, and when, which will be that one.
    highest: Option<(i64, Instant)>,
}

/// What to do after a round.
#[derive(Debug, PartialEq, Eq)]
enum Then {
    Again,
    /// Until woken, or for so long.
    Rest(Duration),
}

impl Reader {
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut reading = Reading {
            cursors: BTreeMap::new(),
            row_bytes: 0,
            numbers_per_row: None,
            sweep_at: Instant::now() + SWEEP,
            reopen_at: Instant::now() + SWEEP,
            gained: false,
            look_everywhere: false,
            reopening: Vec::new(),
            passable: None,
            highest: None,
        };
        let mut failures = 0;
        while !stop.is_cancelled() {
            self.wake.reset();
            reading.look_everywhere |= self.wake.take_everywhere();
            let round = tokio::select! {
                biased;
                round = self.round(&mut reading) => round,
                () = stop.cancelled() => return,
            };
            match round {
                Ok(Then::Again) => {
                    failures = 0;
                    tokio::task::consume_budget().await;
                }
                Ok(Then::Rest(length)) => {
                    failures = 0;
                    tokio::select! {
                        biased;
                        () = self.wake.sleep_until(Instant::now() + length) => {}
                        () = stop.cancelled() => {}
                    }
                }
                Err(reason) => {
                    failures += 1;
                    // What answers next may be another server, on which numbers begin before those that this one has given.
                    (reading.passable, reading.highest) = (None, None);
                    self.metrics.poll_failed();
                    let longest = self.interval.max(Duration::from_millis(100));
                    let delay =
                        RetryPolicy::exponential(Duration::from_millis(100), longest).delay(failures, &self.jitter);
                    error!(error = %chain(&reason), ?delay, "lanes not read, trying again");
                    tokio::select! {
                        biased;
                        () = tokio::time::sleep(delay) => {}
                        () = stop.cancelled() => {}
                    }
                }
            }
        }
    }

    async fn round(&self, reading: &mut Reading) -> Result<Then, Error> {
        let began_at = Instant::now();
        let leases = self.keys.to_read();
        reading.cursors.retain(|_, cursor| leases.contains(&cursor.lease));
        for lease in &leases {
            reading.cursors.entry(lease.lane).or_insert_with(|| {
                reading.gained = true;
                Cursor::new(*lease)
            });
        }
        reading.reopening.retain(|(lease, _)| leases.contains(lease));
        if leases.is_empty() {
            return Ok(Then::Rest(self.interval));
        }
        let most = match self.gates.room() {
            Room::Open => usize::MAX,
            Room::Few(few) => few,
            Room::ShutFor(pause) => return Ok(Then::Rest(pause.clamp(Duration::from_millis(1), self.interval))),
        };
        let fitting = (READ_BYTES / reading.row_bytes.max(1)).max(1);
        let room = || self.keys.room().min(most).min(fitting);
        self.keys.wake_due();
        if self.keys.behind() > MANY_BEHIND {
            // A lane that is being read again comes to its end before it is read again once more: else, where keys are due again
            // before that, what is new would never be read.
            let ended = |lease: LaneLease| {
                reading.cursors.get(&lease.lane).is_some_and(|cursor| cursor.lease == lease && !cursor.has_more)
            };
            for (lease, from) in self.keys.catch_up_together(ended) {
                if let Some(cursor) = reading.cursors.get_mut(&lease.lane).filter(|cursor| cursor.lease == lease) {
                    cursor.look_back(from);
                }
            }
        }
        for _ in 0..MANY_BEHIND {
            let Some(catch_up) = self.keys.next_behind(room()) else { break };
            self.catch_up(reading, &catch_up).await.inspect_err(|_| self.keys.not_caught_up(&catch_up))?;
        }
        if room() == 0 {
            return Ok(self.wait_for_room());
        }
        let refused = self.read_forward(reading, room()).await?;
        if reading.gained {
            // Whoever had them before may not have heard of what an operator has decided.
            self.reopen(reading).await?;
            reading.gained = false;
        }
        let sweeps_in = self.sweep(reading).await?;
        if reading.cursors.values().any(|cursor| cursor.has_more) || self.keys.behind() > 0 {
            return Ok(match room() >= self.batch.min(most) {
                // There is room, but not for what comes next.
                true if refused => Then::Rest(REFUSED.min(self.interval)),
                true => Then::Again,
                false => self.wait_for_room(),
            });
        }
        Ok(Then::Rest(rest_after(began_at.elapsed(), self.interval).min(sweeps_in)))
    }

    /// Waits for room that makes a read worth its trip; half of what is in hand is worked on while the next read is under way.
    fn wait_for_room(&self) -> Then {
        self.keys.want_room(self.batch);
        Then::Rest(self.interval)
    }

    /// Reads what is new in all lanes.
    ///
    /// Those that are known to have more are read up to the same number, so that they go on side by side: what is delivered at
    /// about the same time then lies together in the table, and is written back by a walk over a part of it.
    /// Whether it has brought something that was not taken.
    async fn read_forward(&self, reading: &mut Reading, room: usize) -> Result<bool, Error> {
        let horizon = reading.horizon(room);
        // Lanes that are known to have more share half of the room, and all of them the other half. Up to the horizon there are
        // about as many rows as there is room, in whichever lanes.
        let all = reading.cursors.len();
        let full = reading.cursors.values().filter(|cursor| cursor.has_more).count();
        let share = (room / 2 / all).max(1);
        let part = |cursor: &Cursor| {
            // A lane that is ahead of the others has its share, and does not wait for them.
            let until = horizon.filter(|horizon| cursor.has_more && cursor.seen() < *horizon);
            let limit = match (cursor.has_more, until) {
                (true, Some(_)) => (FROM_ONE_LANE * room / full).clamp(share, room),
                (true, None) if horizon.is_none() => share + room / 2 / full,
                _ => share,
            };
            ReadLane { lease: cursor.lease, after: cursor.after(), until, limit, key: None }
        };
        let parts: Vec<_> = reading.cursors.values().map(part).collect();
        let before: Vec<_> = reading.behind().map(|cursor| (cursor.lease.lane, cursor.seen())).collect();
        let (mut found, not_wanted) = self.read(reading, parts.clone(), Direction::Forward).await?;
        let now = Instant::now();
        let (mut count, mut oldest, mut events, mut bytes) = (0, Duration::ZERO, 0, 0);
        let (mut lowest, mut highest) = (i64::MAX, None);
        let (mut brought, mut limited) = (Vec::new(), Vec::new());
        for part in parts {
            let Some(rows) = found.by_lane.remove(&part.lease.lane) else { continue };
            for row in rows.iter().filter_map(|row| row.row.as_ref().ok()) {
                oldest = oldest.max(row.lag);
                events += 1;
                bytes += row.event.payload().len();
            }
            lowest = rows.first().map_or(lowest, |row| lowest.min(row.seq));
            highest = highest.max(rows.last().map(|row| row.seq));
            limited.push((rows.len() >= part.limit, part.until));
            brought.push((part.lease, rows));
        }
        let found_rows = brought.iter().map(|(_, rows)| rows.len()).sum();
        let lanes: Vec<_> = brought.iter().map(|(lease, _)| lease.lane).collect();
        // Those that share the horizon may have brought more than there is room for, so the others come first.
        let (mut ahead, mut behind) = (Vec::new(), Vec::new());
        for (found, (_, until)) in brought.into_iter().zip(&limited) {
            if until.is_some() { &mut behind } else { &mut ahead }.push(found);
        }
        reading.note_highest(highest, now);
        let passable = reading.passable;
        let mut of_ahead = self.keys.take_in(ahead, &not_wanted).into_iter();
        let mut of_behind = self.keys.take_in(behind, &not_wanted).into_iter();
        let all_taken = limited
            .iter()
            .map(|(_, until)| if until.is_some() { &mut of_behind } else { &mut of_ahead }.next().unwrap_or_default());
        let all_taken: Vec<_> = all_taken.collect();
        let any_refused = all_taken.iter().any(|taken| taken.refused);
        for ((lane, (limited, until)), taken) in lanes.into_iter().zip(limited).zip(all_taken) {
            let Taken { mut seen, refused, left, count: taken } = taken;
            count += taken;
            if !limited && !refused {
                // There is nothing else up to where it was read; but only numbers below one that was seen have been given out. So
                // what a parked key has behind the last row of its lane is passed, and not walked over by each read.
                seen = seen.max(match until {
                    Some(horizon) => highest.map(|highest| horizon.min(highest)),
                    None => passable,
                });
            }
            if let Some(cursor) = reading.cursors.get_mut(&lane) {
                cursor.advance(seen, limited || refused || until.is_some(), left, &found.open, now);
            }
        }
        reading.note_progress(&before, found_rows, lowest, room);
        reading.row_bytes = bytes.checked_div(events).unwrap_or(reading.row_bytes);
        self.metrics.oldest_lag(oldest);
        self.tell(count);
        Ok(any_refused)
    }

    /// Reads what a key has more, and it alone.
    async fn catch_up(&self, reading: &mut Reading, catch_up: &CatchUp) -> Result<(), Error> {
        let until = match catch_up.id {
            KeyId::Aggregate(_) => None,
            KeyId::Row(seq) => Some(seq),
        };
        let (after, limit, key) = (catch_up.after, catch_up.limit, catch_up.id.key().cloned());
        let part = ReadLane { lease: catch_up.lease, after, until, limit, key };
        let (mut found, not_wanted) = self.read(reading, vec![part], Direction::Back).await?;
        match found.by_lane.remove(&catch_up.lease.lane) {
            Some(rows) => self.tell(self.keys.caught_up(catch_up, rows, &not_wanted)),
            // Not accepted: once more, after what was passed.
            None => self.keys.not_caught_up(catch_up),
        }
        Ok(())
    }

    /// Passes over all lanes once more, a step at a time, for what an operator has redriven or another hand has changed. Says in
    /// how long it goes on.
    async fn sweep(&self, reading: &mut Reading) -> Result<Duration, Error> {
        let now = Instant::now();
        let sweeping = if reading.look_everywhere {
            // What was swept already is swept again.
            false
        } else if now < reading.sweep_at {
            return Ok(reading.sweep_at - now);
        } else {
            reading.cursors.values().any(|cursor| cursor.sweep().is_some())
        };
        if !sweeping {
            reading.cursors.values_mut().for_each(Cursor::begin_sweep);
        }
        // Also while a sweep goes on, which may take long, or was begun in a lane that had nothing to sweep then.
        if !sweeping || now >= reading.reopen_at {
            self.reopen(reading).await?;
            reading.look_everywhere = false;
            reading.reopen_at = now + SWEEP;
        }
        let begun_at = Instant::now();
        let part = |cursor: &Cursor| {
            let (after, until) = cursor.sweep()?;
            Some(ReadLane { lease: cursor.lease, after, until: Some(until), limit: SWEPT_AT_ONCE, key: None })
        };
        let parts: Vec<_> = reading.cursors.values().filter_map(part).collect();
        if !parts.is_empty() {
            let (mut found, not_wanted) = self.read(reading, parts.clone(), Direction::Back).await?;
            for part in parts {
                let Some(rows) = found.by_lane.remove(&part.lease.lane) else { continue };
                let (last, cut) = (rows.last().map(|row| row.seq), rows.len() >= part.limit);
                let taken = self.keys.take_in(vec![(part.lease, rows)], &not_wanted).pop().unwrap_or_default();
                let Taken { seen, refused, count, .. } = taken;
                if count > 0 {
                    debug!(lane = part.lease.lane.0, rows = count, "a sweep has found rows");
                    self.tell(count);
                }
                if let Some(cursor) = reading.cursors.get_mut(&part.lease.lane) {
                    cursor.swept(if refused { seen } else { last }, cut || refused);
                }
            }
        }
        let goes_on = reading.cursors.values().any(|cursor| cursor.sweep().is_some());
        // Also one that ends with its first step may have walked over much that a parked key has.
        let share = begun_at.elapsed() * SWEEP_SHARE;
        let rest = if goes_on { share } else { share.clamp(SWEEP, LONGEST_REST) };
        reading.sweep_at = Instant::now() + rest;
        Ok(rest)
    }

    /// Has keys go on that an operator has let go on: first they are known here, then reads give their rows.
    async fn reopen(&self, reading: &mut Reading) -> Result<(), Error> {
        if !self.store.closes_keys() {
            return Ok(());
        }
        let leases: Vec<_> = reading.cursors.values().map(|cursor| cursor.lease).collect();
        for _ in 0..REOPENED_IN_A_ROW {
            let reopened = self.store.reopened_keys(&self.owner, &leases, REOPENED_AT_ONCE).await?;
            let may_be_more = reopened.len() >= REOPENED_AT_ONCE;
            for closed in reopened {
                let Some(lease) = leases.iter().find(|lease| lease.lane == closed.lane) else { continue };
                if self.keys.reopen(*lease, closed.key.clone(), closed.head_seq) {
                    reading.reopening.push((*lease, closed.key));
                }
            }
            if reading.reopening.is_empty() {
                return Ok(());
            }
            self.store.forget_keys(&self.owner, &reading.reopening).await?;
            for (lease, key) in reading.reopening.drain(..) {
                self.keys.reopened(lease, key);
            }
            if !may_be_more {
                return Ok(());
            }
        }
        // The rest with the next round.
        self.wake.everywhere();
        Ok(())
    }

    /// One read. Gives the rows of each lane of which it can be used, none if there are none; and the numbers that are known.
    async fn read(
        &self,
        reading: &mut Reading,
        parts: Vec<ReadLane>,
        direction: Direction,
    ) -> Result<(Found, Vec<i64>), Error> {
        let mut not_wanted = self.keys.begin_read(parts.iter().map(|part| (part.lease.lane, part.after)));
        let cursors = || parts.iter().filter_map(|part| reading.cursors.get(&part.lease.lane));
        if direction == Direction::Forward {
            not_wanted.extend(cursors().flat_map(Cursor::left));
            not_wanted.sort_unstable();
            not_wanted.dedup();
        }
        let mut passed: Vec<_> = cursors().flat_map(Cursor::expected).cloned().collect();
        passed.sort_unstable();
        passed.dedup();
        let read =
            ReadLanes { owner: self.owner.clone(), in_hand: not_wanted, passed, lease_duration: self.row_lease, parts };
        kill_point!("read.before");
        let LaneRows { rows, open, lost } = self.store.read_lanes(&read).await?;
        kill_point!("read.after");
        for lease in &lost {
            debug!(lane = lease.lane.0, epoch = lease.epoch, "lane lost");
            self.keys.lost(*lease);
        }
        let mut by_lane: BTreeMap<Lane, Vec<LaneRow>> = BTreeMap::new();
        let still_open: HashSet<_> = open.iter().collect();
        for part in read.parts.iter().filter(|part| !lost.contains(&part.lease)) {
            let cursor = reading.cursors.get_mut(&part.lease.lane).filter(|cursor| cursor.lease == part.lease);
            if cursor.is_some_and(|cursor| cursor.accepts(&still_open)) {
                by_lane.insert(part.lease.lane, Vec::new());
            }
        }
        for row in rows {
            if let Some(rows) = by_lane.get_mut(&row.lane) {
                rows.push(row);
            }
        }
        Ok((Found { by_lane, open }, read.in_hand))
    }

    fn tell(&self, count: usize) {
        if count > 0 {
            kill_point!("cold.enqueued");
            self.metrics.claim_batch(count);
            self.metrics.cold_enqueued(count as u64);
        }
    }
}

impl Reading {
    /// Notes the highest number of a read, which is given out by then.
    fn note_highest(&mut self, seen: Option<i64>, now: Instant) {
        match self.highest {
            Some((highest, since)) if now.duration_since(since) >= PASSED_AFTER => {
                self.passable = self.passable.max(Some(highest));
                self.highest = None;
            }
            _ => {}
        }
        if self.highest.is_none() {
            self.highest = seen.map(|seen| (seen, now));
        }
    }

    /// The lanes that are known to have more.
    fn behind(&self) -> impl Iterator<Item = &Cursor> {
        self.cursors.values().filter(|cursor| cursor.has_more)
    }

    /// Up to which number those lanes are read that are known to have more, if several are, and it is known how far that may be: so
    /// far that there is room for what they have, if each of them has the same share of the numbers.
    fn horizon(&self, room: usize) -> Option<i64> {
        let seen: Vec<_> = self.behind().map(|cursor| i128::from(cursor.seen())).collect();
        let count = i128::try_from(seen.len()).ok().filter(|count| *count > 1)?;
        let length = i128::from(self.numbers_per_row?) * i128::try_from(room).ok()?;
        i64::try_from(seen.iter().sum::<i128>() / count + length).ok()
    }

    /// Notes how far the lanes have come that were known to have more, with so many rows, of which that is the lowest. If there were
    /// few, the next read goes as far as it takes, and sees which of them are at their end.
    fn note_progress(&mut self, before: &[(Lane, i64)], rows: usize, lowest: i64, room: usize) {
        if rows < room / 8 {
            self.numbers_per_row = None;
            return;
        }
        // Before the first row there may be any number of numbers, as in a table with old rows.
        let from = |seen: i64| seen.max(lowest.saturating_sub(1));
        let progress = before
            .iter()
            .filter_map(|(lane, seen)| Some(self.cursors.get(lane)?.seen().saturating_sub(from(*seen)).max(0)));
        let numbers: i128 = progress.map(i128::from).sum();
        let each = i128::try_from(before.len() * rows).ok().and_then(|rows| numbers.checked_div(rows));
        self.numbers_per_row = each.and_then(|each| i64::try_from(each.max(1)).ok());
    }
}

/// What a read is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    /// For what is new.
    Forward,
    /// For what was left, or has changed, behind the cursor.
    Back,
}

/// What a read has found that can be used.
struct Found {
    by_lane: BTreeMap<Lane, Vec<LaneRow>>,
    open: Vec<crate::store::Writer>,
}
