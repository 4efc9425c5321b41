//! What differs from one server to the next.

use std::collections::HashMap;

use sqlx::Row;
use sqlx::mysql::MySqlConnection;

use super::{MySqlStore, sql};

/// The most bytes of a statement, by default, on the server that takes the least.
const SMALLEST_PACKET: usize = 16 << 20;

/// What there is to know of a server. It is asked once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Server {
    /// Whether it can pass by rows that others have locked.
    pub(super) skip_locked: bool,
    /// The most bytes of one statement with its values.
    pub(super) max_allowed_packet: usize,
    /// Whether a statement can ask whether it is in a transaction, as in MariaDB.
    pub(super) in_transaction: bool,
}

impl MySqlStore {
    /// What there is to know of the server.
    pub(super) async fn server(&self, connection: &mut MySqlConnection) -> Result<Server, sqlx::Error> {
        let asked = self.server.get_or_try_init(async || {
            let variables = sqlx::raw_sql(sql::VARIABLES).fetch_all(connection).await?;
            let variables = variables.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
            let variables = variables.collect::<Result<HashMap<String, String>, sqlx::Error>>()?;
            let version = variables.get("version").map_or("", String::as_str);
            let packet = variables.get("max_allowed_packet").and_then(|packet| packet.parse().ok());
            let server = Server {
                skip_locked: can_skip_locked(version),
                max_allowed_packet: packet.unwrap_or(SMALLEST_PACKET),
                in_transaction: variables.contains_key("in_transaction"),
            };
            tracing::debug!(version, ?server, "connected to the server");
            Ok::<_, sqlx::Error>(server)
        });
        asked.await.copied()
    }
}

/// Whether a server of that version has `SKIP LOCKED`: MariaDB since 10.6, MySQL since 8.0.
fn can_skip_locked(version: &str) -> bool {
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse::<u32>().unwrap_or(0));
    let number = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version.contains("TiDB") {
        false
    } else if version.contains("MariaDB") {
        number >= (10, 6)
    } else {
        number >= (8, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_told_apart() {
        for version in ["10.6.0-MariaDB", "10.11.19-MariaDB-0+deb12u1-log", "11.4.2-MariaDB", "8.0.36", "9.7.0-log"] {
            assert!(can_skip_locked(version), "{version}");
        }
        for version in ["10.5.21-MariaDB", "5.7.44-log", "8.0.11-TiDB-v7.5.1", "", "?"] {
            assert!(!can_skip_locked(version), "{version}");
        }
    }
}
