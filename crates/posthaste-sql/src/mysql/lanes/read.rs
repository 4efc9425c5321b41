//! Reading what is pending in lanes, and who may bring more.

use std::collections::{BTreeSet, HashMap};

use posthaste_core::store::{LaneLease, LaneRow, LaneRows, ReadLane, ReadLanes, Writer};
use sqlx::mysql::{MySql, MySqlConnection};
use sqlx::{SqlSafeStr, Transaction};
use tokio::time::Instant;

use super::super::settle::fill;
use super::super::sql::lanes as sql;
use super::super::{MySqlStore, row};
use super::lease;
use crate::admin::limit;
use crate::many::MOST;

/// How many numbers more are read of a lane than are wanted, beside its share of those in hand.
const SOME_MORE: usize = 64;

impl MySqlStore {
    /// Finds numbers in the index, then the rows, as of the same moment; then looks for numbers that are not committed.
    pub(super) async fn try_read_lanes(&self, read: &ReadLanes) -> Result<LaneRows, sqlx::Error> {
        let mut found = LaneRows::default();
        let passed: Vec<i64> = read.passed.iter().filter_map(|writer| writer.0.parse().ok()).collect();
        let mut tx = self.begin_read(sql::BEGIN_READ).await?;
        let mine = self.mine(&mut tx, &read.owner).await?;
        let (held, lost): (Vec<_>, Vec<_>) = read.parts.iter().partition(|part| mine.contains_key(&part.lease));
        found.lost.extend(lost.iter().map(|part| part.lease));
        let read_at = Instant::now();
        let walks = self.walk_all(&mut tx, &held, &mine, &read.in_hand).await?;
        for walk in &walks {
            found.rows.extend(self.rows_of(&mut tx, walk, read).await?);
        }
        let known = self.pending_of(&mut tx, &passed).await?;
        tx.commit().await?;

        if !found.rows.is_empty() {
            self.sql.lanes.moments.read(read_at);
        }
        found.open = self.sql.lanes.moments.open(Instant::now());
        let mut look = self.begin_read(sql::BEGIN_LOOK).await?;
        let ranges: Vec<_> = walks.iter().map(Walk::walked).collect();
        let mut open = BTreeSet::new();
        for (walk, seqs) in walks.iter().zip(self.numbers(&mut look, &ranges).await?) {
            open.extend(seqs.into_iter().filter(|seq| walk.seen.binary_search(seq).is_err()));
        }
        open.extend(self.pending_of(&mut look, &passed).await?.difference(&known));
        look.commit().await?;
        found.open.extend(open.into_iter().map(|seq| Writer(seq.to_string().into())));
        Ok(found)
    }

    async fn begin_read(&self, begin: &'static str) -> Result<Transaction<'static, MySql>, sqlx::Error> {
        Transaction::begin(self.acquire().await?.into_pooled(), Some(begin.into_sql_str())).await
    }

    /// The leases of an owner, and whether their lanes have closed keys.
    async fn mine(
        &self,
        connection: &mut MySqlConnection,
        owner: &str,
    ) -> Result<HashMap<LaneLease, bool>, sqlx::Error> {
        let query = sqlx::query_as::<_, (i64, i64, bool)>(self.sql.lanes.mine.clone()).bind(owner);
        let mine = query.fetch_all(connection).await?;
        Ok(mine.into_iter().map(|(number, epoch, closed)| (lease((number, epoch)), closed)).collect())
    }

    /// The numbers that are wanted of each part, and those that were seen on the way.
    async fn walk_all<'a>(
        &self,
        connection: &mut MySqlConnection,
        parts: &[&'a ReadLane],
        mine: &HashMap<LaneLease, bool>,
        in_hand: &[i64],
    ) -> Result<Vec<Walk<'a>>, sqlx::Error> {
        let mut walks: Vec<_> = parts.iter().map(|part| Walk::new(part, in_hand, parts.len())).collect();
        let picky = parts.iter().any(|part| part.key.is_some() || mine[&part.lease]);
        loop {
            let open: Vec<usize> = (0..walks.len()).filter(|place| !walks[*place].ended).collect();
            if open.is_empty() {
                break;
            }
            let ranges: Vec<_> = open.iter().map(|place| walks[*place].to_walk()).collect();
            let numbers =
                if picky { self.wanted(connection, &ranges).await? } else { self.numbers(connection, &ranges).await? };
            for (place, seqs) in open.into_iter().zip(numbers) {
                walks[place].found(seqs, in_hand);
            }
        }
        if picky {
            // All that is pending there, so that what is not committed can be told from it.
            let ranges: Vec<_> = walks.iter().map(Walk::walked).collect();
            for (walk, seqs) in walks.iter_mut().zip(self.numbers(connection, &ranges).await?) {
                walk.seen = seqs;
            }
        }
        Ok(walks)
    }

    /// What is pending in ranges, of each by number.
    async fn numbers(
        &self,
        connection: &mut MySqlConnection,
        ranges: &[Range<'_>],
    ) -> Result<Vec<Vec<i64>>, sqlx::Error> {
        let mut found = Vec::new();
        for ranges in ranges.chunks(MOST) {
            let (sql, size) = self.sql.lanes.numbers.at_least(ranges.len());
            let query = sqlx::query_as::<_, (i64, i64)>(sql);
            let query = ranges.iter().map(Some).chain(std::iter::repeat_n(None, size - ranges.len())).fold(
                query,
                |query, range| match range {
                    Some(range) => query.bind(range.lane()).bind(range.after).bind(range.until).bind(range.most),
                    None => query.bind(NO_LANE).bind(0).bind(0).bind(0),
                },
            );
            found.extend(by_range(ranges, &query.fetch_all(&mut *connection).await?));
        }
        Ok(found)
    }

    /// The same of keys, and of none that is closed.
    async fn wanted(
        &self,
        connection: &mut MySqlConnection,
        ranges: &[Range<'_>],
    ) -> Result<Vec<Vec<i64>>, sqlx::Error> {
        let mut found = Vec::new();
        for ranges in ranges.chunks(MOST) {
            let (sql, size) = self.sql.lanes.wanted.at_least(ranges.len());
            let query = sqlx::query_as::<_, (i64, i64)>(sql);
            let query = ranges.iter().map(Some).chain(std::iter::repeat_n(None, size - ranges.len())).fold(
                query,
                |query, range| {
                    let query = match range {
                        Some(range) => query.bind(range.lane()).bind(range.after).bind(range.until),
                        None => query.bind(NO_LANE).bind(0).bind(0),
                    };
                    let key = range.and_then(|range| range.part.key.as_ref());
                    let (kind, id) = (key.map(|key| &*key.aggregate_type), key.map(|key| &*key.aggregate_id));
                    query.bind(id).bind(id).bind(kind).bind(range.map_or(0, |range| range.most))
                },
            );
            found.extend(by_range(ranges, &query.fetch_all(&mut *connection).await?));
        }
        Ok(found)
    }

    async fn rows_of(
        &self,
        connection: &mut MySqlConnection,
        walk: &Walk<'_>,
        read: &ReadLanes,
    ) -> Result<Vec<LaneRow>, sqlx::Error> {
        let mut rows = Vec::with_capacity(walk.wanted.len());
        for seqs in walk.wanted.chunks(MOST) {
            let (sql, size) = self.sql.lanes.rows.at_least(seqs.len());
            let query = fill(seqs, size).fold(sqlx::query(sql), |query, seq| query.bind(*seq));
            let found = query.fetch_all(&mut *connection).await?;
            rows.extend(found.iter().map(|row| row::in_lane(row).row(read.lease_duration, || row::key_of(row))));
        }
        Ok(rows)
    }

    /// Those of some numbers that are pending, as this transaction sees it.
    async fn pending_of(&self, connection: &mut MySqlConnection, seqs: &[i64]) -> Result<BTreeSet<i64>, sqlx::Error> {
        let mut pending = BTreeSet::new();
        for seqs in seqs.chunks(MOST) {
            let (sql, size) = self.sql.lanes.pending.at_least(seqs.len());
            let query = fill(seqs, size).fold(sqlx::query_scalar::<_, i64>(sql), |query, seq| query.bind(*seq));
            pending.extend(query.fetch_all(&mut *connection).await?);
        }
        Ok(pending)
    }
}

/// Where nothing is.
const NO_LANE: i64 = -1;

/// A range of numbers in a lane.
struct Range<'a> {
    part: &'a ReadLane,
    after: i64,
    until: i64,
    most: i64,
}

impl Range<'_> {
    fn lane(&self) -> i64 {
        self.part.lease.lane.0.into()
    }
}

/// Numbers by the ranges they are in, of which no two are of the same lane.
fn by_range(ranges: &[Range<'_>], numbers: &[(i64, i64)]) -> Vec<Vec<i64>> {
    let mut by_lane: HashMap<i64, Vec<i64>> = HashMap::new();
    for (lane, seq) in numbers {
        by_lane.entry(*lane).or_default().push(*seq);
    }
    let sorted = |range: &Range<'_>| {
        let mut seqs = by_lane.remove(&range.lane()).unwrap_or_default();
        // A union promises no order.
        seqs.sort_unstable();
        seqs
    };
    ranges.iter().map(sorted).collect()
}

/// How far a part was read.
struct Walk<'a> {
    part: &'a ReadLane,
    /// How many of those in hand may be in the range.
    in_range: usize,
    /// How many numbers more are read than are wanted, because some of them may be in hand.
    extra: usize,
    ended: bool,
    /// The last number of the range that was walked.
    until: i64,
    /// The pending numbers in it.
    seen: Vec<i64>,
    /// Those that are wanted.
    wanted: Vec<i64>,
}

impl<'a> Walk<'a> {
    fn new(part: &'a ReadLane, in_hand: &[i64], parts: usize) -> Self {
        let until = part.until.unwrap_or(i64::MAX);
        let up_to = |number: i64| in_hand.partition_point(|seq| *seq <= number);
        let in_range = up_to(until).saturating_sub(up_to(part.after));
        // Those in hand are of all lanes; which are of this one is not known.
        let extra = in_range.min(2 * in_range / parts.max(1) + SOME_MORE);
        Self { part, in_range, extra, ended: false, until, seen: Vec::new(), wanted: Vec::new() }
    }

    fn most(&self) -> usize {
        self.part.limit.saturating_add(self.extra)
    }

    fn to_walk(&self) -> Range<'a> {
        Range { part: self.part, after: self.part.after, until: self.until, most: limit(self.most()) }
    }

    fn walked(&self) -> Range<'a> {
        Range { most: i64::MAX, ..self.to_walk() }
    }

    /// These are the first numbers of the range.
    fn found(&mut self, seqs: Vec<i64>, in_hand: &[i64]) {
        let new = seqs.iter().copied().filter(|seq| in_hand.binary_search(seq).is_err());
        self.wanted = new.take(self.part.limit).collect();
        let cut = seqs.len() >= self.most();
        if cut && self.wanted.len() < self.part.limit && self.extra < self.in_range {
            self.extra = (self.extra * 4).min(self.in_range);
            return;
        }
        self.ended = true;
        if cut {
            self.until = seqs.last().copied().unwrap_or(self.part.after);
        }
        self.seen = seqs;
    }
}
