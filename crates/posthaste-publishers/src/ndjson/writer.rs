//! The thread that writes to the sink.

use std::io;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::sink::Sink;

/// How much longer an answer is waited for than for a lock, so that it is known that it was the lock.
const LATER: Duration = Duration::from_millis(500);

/// The thread that writes. One that waits for a reader for ever holds up nobody else, not even the end of the program.
#[derive(Clone)]
pub(super) struct Writer {
    jobs: mpsc::Sender<Job>,
}

impl Writer {
    /// Opens the sink on the new thread, and writes there until nobody asks any more.
    pub(super) fn start(open: impl FnOnce() -> Option<Sink> + Send + 'static) -> Self {
        let (jobs, next) = mpsc::channel::<Job>();
        let write = move || {
            let Some(mut sink) = open() else { return };
            for job in next {
                job(&mut sink);
            }
        };
        // Without a thread there is nobody to ask, which is said to who does.
        let _ = std::thread::Builder::new().name("posthaste-lines".to_owned()).spawn(write);
        Self { jobs }
    }

    /// Has something done with the sink, if its turn comes in time.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        limit: Duration,
        job: impl FnOnce(&mut Sink, Instant) -> T + Send + 'static,
    ) -> io::Result<T> {
        let (answer, answered) = oneshot::channel();
        let until = Instant::now() + limit;
        let job = move |sink: &mut Sink| {
            // Nobody waits for it any more.
            if Instant::now() < until {
                let _ = answer.send(job(sink, until));
            }
        };
        self.jobs.send(Box::new(job)).map_err(|_| io::Error::other("its thread has ended"))?;
        match tokio::time::timeout(limit + LATER, answered).await {
            Ok(answer) => answer.map_err(|_| io::Error::other("its turn came too late, or its thread has ended")),
            Err(_) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("nobody has taken what was written, for {limit:?}"),
            )),
        }
    }
}

/// Something to do with the sink.
type Job = Box<dyn FnOnce(&mut Sink) + Send>;
