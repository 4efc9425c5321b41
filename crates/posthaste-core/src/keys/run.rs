//! A run: events of one key with a worker.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Held, Item, KeyId, Keys};

/// Events of one key, in their order, which only the worker that has it may begin. Dropped, those that are left go back to the
/// key, which goes on with whoever takes it next.
pub(crate) struct Run {
    keys: Arc<Keys>,
    id: KeyId,
    held: Arc<Held>,
    items: VecDeque<Item>,
    /// Its key waits for an outcome that is yet to be written.
    stopped: bool,
}

impl Run {
    pub(super) fn new(keys: Arc<Keys>, id: KeyId, held: Arc<Held>, items: VecDeque<Item>) -> Self {
        Self { keys, id, held, items, stopped: false }
    }

    pub(crate) fn id(&self) -> &KeyId {
        &self.id
    }

    pub(crate) fn held(&self) -> &Arc<Held> {
        &self.held
    }

    /// What is not over yet, the next one first.
    pub(crate) fn items(&self) -> &VecDeque<Item> {
        &self.items
    }

    /// Whether its next event may begin.
    pub(crate) fn goes_on(&self) -> bool {
        !self.stopped && !self.items.is_empty() && self.held.goes_on() && !self.keys.is_closed()
    }

    /// The next event was acknowledged; its outcome is on its way.
    pub(crate) fn pass(&mut self) -> Option<Item> {
        self.items.pop_front()
    }

    /// The next event was not acknowledged. The others go back to its key at once, which waits until the outcome is written: so
    /// hand it over after this.
    pub(crate) fn stop(&mut self) -> Option<Item> {
        let item = self.items.pop_front();
        self.stopped = true;
        self.give_back();
        item
    }

    fn give_back(&mut self) {
        let items = std::mem::take(&mut self.items);
        self.keys.back(&self.id, self.held.lease, items, self.stopped);
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if !self.stopped {
            self.give_back();
        }
    }
}
