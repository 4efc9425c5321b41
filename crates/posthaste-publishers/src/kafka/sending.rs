//! Sends a batch, and tells what became of each message.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use rdkafka::error::RDKafkaErrorCode;
use rdkafka::producer::Producer as _;
use tokio::time::Instant;

use super::producer::{Producer, Report, deliver};
use super::producers::no_producer;
use super::requests::Size;
use super::topics::AGAIN;
use super::{Kafka, error};
use crate::pauses::Round;
use crate::publisher::{Message, PublishError, PublishErrorKind, runs_of};

/// How long a message is put off that another one has left no way for.
const SOON: Duration = Duration::from_millis(100);

/// What became of a batch so far.
pub(super) struct Batch<'a> {
    pub(super) messages: &'a [Message],
    pub(super) results: Vec<Option<Result<(), PublishError>>>,
    /// What was refused for the size of its request.
    too_large_together: HashSet<usize>,
    /// What had no answer, which may be the fault of its topic alone.
    pub(super) doubtful: Vec<usize>,
    worn_out: Vec<(Size, Producer)>,
}

impl Kafka {
    /// Sends a batch, in order if it has to be.
    pub(super) async fn publish_all(&self, messages: Vec<Message>, in_order: bool) -> Vec<Result<(), PublishError>> {
        let begun_at = Instant::now();
        let timeout = self.0.options.timeout();
        let (full_until, until) = match in_order {
            true => (begun_at + timeout / 2, begun_at + timeout),
            false => (begun_at + timeout, begun_at + self.longest()),
        };
        let mut ends = self.0.pauses.round();
        let (results, too_large_together) = (messages.iter().map(|_| None).collect(), HashSet::new());
        let (doubtful, worn_out) = (Vec::new(), Vec::new());
        let mut batch = Batch { messages: &messages, results, too_large_together, doubtful, worn_out };
        if in_order {
            let mut runs = runs_of(&messages);
            // Each time it is another topic of an aggregate, for which there is less time.
            while !runs.is_empty() && Instant::now() < until {
                runs = self.sent_in_order(&mut batch, runs, &mut ends, full_until, until).await;
            }
            for place in runs.into_iter().flatten() {
                let late = PublishError::deferred("kafka took the time of the whole batch for others of it", AGAIN);
                batch.results[place] = Some(Err(late.unasked()));
            }
        } else {
            batch.results = messages.iter().map(|message| self.not_sent(message, &mut ends).map(Err)).collect();
            let open = batch.results.iter().enumerate().filter(|(_, result)| result.is_none());
            let mut round: Vec<_> = open.map(|(place, _)| (place, self.0.sizes.of(&messages[place].to))).collect();
            while !round.is_empty() {
                round = self.sent(&mut batch, round, full_until, until).await;
            }
        }
        for (size, producer) in std::mem::take(&mut batch.worn_out) {
            self.retire(size, &producer);
            if in_order {
                producer.give_up();
            }
        }
        if let Some(taken) = batch.results.iter().position(|result| matches!(result, Some(Ok(())))) {
            self.producers().known_topic.get_or_insert_with(|| messages[taken].to.to_string());
        }
        self.put_off(&mut batch, &mut ends).await;
        batch.results.into_iter().map(|result| result.expect("each was sent or not")).collect()
    }

    /// Sends messages in requests of these sizes, and gives those back that are to be sent again in smaller ones.
    async fn sent(
        &self,
        batch: &mut Batch<'_>,
        round: Vec<(usize, Size)>,
        full_until: Instant,
        until: Instant,
    ) -> Vec<(usize, Size)> {
        let (mut taken, mut given) = (Vec::with_capacity(round.len()), Vec::with_capacity(round.len()));
        for (place, size) in round {
            match self.producer(size) {
                Ok(producer) => {
                    taken.push((place, size));
                    given.push((producer, &batch.messages[place]));
                }
                Err(error) => batch.results[place] = Some(Err(no_producer(error))),
            }
        }
        let reports = deliver(&given, full_until, until).await;
        let mut again = Vec::new();
        for (((place, size), report), (producer, message)) in taken.into_iter().zip(reports).zip(given) {
            if let Some(Err(refusal)) = report
                && error::may_be_the_fault_of_others(refusal)
                && let Some(smaller) = size.smaller(&self.0.config, message.body.len())
            {
                if error::is_about_size(refusal.code) {
                    batch.too_large_together.insert(place);
                }
                again.push((place, smaller));
                continue;
            }
            if matches!(report, Some(Ok(()))) && batch.too_large_together.contains(&place) {
                self.0.sizes.at_most(&message.to, size);
            }
            let (doubtful, worn_out) = match report {
                Some(Ok(())) => (false, false),
                Some(Err(refusal)) => (error::may_be_the_topic(refusal.code), error::ends_a_producer(refusal.code)),
                None => (true, true),
            };
            if doubtful {
                batch.doubtful.push(place);
            }
            batch.results[place] = Some(self.result(&producer, report));
            if worn_out && !batch.worn_out.iter().any(|(_, known)| known.is(&producer)) {
                batch.worn_out.push((size, producer));
            }
        }
        again
    }

    /// Sends messages so that of each key nothing is taken behind one that was not: of each run those at its beginning that go to the
    /// same topic. Says what is left of them.
    async fn sent_in_order(
        &self,
        batch: &mut Batch<'_>,
        runs: Vec<VecDeque<usize>>,
        ends: &mut Round<'_>,
        full_until: Instant,
        until: Instant,
    ) -> Vec<VecDeque<usize>> {
        let (mut left, mut taken, mut given) = (Vec::new(), Vec::new(), Vec::new());
        for mut run in runs {
            let topic = run.front().map(|place| batch.messages[*place].to.as_str());
            let size = self.0.sizes.of(topic.unwrap_or_default());
            let same = run.iter().take_while(|place| Some(batch.messages[**place].to.as_str()) == topic).count();
            let behind = run.split_off(same);
            let (mut sent, mut missing) = (VecDeque::new(), None);
            while let Some(place) = run.pop_front() {
                let message = &batch.messages[place];
                let producer = match self.not_sent(message, ends) {
                    Some(error) => Err(error),
                    None => self.producer_of(size, true).map_err(no_producer),
                };
                match producer {
                    Ok(producer) => {
                        given.push((producer, message));
                        sent.push_back(place);
                    }
                    Err(error) => {
                        missing = Some((place, error));
                        break;
                    }
                }
            }
            if let Some((place, error)) = missing {
                batch.results[place] = Some(Err(error));
                run.into_iter()
                    .chain(behind)
                    .for_each(|place| batch.results[place] = Some(Err(PublishError::behind())));
                taken.push((sent, VecDeque::new(), size));
            } else {
                taken.push((sent, behind, size));
            }
        }
        let reports = deliver(&given, full_until, until).await;
        let mut reports = reports.into_iter().zip(given);
        for (mut sent, mut behind, size) in taken {
            let count = sent.len();
            let mut goes_on = true;
            for (report, (producer, message)) in reports.by_ref().take(count) {
                // What is said of those behind one that was not taken is of no account.
                let Some(place) = sent.pop_front().filter(|_| goes_on) else { continue };
                if let Some(Ok(())) = report {
                    batch.results[place] = Some(Ok(()));
                    continue;
                }
                goes_on = false;
                let error = self.missed(batch, place, &producer, message, size, report);
                batch.results[place] = Some(Err(error));
                for place in sent.iter().chain(&behind) {
                    batch.results[*place] = Some(Err(PublishError::behind()));
                }
                behind.clear();
            }
            if goes_on && !behind.is_empty() {
                left.push(behind);
            }
        }
        left
    }

    /// Why a message that had to be in order was not taken.
    fn missed(
        &self,
        batch: &mut Batch<'_>,
        place: usize,
        producer: &Producer,
        message: &Message,
        size: Size,
        report: Option<Report>,
    ) -> PublishError {
        if let Some(Err(refusal)) = report
            && error::may_be_the_fault_of_others(refusal)
            && let Some(smaller) = size.smaller(&self.0.config, message.body.len())
        {
            // It comes again in a smaller request, by itself in the end.
            self.0.sizes.at_most(&message.to, smaller);
            let reason = format!("kafka refused it together with others ({}), and gets it with fewer", refusal.code);
            return PublishError::deferred(reason, SOON);
        }
        // It did not fail itself: another message did, and this one would have come behind a gap.
        let gap = producer.client().fatal_error().is_some_and(|(code, _)| code == RDKafkaErrorCode::GaplessGuarantee);
        if (gap || producer.is_given_up())
            && report.is_some_and(|report| report.is_err_and(|refusal| error::is_about_the_producer(refusal.code)))
        {
            let reason = "another message was not taken, behind which this one would have left a gap";
            return PublishError::deferred(reason, SOON).unasked();
        }
        let (doubtful, worn_out) = match report {
            Some(Ok(())) => (false, false),
            Some(Err(refusal)) => (error::may_be_the_topic(refusal.code), error::ends_a_producer(refusal.code)),
            None => (true, true),
        };
        if doubtful {
            batch.doubtful.push(place);
        }
        if worn_out && !batch.worn_out.iter().any(|(_, known)| known.is(producer)) {
            batch.worn_out.push((size, producer.clone()));
        }
        self.result(producer, report).err().unwrap_or_else(PublishError::behind)
    }

    fn result(&self, producer: &Producer, report: Option<Report>) -> Result<(), PublishError> {
        let (code, at_once) = match report {
            Some(Ok(())) => return Ok(()),
            Some(Err(refusal)) => (refusal.code, refusal.at_once),
            None => return Err(PublishError::outage("kafka's client gave no report in time")),
        };
        let kind = error::kind(code);
        let mut reason = format!("{code}{}", error::advice(code));
        if kind == PublishErrorKind::Outage
            && let Some(trouble) = producer.trouble(self.longest())
        {
            reason = format!("{reason} ({trouble})");
        }
        let error = PublishError::new(kind, reason);
        Err(if at_once { error.unasked() } else { error })
    }
}
