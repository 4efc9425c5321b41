//! Every setting of an outbox, in one struct that code, TOML and the environment fill.

use std::fmt;
use std::time::Duration;

use jiff::fmt::serde::unsigned_duration::friendly::compact;
use serde::{Deserialize, Serialize};

use crate::event::EventId;
use crate::retry::RetryPolicy;
use crate::store::Purge;

/// Every setting of an outbox. The defaults are meant to be fast and safe; change what you have measured.
///
/// Lengths of time are written as `5s`, `200ms` or `5m` in files and in the environment.
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// use std::time::Duration;
/// use posthaste::Options;
///
/// let options = Options { workers: 8, ..Options::default() };
/// let from_toml: Options = toml::from_str("workers = 8\npoll_interval = '500ms'")?;
/// let from_env = options.with_env("POSTHASTE_", [("POSTHASTE_WORKERS".into(), "16".into())])?;
/// assert_eq!((from_toml.poll_interval, from_env.workers), (Duration::from_millis(500), 16));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// A name for this process in the leases it holds, for people to read. Default: its process id. A random part is added
    /// at every start, so that no two processes ever hold the same lease.
    pub owner: Option<String>,
    /// How many listeners run at once, at most. Default 4.
    pub workers: usize,
    /// How many events wait in memory on the hot path; what does not fit is left to the poller. Default 1000.
    pub hot_queue: usize,
    /// How many claimed events wait in memory. Default 2000: half of it is worked on while the other half is claimed, and a
    /// claim of 1000 rows is worth its round trip.
    pub cold_queue: usize,
    /// How long a listener may take for one event or batch, unless it says otherwise. Default 60 s: a listener that
    /// hangs for ever would take its worker with it.
    #[serde(with = "compact::required")]
    pub listener_time_limit: Duration,
    /// How often an idle table is looked at, so about how long a row of another process waits at most where nobody tells of it;
    /// from one look to the answer of the next. Default 5 s. A backlog is not waited for, and retries, delayed events and
    /// writes of this process wake the poller by themselves.
    #[serde(with = "compact::required")]
    pub poll_interval: Duration,
    /// How many rows the first claim of a backlog takes; each full claim is followed by one four times as large, up to the
    /// free room in the cold queue. Default 50.
    pub poll_batch: usize,
    /// How old a row must be before it is claimed. Default 0: rows of other processes' hot paths are leased from birth,
    /// so there is nothing to wait for.
    #[serde(with = "compact::required")]
    pub poll_skip_recent: Duration,
    /// How long after its last renewal a lease has run out. Default 5 min. Leases are renewed while listeners run, so
    /// this is how long the events of a process that died wait for another. Every process on one table needs the same.
    #[serde(with = "compact::required")]
    pub lease: Duration,
    /// How long after its last renewal the lease of a lane has run out, in an outbox with order. Default 15 s: this is how long
    /// the lanes of a process that died stand still; all of them are renewed by one statement every third of it.
    #[serde(with = "compact::required")]
    pub lane_lease: Duration,
    /// The delay after the first failure. Default 200 ms.
    #[serde(with = "compact::required")]
    pub retry_base: Duration,
    /// The longest delay between attempts. Default 60 s.
    #[serde(with = "compact::required")]
    pub retry_max: Duration,
    /// At which failure an event is DEAD. Default 10.
    pub retry_attempts: u32,
    /// How many outcomes one statement writes back, at most. Default 2000: as many as the cold queue holds, so that
    /// what was claimed together is settled together.
    pub settle_batch: usize,
    /// How long the outcome of a hot event waits for others to share its statement, up to four times as long while the
    /// database is slow. Default 5 ms. Costs no latency of delivery: the listener has run.
    #[serde(with = "compact::required")]
    pub settle_linger: Duration,
    /// How long a shutdown may take before what was not started is released. Default 5 s.
    #[serde(with = "compact::required")]
    pub shutdown_deadline: Duration,
    /// How often the rows of each status are counted for the metrics. Default: never, since counting walks an index of all
    /// rows.
    #[serde(with = "compact::optional")]
    pub count_interval: Option<Duration>,
    /// How long DONE rows are kept after they became DONE. Default: for ever, since they are yours, and nobody can tell who
    /// else reads them. A table that grows for ever gets slower to back up before it gets slower to deliver from. A store
    /// that drops old rows by whole partitions may keep them for up to two partitions longer, here and below.
    #[serde(with = "compact::optional")]
    pub retention_done: Option<Duration>,
    /// How long DEAD rows are kept after they became DEAD. Default: for ever, since a DEAD row is the only trace of an
    /// event that was never delivered.
    #[serde(with = "compact::optional")]
    pub retention_dead: Option<Duration>,
    /// How long rows of any status are kept after their insert. Default: for ever. Deletes what was never delivered, too:
    /// meant for tables that are only appended to and read from the database's log, where nobody settles rows.
    #[serde(with = "compact::optional")]
    pub retention_any: Option<Duration>,
    /// How long, about, retention rests between two rounds of deleting all that is old. Default 1 min: each round is then
    /// short, and one that finds nothing costs next to nothing.
    #[serde(with = "compact::required")]
    pub retention_interval: Duration,
    /// After how long an event in hand may be started again by this process. Default: never. Meant for listeners that
    /// hang without a time limit.
    #[serde(with = "compact::optional")]
    pub in_flight_ttl: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            owner: None,
            workers: 4,
            hot_queue: 1000,
            cold_queue: 2000,
            listener_time_limit: Duration::from_secs(60),
            poll_interval: Duration::from_secs(5),
            poll_batch: 50,
            poll_skip_recent: Duration::ZERO,
            lease: Duration::from_secs(300),
            lane_lease: Duration::from_secs(15),
            retry_base: RetryPolicy::BASE,
            retry_max: RetryPolicy::MAX,
            retry_attempts: RetryPolicy::ATTEMPTS,
            settle_batch: 2000,
            settle_linger: Duration::from_millis(5),
            shutdown_deadline: Duration::from_secs(5),
            count_interval: None,
            retention_done: None,
            retention_dead: None,
            retention_any: None,
            retention_interval: Duration::from_secs(60),
            in_flight_ttl: None,
        }
    }
}

/// Which option is wrong, and what would be right.
#[derive(Debug, thiserror::Error)]
#[error("option {option} is {value}: {reason}")]
pub struct Error {
    option: String,
    value: String,
    reason: String,
}

impl Error {
    fn new(option: &str, value: impl fmt::Display, reason: impl fmt::Display) -> Self {
        Self { option: option.to_owned(), value: format!("{value}"), reason: format!("{reason}") }
    }

    /// The name of the option.
    pub fn option(&self) -> &str {
        &self.option
    }
}

/// The most of anything that is kept in memory, and the longest time of anything. Nothing sensible is near, and sums of
/// them do not overflow.
const MOST: usize = 1_000_000;
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// The longest time that rows are kept, other than for ever: longer than any law asks for.
const LONGEST_KEPT: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The longest owner: its leases get a number behind it and must fit their column.
const LONGEST_OWNER: usize = 90;

impl Options {
    /// These options with what the variables say, such as `POSTHASTE_WORKERS=8` for the prefix `POSTHASTE_`.
    ///
    /// Give it `std::env::vars()`. Variables with another prefix are not looked at.
    ///
    /// # Errors
    /// Names the variable that is unknown or whose value does not fit.
    pub fn with_env(&self, prefix: &str, vars: impl IntoIterator<Item = (String, String)>) -> Result<Self, Error> {
        let mut options = self.clone();
        for (name, text) in vars {
            let Some(option) = name.strip_prefix(prefix) else { continue };
            options = options
                .with_text(&option.to_ascii_lowercase(), &text)
                .map_err(|error| Error { option: name, ..error })?;
        }
        Ok(options)
    }

    fn with_text(&self, option: &str, text: &str) -> Result<Self, Error> {
        let mut all = serde_json::to_value(self).expect("options are plain data");
        let fields = all.as_object_mut().expect("options are a struct");
        let Some(field) = fields.get_mut(option) else {
            let known = fields.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            // What is meant for somebody else may be a secret, so it is not shown.
            return Err(Error::new(option, "unknown", format!("remove it, or give one of {known}")));
        };
        // What is a number by default is read as one; everything else is text to serde.
        let (value, expected): (serde_json::Value, _) = match field {
            serde_json::Value::Number(_) => {
                let expected = "must be a whole number, such as 8";
                (text.trim().parse::<u64>().map_err(|_| Error::new(option, text, expected))?.into(), expected)
            }
            _ => (text.into(), "must be a length of time, such as 200ms, 5s or 5m"),
        };
        *field = value;
        serde_json::from_value(all).map_err(|_| Error::new(option, text, expected))
    }

    /// Checks that the settings make sense, each and together.
    ///
    /// # Errors
    /// Names the option that does not.
    pub fn check(&self) -> Result<(), Error> {
        for (option, value) in [
            ("workers", self.workers),
            ("hot_queue", self.hot_queue),
            ("cold_queue", self.cold_queue),
            ("poll_batch", self.poll_batch),
            ("settle_batch", self.settle_batch),
        ] {
            if value == 0 || value > MOST {
                return Err(Error::new(option, value, format!("must be from 1 to {MOST}")));
            }
        }
        for (option, value) in [
            ("poll_interval", self.poll_interval),
            ("lease", self.lease),
            ("lane_lease", self.lane_lease),
            ("listener_time_limit", self.listener_time_limit),
            ("retention_interval", self.retention_interval),
        ] {
            if value < Duration::from_millis(1) {
                return Err(Error::new(option, format!("{value:?}"), "must be at least 1ms"));
            }
        }
        for (option, value) in [
            ("poll_interval", self.poll_interval),
            ("poll_skip_recent", self.poll_skip_recent),
            ("lease", self.lease),
            ("lane_lease", self.lane_lease),
            ("listener_time_limit", self.listener_time_limit),
            ("retry_base", self.retry_base),
            ("retry_max", self.retry_max),
            ("settle_linger", self.settle_linger),
            ("shutdown_deadline", self.shutdown_deadline),
            ("count_interval", self.count_interval.unwrap_or_default()),
            ("retention_interval", self.retention_interval),
            ("in_flight_ttl", self.in_flight_ttl.unwrap_or_default()),
        ] {
            if value > LONGEST {
                return Err(Error::new(option, format!("{value:?}"), "must not be longer than a year"));
            }
        }
        if self.retry_attempts == 0 {
            return Err(Error::new("retry_attempts", 0, "must be at least 1; 1 means no second attempt"));
        }
        if self.retry_max < self.retry_base {
            let reason = format!("must not be shorter than retry_base, {:?}", self.retry_base);
            return Err(Error::new("retry_max", format!("{:?}", self.retry_max), reason));
        }
        if self.settle_linger * 2 > self.lease {
            let reason = format!("must not be longer than half the lease, {:?}", self.lease / 2);
            return Err(Error::new("settle_linger", format!("{:?}", self.settle_linger), reason));
        }
        for (option, value) in [
            ("retention_done", self.retention_done),
            ("retention_dead", self.retention_dead),
            ("retention_any", self.retention_any),
        ] {
            if let Some(value) = value
                && value > LONGEST_KEPT
            {
                let reason = "must not be longer than a hundred years; leave it out to keep rows for ever";
                return Err(Error::new(option, format!("{value:?}"), reason));
            }
        }
        if let Some(kept) = self.retention_any
            && kept < self.lease
        {
            let reason = format!(
                "must not be shorter than the lease, {:?}, or rows are deleted while they are delivered",
                self.lease
            );
            return Err(Error::new("retention_any", format!("{kept:?}"), reason));
        }
        if let Some(owner) = &self.owner
            && (owner.is_empty() || owner.chars().count() > LONGEST_OWNER || owner.contains('\0'))
        {
            let reason = format!("must have 1 to {LONGEST_OWNER} characters, none of them NUL");
            return Err(Error::new("owner", format!("{owner:?}"), reason));
        }
        Ok(())
    }

    /// The retry policy of listeners that have none of their own.
    pub fn retry_policy(&self) -> RetryPolicy {
        RetryPolicy::exponential(self.retry_base, self.retry_max).max_attempts(self.retry_attempts)
    }

    /// What is deleted once it is old, if anything is.
    pub(crate) fn retention(&self) -> Option<Purge> {
        let purge = Purge {
            done_after: self.retention_done,
            dead_after: self.retention_dead,
            any_after: self.retention_any,
            ..Purge::default()
        };
        let kept = [purge.done_after, purge.dead_after, purge.any_after];
        kept.iter().any(Option::is_some).then_some(purge)
    }

    /// An owner of leases that nobody else has: the name with a random part.
    pub fn new_owner(&self) -> String {
        let name = self.owner.clone().unwrap_or_else(|| std::process::id().to_string());
        let ulid = EventId::generate();
        // The random part of a ULID is its last sixteen characters.
        format!("{name}-{}", &ulid.as_str()[10..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vars(vars: &[(&str, &str)]) -> Vec<(String, String)> {
        vars.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn defaults_survive_toml() {
        let written = toml::to_string(&Options::default()).unwrap();
        assert!(written.contains("poll_interval = \"5s\""), "{written}");
        assert_eq!(toml::from_str::<Options>(&written).unwrap(), Options::default());
        assert_eq!(toml::from_str::<Options>("").unwrap(), Options::default());
        Options::default().check().unwrap();
    }

    #[test]
    fn the_environment_overrides_only_what_it_names() {
        let options = Options { workers: 9, ..Options::default() };
        let set = vars(&[
            ("POSTHASTE_LEASE", "30s"),
            ("POSTHASTE_OWNER", "12"),
            ("POSTHASTE_IN_FLIGHT_TTL", "1m"),
            ("HOME", "/"),
        ]);
        let options = options.with_env("POSTHASTE_", set).unwrap();
        assert_eq!((options.workers, options.lease), (9, Duration::from_secs(30)));
        assert_eq!((options.owner.as_deref(), options.in_flight_ttl), (Some("12"), Some(Duration::from_secs(60))));
    }

    #[test]
    fn mistakes_are_named() {
        let wrong = |name: &str, value: &str| {
            Options::default().with_env("PH_", vars(&[(name, value)])).unwrap_err().to_string()
        };
        assert_eq!(wrong("PH_WORKERS", "many"), "option PH_WORKERS is many: must be a whole number, such as 8");
        // A secret that is meant for something else is not shown.
        assert!(!wrong("PH_URL", "postgres://u:secret@h/d").contains("secret"));
        assert!(wrong("PH_LEASE", "5 parsecs").starts_with("option PH_LEASE is 5 parsecs: "));
        assert!(wrong("PH_WORKER", "4").contains("unknown: remove it, or give one of cold_queue, count_interval"));
        assert!(toml::from_str::<Options>("worker = 4").is_err());
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        let sensible = Options::default();
        let cases = [
            (Options { workers: 0, ..sensible.clone() }, "workers"),
            (Options { hot_queue: 0, ..sensible.clone() }, "hot_queue"),
            (Options { settle_batch: usize::MAX, ..sensible.clone() }, "settle_batch"),
            (Options { poll_interval: Duration::MAX, ..sensible.clone() }, "poll_interval"),
            (Options { lease: Duration::ZERO, ..sensible.clone() }, "lease"),
            (Options { retry_attempts: 0, ..sensible.clone() }, "retry_attempts"),
            (Options { retry_max: Duration::from_millis(1), ..sensible.clone() }, "retry_max"),
            (Options { settle_linger: Duration::from_secs(200), ..sensible.clone() }, "settle_linger"),
            (Options { retention_interval: Duration::ZERO, ..sensible.clone() }, "retention_interval"),
            (Options { retention_done: Some(Duration::MAX), ..sensible.clone() }, "retention_done"),
            (Options { retention_dead: Some(Duration::MAX), ..sensible.clone() }, "retention_dead"),
            (Options { retention_any: Some(Duration::from_secs(299)), ..sensible.clone() }, "retention_any"),
            (Options { owner: Some("x".repeat(101)), ..sensible.clone() }, "owner"),
        ];
        for (options, option) in cases {
            assert_eq!(options.check().unwrap_err().option(), option);
        }
    }

    #[test]
    fn owners_differ_even_when_their_names_do_not_and_fit_their_column() {
        let options = Options { owner: Some("n".repeat(90)), ..Options::default() };
        let (first, second) = (options.new_owner(), options.new_owner());
        assert_ne!(first, second);
        let longest = crate::store::Lease::new(&first, u64::MAX);
        assert!(longest.as_str().len() <= 128, "{}", longest.as_str().len());
    }
}
