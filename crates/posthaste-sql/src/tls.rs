//! Encrypted connections: what a URL says of them, and what to do when there are none to be had. And what else may be said behind
//! the question mark of a URL.

use posthaste_core::store::Error;
use sqlx_core::Url;
use sqlx_core::net::tls;

use crate::url::Scheme;

/// The parameters of a URL that are about TLS.
struct Parameters {
    /// How much is demanded.
    mode: &'static [&'static str],
    /// The authority that must have signed the server's certificate.
    authority: &'static [&'static str],
    /// Files about the client.
    client: &'static [&'static str],
    /// What to say to be sure.
    advice: &'static str,
    /// Those of the driver that are about something else.
    others: &'static [&'static str],
    /// Those of other drivers, and of the URLs that hosters hand out, which mean nothing to this one. It passes over them, and may log
    /// them with what they say: none is a secret. What some of them can demand of an encrypted connection is not done, and
    /// `docs/databases.md` says so. One that demands to be encrypted at all (`requiressl`) is none of these.
    idle: &'static [&'static str],
}

impl Parameters {
    fn of(scheme: Scheme) -> &'static Self {
        match scheme {
            Scheme::MySql => &MYSQL,
            _ => &POSTGRES,
        }
    }

    fn knows(&self, name: &str) -> bool {
        // A setting of the server, which is sent along: options[search_path]=shop.
        let is_option = name.starts_with("options[") && name.ends_with(']') && self.others.contains(&"options");
        is_option || self.all().any(|known| known == name)
    }

    /// One that is known and written otherwise: in capitals, or with another sign between its words.
    fn alike(&self, name: &str) -> Option<&'static str> {
        let plain = |name: &str| name.to_ascii_lowercase().replace(['-', '_'], "");
        self.all().find(|known| plain(known) == plain(name))
    }

    fn all(&self) -> impl Iterator<Item = &'static str> {
        [self.mode, self.authority, self.client, self.others, self.idle].into_iter().flatten().copied()
    }
}

const POSTGRES: Parameters = Parameters {
    mode: &["sslmode", "ssl-mode"],
    authority: &["sslrootcert", "ssl-root-cert", "ssl-ca"],
    client: &["sslcert", "ssl-cert", "sslkey", "ssl-key"],
    advice: "sslmode=verify-full and sslrootcert=FILE",
    others: &[
        "application_name",
        "dbname",
        "host",
        "hostaddr",
        "options",
        "password",
        "port",
        "statement-cache-capacity",
        "user",
    ],
    idle: &[
        "channel_binding",
        "client_encoding",
        "connect_timeout",
        "connection_limit",
        "fallback_application_name",
        "gssdelegation",
        "gssencmode",
        "gsslib",
        "keepalives",
        "keepalives_count",
        "keepalives_idle",
        "keepalives_interval",
        "krbsrvname",
        "load_balance_hosts",
        "passfile",
        "pgbouncer",
        "pool_timeout",
        "replication",
        "schema",
        "service",
        "socket_timeout",
        "ssl_max_protocol_version",
        "ssl_min_protocol_version",
        "sslcompression",
        "sslnegotiation",
        "sslsni",
        "target_session_attrs",
        "tcp_user_timeout",
    ],
};

const MYSQL: Parameters = Parameters {
    mode: &["ssl-mode", "sslmode"],
    authority: &["ssl-ca", "sslca"],
    client: &["ssl-cert", "sslcert", "ssl-key", "sslkey"],
    advice: "ssl-mode=VERIFY_IDENTITY and ssl-ca=FILE",
    others: &["charset", "collation", "socket", "statement-cache-capacity", "time-zone", "timezone"],
    // With useSSL, too, TLS is taken if it is offered: it is requireSSL that demands it, and that one is refused.
    idle: &[
        "allowPublicKeyRetrieval",
        "autoReconnect",
        "characterEncoding",
        "connectTimeout",
        "connect_timeout",
        "connectionLimit",
        "connection_limit",
        "loc",
        "parseTime",
        "pool_timeout",
        "serverTimezone",
        "socketTimeout",
        "socket_timeout",
        "useSSL",
        "useUnicode",
        "zeroDateTimeBehavior",
    ],
};

/// Refuses a URL with a parameter that nobody knows. The driver of PostgreSQL writes such a parameter into the log with its value,
/// which may be a secret; that of MySQL passes over it in silence.
///
/// # Errors
/// [`Error::Config`], which says in which place the parameter stands. What it is called is not said, and never what it is set to: it
/// may be a part of a password in which somebody has encoded neither a question mark nor an ampersand.
pub(crate) fn check_names(url: &str, scheme: Scheme) -> Result<(), Error> {
    // What is no URL is refused later, and the store on SQLite looks at its own.
    let (Scheme::Postgres | Scheme::MySql, Ok(parsed)) = (scheme, Url::parse(url)) else { return Ok(()) };
    let known = Parameters::of(scheme);
    let unknown = (1..).zip(parsed.query_pairs()).find(|(_, (name, _))| !known.knows(name));
    let Some((place, (name, _))) = unknown else { return Ok(()) };
    let lower = name.to_ascii_lowercase();
    let advice = if lower.contains("ssl") || lower.contains("tls") {
        format!("say {}", known.advice)
    } else if let Some(alike) = known.alike(&name) {
        format!("{alike} may be meant")
    } else {
        format!("leave it out, or say one of those that are known: {}, and those of TLS", known.others.join(", "))
    };
    let reason = format!(
        "its parameter in place {place} is not known, and would be ignored; {advice}; in a password, percent-encode ? and &"
    );
    Err(Error::Config { field: "url", value: format!("{}:…", parsed.scheme()), reason })
}

/// Refuses a URL whose words about TLS sqlx would pass over in silence. `verifies` says whether the mode that it came to,
/// which may be that of an environment variable, looks at certificates.
///
/// # Errors
/// [`Error::Config`] for an authority that nothing would be checked against, and for a file that cannot be read.
pub(crate) fn check(url: &str, scheme: Scheme, verifies: bool) -> Result<(), Error> {
    let known = Parameters::of(scheme);
    // What is no URL was refused before.
    let Ok(parsed) = Url::parse(url) else { return Ok(()) };
    let refused = |reason| Err(Error::Config { field: "url", value: format!("{}:…", parsed.scheme()), reason });
    for (name, value) in parsed.query_pairs() {
        let name = &*name;
        let is_file = known.authority.contains(&name) || known.client.contains(&name);
        if known.authority.contains(&name) && !verifies {
            return refused(format!(
                "{name} names an authority, and in this mode no certificate is checked; say {}",
                known.advice
            ));
        }
        // Or it is the certificate itself.
        if is_file
            && !value.trim_start().starts_with("-----BEGIN")
            && let Err(error) = std::fs::File::open(&*value)
        {
            // A key may have been given in place of the name of its file, and is not to be seen.
            let file = if known.authority.contains(&name) { format!(" ({value})") } else { String::new() };
            return refused(format!(
                "the file that {name} names{file} cannot be read: {error}; check the path, and that this process may read it"
            ));
        }
    }
    Ok(())
}

/// What to do when TLS is demanded, and one side has none.
pub(crate) fn demanded_in_vain() -> &'static str {
    if tls::available() {
        "TLS is demanded, and could not be had; turn it on in the server, and check the files that the URL names"
    } else {
        MISSING
    }
}

/// What to do about a build that cannot do what the URL demands.
const MISSING: &str = "TLS is demanded, and not compiled into this build; build with the feature `tls`";

/// An error of a first connection that no waiting can mend.
pub(crate) fn refused(error: &sqlx::Error, scheme: Scheme) -> Option<Error> {
    let reason = match error {
        sqlx::Error::Tls(_) if !tls::available() => MISSING.to_owned(),
        // MySQL wants passwords encrypted, one way or the other.
        sqlx::Error::Configuration(error) if scheme == Scheme::MySql && !tls::available() => {
            format!("{error}; build with the feature `tls`")
        }
        sqlx::Error::Configuration(error) => error.to_string(),
        _ => return None,
    };
    let value = if scheme == Scheme::MySql { "mysql:…" } else { "postgres:…" };
    Some(Error::Config { field: "url", value: value.to_owned(), reason })
}

/// What to do about a handshake that failed.
#[cfg(feature = "tls")]
pub(crate) fn advice(error: &std::io::Error) -> Option<&'static str> {
    use rustls::{CertificateError as Certificate, Error as Handshake};
    let Handshake::InvalidCertificate(error) = error.get_ref()?.downcast_ref()? else {
        return Some("the TLS handshake failed; see what the server says in its log");
    };
    Some(match error {
        Certificate::UnknownIssuer | Certificate::BadSignature => {
            "the server's certificate is not signed by an authority that is trusted here; if it is the right server, name \
             the authority's certificate in the URL (PostgreSQL: sslrootcert, MySQL: ssl-ca)"
        }
        Certificate::NotValidForName | Certificate::NotValidForNameContext { .. } => {
            "the server's certificate is for another name; connect by the name that it is for, or give the server one for \
             this name"
        }
        Certificate::Expired | Certificate::ExpiredContext { .. } => "the server's certificate has run out; renew it",
        Certificate::NotValidYet | Certificate::NotValidYetContext { .. } => {
            "the server's certificate is not valid yet; check the clocks"
        }
        _ => "the server's certificate is not acceptable; give the server another one",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(url: &str, scheme: Scheme, verifies: bool) -> String {
        check_names(url, scheme).and_then(|()| check(url, scheme, verifies)).unwrap_err().to_string()
    }

    #[test]
    fn what_the_driver_knows_is_left_to_it() {
        let here = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        for url in ["postgres://u:secret@h/d", "postgres://h/d?sslmode=require&application_name=x", "no url at all"] {
            check(url, Scheme::Postgres, false).unwrap();
        }
        for name in ["sslrootcert", "ssl-root-cert", "ssl-ca"] {
            check(&format!("postgres://h/d?sslmode=verify-full&{name}={here}"), Scheme::Postgres, true).unwrap();
        }
        for name in ["sslca", "ssl-ca"] {
            check(&format!("mysql://h/d?{name}={here}&ssl-mode=VERIFY_CA"), Scheme::MySql, true).unwrap();
        }
        check("postgres://h/d?sslrootcert=-----BEGIN%20CERTIFICATE-----", Scheme::Postgres, true).unwrap();
    }

    #[test]
    fn what_the_driver_would_pass_over_is_refused() {
        for (url, scheme) in [
            ("mysql://u:secret@h/d?ssl_mode=VERIFY_IDENTITY", Scheme::MySql),
            ("mysql://h/d?sslrootcert=ca.pem", Scheme::MySql),
            ("mysql://h/d?requireSSL=true", Scheme::MySql),
            ("postgres://h/d?requiressl=1", Scheme::Postgres),
            ("postgres://u:secret@h/d?tls=1", Scheme::Postgres),
            ("postgres://h/d?sslMode=require", Scheme::Postgres),
        ] {
            let reason = reason(url, scheme, true);
            assert!(reason.contains("would be ignored; say ssl") && !reason.contains("secret"), "{reason}");
        }
        let unread = reason("postgres://h/d?sslrootcert=%2Fnowhere%2Fca.pem", Scheme::Postgres, true);
        assert!(unread.contains("the file that sslrootcert names (/nowhere/ca.pem) cannot be read: "), "{unread}");
        assert!(unread.ends_with("; check the path, and that this process may read it"), "{unread}");
        let key = reason("postgres://h/d?sslkey=c2VjcmV0", Scheme::Postgres, true);
        assert!(key.contains("the file that sslkey names cannot be read: ") && !key.contains("c2VjcmV0"), "{key}");
        let unchecked = reason("mysql://h/d?ssl-ca=ca.pem&ssl-mode=REQUIRED", Scheme::MySql, false);
        assert!(unchecked.contains("no certificate is checked; say ssl-mode=VERIFY_IDENTITY"), "{unchecked}");
    }

    #[test]
    fn parameters_that_the_driver_does_not_know_are_refused_by_their_place() {
        for (url, scheme, words) in [
            ("postgres://h/d?apikey=hunter2", Scheme::Postgres, "place 1 is not known"),
            ("postgres://h/d?application_name=x&sslpassword=hunter2", Scheme::Postgres, "place 2 is not known"),
            ("postgres://h/d?options[search_path=hunter2", Scheme::Postgres, "place 1 is not known"),
            ("postgresql://h/d?&Connect-Timeout=hunter2", Scheme::Postgres, "connect_timeout may be meant"),
            ("mysql://h/d?charset=x&timezone=UTC&password=hunter2", Scheme::MySql, "place 3 is not known"),
            ("mariadb://h/d?options[x]=hunter2", Scheme::MySql, "those that are known: charset"),
        ] {
            let error = check_names(url, scheme).unwrap_err().to_string();
            assert!(error.contains(words) && !error.contains("hunter2"), "{url}: {error}");
        }
        for (url, scheme) in [
            ("postgres://h/d?host=/run/postgresql&user=u&password=p&dbname=d&port=1&hostaddr=::1", Scheme::Postgres),
            ("postgres://h/d?options=-c%20x=y&options[search_path]=shop&statement-cache-capacity=0", Scheme::Postgres),
            ("mysql://h/d?charset=utf8mb4&collation=x&socket=/run/x&timezone=UTC&time-zone=UTC", Scheme::MySql),
            ("sqlite:shop.db?mode=ro", Scheme::Sqlite),
        ] {
            check_names(url, scheme).unwrap();
        }
    }

    #[test]
    fn what_may_be_a_part_of_a_password_is_not_shown() {
        for url in [
            // A password that begins with digits, and then has a sign in it that ought to be encoded.
            "postgres://u:12?hunter2@h/d",
            "postgres://u:12?hunter2=x@h/d",
            "postgres://u:12?hunter2=x&y=z@h/d",
            "postgres://u:12?hunter2=x#y@h/d",
            "postgres://u:12?hunter2=x@h/d?sslmode=require",
            "postgres://u:12?sslhunter2=x@h/d",
            // And one that stands behind the question mark.
            "postgres://h/d?password=abc&hunter2",
            "postgres://h/d?password=abc&hunter2=x",
            "postgres://h/d?password=abc&hunter2=x&sslmode=require",
            "postgres://h/d?password=abc&&hunter2&sslmode=require",
            "postgres://h/d?password=abc&hunter2%21=x",
            "postgres://h/d?password=abc&hunter2-and-whatever-else-is-in-a-long-one=",
        ] {
            let error = check_names(url, Scheme::Postgres).unwrap_err().to_string();
            assert!(error.contains(" is not known") && error.contains("percent-encode"), "{url}: {error}");
            assert!(!error.contains("hunter2"), "{url}: {error}");
        }
    }

    #[test]
    fn what_means_something_to_other_drivers_alone_is_passed_over() {
        for (url, scheme) in [
            ("postgres://u:p@h/d?sslmode=require&channel_binding=require", Scheme::Postgres),
            ("postgres://h/d?pgbouncer=true&connect_timeout=10&schema=public", Scheme::Postgres),
            ("postgres://h/d?connection_limit=5&pool_timeout=0&target_session_attrs=read-write", Scheme::Postgres),
            ("postgres://h/d?keepalives=1&keepalives_idle=9&tcp_user_timeout=9&gssencmode=disable", Scheme::Postgres),
            ("mysql://h/d?useSSL=false&allowPublicKeyRetrieval=true&serverTimezone=UTC", Scheme::MySql),
            ("mariadb://h/d?connection_limit=5&connect_timeout=10&parseTime=true&loc=Local", Scheme::MySql),
        ] {
            check_names(url, scheme).and_then(|()| check(url, scheme, false)).unwrap();
        }
        for (url, scheme) in [
            ("mysql://h/d?pgbouncer=true", Scheme::MySql),
            ("postgres://h/d?parseTime=true", Scheme::Postgres),
            ("postgres://h/d?Connect_Timeout=10", Scheme::Postgres),
        ] {
            check_names(url, scheme).unwrap_err();
        }
    }

    #[test]
    fn a_build_without_it_names_the_feature() {
        assert!(MISSING.contains("feature `tls`"));
        let expected = if tls::available() { "turn it on in the server" } else { MISSING };
        assert!(demanded_in_vain().contains(expected));
    }
}
