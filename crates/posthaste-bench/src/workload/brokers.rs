//! B: to a broker, the publisher alone and from rows that wait until the last is acknowledged and DONE.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::ensure;
use posthaste_core::listener::Path;
use posthaste_core::{Delivery, Options, Outbox};
use posthaste_publishers::{Envelope, Message, Publisher, Text};

use super::Done;
use super::drain::{self, Relays};
use crate::bench::Bench;
use crate::broker::kafka::KafkaBroker;
use crate::broker::mqtt::MqttBroker;
use crate::broker::nats::NatsBroker;
use crate::broker::private::Private;
use crate::broker::rabbitmq::RabbitBroker;
use crate::broker::redis::RedisBroker;
use crate::broker::webhook::Receiver;
use crate::broker::{Broker, Chosen, Kind, at_once, batches};
use crate::measure::{About, Figures};
use crate::rounds::{number, of};
use crate::server::{machine_cpu_seconds, own_cpu_seconds};
use crate::subject::{Filling, Subject, check_done, event, fill, payload};

/// The least ratio of the publisher alone, and of the way from the table to the broker, beside what is done by hand.
const GOAL: f64 = 0.8;

/// The least ratio of the way from the table to the broker beside our own drain, which is faster than the one by hand.
const GOAL_BESIDE_OUR_DRAIN: f64 = 0.7;

/// Publishes to a broker. Gives what it was.
pub(crate) async fn run<S: Subject>(bench: &mut Bench, subject: &S, chosen: &Chosen) -> anyhow::Result<String> {
    let kind = chosen.kind;
    let private = match chosen.url {
        None if kind != Kind::Webhook => Some(Private::start(kind).await?),
        _ => None,
    };
    let url = chosen.url.as_deref().or(private.as_ref().map(Private::url)).unwrap_or_default();
    let about = private.as_ref().and_then(Private::about);
    let description = match kind {
        Kind::Kafka => measure(bench, subject, kind, &KafkaBroker::connect(url, about).await?).await,
        Kind::Mqtt => measure(bench, subject, kind, &MqttBroker::connect(url).await?).await,
        Kind::Nats => measure(bench, subject, kind, &NatsBroker::connect(url).await?).await,
        Kind::Rabbitmq => measure(bench, subject, kind, &RabbitBroker::connect(url, about).await?).await,
        Kind::Redis => measure(bench, subject, kind, &RedisBroker::connect(url).await?).await,
        Kind::Webhook => measure(bench, subject, kind, &Receiver::start().await?).await,
    };
    if let Some(private) = private {
        private.stop().await?;
    }
    description
}

async fn measure<S: Subject, B: Broker>(
    bench: &mut Bench,
    subject: &S,
    kind: Kind,
    broker: &B,
) -> anyhow::Result<String> {
    let description = broker.description();
    say!("{description}");
    let filling = Filling { events: bench.sizes.published, ..Filling::default() };
    let title = format!("B {}, {}", kind.name(), subject.name());
    let contestants = ["bare client", "publisher", "drain by hand", "drain alone", "outbox"].map(str::to_owned);
    let spent = Spent { of: filling.events, by: RefCell::default() };
    let figures = bench
        .rounds
        .run(&title, "events/s", &contestants, async |contestant| {
            let watch = Watch { subject, spent: &spent, contestant };
            match contestant {
                "bare client" => {
                    publish(broker, filling, watch, async |messages| broker.publish_by_hand(messages).await).await
                }
                "publisher" => {
                    publish(broker, filling, watch, async |messages| with_publisher(broker, messages).await).await
                }
                "drain by hand" => drained_by_hand(subject, filling, watch).await,
                "drain alone" => drained(subject, filling, watch).await,
                _ => outbox(subject, broker, filling, watch).await,
            }
        })
        .await?;
    broker.publisher().close().await;
    spent.print(&title);

    let (bare, ours) = (of(&figures, "bare client"), of(&figures, "outbox"));
    let (by_hand, drain) = (of(&figures, "drain by hand"), of(&figures, "drain alone"));
    let workload = format!("B publish {}", kind.name());
    let about = About {
        workload: &workload,
        database: subject.name(),
        what: "the publisher alone",
        against: "a loop with the bare client",
        unit: "events/s",
    };
    bench.add(about.compare(&of(&figures, "publisher"), &bare, Some(GOAL)));
    let bare_alone = ("the bare client alone", &bare);
    for (workload, drain, goal) in [
        (format!("B {}", kind.name()), ("the drain by hand alone", &by_hand), GOAL),
        (format!("B {}/own drain", kind.name()), ("our own drain alone", &drain), GOAL_BESIDE_OUR_DRAIN),
    ] {
        let (against, ceiling) = slower([bare_alone, drain]);
        let against = format!("the slower of two: {against}");
        let about =
            About { workload: &workload, what: "from rows that wait to the broker", against: &against, ..about };
        bench.add(about.compare(&ours, ceiling, Some(goal)));
    }
    let workload = format!("B {} in turn", kind.name());
    let about = About {
        workload: &workload,
        what: "from rows that wait to the broker",
        against: "our own drain, and then the bare client",
        ..about
    };
    bench.add(about.compare(&ours, &in_turn(&drain, &bare), None));
    Ok(description)
}

/// The one with the lower median. What could not be measured is no ceiling that anybody could reach.
fn slower<'a>([one, other]: [(&'a str, &'a Figures); 2]) -> (&'a str, &'a Figures) {
    let median = |figures: &Figures| figures.median().unwrap_or(f64::NAN);
    if median(one.1) > median(other.1) || median(other.1).is_nan() { other } else { one }
}

/// Events per second if each goes one way, and then the other: what is left where both take all of the machine.
fn in_turn(one: &Figures, other: &Figures) -> Figures {
    one.rounds().iter().zip(other.rounds()).map(|(one, other)| 1.0 / (1.0 / one + 1.0 / other)).collect()
}

/// How long processors worked for each contestant, by its name, and for whom: what is left when this process and the database are taken
/// off is the broker, if nobody else does anything.
struct Spent {
    /// For how many events.
    of: usize,
    by: RefCell<BTreeMap<String, [Figures; 3]>>,
}

impl Spent {
    fn print(&self, title: &str) {
        for (contestant, parts) in &*self.by.borrow() {
            let [client, database, rest] = parts.each_ref().map(|part| number(part.median().unwrap_or(f64::NAN)));
            say!(
                "{title}, {contestant}: for an event {client} µs of processors here, {database} in the database, {rest} elsewhere"
            );
        }
        if let Some((together, most)) = self.most() {
            let [together, most] = [together, most].map(number);
            say!(
                "{title}: the drain alone and the publisher alone together take about {together} µs of processors for an event; all \
                 processors of this machine would be busy at {most} events/s"
            );
        }
    }

    /// What our drain and our publisher take together for an event, and how many events each second would leave no processor idle. Where
    /// the servers run on the same machine, and nothing else does, an outbox of these two parts is not much faster than that.
    fn most(&self) -> Option<(f64, f64)> {
        let by = self.by.borrow();
        let all = |contestant: &str| Some(by.get(contestant)?.iter().filter_map(Figures::median).sum::<f64>());
        let together = all("drain alone")? + all("publisher")?;
        let processors = std::thread::available_parallelism().ok()?.get() as f64;
        Some((together, processors * 1e6 / together))
    }
}

/// Looks how long processors work for a contestant.
struct Watch<'a, S> {
    subject: &'a S,
    spent: &'a Spent,
    contestant: &'a str,
}

impl<S: Subject> Watch<'_, S> {
    async fn look(&self) -> anyhow::Result<[f64; 3]> {
        let database = self.subject.usage().await?.cpu_seconds.unwrap_or_default();
        Ok([own_cpu_seconds()?, database, machine_cpu_seconds()?])
    }

    /// Does something, and notes what it took.
    async fn over<T>(&self, work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
        let before = self.look().await?;
        let done = work.await?;
        let after = self.look().await?;
        let [client, database, all] = [0, 1, 2].map(|who| (after[who] - before[who]) * 1e6 / self.spent.of as f64);
        let mut by = self.spent.by.borrow_mut();
        let parts = by.entry(self.contestant.to_owned()).or_default();
        parts.iter_mut().zip([client, database, all - client - database]).for_each(|(part, figure)| part.push(figure));
        Ok(done)
    }
}

/// Events per second of the outbox, with a listener that does nothing.
async fn drained<S: Subject>(subject: &S, filling: Filling, watch: Watch<'_, S>) -> anyhow::Result<f64> {
    let store = subject.fresh().await?;
    fill::<S>(&store, filling).await?;
    let rate = watch.over(drain::drain_filled(subject, &store, filling, Relays::default())).await?;
    S::close(store).await;
    Ok(rate)
}

/// Events per second of the loop by hand.
async fn drained_by_hand<S: Subject>(subject: &S, filling: Filling, watch: Watch<'_, S>) -> anyhow::Result<f64> {
    let store = subject.fresh().await?;
    fill::<S>(&store, filling).await?;
    let rate = watch.over(drain::drain_filled_by_hand::<S>(&store, filling, Relays::default())).await?;
    S::close(store).await;
    Ok(rate)
}

/// Messages per second until all are acknowledged, and in the broker.
async fn publish<S: Subject, B: Broker>(
    broker: &B,
    filling: Filling,
    watch: Watch<'_, S>,
    send: impl AsyncFnOnce(Vec<Message>) -> anyhow::Result<()>,
) -> anyhow::Result<f64> {
    let place = broker.fresh().await?;
    let messages = messages(broker, &place, filling)?;
    let sending = async {
        let started_at = Instant::now();
        send(messages).await?;
        Ok(started_at.elapsed())
    };
    let took = watch.over(sending).await?;
    taken(broker, &place, filling).await?;
    Ok(filling.events as f64 / took.as_secs_f64())
}

/// As the dispatcher does by default: a batch for each worker, of no more than a claim brings.
async fn with_publisher<B: Broker>(broker: &B, messages: Vec<Message>) -> anyhow::Result<()> {
    let (options, publisher) = (Options::default(), broker.publisher().clone());
    let most = <B::Publisher as Publisher>::MAX_BATCH.min(options.cold_queue / 2);
    at_once(options.workers, batches(messages, most), move |batch| {
        let publisher = publisher.clone();
        async move { publisher.publish(batch).await.into_iter().try_for_each(|result| Ok(result?)) }
    })
    .await
}

/// What a destination would send.
fn messages<B: Broker>(broker: &B, place: &str, filling: Filling) -> anyhow::Result<Vec<Message>> {
    let (to, payload) = (broker.address(place), payload(filling.payload));
    let message = |number: usize| {
        let event = Delivery::new(event(number, &payload), 0, Path::Cold);
        let wrapped = Envelope::Plain.wrap(B::Publisher::BINDING, &event)?;
        let key = Text::aggregate_id(&event);
        let (id, content_type, headers) = (event.id().clone(), wrapped.content_type, wrapped.headers);
        Ok(Message { id, to: to.as_str().into(), key, content_type, headers, body: wrapped.body.into_bytes().into() })
    };
    (0..filling.events).map(message).collect()
}

/// Events per second of the outbox with default settings, from the table to the broker, until the last is DONE.
async fn outbox<S: Subject, B: Broker>(
    subject: &S,
    broker: &B,
    filling: Filling,
    watch: Watch<'_, S>,
) -> anyhow::Result<f64> {
    let (place, store) = (broker.fresh().await?, subject.fresh().await?);
    fill::<S>(&store, filling).await?;
    let done = Done::default();
    let delivering = async {
        let started_at = Instant::now();
        let outbox = Outbox::builder(store.clone())
            .metrics(done.clone())
            .listen("*", "*", broker.destination(&place))
            .start()
            .await?;
        done.wait(filling.events as u64).await?;
        let closed = outbox.shutdown().await;
        Ok((closed, started_at.elapsed()))
    };
    let (closed, took) = watch.over(delivering).await?;
    ensure!(closed.is_clean(), "the shutdown left something over: {closed:?}");
    check_done(&store, filling.events).await?;
    S::close(store).await;
    taken(broker, &place, filling).await?;
    Ok(filling.events as f64 / took.as_secs_f64())
}

/// Fails unless the broker has all of them.
async fn taken<B: Broker>(broker: &B, place: &str, filling: Filling) -> anyhow::Result<()> {
    let events = filling.events as u64;
    let count = broker.count(place, events).await?;
    ensure!(count >= events, "of {events} messages, all acknowledged, the broker has {count}");
    broker.delete(place).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(rounds: &[f64]) -> Figures {
        rounds.iter().copied().collect()
    }

    #[test]
    fn the_ceiling_is_the_slower_of_the_two() {
        let (slow, fast, none) = (figures(&[3.0, 1.0, 90.0]), figures(&[4.0, 5.0, 6.0]), Figures::default());
        assert_eq!(slower([("client", &slow), ("drain", &fast)]).0, "client");
        assert_eq!(slower([("client", &fast), ("drain", &slow)]).0, "drain");
        // A goal is missed then, and not reached by luck.
        assert_eq!(slower([("client", &fast), ("drain", &none)]).0, "drain");
        assert_eq!(slower([("client", &none), ("drain", &fast)]).0, "client");
    }

    #[test]
    fn in_turn_both_take_their_time() {
        assert_eq!(in_turn(&figures(&[30.0, 10.0]), &figures(&[60.0, 10.0])).rounds(), [20.0, 5.0]);
    }
}
