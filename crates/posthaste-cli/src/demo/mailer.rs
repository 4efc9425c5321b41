//! The listener: sends the customer of every order a mail. Only that it sends none, but keeps a record.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use posthaste::{Delivery, Failure, Listener, Outcome, Verdict};
use tokio::sync::watch;

use super::plan::{OrderId, Plan};

/// Sends a mail for every order that was placed; at times it fails, and once it hangs.
pub(super) struct Mailer {
    plan: Arc<Plan>,
    outgoing: Arc<Outgoing>,
    server: Arc<Server>,
}

/// The mail server behind one mailer. Gone when the last task of the mailer's dispatcher is.
#[derive(Default)]
pub(super) struct Server {
    hangs: watch::Sender<bool>,
}

/// Everything that was ever handed to a mailer, by order.
#[derive(Default)]
pub(super) struct Outgoing(Mutex<BTreeMap<OrderId, Mails>>);

/// What a mailer knows of one order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mails {
    /// How often it was called.
    pub(super) calls: u32,
    /// How many mails went out.
    pub(super) sent: u32,
}

impl Mailer {
    /// A mailer with a server of its own. The handle to the server also tells whether its dispatcher still lives.
    pub(super) fn new(plan: &Arc<Plan>, outgoing: &Arc<Outgoing>) -> (Self, Weak<Server>) {
        let server = Arc::new(Server::default());
        let handle = Arc::downgrade(&server);
        (Self { plan: Arc::clone(plan), outgoing: Arc::clone(outgoing), server }, handle)
    }
}

impl Listener for Mailer {
    async fn on_event(&self, event: &Delivery) -> Verdict {
        let order = order_of(event.aggregate_id()).ok_or_else(|| Failure::undecodable("no order number"))?;
        self.outgoing.note(order, |mails| mails.calls += 1);
        if order == self.plan.poison() {
            return Err(Failure::permanent("the customer has no address"));
        }
        if self.plan.fails(order, event.attempt()) {
            return Err(Failure::retryable("the mail server is out of breath"));
        }
        self.outgoing.note(order, |mails| mails.sent += 1);
        // The mail is out. If the answer never comes it goes out again: that is what at least once means.
        self.server.answer().await;
        Ok(Outcome::Done)
    }
}

impl Server {
    /// From here on mails go out, but nobody hears of it.
    pub(super) fn hang(&self) {
        self.hangs.send_replace(true);
    }

    /// Ends that.
    pub(super) fn recover(&self) {
        self.hangs.send_replace(false);
    }

    async fn answer(&self) {
        // An error would mean that the server is gone, and we hold it.
        let _ = self.hangs.subscribe().wait_for(|hangs| !hangs).await;
    }
}

impl Outgoing {
    pub(super) fn all(&self) -> BTreeMap<OrderId, Mails> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, order: OrderId, change: impl FnOnce(&mut Mails)) {
        change(self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(order).or_default());
    }
}

/// The order that an event is about.
pub(super) fn order_of(aggregate_id: Option<&str>) -> Option<OrderId> {
    aggregate_id?.parse().ok()
}
