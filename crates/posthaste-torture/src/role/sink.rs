//! A process that receives, writes down, and then answers.

use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use super::asked_to_end;
use crate::config::Config;
use crate::history::{Recorder, What};
use crate::wire::{Answer, Behaviour, Lines, Misdeeds, Parcel, Request, hash};

struct Sink {
    recorder: Recorder,
    state: Mutex<(Behaviour, Misdeeds, fastrand::Rng)>,
}

pub(super) async fn run(config: &Config) -> anyhow::Result<ExitCode> {
    let mut ended = asked_to_end()?;
    let recorder = config.recorder()?;
    let state = (Behaviour::default(), Misdeeds::default(), config.rng());
    let sink = Arc::new(Sink { recorder, state: Mutex::new(state) });
    let listener = TcpListener::bind(config.destination_at)
        .await
        .with_context(|| format!("listening at {}", config.destination_at))?;
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let sink = Arc::clone(&sink);
                let (stream, _) = accepted?;
                tokio::spawn(async move { sink.serve(stream).await });
            }
            _ = ended.recv() => return Ok(ExitCode::SUCCESS),
        }
    }
}

impl Sink {
    async fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        let mut lines = Lines::new(stream);
        while let Some(request) = lines.receive().await? {
            match request {
                Request::Take(parcels) => match self.take(parcels).await {
                    Some(answers) => lines.send(&answers).await?,
                    None => return Ok(()),
                },
                Request::Behave(behaviour) => lines.send(&self.behave(behaviour)).await?,
            }
        }
        Ok(())
    }

    /// What the misbehaviour so far has led to.
    fn behave(&self, behaviour: Behaviour) -> Misdeeds {
        let mut state = self.state.lock().expect("nobody panics here");
        state.0 = behaviour;
        state.1
    }

    /// Takes messages, or hangs up on them, having taken them.
    async fn take(&self, parcels: Vec<Parcel>) -> Option<Vec<Answer>> {
        let slow = Duration::from_millis(self.state.lock().expect("nobody panics here").0.slow_ms);
        if !slow.is_zero() {
            sleep(slow).await;
        }
        let mut state = self.state.lock().expect("nobody panics here");
        let (behaviour, misdeeds, rng) = &mut *state;
        misdeeds.slow += u64::from(!slow.is_zero());
        let mut notes = Vec::new();
        let mut answers = Vec::new();
        for Parcel { mut message, payload } in parcels {
            message.hash = hash(payload.as_bytes());
            let refused = rng.f64() < behaviour.refuse;
            misdeeds.refused += u64::from(refused);
            if refused || message.poison {
                answers.push(Answer::Refused);
                notes.push(What::Refused { id: message.id });
            } else {
                answers.push(Answer::Taken);
                notes.push(What::Received(message));
            }
        }
        // Before the answer: who was told that a message was taken finds it in the history.
        self.recorder.record_all(notes);
        if rng.f64() < behaviour.hang_up {
            misdeeds.hung_up += 1;
            return None;
        }
        Some(answers)
    }
}
