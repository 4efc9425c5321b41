//! Making partitions before they are needed.

use posthaste_core::Timestamp;
use posthaste_core::store::{Error, Maintained};
use sqlx::error::DatabaseError;
use sqlx::postgres::{PgConnection, Postgres};
use sqlx::{AssertSqlSafe, Connection, Transaction};

use super::super::PgStore;
use super::super::moment::Moment;
use super::super::sql::DIALECT;
use super::{Partitioned, sql};

/// The most rows that are moved at a time: everybody waits for as long as that takes.
const MOST_MOVED: i64 = 10_000;

/// The same in bytes.
const MOST_BYTES: i64 = 32 << 20;

/// The most partitions that are made between others in one go, for rows that fell out of them.
const MOST_MENDED: usize = 30;

/// A partition to be made.
struct Piece {
    name: String,
    lower: Moment,
    upper: Moment,
    lower_text: String,
    upper_text: String,
    /// Whether its time has come, or has almost.
    begun: bool,
}

impl Piece {
    fn read(
        (name, lower, upper, lower_text, upper_text, begun): (String, Moment, Moment, String, String, bool),
    ) -> Self {
        Self { name, lower, upper, lower_text, upper_text, begun }
    }
}

/// What was made so far, and the first thing that went wrong.
#[derive(Default)]
struct Round {
    made: Maintained,
    failed: Option<Error>,
}

impl Round {
    /// Whether a partition was made. Fails if it makes no sense to go on with others.
    fn count(&mut self, made: Result<Option<u64>, Error>) -> Result<bool, Error> {
        match made {
            Ok(Some(moved)) => {
                self.made.made += 1;
                self.made.moved += moved;
                return Ok(true);
            }
            Ok(None) => {}
            Err(error @ Error::Unavailable(_)) => return Err(error),
            Err(error) => drop(self.failed.get_or_insert(error)),
        }
        Ok(false)
    }
}

impl PgStore {
    /// Makes what is missing from now on, then what is missing for rows that have fallen into the partition for everything
    /// else. Each in a transaction of its own, so that locks are short, and that one which cannot be made keeps no other
    /// from being made.
    pub(in super::super) async fn make_partitions(&self, partitioned: &Partitioned) -> Result<Maintained, Error> {
        self.expect_partitions().await?;
        let mut round = Round::default();
        if !self.has_to_make(partitioned).await? {
            return Ok(round.made);
        }
        let mut connection = self.own_connection().await?;
        // As many as can be missing; each turn looks anew, since another process may be at it too.
        let mut passed_by = 0;
        for _ in 0..=partitioned.partitions.ahead {
            let mut tx = self.begin_as_owner(&mut connection).await?;
            let missing = self.missing(&mut tx, partitioned).await?;
            let Some(piece) = missing.get(passed_by) else { break };
            if !round.count(self.make_and_commit(tx, partitioned, piece).await)? {
                passed_by += 1;
            }
        }
        let mut after = Moment(Timestamp::from_micros(i64::MIN));
        for _ in 0..MOST_MENDED {
            let mut tx = self.begin_as_owner(&mut connection).await?;
            let Some(piece) = self.fallen(&mut tx, partitioned, after).await? else { break };
            after = piece.upper;
            round.count(self.make_and_commit(tx, partitioned, &piece).await)?;
        }
        connection.close().await.map_err(|error| self.fault(error))?;
        round.failed.map_or(Ok(round.made), Err)
    }

    /// Makes what is missing from now on in the transaction that made the table, which nobody else can see yet.
    pub(in super::super) async fn make_first_partitions(
        &self,
        connection: &mut PgConnection,
        partitioned: &Partitioned,
    ) -> Result<(), Error> {
        for mut piece in self.missing(connection, partitioned).await? {
            // Nobody has to be kept out.
            piece.begun = false;
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

    async fn make_and_commit(
        &self,
        mut tx: Transaction<'_, Postgres>,
        partitioned: &Partitioned,
        piece: &Piece,
    ) -> Result<Option<u64>, Error> {
        let made = self.make(&mut tx, partitioned, piece).await?;
        if made.is_some() {
            tx.commit().await.map_err(|error| self.fault(error))?;
        }
        Ok(made)
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
            let to_move = sqlx::query_as(fill(sql::TO_MOVE)).bind(piece.lower).bind(piece.upper);
            let (to_move, bytes): (i64, i64) =
                to_move.bind(MOST_MOVED + 1).persistent(false).fetch_one(&mut *connection).await?;
            if to_move > MOST_MOVED || bytes > MOST_BYTES {
                return Ok(None);
            }
            let locks = to_move > 0 || piece.begun;
            if locks {
                for lock in [sql::LOCK_TABLE, sql::LOCK_DEFAULT, sql::HURRY] {
                    sqlx::raw_sql(fill(lock)).execute(&mut *connection).await?;
                }
            }
            sqlx::raw_sql(fill(sql::CREATE)).execute(&mut *connection).await?;
            let mut moved = 0;
            if locks {
                let query = sqlx::query(fill(sql::MOVE)).bind(piece.lower).bind(piece.upper).persistent(false);
                moved = query.execute(&mut *connection).await?.rows_affected();
            }
            if moved > 0 && sqlx::query_scalar(fill(sql::NOTHING_LEFT)).fetch_one(&mut *connection).await? {
                sqlx::raw_sql(fill(sql::SHRINK)).execute(&mut *connection).await?;
            }
            sqlx::raw_sql(fill(sql::ATTACH)).execute(&mut *connection).await?;
            Ok(Some(moved))
        };
        let made = steps.await.map_err(|error: sqlx::Error| {
            // A row for it came in meanwhile.
            if has_code(&error, CHECK_VIOLATION) { Error::Busy(Box::new(error)) } else { self.fault(error) }
        })?;
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

const CHECK_VIOLATION: &str = "23514";

fn has_code(error: &sqlx::Error, code: &str) -> bool {
    error.as_database_error().and_then(DatabaseError::code).is_some_and(|of| of == code)
}
