//! What follows a write, once its transaction has ended: the same for our transactions and for receipts.

use std::sync::Arc;

use tokio_util::task::TaskTracker;

use crate::dispatcher::{Dispatcher, HotPath};
use crate::event::EventId;
use crate::hook::{Ending, Hooks, WriteHook};
use crate::lanes::LaneRelay;
use crate::signal::Signals;
use crate::store::NewRow;

/// The hooks around a write, the hot path being one of them.
pub(super) struct AfterWrite {
    hooks: Hooks,
    /// Last before the write, so that it leases what the others left; first after the commit, because it is waited for.
    hot: Option<(Arc<HotPath>, Arc<Dispatcher>)>,
    /// With lanes instead: nothing is born leased, and what was committed is read at once.
    lanes: Option<Arc<LaneRelay>>,
    /// For what this process leaves to others.
    signals: Option<Arc<Signals>>,
    tasks: TaskTracker,
}

impl AfterWrite {
    pub(super) fn new(
        hooks: Hooks,
        dispatcher: Option<Arc<Dispatcher>>,
        signals: Option<Arc<Signals>>,
        tasks: TaskTracker,
    ) -> Self {
        let hot = dispatcher.map(|dispatcher| (Arc::clone(dispatcher.hot()), dispatcher));
        Self { hooks, hot, lanes: None, signals, tasks }
    }

    pub(super) fn of_lanes(
        hooks: Hooks,
        lanes: Arc<LaneRelay>,
        signals: Option<Arc<Signals>>,
        tasks: TaskTracker,
    ) -> Self {
        Self { hooks, hot: None, lanes: Some(lanes), signals, tasks }
    }

    /// Rows are in the table, or may be: this process reads them at once, or others are told.
    fn tell(&self, rows: &[NewRow]) {
        let for_others = self.lanes.as_ref().is_none_or(|lanes| lanes.committed(rows));
        if let Some(signals) = &self.signals
            && for_others
        {
            signals.committed(rows);
        }
    }

    /// What is to be inserted, after the hooks have had their say.
    pub(super) fn prepare(&self, rows: Vec<NewRow>) -> Vec<NewRow> {
        let mut rows = self.hooks.before_write(rows);
        if let Some((hot, _)) = &self.hot {
            hot.before_write(&mut rows).expect("the hot path does not fail");
        } else if self.lanes.is_some() {
            rows.iter_mut().for_each(|row| row.lease = None);
        }
        rows
    }

    /// The events whose absence from a transaction somebody would have to know of, the first of each insert. If there is no hook,
    /// and nothing is delivered but from the table, nobody.
    pub(super) fn to_look_for(&self, rows: &[NewRow], inserts: &[usize]) -> Vec<EventId> {
        let hot = self.hot.is_some() && rows.iter().any(|row| row.lease.is_some());
        if !hot && self.hooks.is_empty() {
            return Vec::new();
        }
        inserts.iter().filter_map(|first| rows.get(*first)).map(|row| row.event.id().clone()).collect()
    }

    /// The same for what is written in a savepoint: no place is promised, and no lease taken.
    pub(super) fn prepare_nested(&self, rows: Vec<NewRow>) -> Vec<NewRow> {
        let mut rows = self.hooks.before_write(rows);
        rows.iter_mut().for_each(|row| row.lease = None);
        rows
    }

    /// A transaction has committed in which these rows were written in a savepoint: they are in the table by now, or never.
    pub(super) fn committed_nested(&self, rows: &[NewRow]) {
        if let Some((hot, dispatcher)) = &self.hot {
            hot.after_nested(rows);
            if hot.is_closed() {
                self.give_back_after_close(Arc::clone(dispatcher));
            }
        }
        self.tell(rows);
        self.hooks.after(Ending::Unknown, rows);
    }

    /// The insert was refused: nothing of these rows is in the transaction.
    pub(super) fn never_written(&self, rows: &[NewRow]) {
        if let Some((hot, _)) = &self.hot {
            hot.cancel(rows);
        }
    }

    /// The insert was cut off: if the transaction commits, these rows may be in it.
    pub(super) fn cut_off(&self, rows: &[NewRow]) {
        if let Some((hot, _)) = &self.hot {
            hot.after_unknown(rows).expect("the hot path does not fail");
        } else if let Some(lanes) = &self.lanes {
            lanes.committed(rows);
        }
    }

    /// The transaction has ended.
    pub(super) fn ended(&self, ending: Ending, rows: &[NewRow]) {
        if ending == Ending::Committed {
            kill_point!("commit.after");
        }
        if let Some((hot, dispatcher)) = &self.hot {
            let told = match ending {
                Ending::Committed => hot.after_commit(rows),
                Ending::RolledBack => hot.after_rollback(rows),
                Ending::Unknown => hot.after_unknown(rows),
            };
            told.expect("the hot path does not fail");
            if hot.is_closed() && ending != Ending::RolledBack {
                self.give_back_after_close(Arc::clone(dispatcher));
            }
        }
        if ending != Ending::RolledBack {
            self.tell(rows);
        }
        self.hooks.after(ending, rows);
    }

    /// The keeper of leases has gone with the dispatcher, so what was leased is given back from here.
    fn give_back_after_close(&self, dispatcher: Arc<Dispatcher>) {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            self.tasks.spawn_on(async move { dispatcher.give_back().await }, &runtime);
        }
    }
}
