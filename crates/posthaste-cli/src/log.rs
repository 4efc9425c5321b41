//! What is told on standard error while a command runs, and in which form.

use std::sync::atomic::{AtomicBool, Ordering};

use posthaste::Timestamp;
use serde_json::json;
use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt};

use crate::output;
use crate::settings::LogFormat;

/// Whether the log is in JSON, so that its reader is to find nothing else there.
static IN_JSON: AtomicBool = AtomicBool::new(false);

/// Clients that tell more than they should once they are asked for everything: what they log in with, byte for byte, messages, and
/// addresses that may have a secret in them. What is worth a line to an operator they tell as information.
const TALKATIVE: [&str; 12] = [
    "amq_protocol",
    "async_nats",
    "h2",
    "hyper",
    "lapin",
    "librdkafka",
    "nkeys",
    "rdkafka",
    "redis",
    "reqwest",
    "rumqttc",
    "rustls",
];

/// Of a URL they tell what they do not know with its value, which may be a misspelt password. We refuse such a URL ourselves.
const SILENT: [&str; 2] = ["sqlx_mysql::options", "sqlx_postgres::options"];

/// The error that ends a command is to be told in this form, also if it comes before the log begins.
pub(crate) fn is_in(format: LogFormat) {
    IN_JSON.store(format == LogFormat::Json, Ordering::Relaxed);
}

/// Tells what happens from now on: `RUST_LOG` decides what of it, otherwise this filter does. Without either, nothing is told.
pub(crate) fn begin(format: LogFormat, filter: Option<&str>) {
    let asked = EnvFilter::try_from_default_env().ok();
    let Some(filter) = asked.or_else(|| filter.map(EnvFilter::new)) else { return };
    is_in(format);
    let most = filter.max_level_hint().unwrap_or(LevelFilter::TRACE);
    // Not a directive of the filter: whoever asks for a module of theirs by name would have it all the same.
    let harmless = filter_fn(is_harmless).with_max_level_hint(most);
    // A log that nobody reads any more is no reason not to go on; to complain of it there would end us.
    let lines = fmt::layer().log_internal_errors(false).with_writer(std::io::stderr);
    let lines = match format {
        LogFormat::Json => lines.json().flatten_event(true).with_current_span(false).with_span_list(false).boxed(),
        LogFormat::Text => lines.boxed(),
    };
    // A second one would be a mistake of ours, and no reason not to go on.
    let _ = tracing_subscriber::registry().with(lines).with(filter).with(harmless).try_init();
}

/// Whether it can have no secret in it.
fn is_harmless(metadata: &Metadata<'_>) -> bool {
    may_be_told(metadata.target(), metadata.level())
}

fn may_be_told(target: &str, level: &Level) -> bool {
    // The names of some are continued: hyper_util, rumqttc_v5_next.
    let begins = |names: &[&str]| names.iter().any(|name| target.starts_with(name));
    !begins(&SILENT) && (*level <= Level::INFO || !begins(&TALKATIVE))
}

/// The last word of a command that failed.
pub(crate) fn tell_of_failure(error: &str, status: u8) {
    if !IN_JSON.load(Ordering::Relaxed) {
        return output::tell(format_args!("error: {error}"));
    }
    let line = json!({
        "timestamp": Timestamp::now().to_string(),
        "level": "ERROR",
        "message": error,
        "exit_status": status,
        "target": "posthaste",
    });
    output::tell(line);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_of_brokers_tell_no_more_than_an_operator_needs() {
        for target in ["lapin::io_loop", "async_nats::connection", "hyper_util::client", "rumqttc_v5_next::state"] {
            for (level, is_told) in
                [(Level::WARN, true), (Level::INFO, true), (Level::DEBUG, false), (Level::TRACE, false)]
            {
                assert_eq!(may_be_told(target, &level), is_told, "{target} {level}");
            }
        }
        assert!(may_be_told("posthaste_core::poller", &Level::TRACE) && may_be_told("sqlx::query", &Level::DEBUG));
        assert!(!may_be_told("sqlx_postgres::options::parse", &Level::WARN));
    }
}
