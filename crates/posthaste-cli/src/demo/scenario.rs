//! What happens in the demo, from the first order to the last settlement.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::{Context as _, bail};
use posthaste::store::{AdminStore as _, Cursor, Filter, Order, Page, Record};
use posthaste::{Listener as _, Options, Outbox, RetryPolicy, SqliteStore, Status};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::figures::{Figures, Reporter};
use super::mailer::{Mailer, Outgoing, Server, order_of};
use super::plan::{Ending, OrderId, Plan};
use super::service::{Service, orders_from};
use super::units::{count, counted, length};
use super::verdict::History;
use super::view::View;

/// Tasks that place orders at the same time.
const WRITERS: usize = 4;

/// How long the mail server hangs before the dispatcher is killed, unless the dispatcher has its hands full sooner.
const HANG: Duration = Duration::from_millis(250);

/// How long is waited for at least one event to be in hand.
const LONGEST_HANG: Duration = Duration::from_secs(2);

/// For how long nothing may move before the demo stops waiting, and says so in its verdict.
const PATIENCE: Duration = Duration::from_secs(20);

/// Between two looks at something that tells nobody when it changes.
const GLANCE: Duration = Duration::from_millis(5);

/// Rows read at a time.
const PAGE: usize = 5000;

/// The demo under way.
pub(super) struct Scenario {
    plan: Arc<Plan>,
    store: SqliteStore,
    figures: Arc<Figures>,
    view: View,
    workers: usize,
    service: Arc<Service>,
    outgoing: Arc<Outgoing>,
    /// Of the dispatcher that runs at the moment.
    server: Weak<Server>,
    writers: JoinSet<anyhow::Result<()>>,
    placed: watch::Sender<u64>,
}

impl Scenario {
    pub(super) fn new(
        plan: &Arc<Plan>,
        store: SqliteStore,
        figures: &Arc<Figures>,
        view: &View,
        service: &Arc<Service>,
        workers: usize,
    ) -> Self {
        Self {
            plan: Arc::clone(plan),
            store,
            figures: Arc::clone(figures),
            view: view.clone(),
            workers,
            service: Arc::clone(service),
            outgoing: Arc::default(),
            server: Weak::new(),
            writers: JoinSet::new(),
            placed: watch::Sender::new(0),
        }
    }

    /// Plays it to its end, and gives what there is to be judged.
    pub(super) async fn play(&mut self) -> anyhow::Result<History> {
        let before = self.newest_row().await?;
        let earlier = self.left_by_earlier_run().await?;
        self.start_dispatcher().await?;
        self.start_writers();

        self.orders_placed(self.plan.events() / 2).await?;
        self.hang_mail_server().await?;
        let in_hand = self.kill_dispatcher(before).await?;
        self.replace_dispatcher(in_hand.len()).await?;

        self.orders_placed(self.plan.events()).await?;
        self.view.note("all orders are placed");
        self.nothing_pending().await?;
        self.shut_down().await;
        self.history(before, earlier, in_hand).await
    }

    /// Ends early, but in order.
    pub(super) async fn stop(&mut self) {
        self.writers.shutdown().await;
        if let Some(server) = self.server.upgrade() {
            server.recover();
        }
        self.shut_down().await;
    }

    /// How many events a run that was interrupted left in a kept database.
    async fn left_by_earlier_run(&self) -> anyhow::Result<u64> {
        let pending = self.store.counts().await?.pending();
        if pending > 0 {
            self.view.note(&format!("{} of an earlier run still to be delivered", counted(pending, "event")));
        }
        Ok(pending)
    }

    async fn start_dispatcher(&mut self) -> anyhow::Result<()> {
        let (mailer, server) = Mailer::new(&self.plan, &self.outgoing);
        let brisk = RetryPolicy::exponential(Duration::from_millis(50), Duration::from_millis(400));
        let outbox = Outbox::single_node(self.store.clone())
            .listen("Order", "OrderPlaced", mailer.with_retry(brisk))
            .options(Options { workers: self.workers, ..Options::default() })
            .metrics(Reporter(Arc::clone(&self.figures)))
            .start()
            .await?;
        self.server = server;
        self.service.attach(outbox);
        Ok(())
    }

    fn start_writers(&mut self) {
        let started_at = Instant::now();
        let next = Arc::new(AtomicU64::new(0));
        for _ in 0..WRITERS {
            let (plan, service, figures) =
                (Arc::clone(&self.plan), Arc::clone(&self.service), Arc::clone(&self.figures));
            let (next, placed) = (Arc::clone(&next), self.placed.clone());
            self.writers.spawn(async move {
                while let Some((order, due)) = plan.order(next.fetch_add(1, Ordering::Relaxed)) {
                    sleep_until(started_at + due).await;
                    service.place(&order).await?;
                    let counter = if order.ending == Ending::Commit { &figures.written } else { &figures.rolled_back };
                    counter.add(1);
                    placed.send_modify(|placed| *placed += 1);
                }
                Ok(())
            });
        }
    }

    /// Waits until that many orders are placed; fails when a writer does.
    async fn orders_placed(&mut self, wanted: u64) -> anyhow::Result<()> {
        let mut placed = self.placed.subscribe();
        loop {
            tokio::select! {
                reached = placed.wait_for(|placed| *placed >= wanted) => {
                    reached?;
                    return Ok(());
                }
                Some(ended) = self.writers.join_next() => ended??,
            }
        }
    }

    /// Lets the dispatcher run into trouble, so that it has something in hand when it dies.
    async fn hang_mail_server(&mut self) -> anyhow::Result<()> {
        self.server.upgrade().context("there is no dispatcher")?.hang();
        self.view.note("the mail server hangs: mails go out, answers do not come back");
        let enough = usize::try_from(self.plan.events() / 10).unwrap_or(usize::MAX).clamp(1, 500);
        let hung_at = Instant::now();
        loop {
            sleep(GLANCE).await;
            let (in_hand, hung) = (self.service.in_hand(), hung_at.elapsed());
            let no_more_to_come = *self.placed.borrow() == self.plan.events();
            if in_hand >= enough || hung >= LONGEST_HANG || hung >= HANG && (in_hand > 0 || no_more_to_come) {
                return Ok(());
            }
        }
    }

    /// Kills the dispatcher where it stands. Gives the orders whose events it had in hand, as the table tells.
    async fn kill_dispatcher(&mut self, before: Option<Cursor>) -> anyhow::Result<BTreeSet<OrderId>> {
        drop(self.service.detach());
        self.dispatcher_is_gone().await?;
        let pending = Filter { statuses: vec![Status::New, Status::Retry], ..Filter::default() };
        let leased = self.rows(&pending, before).await?.into_iter().filter(|row| row.state.lease.is_some());
        let in_hand = leased.map(|row| order_in(&row)).collect::<anyhow::Result<BTreeSet<_>>>()?;
        let mails = self.outgoing.all();
        let mailed = in_hand.iter().filter(|order| mails.get(order).is_some_and(|mails| mails.sent > 0)).count();
        self.view.alarm(&format!(
            "dispatcher killed with {} in hand ({} mailed, not yet DONE)",
            counted(in_hand.len() as u64, "event"),
            count(mailed as u64)
        ));
        Ok(in_hand)
    }

    /// The tasks of a dispatcher end a moment after its outbox is dropped, and transactions under way keep it alive.
    async fn dispatcher_is_gone(&self) -> anyhow::Result<()> {
        let dropped_at = Instant::now();
        while self.server.strong_count() > 0 {
            if dropped_at.elapsed() > PATIENCE {
                bail!("the dispatcher still lives {} after its outbox was dropped", length(dropped_at.elapsed()));
            }
            sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    async fn replace_dispatcher(&mut self, in_hand: usize) -> anyhow::Result<()> {
        let started_at = Instant::now();
        self.start_dispatcher().await?;
        let leases = counted(in_hand as u64, "lease");
        self.view.relief(&format!("new dispatcher took over {leases} in {}", length(started_at.elapsed())));
        Ok(())
    }

    async fn nothing_pending(&self) -> anyhow::Result<()> {
        let (mut least, mut moved_at) = (u64::MAX, Instant::now());
        loop {
            let pending = self.store.counts().await?.pending();
            if pending == 0 {
                self.view.relief("nothing is pending any more");
                return Ok(());
            }
            if pending < least {
                (least, moved_at) = (pending, Instant::now());
            }
            if moved_at.elapsed() > PATIENCE {
                let waited = length(PATIENCE);
                self.view.alarm(&format!("{} still pending, none moved for {waited}", counted(pending, "event")));
                return Ok(());
            }
            sleep(GLANCE).await;
        }
    }

    async fn shut_down(&self) {
        let Some(outbox) = self.service.detach() else { return };
        let closed = outbox.shutdown().await;
        if !closed.is_clean() {
            let given_back = (closed.released + closed.abandoned) as u64;
            self.view.note(&format!("{} given back undelivered", counted(given_back, "event")));
        }
    }

    /// What the tables and the mailer say.
    async fn history(
        &self,
        before: Option<Cursor>,
        earlier: u64,
        in_hand: BTreeSet<OrderId>,
    ) -> anyhow::Result<History> {
        let first = self.plan.first();
        let rows = self.rows(&Filter::default(), before).await?;
        Ok(History {
            committed: orders_from(&self.store, first).await?,
            rolled_back: self.plan.rolled_back().collect(),
            rows: rows.iter().map(|row| Ok((order_in(row)?, row.state.status))).collect::<anyhow::Result<_>>()?,
            pending: self.store.counts().await?.pending(),
            mails: self.outgoing.all().split_off(&first),
            poison: self.plan.poison(),
            earlier,
            in_hand,
        })
    }

    async fn newest_row(&self) -> anyhow::Result<Option<Cursor>> {
        let page = Page { limit: 1, order: Order::NewestFirst, ..Page::default() };
        Ok(self.store.list(&Filter::default(), &page).await?.first().map(Cursor::from))
    }

    /// The rows that fit, after that one.
    async fn rows(&self, filter: &Filter, mut after: Option<Cursor>) -> anyhow::Result<Vec<Record>> {
        let mut rows = Vec::new();
        loop {
            let page = Page { limit: PAGE, after, ..Page::default() };
            let found = self.store.list(filter, &page).await?;
            let Some(last) = found.last() else { return Ok(rows) };
            after = Some(Cursor::from(last));
            rows.extend(found);
        }
    }
}

/// The order that a row is about.
fn order_in(row: &Record) -> anyhow::Result<OrderId> {
    let event = row.event.as_ref().map_err(|reason| anyhow::anyhow!("row {} is no event: {reason}", row.id))?;
    order_of(event.aggregate_id()).with_context(|| format!("row {} is about no order", row.id))
}
