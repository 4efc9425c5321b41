//! A process that writes business rows and events in one transaction, and says what it was told about each.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::store::CommitError;
use posthaste_core::{Event, EventId, Outbox};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use super::{asked_to_end, close, start};
use crate::config::{Config, Policy, Sabotage, Workload};
use crate::database::Database;
use crate::history::{Message, Recorder, What};
use crate::watched::Watched;
use crate::wire::hash;

/// How many keys there are. Few enough that transactions meet, many enough that most do not.
pub(crate) const KEYS: u64 = 100;

/// Whose events are written.
pub(super) const AGGREGATE: &str = "Account";

/// Where a broker takes messages, and where it does not.
const ACCOUNTS: &str = "accounts";
const NOWHERE: &str = "nowhere";

pub(super) async fn run<D: Database>(config: Config, store: D, recorder: Arc<Recorder>) -> anyhow::Result<ExitCode> {
    let mut ended = asked_to_end()?;
    // A relay that follows the numbers leaves nothing to the hot path.
    let hot = config.hot && config.sabotage != Some(Sabotage::CursorById);
    let builder = if hot { Outbox::many_nodes } else { Outbox::writer_only };
    let (outbox, way) = start(&config, &store, &recorder, builder).await?;
    let stop = CancellationToken::new();
    let mut writers = JoinSet::new();
    let mut rng = config.rng();
    for _ in 0..config.writers {
        let rng = rng.fork();
        let pause = Duration::from_secs_f64(config.writers as f64 / config.rate);
        let writer = Writer {
            outbox: outbox.clone(),
            recorder: Arc::clone(&recorder),
            rng,
            workload: config.workload,
            longest: config.destination.longest_payload(),
            sabotaged: config.sabotage.is_some(),
            more_poison: config.on_dead != Policy::Skip,
        };
        writers.spawn(writer.write_until(stop.clone(), pause));
    }
    ended.recv().await;
    stop.cancel();
    while writers.join_next().await.is_some() {}
    Ok(close(&outbox, &way, &mut ended).await)
}

struct Writer<D: Database> {
    outbox: Outbox<Watched<D>>,
    recorder: Arc<Recorder>,
    rng: fastrand::Rng,
    workload: Workload,
    /// The longest payload.
    longest: usize,
    /// A sabotaged build is to be caught by its mistake, and not by what it makes of poison.
    sabotaged: bool,
    /// Somebody is to wait for an operator, also where little is written.
    more_poison: bool,
}

impl<D: Database> Writer<D> {
    async fn write_until(mut self, stop: CancellationToken, pause: Duration) {
        let mut ticks = interval(pause);
        // After an outage the pace is taken up again, not made up for.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !stop.is_cancelled() {
            ticks.tick().await;
            let how_many = self.rng.usize(1..=3);
            let mut messages: Vec<_> =
                (0..how_many).map(|_| plan(&mut self.rng, self.workload, self.longest)).collect();
            for (message, _) in &mut messages {
                message.poison |= self.more_poison && self.rng.u16(..) < 600;
                message.poison &= !self.sabotaged;
            }
            match self.transact(&mut messages).await {
                Ok(()) => self.note(&messages, |id| What::Acked { id }),
                Err(Ended::Not(error)) => self.note(&messages, |id| What::Failed { id, error: error.clone() }),
                Err(Ended::Unknown(error)) => {
                    self.note(&messages, |id| What::Unknown { id, error: error.clone() });
                    let committed = self.look_for(&messages[0].0.id).await;
                    self.note(&messages, |id| What::Resolved { id, committed });
                }
            }
        }
    }

    /// Business rows and events, in one transaction.
    async fn transact(&mut self, messages: &mut [(Message, String)]) -> Result<(), Ended> {
        let mut tx = self.outbox.begin().await.map_err(Ended::not)?;
        for (message, payload) in messages {
            message.number = D::next_number(&mut tx, &message.key).await.map_err(Ended::not)?;
            D::insert_ledger(&mut tx, message).await.map_err(Ended::not)?;
            tx.write(event(message, payload)).await.map_err(Ended::not)?;
        }
        if self.rng.u8(..) < 12 {
            let rolled_back = tx.rollback().await;
            return Err(Ended::Not(format!("rolled back on purpose: {rolled_back:?}")));
        }
        tx.commit().await.map_err(|error| match error {
            CommitError::Unknown(cause) => Ended::Unknown(format!("{cause:?}")),
            certain => Ended::not(certain),
        })
    }

    /// Whether a transaction of which nobody knows was committed, by the id of one of its events.
    async fn look_for(&self, id: &str) -> bool {
        let id = EventId::from_row(id);
        loop {
            // A commit that is still on its way to the database arrives first.
            sleep(Duration::from_secs(2)).await;
            match self.outbox.admin().find(&id).await {
                Ok(found) => return found.is_some(),
                Err(error) => tracing::info!(%error, "cannot look yet"),
            }
        }
    }

    fn note(&self, messages: &[(Message, String)], what: impl Fn(String) -> What) {
        self.recorder.record_all(messages.iter().map(|(message, _)| what(message.id.clone())));
    }
}

/// How a transaction ended that did not commit for certain.
enum Ended {
    Not(String),
    Unknown(String),
}

impl Ended {
    fn not(error: impl std::fmt::Debug) -> Self {
        Self::Not(format!("{error:?}"))
    }
}

/// A message to be written, without its number, and its payload.
pub(crate) fn plan(rng: &mut fastrand::Rng, workload: Workload, longest: usize) -> (Message, String) {
    let length = match (workload, rng.u16(..)) {
        (Workload::Mixed, 0..=40) | (Workload::Large, 0..=6500) => longest,
        (Workload::Mixed, 41..=1000) => rng.usize(1000..50_000),
        _ => rng.usize(2..400),
    };
    let keys = if workload == Workload::Contended { 3 } else { KEYS };
    let letters = length.saturating_sub(2);
    let payload = match letters {
        0..=1000 => format!("\"{}\"", (0..letters).map(|_| rng.alphanumeric()).collect::<String>()),
        _ => format!("\"{}\"", rng.alphabetic().to_string().repeat(letters)),
    };
    let message = Message {
        id: EventId::generate().to_string(),
        event_type: ["Opened", "Paid", "Closed"][rng.usize(..3)].to_owned(),
        key: format!("key-{}", rng.u64(..keys)),
        number: 0,
        hash: hash(payload.as_bytes()),
        poison: rng.u16(..) < 200,
    };
    (message, payload)
}

/// The event of a message.
pub(crate) fn event(message: &Message, payload: &str) -> Event {
    let event = Event::builder(message.event_type.as_str())
        .id(&message.id)
        .aggregate(AGGREGATE, &message.key)
        .topic(if message.poison { NOWHERE } else { ACCOUNTS })
        .header("number", message.number.to_string())
        .json_text(payload);
    let event = if message.poison { event.header("poison", "yes") } else { event };
    event.build().expect("the plan keeps to the limits")
}

/// Whether no destination takes an event, by plan.
pub(crate) fn is_poison(event: &Event) -> bool {
    event.header("poison").is_some()
}
