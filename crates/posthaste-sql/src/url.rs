//! Which database a URL speaks of.

use std::fmt;

use posthaste_core::store::Error;

/// A database that a URL can speak of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Scheme {
    /// `sqlite:`.
    Sqlite,
    /// `postgres:` and `postgresql:`.
    Postgres,
    /// `mysql:` and `mariadb:`.
    MySql,
}

impl Scheme {
    /// How URLs begin, and what they then mean.
    const KNOWN: [(&'static str, Self); 5] = [
        ("sqlite", Self::Sqlite),
        ("postgres", Self::Postgres),
        ("postgresql", Self::Postgres),
        ("mysql", Self::MySql),
        ("mariadb", Self::MySql),
    ];

    /// Whether this build can talk to it.
    pub const fn is_compiled_in(self) -> bool {
        match self {
            Self::Sqlite => cfg!(feature = "sqlite"),
            Self::Postgres => cfg!(feature = "postgres"),
            Self::MySql => cfg!(feature = "mysql"),
        }
    }
}

impl Scheme {
    /// The feature that compiles it in.
    fn feature(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
            Self::MySql => "mysql",
        }
    }

    /// The store that such a URL is for.
    #[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
    fn store(self) -> &'static str {
        match self {
            Self::Sqlite => "SqliteStore",
            Self::Postgres => "PgStore",
            Self::MySql => "MySqlStore",
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Sqlite => "SQLite",
            Self::Postgres => "PostgreSQL",
            Self::MySql => "MySQL",
        })
    }
}

/// Which database a URL speaks of, by the part before its first colon, in capitals or not.
///
/// ```
/// use posthaste_sql::{Scheme, detect};
///
/// # #[cfg(feature = "sqlite")]
/// assert_eq!(detect("sqlite:shop.db")?, Scheme::Sqlite);
/// assert!(detect("shop.db").is_err());
/// # Ok::<(), posthaste_core::store::Error>(())
/// ```
///
/// # Errors
/// [`Error::Config`] when there is no such part, when it is not known (the message lists those that are), when the
/// database is known but this build has no support for it, or when the URL of a server has a parameter that means nothing to
/// its driver, which would pass over it. Those that mean something to other drivers (`connect_timeout`, `pgbouncer`) are let
/// through. Messages never show the rest of the URL, which may hold a password.
pub fn detect(url: &str) -> Result<Scheme, Error> {
    let Some((given, _)) = url.split_once(':') else {
        return Err(refused("", format!("it has no scheme; a database URL begins with {}", known())));
    };
    let Some((_, scheme)) = Scheme::KNOWN.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(given)) else {
        return Err(refused(given, format!("the scheme is unknown; a database URL begins with {}", known())));
    };
    if scheme.is_compiled_in() {
        #[cfg(any(feature = "mysql", feature = "postgres"))]
        crate::tls::check_names(url, scheme)?;
        Ok(scheme)
    } else {
        let feature = scheme.feature();
        Err(refused(
            given,
            format!("support for {scheme} is not compiled into this build; build with the feature `{feature}`"),
        ))
    }
}

/// The same of a URL that its store can use, as far as that can be told without connecting: it is read as `connect` reads it.
///
/// ```
/// use posthaste_sql::{Scheme, check_url};
///
/// # #[cfg(feature = "sqlite")]
/// assert_eq!(check_url("sqlite:shop.db")?, Scheme::Sqlite);
/// assert!(check_url("sqlite:shop.db?mode=fast").is_err());
/// # Ok::<(), posthaste_core::store::Error>(())
/// ```
///
/// # Errors
/// As [`detect`]; also when the driver does not understand what the URL says, when it names an authority that no certificate would
/// be checked against, and when a file about TLS that it names cannot be read. Whether there is a file of SQLite is not looked at.
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub fn check_url(url: &str) -> Result<Scheme, Error> {
    let scheme = detect(url)?;
    #[cfg(feature = "sqlite")]
    if scheme == Scheme::Sqlite {
        crate::sqlite::options(url)?;
    }
    #[cfg(feature = "postgres")]
    if scheme == Scheme::Postgres {
        crate::postgres::options(url)?;
    }
    #[cfg(feature = "mysql")]
    if scheme == Scheme::MySql {
        crate::mysql::options(url)?;
    }
    Ok(scheme)
}

/// Refuses a URL that speaks of another database than the one at hand.
///
/// # Errors
/// As [`detect`], and when it is another one.
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub(crate) fn expect(url: &str, expected: Scheme) -> Result<(), Error> {
    let scheme = detect(url)?;
    if scheme == expected {
        return Ok(());
    }
    let given = url.split_once(':').map_or("", |(given, _)| given);
    let store = scheme.store();
    Err(refused(given, format!("it is a URL of {scheme}, and this is a store on {expected}; use {store}")))
}

fn known() -> String {
    Scheme::KNOWN.map(|(name, _)| format!("{name}:")).join(", ")
}

fn refused(given: &str, reason: String) -> Error {
    // Whatever stands before the colon of something that is no URL may be a secret as well.
    let plain = given.len() <= 16 && given.chars().all(|c| c.is_ascii_alphanumeric());
    Error::Config { field: "url", value: if plain { given.to_owned() } else { "…".to_owned() }, reason }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    #[cfg(feature = "sqlite")]
    fn case_of_the_scheme_does_not_matter() {
        for url in ["sqlite:orders.db", "SQLite://orders.db", "SQLITE::memory:"] {
            assert_eq!(detect(url).unwrap(), Scheme::Sqlite);
        }
    }

    #[test]
    fn an_unknown_scheme_lists_the_known_ones_and_shows_nothing_else() {
        let error = detect("oracle://scott:tiger@db/orders").unwrap_err().to_string();
        assert!(error.contains("\"oracle\"") && error.contains("unknown"), "{error}");
        assert!(error.contains("sqlite:, postgres:, postgresql:, mysql:, mariadb:"), "{error}");
        assert!(!error.contains("tiger"), "{error}");
        let error = detect("orders.db").unwrap_err().to_string();
        assert!(error.contains("no scheme") && error.contains("sqlite:"), "{error}");
    }

    #[test]
    fn a_known_database_without_support_says_so() {
        let urls = [
            ("sqlite:secret", Scheme::Sqlite),
            ("postgres://u:secret@h/d", Scheme::Postgres),
            ("PostgreSQL://h/d", Scheme::Postgres),
            ("mysql://u:secret@h/d", Scheme::MySql),
            ("MariaDB://h/d", Scheme::MySql),
        ];
        for (url, scheme) in urls {
            if scheme.is_compiled_in() {
                assert_eq!(detect(url).unwrap(), scheme);
                continue;
            }
            let error = detect(url).unwrap_err().to_string();
            assert!(error.contains("not compiled into this build"), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    #[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
    fn what_a_store_would_refuse_is_refused_before_it_connects() {
        for (url, words) in [
            ("sqlite:shop.db?mode=ro&hue=1", "its parameter in place 2 is not known"),
            ("postgres://u:secret@h/d?sslmode=bogus", "unknown value"),
            ("postgres://u:secret@h/d?port=x", "invalid digit"),
            ("postgres://u:secret@h:many/d", "invalid port number"),
            ("postgres://u:secret@h/d?sslmode=verify-full&sslrootcert=%2Fnowhere%2Fca.pem", "cannot be read"),
            ("mysql://u:secret@h/d?statement-cache-capacity=x", "invalid digit"),
            ("mariadb://u:secret@h/d?ssl-mode=REQUIRED&ssl-ca=ca.pem", "no certificate is checked"),
        ] {
            let error = check_url(url).unwrap_err().to_string();
            let words = if error.contains("not compiled into this build") { "" } else { words };
            assert!(error.contains(words) && !error.contains("secret"), "{url}: {error}");
        }
        for url in ["sqlite:shop.db?mode=ro", "sqlite::memory:", "postgres://u:secret@h/d?sslmode=require", "mysql://h"]
        {
            let error = check_url(url).err().map_or_else(String::new, |error| error.to_string());
            assert!(error.is_empty() || error.contains("not compiled into this build"), "{url}: {error}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_url_is_known_or_refused_and_never_shown(scheme in "\\PC{0,20}", secret in "[g-z]{12}") {
            for url in [format!("{scheme}://user:{secret}@host/db"), format!("{scheme}{secret}"), format!("{secret} {scheme}")] {
                match detect(&url) {
                    Ok(found) => prop_assert!(found.is_compiled_in()),
                    Err(error) => {
                        let message = error.to_string();
                        prop_assert!(message.starts_with("url "), "{}", message);
                        // What stands alone before the colon may be shown when it looks like a scheme.
                        let shown = url.split_once(':').is_some_and(|(given, _)| given.contains(&secret));
                        prop_assert!(shown || !message.contains(&secret), "{}", message);
                    }
                }
            }
        }
    }
}
