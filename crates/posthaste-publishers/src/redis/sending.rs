//! Sends a batch in requests, and waits for their answers.

use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{Pipeline, RedisResult};
use tokio::time::Instant;

use super::Redis;
use super::error::{is_of_the_protocol, judged};
use crate::publisher::{Message, PublishError, Publisher};

/// About how many bytes one request has: few enough to be answered in time.
const REQUEST: usize = 1 << 20;

/// The largest field that every server takes: `proto-max-bulk-len` cannot be less.
const EVERYWHERE: usize = 1 << 20;

/// How many messages in a row, each alone, have to be silent for the server to be away.
const SILENT: u32 = 2;

/// How long what a batch had no time for is put off.
const SOON: Duration = Duration::from_secs(1);

/// Why a request has no answers.
enum Trouble {
    Told(PublishError),
    /// Nothing was heard in time.
    Silence(PublishError),
}

impl Redis {
    /// Sends messages in as many requests as it takes. What had no answer in time goes alone from then on.
    pub(super) async fn requests(&self, messages: &[Message]) -> Vec<Result<(), PublishError>> {
        let (suspects, until) = (&self.0.suspects, Instant::now() + self.longest());
        let mut results: Vec<Result<(), PublishError>> = Vec::with_capacity(messages.len());
        // Those that were alone, and of which nothing was heard; and how many of them in a row.
        let (mut silent, mut in_a_row) = (Vec::new(), 0);
        for request in requests(messages, |message| is_large(message) || suspects.has(message)) {
            match results.last() {
                // What comes behind an outage would only wait for another.
                Some(Err(error)) if error.is_outage() && (in_a_row == 0 || in_a_row >= SILENT) => {
                    let behind: Vec<_> = error.of_each(request.len()).collect();
                    results.extend(behind);
                    continue;
                }
                Some(_) if Instant::now() >= until => {
                    let reason = "Redis took the time of the whole batch for others of it";
                    results.extend(request.iter().map(|_| Err(PublishError::deferred(reason, SOON).unasked())));
                    continue;
                }
                _ => {}
            }
            match (self.request(request).await, request) {
                (Ok(answers), _) => {
                    in_a_row = 0;
                    suspects.acknowledged(answers.iter().filter(|answer| answer.is_ok()).count());
                    suspects.clear_of_suspicion(request);
                    results.extend(answers);
                }
                (Err(Trouble::Silence(error)), [message]) => {
                    in_a_row += 1;
                    suspects.was_silent(message);
                    silent.push(results.len());
                    results.push(Err(error));
                }
                (Err(Trouble::Silence(error)), _) => {
                    in_a_row = 0;
                    suspects.add(request.iter().map(|message| &message.id));
                    results.extend(error.of_each(request.len()));
                }
                (Err(Trouble::Told(error)), _) => {
                    in_a_row = 0;
                    results.extend(error.of_each(request.len()));
                }
            }
        }
        for at in silent {
            if suspects.is_to_blame(&messages[at]) {
                results[at] = Err(PublishError::retryable(format!(
                    "{} did not acknowledge a body of {} bytes within {:?}, while others have got through; raise ack_timeout, or \
                     send less",
                    self.shown(),
                    messages[at].body.len(),
                    self.0.options.ack_timeout
                )));
            }
        }
        results
    }

    /// Sends one request, and gives a result for each of its messages.
    async fn request(&self, messages: &[Message]) -> Result<Vec<Result<(), PublishError>>, Trouble> {
        let connection = self.connection().await.map_err(|error| Trouble::Told(error.into_outage()))?;
        let mut pipeline = Pipeline::with_capacity(messages.len());
        for message in messages {
            self.add(&mut pipeline, message);
        }
        let answer: RedisResult<Vec<RedisResult<Option<String>>>> =
            pipeline.ignore_errors().query_async(&mut MultiplexedConnection::clone(&connection)).await;
        let answers = match answer {
            Ok(answers) if answers.len() == messages.len() => answers,
            Ok(answers) => {
                self.0.connection.leave(&connection).await;
                let reason = format!("{} answers for {} entries", answers.len(), messages.len());
                return Err(Trouble::Told(PublishError::outage(reason)));
            }
            Err(error) => {
                self.0.connection.leave(&connection).await;
                if let [message] = messages
                    && is_large(message)
                    && !error.is_timeout()
                    && self.check().await.is_ok()
                {
                    return Ok(vec![Err(PublishError::retryable(format!(
                        "{} ended the connection over a body of {} bytes; raise its proto-max-bulk-len, or send less",
                        self.shown(),
                        message.body.len()
                    )))]);
                }
                let away = PublishError::outage(format!("{} did not acknowledge: {error}", self.shown()));
                return Err(if error.is_timeout() { Trouble::Silence(away) } else { Trouble::Told(away) });
            }
        };
        // Behind this the server hangs up.
        let hangs_up = answers.iter().any(|answer| answer.as_ref().is_err_and(is_of_the_protocol));
        let results: Vec<_> = messages.iter().zip(answers).map(|(message, answer)| judged(message, answer)).collect();
        // Behind the same address may be another server by now.
        if hangs_up || results.iter().any(|result| result.as_ref().is_err_and(PublishError::is_outage)) {
            self.0.connection.leave(&connection).await;
        }
        Ok(results)
    }

    fn add(&self, pipeline: &mut Pipeline, message: &Message) {
        let command = pipeline.cmd("XADD").arg(message.to.as_str());
        if !self.0.options.create_streams {
            command.arg("NOMKSTREAM");
        }
        if let Some(entries) = self.0.options.max_len {
            command.arg("MAXLEN").arg("~").arg(entries);
        }
        command.arg("*");
        if !message.headers.iter().any(|(name, _)| name == "event-id") {
            command.arg("event-id").arg(message.id.as_str());
        }
        for (name, value) in message.headers.iter().filter(|(name, _)| *name != "content-type" && *name != "payload") {
            command.arg(name).arg(value);
        }
        command.arg("content-type").arg(message.content_type.as_ref()).arg("payload").arg(&message.body[..]);
    }
}

/// Whether a server may end the connection over it, so that it goes alone.
fn is_large(message: &Message) -> bool {
    message.body.len() > EVERYWHERE || message.headers.iter().any(|(_, value)| value.len() > EVERYWHERE)
}

/// Cuts a batch into requests of about [`REQUEST`] bytes, and those that go alone into one each.
fn requests(messages: &[Message], alone: impl Fn(&Message) -> bool) -> impl Iterator<Item = &[Message]> {
    let mut rest = messages;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let before = |message: &&Message| {
            let alone = alone(message);
            let fits = bytes == 0 || (bytes < REQUEST && !alone);
            bytes += if alone { REQUEST } else { message.body.len() + 256 };
            fits
        };
        let (request, behind) = rest.split_at(rest.iter().take_while(before).count());
        rest = behind;
        (!request.is_empty()).then_some(request)
    })
}

#[cfg(test)]
mod tests {
    use posthaste_core::EventId;

    use super::*;

    fn message(bytes: usize) -> Message {
        let id = EventId::new("id").unwrap();
        let body = vec![b'x'; bytes].into();
        let headers = crate::Headers::default();
        Message { id, to: "s".into(), key: None, content_type: "text/plain".into(), headers, body }
    }

    #[test]
    fn requests_are_cut_by_size_and_nothing_is_left_out() {
        let sizes = |sizes: &[usize]| {
            let messages: Vec<_> = sizes.iter().map(|size| message(*size)).collect();
            requests(&messages, is_large).map(<[Message]>::len).collect::<Vec<_>>()
        };
        assert_eq!(sizes(&[]), [0; 0]);
        assert_eq!(sizes(&[10; 500]), [500]);
        assert_eq!(sizes(&[REQUEST; 3]), [1, 1, 1]);
        assert_eq!(sizes(&[REQUEST / 2, REQUEST / 2, 10, 10]), [2, 2]);
        assert_eq!(sizes(&[10, 10, EVERYWHERE + 1, 10, EVERYWHERE + 1, EVERYWHERE + 1]), [2, 1, 1, 1, 1]);
    }
}
