//! Reading what is pending in lanes.

use futures_util::TryStreamExt;
use posthaste_core::Timestamp;
use posthaste_core::store::{Key, LaneLease, LaneRows, ReadLane, ReadLanes, Writer};

use super::super::row::OfLanes;
use super::super::{PgStore, row};
use super::closed::{Filter, MOST};
use super::columns;
use crate::admin::limit;
use crate::lanes::lane;

/// With so many rows in hand there is a backlog, and the plan of a read is made for a table that has one. What it may know of closed
/// keys is worth sending with it.
const MANY: usize = 250;

impl PgStore {
    pub(super) async fn try_read_lanes(&self, read: &ReadLanes) -> Result<LaneRows, sqlx::Error> {
        let many = read.in_hand.len() >= MANY && read.parts.iter().all(|part| part.key.is_none());
        let leases: Vec<_> = read.parts.iter().map(|part| part.lease).collect();
        let closed_keys = &self.sql.lanes.closed_keys;
        let asking = closed_keys.forget_unless_answered();
        // For few rows it is no gain.
        let filter = if many {
            self.ask_for_closed_keys(&leases).await?;
            closed_keys.filter(&leases)
        } else {
            Filter::none(leases.len())
        };
        let found = self.read_lanes_by(read, many, &filter).await?;
        asking.answered();
        if closed_keys.stands(&leases, &filter) {
            return Ok(found);
        }
        // Keys were sent to be closed meanwhile, of which the filter knew nothing.
        self.read_lanes_by(read, many, &Filter::none(leases.len())).await
    }

    /// Asks which keys of lanes are closed, where that is not known and it is time for it.
    async fn ask_for_closed_keys(&self, leases: &[LaneLease]) -> Result<(), sqlx::Error> {
        let lanes = &self.sql.lanes;
        let Some(asking) = lanes.closed_keys.to_ask(leases) else { return Ok(()) };
        let (numbers, _) = columns(&asking.leases());
        let query = sqlx::query_as::<_, (i16, i64)>(lanes.closed_hashes.clone()).bind(numbers).bind(limit(MOST + 1));
        let hashes = query.fetch_all(&mut *self.acquire().await?).await?;
        let hashes: Vec<_> = hashes.into_iter().map(|(number, hash)| (lane(number.into()), hash)).collect();
        lanes.closed_keys.told(&asking, &hashes);
        Ok(())
    }

    async fn read_lanes_by(&self, read: &ReadLanes, many: bool, filter: &Filter) -> Result<LaneRows, sqlx::Error> {
        let column = |number: fn(&ReadLane) -> i64| read.parts.iter().map(number).collect::<Vec<_>>();
        let text =
            |text: fn(&Key) -> &str| read.parts.iter().map(|part| part.key.as_ref().map(text)).collect::<Vec<_>>();
        let lanes = &self.sql.lanes;
        let connection = &mut *self.acquire().await?;
        let by_kept = &lanes.read_by_kept_plan;
        let mut serving = (many && lanes.kept_plan.is_good()).then(|| lanes.kept_plan.begin(by_kept));
        let sql = serving.as_ref().map_or(&lanes.read, |serving| &serving.statement);
        let mut query = sqlx::query(sql.clone())
            .bind(column(|part| part.lease.lane.0.into()))
            .bind(column(|part| part.lease.epoch))
            .bind(column(|part| part.after))
            .bind(column(|part| part.until.unwrap_or(i64::MAX)))
            .bind(column(|part| limit(part.limit)))
            .bind(text(|key| &key.aggregate_type))
            .bind(text(|key| &key.aggregate_id))
            .bind(&read.in_hand[..])
            .bind(&*read.owner)
            .bind(filter.knows())
            .bind(filter.bits())
            .bind(filter.mask());
        if serving.is_none() {
            query = query.bind(true);
        }
        let mut found = LaneRows::default();
        let mut oldest = None;
        let mut rows = query.fetch(connection);
        while let Some(row) = rows.try_next().await? {
            match row::of_lanes(&row)? {
                OfLanes::Row(of_lane, created_at) => {
                    oldest = Some(oldest.map_or(created_at, |oldest: Timestamp| oldest.min(created_at)));
                    found.rows.push(of_lane.row(read.lease_duration, || row::key_of(&row)));
                }
                OfLanes::Lost(lease) => found.lost.push(lease),
                OfLanes::Open(writer) => found.open.push(Writer(writer.into())),
            }
        }
        if let Some(serving) = &mut serving {
            serving.rows = found.rows.len();
        }
        if let (Some(partitioned), Some(oldest)) = (&self.partitioned, oldest) {
            partitioned.since.worked_on(oldest);
        }
        // A join promises no order.
        found.rows.sort_by_key(|row| (row.lane, row.seq));
        Ok(found)
    }
}
