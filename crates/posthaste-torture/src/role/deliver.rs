//! Sending events to their destination.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use posthaste_core::OutboxBuilder;
use posthaste_core::listener::{BatchListener, Delivery, Failure, Outcome, Verdict, batch};

#[cfg(feature = "brokers")]
use super::publish::Line;
use crate::config::{Config, Sabotage};
use crate::database::Database;
use crate::history::{Message, Recorder, What};
use crate::watched::Watched;
use crate::wire::{Answer, Lines, Parcel, Request};

/// How long to leave a sink alone that cannot be reached. Not an attempt: the event has nothing to do with it.
const SINK_AWAY: Duration = Duration::from_millis(300);

/// How events get to their destination.
pub(super) enum Way {
    ToSink(Sender),
    #[cfg(feature = "brokers")]
    ToBroker(Line),
}

impl Way {
    pub(super) async fn open(config: &Config, recorder: &Arc<Recorder>) -> anyhow::Result<Self> {
        if !config.destination.is_broker() {
            return Ok(Self::ToSink(Sender::new(config, recorder)));
        }
        #[cfg(feature = "brokers")]
        {
            Line::open(config, recorder).await.map(Self::ToBroker)
        }
        #[cfg(not(feature = "brokers"))]
        {
            anyhow::bail!("{} was not compiled in", config.destination.name())
        }
    }

    /// Registers the listener that goes this way.
    pub(super) fn listen<D: Database>(&self, builder: OutboxBuilder<Watched<D>>) -> OutboxBuilder<Watched<D>> {
        match self {
            Self::ToSink(sender) => builder.listen_all(batch(sender.clone())),
            #[cfg(feature = "brokers")]
            Self::ToBroker(line) => line.listen(builder),
        }
    }

    pub(super) async fn close(&self) {
        match self {
            Self::ToSink(_) => {}
            #[cfg(feature = "brokers")]
            Self::ToBroker(line) => line.close().await,
        }
    }
}

/// A listener that sends events to the sink, and believes nothing but its answer.
#[derive(Clone)]
pub(super) struct Sender {
    sink: SocketAddr,
    recorder: Arc<Recorder>,
    idle: Arc<Mutex<Vec<Lines>>>,
    sabotage: Option<Sabotage>,
}

impl Sender {
    pub(super) fn new(config: &Config, recorder: &Arc<Recorder>) -> Self {
        let (idle, sabotage) = (Arc::default(), config.sabotage);
        Self { sink: config.destination_at, recorder: Arc::clone(recorder), idle, sabotage }
    }

    async fn send(&self, events: &[Delivery]) -> Vec<Verdict> {
        let Some(mut lines) = self.connection().await else {
            return events.iter().map(|_| Ok(Outcome::RetryAfter(SINK_AWAY))).collect();
        };
        let request = Request::Take(events.iter().map(parcel).collect());
        let ids = events.iter().map(|event| event.id().to_string()).collect();
        let unanswered = Unanswered::new(&self.recorder, ids);
        match lines.ask::<Vec<Answer>>(&request).await {
            Ok(answers) if answers.len() == events.len() => {
                unanswered.answered();
                self.idle.lock().expect("nobody panics here").push(lines);
                answers.into_iter().map(verdict).collect()
            }
            _ => events.iter().map(|_| Ok(Outcome::RetryAfter(SINK_AWAY))).collect(),
        }
    }

    async fn connection(&self) -> Option<Lines> {
        let idle = self.idle.lock().expect("nobody panics here").pop();
        match idle {
            Some(lines) => Some(lines),
            None => Lines::connect(self.sink).await.ok(),
        }
    }
}

impl BatchListener for Sender {
    async fn on_events(&self, events: &[Delivery]) -> Vec<Verdict> {
        let done = || events.iter().map(|_| Ok(Outcome::Done)).collect();
        match self.sabotage {
            Some(Sabotage::MarkBeforePublish) => {
                let (sender, events) = (self.clone(), events.to_vec());
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    sender.send(&events).await
                });
                done()
            }
            Some(Sabotage::IgnoreAcknowledgement) => {
                self.send(events).await;
                done()
            }
            _ => self.send(events).await,
        }
    }

    fn max_batch(&self) -> usize {
        20
    }
}

fn verdict(answer: Answer) -> Verdict {
    match answer {
        Answer::Taken => Ok(Outcome::Done),
        Answer::Refused => Err(Failure::retryable("the sink refused it")),
    }
}

fn parcel(event: &Delivery) -> Parcel {
    let message = Message {
        id: event.id().to_string(),
        event_type: event.event_type().to_owned(),
        key: event.aggregate_id().unwrap_or_default().to_owned(),
        number: event.header("number").and_then(|number| number.parse().ok()).unwrap_or(0),
        hash: 0,
        poison: event.header("poison").is_some(),
    };
    Parcel { message, payload: event.payload().as_json().unwrap_or_default().to_owned() }
}

/// Notes that an answer did not come, for whatever reason: an error, or the time limit that drops the future.
struct Unanswered<'a> {
    recorder: &'a Recorder,
    ids: Vec<String>,
}

impl<'a> Unanswered<'a> {
    fn new(recorder: &'a Recorder, ids: Vec<String>) -> Self {
        Self { recorder, ids }
    }

    /// There is an answer about each.
    fn answered(mut self) {
        self.ids.clear();
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        let ids = std::mem::take(&mut self.ids);
        if !ids.is_empty() {
            self.recorder.record(What::AnswerLost { ids });
        }
    }
}
