//! A table in partitions by the moment of insert, which are made ahead of time and dropped as a whole.

mod ahead;
mod old;
mod since;
mod sql;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use posthaste_core::store::{Error, Maintained, Purge};
use since::Since;
use sqlx::postgres::{PgConnection, Postgres};
use sqlx::{AssertSqlSafe, Connection, Transaction};

use super::PgStore;
use super::sql::{BEGIN, DIALECT};

/// How the table is cut into partitions: by the moment of insert, in UTC. Comes with the feature `postgres`.
///
/// A partition should be a good deal shorter than rows are kept, and there should be some dozens of them rather than some
/// hundreds: every claim asks each of them for its oldest pending row. Without
/// [`retention_done`](posthaste_core::Options::retention_done) none is ever dropped, and hourly ones are hundreds within weeks.
///
/// ```
/// # mod posthaste { pub use posthaste_sql::*; }
/// use posthaste::Partitions;
///
/// // Rows are kept for a month: some dozens of partitions.
/// let partitions = Partitions::daily().ahead(7);
/// # let _ = partitions;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partitions {
    length: Length,
    ahead: u8,
}

/// Words of PostgreSQL's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Length {
    Hour,
    Day,
    Week,
    Month,
}

/// With more partitions than this, claims are noticeably slower.
const MANY: i64 = 100;

/// Enough for a weekend in which nobody looks after daily partitions; more cost every claim a little.
const AHEAD: u8 = 3;

impl Partitions {
    /// A partition for each hour, for rows that are kept for a day or so.
    pub const fn hourly() -> Self {
        Self { length: Length::Hour, ahead: AHEAD }
    }

    /// A partition for each day.
    pub const fn daily() -> Self {
        Self { length: Length::Day, ahead: AHEAD }
    }

    /// A partition for each week, from Monday on.
    pub const fn weekly() -> Self {
        Self { length: Length::Week, ahead: AHEAD }
    }

    /// A partition for each month.
    pub const fn monthly() -> Self {
        Self { length: Length::Month, ahead: AHEAD }
    }

    /// How many partitions are there already for the time after the current one's. Default 3: for so long nobody has to look
    /// after the table. None is taken for one: the next one is always there before its time.
    pub const fn ahead(mut self, count: u8) -> Self {
        self.ahead = if count == 0 { 1 } else { count };
        self
    }

    /// At least as long as any of them.
    fn longest(self) -> Duration {
        const HOUR: u64 = 3600;
        Duration::from_secs(match self.length {
            Length::Hour => HOUR,
            Length::Day => 24 * HOUR,
            Length::Week => 7 * 24 * HOUR,
            Length::Month => 31 * 24 * HOUR,
        })
    }

    fn unit(self) -> &'static str {
        match self.length {
            Length::Hour => "hour",
            Length::Day => "day",
            Length::Week => "week",
            Length::Month => "month",
        }
    }
}

/// What a store knows of its partitions.
pub(super) struct Partitioned {
    partitions: Partitions,
    /// Which partitions there is work in.
    pub(super) since: Since,
    /// How many rows stood in the way of making or dropping each partition, so that each number is told once.
    stuck: Mutex<HashMap<String, i64>>,
    /// Whether it was told that there are many.
    told_many: AtomicBool,
}

impl Partitioned {
    pub(super) fn new(partitions: Partitions) -> Self {
        let since = Since::new(partitions.longest());
        Self { partitions, since, stuck: Mutex::default(), told_many: AtomicBool::new(false) }
    }

    /// The same partitions, of which nothing is known.
    pub(super) fn anew(&self) -> Self {
        Self::new(self.partitions)
    }

    /// Whether it was not told yet that so many rows stand in the way of that partition.
    fn is_news(&self, partition: &str, rows: i64) -> bool {
        let mut stuck = self.stuck.lock().unwrap_or_else(PoisonError::into_inner);
        stuck.insert(partition.to_owned(), rows) != Some(rows)
    }

    /// Nothing stands in its way any more.
    fn forget(&self, partition: &str) {
        self.stuck.lock().unwrap_or_else(PoisonError::into_inner).remove(partition);
    }

    /// The moment before which rows are deleted one by one, given before and after how long rows are kept. A partition is
    /// dropped when all of it is old; one that could not be dropped for its own length is emptied instead.
    pub(super) fn purged_before(&self) -> (String, String) {
        let unit = self.partitions.unit();
        let before = format!(" AND created_at < (date_trunc('{unit}', (now() - ");
        (before, format!(") AT TIME ZONE 'UTC') - INTERVAL '1 {unit}') AT TIME ZONE 'UTC'"))
    }
}

/// The owner of the table, this role, both quoted, and whether it may act as the owner.
struct Owner {
    owner: String,
    user: String,
    may_act: bool,
}

impl PgStore {
    /// Makes the partitions that are missing for now and for the time ahead, and moves rows there that went into the
    /// partition for everything else meanwhile. An outbox does this by itself, at its start and then once per
    /// [`retention_interval`](posthaste_core::Options::retention_interval); call it where there is none, or where the outbox
    /// may not. Several processes may do this at once. Waits for no transaction longer than a tenth of a second.
    ///
    /// # Errors
    /// [`Error::Busy`] when somebody holds a lock on the table for longer than that: try again later. [`Error::Refused`] when
    /// this role may not act as the owner of the table. [`Error::Schema`] without [`partitioned`](Self::partitioned), when the
    /// table has no partitions, or something else has the name of one. One that cannot be made keeps no other from being
    /// made.
    ///
    /// # Cancellation
    /// Safe: each partition is there as a whole, or not at all.
    pub async fn maintain_partitions(&self) -> Result<(), Error> {
        let Some(partitioned) = &self.partitioned else {
            return Err(Error::Schema {
                table: self.table().to_string(),
                reason: "this store knows of no partitions; say how long one is with PgStore::partitioned".to_owned(),
            });
        };
        self.make_partitions(partitioned).await.map(drop)
    }

    /// Makes partitions, then drops what is old.
    pub(super) async fn try_maintain(&self, kept: &Purge) -> Result<Maintained, Error> {
        let Some(partitioned) = &self.partitioned else { return Ok(Maintained::default()) };
        let made = self.make_partitions(partitioned).await;
        let dropped = self.drop_partitions(partitioned, kept).await;
        let counted = self.warn_of_many(partitioned).await;
        let (made, dropped) = (made?, dropped?);
        counted?;
        Ok(Maintained { dropped, ..made })
    }

    /// Says once that there are too many partitions.
    async fn warn_of_many(&self, partitioned: &Partitioned) -> Result<(), Error> {
        let query = sqlx::query_scalar(self.partition_sql(sql::COUNT, partitioned)).persistent(false);
        let count: i64 = query.fetch_one(&self.pool).await.map_err(|error| self.fault(error))?;
        if count > MANY && !partitioned.told_many.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                table = %self.table(),
                partitions = count,
                "so many partitions slow every claim down: keep rows for a shorter time, or choose longer partitions"
            );
        }
        Ok(())
    }

    /// A template, with the name of the table and the length of a partition put in.
    fn partition_sql(&self, template: &str, partitioned: &Partitioned) -> AssertSqlSafe<String> {
        let unit = partitioned.partitions.unit();
        AssertSqlSafe(DIALECT.fill(&template.replace("{unit}", unit), self.table()))
    }

    /// A transaction in which no other process makes or drops partitions, with the rights of the table's owner, who then
    /// owns what is made. It waits for locks only for moments: whoever comes later waits behind it.
    async fn begin_as_owner<'c>(&self, connection: &'c mut PgConnection) -> Result<Transaction<'c, Postgres>, Error> {
        let mut tx = connection.begin_with(BEGIN).await.map_err(|error| self.fault(error))?;
        sqlx::raw_sql(sql::ALONE).execute(&mut *tx).await.map_err(|error| self.fault(error))?;
        let Owner { owner, user, may_act } = self.owner(&mut tx).await?;
        if !may_act {
            return Err(Error::Refused(
                format!(
                    "partitions of {} are made and dropped by its owner, which {user} is not: GRANT {owner} TO {user}, \
                     or let a process that connects as {owner} call maintain",
                    self.table()
                )
                .into(),
            ));
        }
        let keep_schema = DIALECT.fill(sql::KEEP_SCHEMA, self.table());
        for sql in [keep_schema, format!("SET LOCAL ROLE {owner}")] {
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *tx).await.map_err(|error| self.fault(error))?;
        }
        Ok(tx)
    }

    async fn owner(&self, connection: &mut PgConnection) -> Result<Owner, Error> {
        let query = sqlx::query_as(AssertSqlSafe(DIALECT.fill(sql::OWNER, self.table())));
        let (owner, user, may_act) = query.fetch_one(connection).await.map_err(|error| self.fault(error))?;
        Ok(Owner { owner, user, may_act })
    }

    /// A connection that does not go back to the pool: dropped half-way, it ends with its transaction.
    pub(super) async fn own_connection(&self) -> Result<PgConnection, Error> {
        Ok(self.pool.acquire().await.map_err(|error| self.fault(error))?.detach())
    }
}
