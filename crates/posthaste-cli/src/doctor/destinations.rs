//! Whether destinations can be reached, and keep what they acknowledge.

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
        look_at(&check, destination, found).await;
    }
}

async fn look_at(check: &str, destination: &Destination, found: &mut Findings) {
    if matches!(destination.target, Target::Lines(_)) {
        // It is opened as a relay would, to see whether it can be.
        return match Connected::new(destination, true).await {
            Ok(connected) => {
                connected.close().await;
                found.fine(check, "it can be opened");
            }
            Err(failed) => {
                found.problem(check, crate::text(&failed.error), "make its directory, or let this user write there");
            }
        };
    }
    let connected = match Connected::new(destination, true).await {
        Ok(connected) => connected,
        Err(failed) => return found.problem(check, crate::text(&failed.error), "correct its settings"),
    };
    match timeout(PATIENCE, connected.check()).await {
        Ok(Ok(())) => match timeout(PATIENCE, concerns(&connected, destination)).await {
            Ok(Ok(concerns)) if concerns.is_empty() => found.fine(check, "it can be reached"),
            Ok(Ok(concerns)) => {
                for Concern { what, fix, is_mistake, .. } in concerns {
                    match is_mistake {
                        true => found.warning(check, what, fix),
                        false => found.note(check, what, fix),
                    }
                }
            }
            Ok(Err(error)) => {
                let what = format!("it can be reached, but does not say how durable it is: {}", crate::text_of(&error));
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

/// What it says of how it keeps what it acknowledges, if it can be asked.
async fn concerns(connected: &Connected, destination: &Destination) -> Result<Vec<Concern>, PublishError> {
    let example = destination.to.parse::<Template>().map(|template| (template.example(), template.begins_with_place()));
    match (connected, example) {
        #[cfg(feature = "redis")]
        (Connected::Redis(redis), _) => redis.concerns().await,
        // Where events say everything there is no example to ask for.
        #[cfg(feature = "nats")]
        (Connected::Nats(nats), Ok((subject, false))) => nats.concerns(&subject).await,
        #[cfg(feature = "rabbitmq")]
        (Connected::Rabbit(rabbit), Ok((queue, _))) if destination.exchange.is_none() && queue == destination.to => {
            rabbit.concerns(&queue).await
        }
        _ => Ok(Vec::new()),
    }
}
