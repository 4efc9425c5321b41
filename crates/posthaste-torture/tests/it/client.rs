//! A connection to either database.

use posthaste_torture::server::Kind;
use sqlx::{Connection, Executor, MySqlConnection, PgConnection, Result};

/// Some kB a row, so that a full disk is felt soon. Not more: when there is no room for a column that has pages of its
/// own, MariaDB 10.11 aborts instead of giving an error.
const CREATE: &str = "CREATE TABLE bulk (id INT PRIMARY KEY, filler TEXT)";
const INSERT: &str = "INSERT INTO bulk SELECT COUNT(*) + 1, REPEAT(MD5(CAST(COUNT(*) AS CHAR(9))), 200) FROM bulk";
const COUNT: &str = "SELECT COUNT(*) FROM bulk";

pub(crate) enum Client {
    Postgres(PgConnection),
    MariaDb(MySqlConnection),
}

impl Client {
    pub(crate) async fn connect(kind: Kind, url: &str) -> Result<Self> {
        Ok(match kind {
            Kind::Postgres => Self::Postgres(PgConnection::connect(url).await?),
            Kind::MariaDb => Self::MariaDb(MySqlConnection::connect(url).await?),
        })
    }

    pub(crate) async fn create_table(&mut self) -> Result<()> {
        self.execute(CREATE).await
    }

    pub(crate) async fn execute(&mut self, sql: &'static str) -> Result<()> {
        match self {
            Self::Postgres(connection) => connection.execute(sql).await.map(drop),
            Self::MariaDb(connection) => connection.execute(sql).await.map(drop),
        }
    }

    /// One row, in a transaction.
    pub(crate) async fn insert(&mut self) -> Result<()> {
        match self {
            Self::Postgres(connection) => {
                let mut transaction = connection.begin().await?;
                transaction.execute(INSERT).await?;
                transaction.commit().await
            }
            Self::MariaDb(connection) => {
                let mut transaction = connection.begin().await?;
                transaction.execute(INSERT).await?;
                transaction.commit().await
            }
        }
    }

    pub(crate) async fn count(&mut self) -> Result<i64> {
        match self {
            Self::Postgres(connection) => sqlx::query_scalar(COUNT).fetch_one(connection).await,
            Self::MariaDb(connection) => sqlx::query_scalar(COUNT).fetch_one(connection).await,
        }
    }
}
