//! Whether destinations can be reached, and keep what they acknowledge.

#![cfg_attr(
    not(any(
        feature = "kafka",
        feature = "mqtt",
        feature = "nats",
        feature = "rabbitmq",
        feature = "redis",
        feature = "webhook"
    )),
    allow(dead_code, unused_imports, reason = "a build that has lines alone has nobody to ask")
)]

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;

use posthaste::publishers::{Concern, PublishError, Template};
use tokio::time::timeout;

use super::finding::Findings;
use crate::relay::Connected;
use crate::settings::{Destination, Settings, Target};

/// How long a destination may take to answer.
const PATIENCE: Duration = Duration::from_secs(15);

pub(super) async fn look(settings: &Settings, found: &mut Findings) {
    for destination in &settings.destinations {
        let check = format!("destination {}", destination.name);
        match &destination.target {
            Target::Lines(options) => match options.path() {
                Some(path) => look_at_file(&check, path, found),
                None => found.fine(check, "lines go to standard output"),
            },
            #[cfg(feature = "webhook")]
            Target::Webhook(options) => look_at_webhook(&check, destination, options, found).await,
            #[cfg(any(feature = "kafka", feature = "mqtt", feature = "nats", feature = "rabbitmq", feature = "redis"))]
            _ => look_at_broker(&check, destination, found).await,
        }
    }
}

fn look_at_file(check: &str, path: &Path, found: &mut Findings) {
    match can_be_written(path) {
        Ok(what) => found.fine(check, what),
        Err(error) => {
            let what = format!("{} cannot be written to: {error}", path.display());
            found.problem(check, what, "make its directory, or let this user write there");
        }
    }
}

/// Whether lines could be written there, and what is there. It is not made, and nothing is written.
pub(crate) fn can_be_written(path: &Path) -> io::Result<&'static str> {
    match fs::metadata(path) {
        Ok(there) if there.is_dir() => Err(io::Error::from(ErrorKind::IsADirectory)),
        // To open one waits for its reader, and lets go a reader that waits.
        Ok(there) if is_pipe(&there) => {
            Ok("it is a named pipe; whether anybody reads is not known before it is opened")
        }
        Ok(_) => OpenOptions::new().append(true).open(path).map(|_| "it can be written to"),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            may_make_files(directory).map(|()| "it is not there yet; a relay may make it")
        }
        Err(error) => Err(error),
    }
}

#[cfg(unix)]
fn is_pipe(there: &fs::Metadata) -> bool {
    use std::os::unix::fs::FileTypeExt;
    there.file_type().is_fifo()
}

#[cfg(not(unix))]
fn is_pipe(_: &fs::Metadata) -> bool {
    false
}

/// Asks whether this user may make files in a directory, without one.
#[cfg(unix)]
fn may_make_files(directory: &Path) -> io::Result<()> {
    use rustix::fs::{Access, access};
    Ok(access(directory, Access::WRITE_OK | Access::EXEC_OK)?)
}

#[cfg(not(unix))]
fn may_make_files(directory: &Path) -> io::Result<()> {
    match fs::metadata(directory)?.permissions().readonly() {
        true => Err(ErrorKind::PermissionDenied.into()),
        false => Ok(()),
    }
}

/// Connects to the host, if it is the same for all events. No request is sent: there is none without an event.
#[cfg(feature = "webhook")]
async fn look_at_webhook(
    check: &str,
    destination: &Destination,
    options: &posthaste::publishers::WebhookOptions,
    found: &mut Findings,
) {
    let wrong = |error: &PublishError| destination.fault(crate::text_of(error)).to_string();
    let webhook = match posthaste::publishers::Webhook::new(options.clone()) {
        Ok(webhook) => webhook,
        Err(error) => return found.problem(check, wrong(&error), "correct its settings"),
    };
    let Some(url) = with_fixed_host(&destination.to) else {
        let what = "events say at which host it is, so nobody was asked";
        return found.note(check, what, "send an event, and see what becomes of it: posthaste events show");
    };
    match webhook.reach(&url).await {
        Ok(()) if url.starts_with("https:") => {
            found.fine(
                check,
                "its host answers, and can be trusted; nothing was sent, so what it says to events is open",
            );
        }
        Ok(()) => found.fine(check, "its host answers; nothing was sent, so what it says to events is open"),
        Err(error) => {
            let what = format!("it cannot be reached: {}", wrong(&error));
            found.problem(check, what, "see that it runs, and check its address, its certificate and what is allowed");
        }
    }
}

/// A URL that a template may make, if it is always one of the same host.
#[cfg(feature = "webhook")]
fn with_fixed_host(to: &str) -> Option<String> {
    let template: Template = to.parse().ok()?;
    let (_, rest) = to.split_once("://").filter(|(scheme, _)| !scheme.contains('{'))?;
    let host = rest.split(['/', '?', '#']).next()?;
    (!host.contains('{')).then(|| template.example())
}

#[cfg(any(feature = "kafka", feature = "mqtt", feature = "nats", feature = "rabbitmq", feature = "redis"))]
async fn look_at_broker(check: &str, destination: &Destination, found: &mut Findings) {
    let connected = match Connected::to_look(destination).await {
        Ok(connected) => connected,
        Err(failed) => return found.problem(check, crate::text(&failed.error), "correct its settings"),
    };
    match timeout(PATIENCE, connected.check()).await {
        Ok(Ok(())) => match timeout(PATIENCE, concerns(&connected, destination)).await {
            Ok(Ok(None)) => found.fine(check, format!("it can be reached; {}", unasked(destination))),
            Ok(Ok(Some(concerns))) if concerns.is_empty() => {
                found.fine(check, "it can be reached, and keeps what it acknowledges");
            }
            Ok(Ok(Some(concerns))) => {
                for Concern { what, fix, is_mistake, .. } in concerns {
                    let (what, fix) = (destination.told(what), destination.told(fix));
                    match is_mistake {
                        true => found.warning(check, what, fix),
                        false => found.note(check, what, fix),
                    }
                }
            }
            Ok(Err(error)) => {
                let error = destination.told(crate::text_of(&error));
                let what = format!("it can be reached, but does not say how durable it is: {error}");
                found.note(check, what, "let this user ask, or look at its own settings");
            }
            Err(_) => found.note(check, "it can be reached, but did not say how durable it is", "try again"),
        },
        Ok(Err(error)) => {
            let fault = destination.fault(crate::text_of(&error)).to_string();
            found.problem(check, format!("it cannot be reached: {fault}"), "see that it runs, and check its address");
        }
        Err(_) => {
            found.problem(check, format!("no answer within {PATIENCE:?}"), "see that it runs, and check its address");
        }
    }
    connected.close().await;
}

/// Why it is not known how it keeps what it acknowledges.
#[cfg(any(feature = "kafka", feature = "mqtt", feature = "nats", feature = "rabbitmq", feature = "redis"))]
fn unasked(destination: &Destination) -> &'static str {
    match &destination.target {
        #[cfg(feature = "mqtt")]
        Target::Mqtt(_) => {
            "how it keeps what it acknowledges cannot be asked by MQTT: see its own settings, such as persistence of Mosquitto"
        }
        #[cfg(feature = "kafka")]
        Target::Kafka(_) => "how it keeps what it acknowledges was not asked, since events say in which topic they are",
        _ => "how it keeps what it acknowledges was not asked",
    }
}

/// What it says of how it keeps what it acknowledges; nothing where it cannot be asked, or events say where they go.
#[cfg(any(feature = "kafka", feature = "mqtt", feature = "nats", feature = "rabbitmq", feature = "redis"))]
async fn concerns(connected: &Connected, destination: &Destination) -> Result<Option<Vec<Concern>>, PublishError> {
    let example = destination.to.parse::<Template>().map(|template| (template.example(), template.begins_with_place()));
    match (connected, example) {
        #[cfg(feature = "redis")]
        (Connected::Redis(redis), _) => redis.concerns().await.map(Some),
        // Where events say everything there is no example to ask for.
        #[cfg(feature = "nats")]
        (Connected::Nats(nats), Ok((subject, false))) => nats.concerns(&subject).await.map(Some),
        #[cfg(feature = "kafka")]
        (Connected::Kafka(kafka), Ok((topic, _))) if topic == destination.to => kafka.concerns(&topic).await.map(Some),
        #[cfg(feature = "rabbitmq")]
        (Connected::Rabbit(rabbit), Ok((queue, _))) if destination.exchange.is_none() && queue == destination.to => {
            rabbit.concerns(&queue).await.map(Some)
        }
        _ => Ok(None),
    }
}

#[cfg(all(test, feature = "webhook"))]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_known_where_no_event_has_a_say_in_it() {
        for (to, url) in [
            ("https://a.example/hooks", Some("https://a.example/hooks")),
            ("https://a.example:8443/hooks/{event_type}?x={tenant_id}", Some("https://a.example:8443/hooks/x?x=x")),
            ("https://{tenant_id}.example/hooks", None),
            ("https://a.example:{headers.port}/", None),
            ("{headers.callback}", None),
            ("{topic}://a.example/", None),
        ] {
            assert_eq!(with_fixed_host(to).as_deref(), url, "{to}");
        }
    }
}
