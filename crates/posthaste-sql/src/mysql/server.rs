//! What differs from one server to the next.

use sqlx::mysql::MySqlConnection;

use super::MySqlStore;

/// What there is to know of a server. It is asked once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Server {
    /// Whether it can pass by rows that others have locked.
    pub(super) skip_locked: bool,
    /// The most bytes of one statement with its values.
    pub(super) max_allowed_packet: usize,
}

impl MySqlStore {
    /// What there is to know of the server.
    pub(super) async fn server(&self, connection: &mut MySqlConnection) -> Result<Server, sqlx::Error> {
        let asked = self.server.get_or_try_init(async || {
            let (version, packet): (String, i64) =
                sqlx::query_as("SELECT VERSION(), CAST(@@max_allowed_packet AS SIGNED)").fetch_one(connection).await?;
            let server = Server {
                skip_locked: can_skip_locked(&version),
                max_allowed_packet: usize::try_from(packet).unwrap_or(usize::MAX),
            };
            tracing::debug!(version, skip_locked = server.skip_locked, "connected to the server");
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
