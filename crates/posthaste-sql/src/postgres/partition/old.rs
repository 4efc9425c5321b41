//! Dropping partitions in which everything is old.

use posthaste_core::store::{Error, Purge};
use sqlx::postgres::Postgres;
use sqlx::{AssertSqlSafe, Connection, Transaction};

use super::super::PgStore;
use super::super::moment::interval;
use super::super::sql::DIALECT;
use super::super::sql::lanes::HAS_HEADS;
use super::{Partitioned, sql};

/// What is to become of an old partition.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Drop,
    /// It holds rows that are kept for longer.
    Later,
    /// Another process was faster, or somebody has taken it out of the table.
    Gone,
    /// It holds so many rows that are not delivered yet.
    Pending(i64),
}

impl PgStore {
    /// Drops every partition that is old as a whole and of which no row is needed. One that cannot be dropped now keeps no
    /// other from being dropped.
    pub(super) async fn drop_partitions(&self, partitioned: &Partitioned, kept: &Purge) -> Result<u64, Error> {
        let shortest = [kept.done_after, kept.dead_after, kept.any_after].into_iter().flatten().min();
        let Some(shortest) = shortest else { return Ok(0) };
        let query = sqlx::query_as(self.partition_sql(sql::OLD, partitioned)).bind(interval(shortest));
        let query = query.bind(kept.any_after.map(interval)).persistent(false);
        let old: Vec<(String, bool)> = query.fetch_all(&self.pool).await.map_err(|error| self.fault(error))?;
        if old.is_empty() {
            return Ok(0);
        }
        let mut connection = self.own_connection().await?;
        let (mut dropped, mut failed) = (0, None);
        for (name, any) in &old {
            let tx = self.begin_as_owner(&mut connection).await?;
            match self.drop_partition(tx, name, *any, kept).await {
                Ok(verdict) => {
                    dropped += u64::from(verdict == Verdict::Drop);
                    partitioned.tell(name, verdict);
                }
                Err(error @ Error::Unavailable(_)) => return Err(error),
                Err(error) => drop(failed.get_or_insert(error)),
            }
        }
        connection.close().await.map_err(|error| self.fault(error))?;
        failed.map_or(Ok(dropped), Err)
    }

    /// Looks, locks, looks again, and drops, in one transaction. The first look is for free; under the lock nobody can add
    /// or change a row between the second one and the end.
    async fn drop_partition(
        &self,
        mut tx: Transaction<'_, Postgres>,
        name: &str,
        any: bool,
        kept: &Purge,
    ) -> Result<Verdict, Error> {
        let has_keys = self.has_keys().await?;
        let fill = |template: &str| AssertSqlSafe(DIALECT.fill(template, self.table()).replace("{partition}", name));
        let steps = async {
            sqlx::raw_sql(sql::BY_INDEX).execute(&mut *tx).await?;
            for locked in [false, true] {
                if locked {
                    sqlx::raw_sql(fill(sql::LOCK_TABLE)).execute(&mut *tx).await?;
                    sqlx::raw_sql(fill(sql::HURRY)).execute(&mut *tx).await?;
                    let ours = sqlx::query_scalar(fill(sql::STILL_OURS)).bind(name).persistent(false);
                    if !ours.fetch_one(&mut *tx).await? {
                        return Ok(Verdict::Gone);
                    }
                    sqlx::raw_sql(fill(sql::LOCK_PARTITION)).execute(&mut *tx).await?;
                }
                if !any {
                    let query = sqlx::query_as(fill(sql::STILL_NEEDED)).persistent(false);
                    let query = query.bind(kept.done_after.map(interval)).bind(kept.dead_after.map(interval));
                    let (pending, later): (i64, bool) = query.fetch_one(&mut *tx).await?;
                    match (pending, later) {
                        (0, false) if has_keys => {
                            let query = sqlx::query_scalar(fill(HAS_HEADS)).persistent(false);
                            if query.fetch_one(&mut *tx).await? {
                                return Ok(Verdict::Later);
                            }
                        }
                        (0, false) => {}
                        (0, true) => return Ok(Verdict::Later),
                        (pending, _) => return Ok(Verdict::Pending(pending)),
                    }
                }
            }
            sqlx::raw_sql(fill(sql::DROP)).execute(&mut *tx).await?;
            Ok(Verdict::Drop)
        };
        let verdict = match steps.await {
            Err(sqlx::Error::Database(error)) if error.code().is_some_and(|code| code == UNDEFINED_TABLE) => {
                return Ok(Verdict::Gone);
            }
            verdict => verdict.map_err(|error| self.fault(error))?,
        };
        if verdict == Verdict::Drop {
            tx.commit().await.map_err(|error| self.fault(error))?;
        }
        Ok(verdict)
    }
}

const UNDEFINED_TABLE: &str = "42P01";

impl Partitioned {
    /// Says what became of a partition; if it stays, once for each number of pending rows.
    fn tell(&self, name: &str, verdict: Verdict) {
        match verdict {
            Verdict::Drop => tracing::info!(partition = name, "old partition dropped"),
            Verdict::Later => tracing::debug!(partition = name, "old partition holds rows that are kept for longer"),
            Verdict::Gone => tracing::debug!(partition = name, "old partition is not there any more"),
            Verdict::Pending(pending) => {
                if self.is_news(name, pending) {
                    tracing::warn!(
                        partition = name,
                        pending,
                        "old partition not dropped: it holds rows that are not delivered yet; rows that are done are \
                         deleted from it one by one"
                    );
                }
                return;
            }
        }
        self.forget(name);
    }
}
