//! What only a running server says.

use posthaste::store::{CommitError, Error};
use posthaste::{Event, EventBuilder, MySqlStore, Outbox, PgStore, WriteError};
use sqlx::{AssertSqlSafe, Connection, Executor, MySqlConnection, PgConnection};

use super::Book;

pub(super) async fn write(book: &mut Book) {
    postgres(book).await;
    mysql(book).await;
}

/// Where a server is, for a user and a database.
struct Server {
    before: String,
    after: String,
}

impl Server {
    fn of(variable: &str) -> Self {
        let url = std::env::var(variable).unwrap_or_else(|_| {
            panic!(
                "{variable} is not set: run scripts/test, or eval \"$(scripts/servers start)\" first, for a server to test on"
            )
        });
        let (scheme, rest) = url.split_once("://").unwrap();
        let (authority, path) = rest.split_once('/').unwrap();
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let query = path.split_once('?').map_or(String::new(), |(_, query)| format!("?{query}"));
        Self { before: format!("{scheme}://"), after: format!("@{host}/{{database}}{query}") }
    }

    fn url(&self, user: &str, database: &str) -> String {
        format!("{}{user}{}", self.before, self.after.replace("{database}", database))
    }

    fn place(&self) -> String {
        self.after.split(['@', '/']).nth(1).unwrap_or_default().to_owned()
    }
}

/// A name that no other run has.
fn unique(name: &str) -> String {
    format!("posthaste_errors_{name}_{}", std::process::id())
}

fn order() -> EventBuilder {
    Event::builder("OrderPlaced").id("order-42").json_text("{}")
}

async fn say<'c, C: Connection>(connection: &'c mut C, sql: &str)
where
    &'c mut C: Executor<'c, Database = C::Database>,
{
    if let Err(error) = connection.execute(sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))).await {
        panic!("{sql}: {error}");
    }
}

async fn postgres(book: &mut Book) {
    let server = Server::of("POSTHASTE_TEST_POSTGRES_URL");
    let (database, role) = (unique("db"), unique("role"));
    for (varying, instead) in [(server.place(), "HOST:PORT"), (database.clone(), "DATABASE"), (role.clone(), "ROLE")] {
        book.varying.push((varying, instead));
    }
    let mut admin = PgConnection::connect(&server.url("postgres", "postgres")).await.unwrap();
    say(&mut admin, &format!("CREATE DATABASE {database}")).await;
    say(&mut admin, &format!("CREATE ROLE {role} LOGIN")).await;

    let connect = async |user: &str, database: &str| PgStore::connect(&server.url(user, database)).await;
    let mut add = |call: &str, error: Error| book.add("store", call, &error);
    add("PgStore::connect, a user that is not known", connect("nobody_at_all", "postgres").await.unwrap_err());
    add("PgStore::connect, a database that is missing", connect("postgres", "not_there").await.unwrap_err());
    say(&mut admin, &format!("ALTER ROLE {role} CONNECTION LIMIT 0")).await;
    add("PgStore::connect, no connection left", connect(&role, &database).await.unwrap_err());
    say(&mut admin, &format!("ALTER ROLE {role} CONNECTION LIMIT -1")).await;
    let url = server.url("postgres", "postgres").replace("sslmode=disable", "sslmode=verify-full");
    add("PgStore::connect, a certificate of somebody unknown", PgStore::connect(&url).await.unwrap_err());

    let store = connect("postgres", &database).await.unwrap();
    let outbox = Outbox::writer_only(store.clone()).start().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    let error = tx.write(order()).await.unwrap_err();
    book.add("write", "PostgreSQL: Transaction::write, a table that was never migrated", &error);
    let error = tx.write(order()).await.unwrap_err();
    book.add("write", "PostgreSQL: Transaction::write, after a statement that failed", &error);
    book.add(
        "commit",
        "PostgreSQL: Transaction::commit, after a statement that failed",
        &tx.commit().await.unwrap_err(),
    );
    store.migrate().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    tx.write(order()).await.unwrap();
    book.add("write", "PostgreSQL: Transaction::write, an id that is taken", &tx.write(order()).await.unwrap_err());
    drop(tx);

    let poor = Outbox::writer_only(connect(&role, &database).await.unwrap()).start().await.unwrap();
    let error = poor.begin().await.unwrap().write(order()).await.unwrap_err();
    book.add("write", "PostgreSQL: Transaction::write, without the right to", &error);
    let grant = format!("GRANT ALL ON outbox_event TO {role}");
    sqlx::raw_sql(AssertSqlSafe(grant)).execute(store.pool()).await.unwrap();
    say(&mut admin, &format!("ALTER ROLE {role} SET default_transaction_read_only = on")).await;
    let read_only = Outbox::writer_only(connect(&role, &database).await.unwrap()).start().await.unwrap();
    let error = read_only.begin().await.unwrap().write(order()).await.unwrap_err();
    book.add("write", "PostgreSQL: Transaction::write, on a server that takes no writes", &error);

    let mut tx = outbox.begin().await.unwrap();
    let own: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut *tx).await.unwrap();
    tx.write(order()).await.unwrap();
    say(&mut admin, &format!("SELECT pg_terminate_backend({own}, 5000)")).await;
    let error = tx.commit().await.unwrap_err();
    assert!(matches!(error, CommitError::Unknown(_)), "{error:?}");
    book.add("commit", "PostgreSQL: Transaction::commit, on a session that an operator has ended", &error);

    for store in [poor.store(), read_only.store(), outbox.store()] {
        store.close().await;
    }
    say(&mut admin, &format!("DROP DATABASE {database} WITH (FORCE)")).await;
    say(&mut admin, &format!("DROP ROLE {role}")).await;
}

async fn mysql(book: &mut Book) {
    let server = Server::of("POSTHASTE_TEST_MYSQL_URL");
    let (database, user) = (unique("db"), unique("u"));
    for (varying, instead) in [(server.place(), "HOST:PORT"), (database.clone(), "DATABASE"), (user.clone(), "USER")] {
        book.varying.push((varying, instead));
    }
    let mut admin = MySqlConnection::connect(&server.url("root", "mysql")).await.unwrap();
    say(&mut admin, &format!("CREATE DATABASE {database}")).await;
    say(&mut admin, &format!("CREATE USER {user}@'%' IDENTIFIED BY 'right'")).await;
    say(&mut admin, &format!("GRANT SELECT ON {database}.* TO {user}@'%'")).await;

    let connect = async |user: &str, database: &str| MySqlStore::connect(&server.url(user, database)).await;
    let mut add = |call: &str, error: Error| book.add("store", call, &error);
    add("MySqlStore::connect, a wrong password", connect(&format!("{user}:wrong"), &database).await.unwrap_err());
    add("MySqlStore::connect, a database that is missing", connect("root", "not_there").await.unwrap_err());

    let store = connect("root", &database).await.unwrap();
    let outbox = Outbox::writer_only(store.clone()).start().await.unwrap();
    let error = outbox.begin().await.unwrap().write(order()).await.unwrap_err();
    book.add("write", "MariaDB: Transaction::write, a table that was never migrated", &error);
    store.migrate().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    tx.write(order()).await.unwrap();
    book.add("write", "MariaDB: Transaction::write, an id that is taken", &tx.write(order()).await.unwrap_err());
    drop(tx);

    let poor = Outbox::writer_only(connect(&format!("{user}:right"), &database).await.unwrap()).start().await.unwrap();
    let error = poor.begin().await.unwrap().write(order()).await.unwrap_err();
    assert!(matches!(error, WriteError::Store { .. }), "{error:?}");
    book.add("write", "MariaDB: Transaction::write, without the right to", &error);
    let other = poor.store().clone().with_table("other").unwrap();
    book.add("store", "MariaDB: MySqlStore::migrate, without the right to", &other.migrate().await.unwrap_err());
    let mut tx = outbox.begin().await.unwrap();
    let own: u64 = sqlx::query_scalar("SELECT CAST(connection_id() AS UNSIGNED)").fetch_one(&mut *tx).await.unwrap();
    tx.write(order()).await.unwrap();
    say(&mut admin, &format!("KILL {own}")).await;
    let error = tx.commit().await.unwrap_err();
    assert!(matches!(error, CommitError::Unknown(_)), "{error:?}");
    book.add("commit", "MariaDB: Transaction::commit, on a session that an operator has ended", &error);

    for store in [poor.store(), outbox.store()] {
        store.close().await;
    }
    say(&mut admin, &format!("DROP DATABASE {database}")).await;
    say(&mut admin, &format!("DROP USER {user}@'%'")).await;
}
