//! A listener that tells what it receives.

use std::sync::Arc;

use posthaste_core::listener::{Delivery, Listener, Outcome, Path, Verdict};
use tokio::sync::mpsc;

use crate::wait::{Gate, within};

type Answer = dyn Fn(&Delivery) -> Verdict + Send + Sync;

/// A listener that shows each delivery to an [`Inbox`], waits at its gate if it has one, and answers.
#[derive(Clone)]
pub struct Tap {
    inbox: mpsc::UnboundedSender<Delivery>,
    gate: Option<Gate>,
    answer: Arc<Answer>,
}

/// What a [`Tap`] received, in order.
pub struct Inbox(mpsc::UnboundedReceiver<Delivery>);

impl Tap {
    /// A listener that is done with everything at once.
    pub fn new() -> (Self, Inbox) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self { inbox: sender, gate: None, answer: Arc::new(|_| Ok(Outcome::Done)) }, Inbox(receiver))
    }

    /// Answers like this.
    #[must_use]
    pub fn answering(mut self, answer: impl Fn(&Delivery) -> Verdict + Send + Sync + 'static) -> Self {
        self.answer = Arc::new(answer);
        self
    }

    /// Waits at this gate before it answers.
    #[must_use]
    pub fn behind(mut self, gate: &Gate) -> Self {
        self.gate = Some(gate.clone());
        self
    }
}

impl Listener for Tap {
    async fn on_event(&self, event: &Delivery) -> Verdict {
        // A case that has ended does not look any more.
        let _ = self.inbox.send(event.clone());
        if let Some(gate) = &self.gate {
            gate.pass().await;
        }
        (self.answer)(event)
    }
}

impl Inbox {
    /// The next delivery.
    pub async fn next(&mut self) -> Delivery {
        within("an event is delivered", self.0.recv()).await.expect("its listener is gone")
    }

    /// The id of the next delivery, and the way it came.
    pub async fn arrival(&mut self) -> (String, Path) {
        let delivery = self.next().await;
        (delivery.id().to_string(), delivery.path())
    }

    /// The ids of the next deliveries.
    pub async fn ids(&mut self, count: usize) -> Vec<String> {
        let mut ids = Vec::with_capacity(count);
        for _ in 0..count {
            ids.push(self.next().await.id().to_string());
        }
        ids
    }

    /// What has been delivered by now and was not looked at.
    pub fn rest(&mut self) -> Vec<Delivery> {
        std::iter::from_fn(|| self.0.try_recv().ok()).collect()
    }

    /// Waits until nobody can deliver anything any more; fails if somebody did.
    pub async fn closed(&mut self) {
        let last = self.0.recv().await;
        assert!(last.is_none(), "delivered as well: {last:?}");
    }

    /// Fails if anything was delivered that was not looked at.
    pub fn assert_empty(&mut self) {
        let rest = self.rest();
        assert!(rest.is_empty(), "delivered as well: {rest:?}");
    }
}
