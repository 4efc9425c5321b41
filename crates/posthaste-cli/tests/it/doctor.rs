//! `posthaste doctor`: each trouble is planted on a real server, found, and gone when it is mended as the doctor says.

mod destinations;
mod mysql;
mod order;
mod postgres;
mod sqlite;
mod waiting;

use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, PgConnection, SqliteConnection};

use crate::place::Place;
use crate::relay::{unique, variable};
use crate::stdout;

/// What the doctor finds, and the status.
fn found(here: &Place, more: &[&str]) -> (i32, Vec<Value>) {
    let output = here.run(&[&["doctor", "--output", "json"], more].concat());
    let status = output.status.code().unwrap();
    assert!(status < 2, "{}{}", stdout(&output), crate::stderr(&output));
    (status, serde_json::from_str::<Value>(stdout(&output)).unwrap().as_array().unwrap().clone())
}

/// The findings of one check.
fn of<'a>(findings: &'a [Value], check: &str) -> Vec<(&'a str, &'a str, &'a str)> {
    let text = |finding: &'a Value, key: &str| finding[key].as_str().unwrap_or_default();
    let of_check = findings.iter().filter(|finding| finding["check"] == check);
    of_check.map(|finding| (text(finding, "level"), text(finding, "finding"), text(finding, "fix"))).collect()
}

/// The one finding of a check, which is bad: what, and the fix.
#[track_caller]
fn bad<'a>(findings: &'a [Value], check: &str) -> (&'a str, &'a str) {
    match of(findings, check)[..] {
        [("warning" | "problem", what, fix)] => (what, fix),
        ref other => panic!("{check}: {other:?} in {findings:#?}"),
    }
}

#[track_caller]
fn assert_fine(findings: &[Value], check: &str) {
    assert!(matches!(of(findings, check)[..], [("ok", ..)]), "{check} in {findings:#?}");
}

/// Says that the database's clock is an hour off in this direction.
#[track_caller]
fn assert_off(here: &Place, direction: &str) {
    let (status, findings) = found(here, &["--no-destinations"]);
    let (what, fix) = bad(&findings, "clock");
    let (seconds, rest) = what.strip_prefix("the database's clock is ").unwrap().split_once(" s ").unwrap();
    assert!((3590.0..3610.0).contains(&seconds.parse::<f64>().unwrap()), "{what}");
    assert!(status == 1 && rest == format!("{direction} that of this machine"), "{what}");
    assert!(fix.contains("NTP"), "{fix}");
}

/// Carries out statements on whichever database.
async fn execute(url: &str, sql: &str) {
    async fn on<C: Connection>(url: &str, sql: &str) -> Result<(), sqlx::Error>
    where
        for<'c> &'c mut C: sqlx::Executor<'c, Database = C::Database>,
    {
        let mut connection = C::connect(url).await?;
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await?;
        connection.close().await
    }
    let executed = match kind(url) {
        "postgres" => on::<PgConnection>(url, sql).await,
        "mysql" => on::<MySqlConnection>(url, sql).await,
        _ => on::<SqliteConnection>(url, sql).await,
    };
    executed.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

/// A moment so many seconds from now, or ago, as the columns of each database have it.
fn moment(url: &str, seconds: i64) -> String {
    match kind(url) {
        "postgres" => format!("clock_timestamp() + interval '{seconds} s'"),
        "mysql" => format!("UTC_TIMESTAMP(6) + INTERVAL {seconds} SECOND"),
        _ => format!("(strftime('%s', 'now') + {seconds}) * 1000000"),
    }
}

/// A place with these settings and a table of its own, on SQLite, PostgreSQL and MySQL; with the URL and the table.
async fn everywhere(settings: &str) -> Vec<(Place, String, String)> {
    let (postgres, mysql) = (crate::relay::postgres().await, variable("POSTHASTE_TEST_MYSQL_URL"));
    let table = unique("doctor_");
    let mut places = Vec::new();
    for url in [None, Some(postgres), Some(mysql)] {
        let place = Place::with(settings);
        let url = url.unwrap_or_else(|| format!("sqlite:{}", place.path("shop.db").display()));
        places.push((at(place, &url, &table), url, table.clone()));
    }
    places
}

fn at(place: Place, url: &str, table: &str) -> Place {
    place.variable("POSTHASTE_DATABASE_URL", url).variable("POSTHASTE_DATABASE_TABLE", table)
}

/// The kind of a database, to say where something failed.
fn kind(url: &str) -> &str {
    url.split(':').next().unwrap_or_default()
}
