//! Making partitions before they are needed.

use posthaste_core::Timestamp;
use posthaste_core::store::{Error, Maintained};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection};

use super::super::PgStore;
use super::super::moment::Moment;
use super::super::sql::DIALECT;
use super::{Partitioned, sql};

/// The most rows that are moved at a time: everybody waits for as long as that takes.
const MOST_MOVED: i64 = 10_000;

/// The most partitions that are made between others in one go, for rows that fell out of them.
const MOST_MENDED: usize = 30;

/// A partition to be made.
struct Piece {
    name: String,
    lower: Moment,
    upper: Moment,
    lower_text: String,
    upper_text: String,
}

impl Piece {
    fn read((name, lower, upper, lower_text, upper_text): (String, Moment, Moment, String, String)) -> Self {
        Self { name, lower, upper, lower_text, upper_text }
    }
}

impl PgStore {
    /// Makes what is missing from now on, then what is missing for rows that have fallen into the partition for everything
    /// else. Each in a transaction of its own, so that locks are short.
    pub(in super::super) async fn make_partitions(&self, partitioned: &Partitioned) -> Result<Maintained, Error> {
        self.expect_partitions().await?;
        let mut made = Maintained::default();
        if !self.has_to_make(partitioned).await? {
            return Ok(made);
        }
        let mut connection = self.own_connection().await?;
        // As many as can be missing; each round looks anew, since another process may be at it too.
        let mut passed_by = 0;
        for _ in 0..=partitioned.partitions.ahead {
            let mut tx = self.begin_as_owner(&mut connection).await?;
            let missing = self.missing(&mut tx, partitioned).await?;
            let Some(piece) = missing.get(passed_by) else { break };
            match self.make(&mut tx, partitioned, piece).await? {
                Some(moved) => {
                    tx.commit().await.map_err(|error| self.fault(error))?;
                    made = Maintained { made: made.made + 1, moved: made.moved + moved, ..made };
                }
                None => passed_by += 1,
            }
        }
        let mut after = Moment(Timestamp::from_micros(i64::MIN));
        for _ in 0..MOST_MENDED {
            let mut tx = self.begin_as_owner(&mut connection).await?;
            let Some(piece) = self.fallen(&mut tx, partitioned, after).await? else { break };
            after = piece.upper;
            if let Some(moved) = self.make(&mut tx, partitioned, &piece).await? {
                tx.commit().await.map_err(|error| self.fault(error))?;
                made = Maintained { made: made.made + 1, moved: made.moved + moved, ..made };
            }
        }
        connection.close().await.map_err(|error| self.fault(error))?;
        Ok(made)
    }

    /// Makes what is missing from now on in the transaction that made the table, which nobody else can see yet.
    pub(in super::super) async fn make_first_partitions(
        &self,
        connection: &mut PgConnection,
        partitioned: &Partitioned,
    ) -> Result<(), Error> {
        for piece in self.missing(connection, partitioned).await? {
            self.make(connection, partitioned, &piece).await?;
        }
        Ok(())
    }

    /// Whether there is anything to make, as far as anybody can tell. Rows that have fallen are delivered all the same, so
    /// nobody is told of them who could not move them.
    async fn has_to_make(&self, partitioned: &Partitioned) -> Result<bool, Error> {
        let mut connection = self.pool.acquire().await.map_err(|error| self.fault(error))?;
        Ok(!self.missing(&mut connection, partitioned).await?.is_empty()
            || self.may_have_fallen(&mut connection).await? && self.owner(&mut connection).await?.may_act)
    }

    async fn missing(&self, connection: &mut PgConnection, partitioned: &Partitioned) -> Result<Vec<Piece>, Error> {
        let query = sqlx::query_as(self.partition_sql(sql::MISSING, partitioned));
        let query = query.bind(i32::from(partitioned.partitions.ahead)).persistent(false);
        let pieces = query.fetch_all(connection).await.map_err(|error| self.fault(error))?;
        Ok(pieces.into_iter().map(Piece::read).collect())
    }

    async fn may_have_fallen(&self, connection: &mut PgConnection) -> Result<bool, Error> {
        let query = sqlx::query_scalar(AssertSqlSafe(DIALECT.fill(sql::MAY_HAVE_FALLEN, self.table())));
        query.fetch_one(connection).await.map_err(|error| self.fault(error))
    }

    async fn fallen(
        &self,
        connection: &mut PgConnection,
        partitioned: &Partitioned,
        after: Moment,
    ) -> Result<Option<Piece>, Error> {
        if !self.may_have_fallen(connection).await? {
            return Ok(None);
        }
        let query = sqlx::query_as(self.partition_sql(sql::FALLEN, partitioned)).bind(after).persistent(false);
        let piece = query.fetch_optional(connection).await.map_err(|error| self.fault(error))?;
        Ok(piece.map(Piece::read))
    }

    /// Makes one, and says how many rows moved there; or leaves it, when they are too many.
    async fn make(
        &self,
        connection: &mut PgConnection,
        partitioned: &Partitioned,
        piece: &Piece,
    ) -> Result<Option<u64>, Error> {
        let fill = |template: &str| {
            let template = DIALECT.fill(template, self.table()).replace("{partition}", &piece.name);
            AssertSqlSafe(template.replace("{lower}", &piece.lower_text).replace("{upper}", &piece.upper_text))
        };
        let steps = async {
            let to_move = sqlx::query_scalar(fill(sql::TO_MOVE)).bind(piece.lower).bind(piece.upper);
            let to_move: i64 = to_move.bind(MOST_MOVED + 1).persistent(false).fetch_one(&mut *connection).await?;
            if to_move > MOST_MOVED {
                return Ok(None);
            }
            if to_move > 0 {
                sqlx::raw_sql(fill(sql::LOCK_TABLE)).execute(&mut *connection).await?;
            }
            sqlx::raw_sql(fill(sql::CREATE)).execute(&mut *connection).await?;
            let mut moved = 0;
            if to_move > 0 {
                let query = sqlx::query(fill(sql::MOVE)).bind(piece.lower).bind(piece.upper).persistent(false);
                moved = query.execute(&mut *connection).await?.rows_affected();
                if sqlx::query_scalar(fill(sql::NOTHING_LEFT)).fetch_one(&mut *connection).await? {
                    sqlx::raw_sql(fill(sql::SHRINK)).execute(&mut *connection).await?;
                }
            }
            sqlx::raw_sql(fill(sql::ATTACH)).execute(&mut *connection).await?;
            Ok(Some(moved))
        };
        let made = steps.await.map_err(|error| self.fault(error))?;
        match made {
            Some(moved) => {
                tracing::info!(partition = piece.name, moved, "partition made");
                partitioned.forget(&piece.name);
            }
            None if partitioned.is_news(&piece.name, MOST_MOVED) => tracing::warn!(
                partition = piece.name,
                "partition not made: too many rows are in the partition for everything else by now; they stay there, \
                 are delivered from there, and are deleted one by one when they are old"
            ),
            None => {}
        }
        Ok(made)
    }
}
