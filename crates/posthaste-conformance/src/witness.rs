//! A hook that tells what it was told.

use std::sync::{Arc, Mutex};

use posthaste_core::hook::HookError;
use posthaste_core::store::NewRow;
use posthaste_core::{Event, WriteHook};

use crate::rows::ids_of;

/// What a [`Witness`] was told: the step (`commit`, `rollback` or `unknown`), and the ids.
pub type Told = (&'static str, Vec<String>);

/// A hook that remembers what it was told. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Witness(Arc<Mutex<Vec<Told>>>);

impl Witness {
    fn note(&self, step: &'static str, rows: &[NewRow]) -> Result<(), HookError> {
        let ids = rows.iter().map(|row| row.event.id().to_string()).collect();
        self.0.lock().unwrap().push((step, ids));
        Ok(())
    }

    /// What it was told since it was asked last.
    pub fn told(&self) -> Vec<Told> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl WriteHook for Witness {
    fn after_commit(&self, rows: &[NewRow]) -> Result<(), HookError> {
        self.note("commit", rows)
    }

    fn after_rollback(&self, rows: &[NewRow]) -> Result<(), HookError> {
        self.note("rollback", rows)
    }

    fn after_unknown(&self, rows: &[NewRow]) -> Result<(), HookError> {
        self.note("unknown", rows)
    }
}

/// What it is told of these events.
pub fn told(step: &'static str, events: &[Event]) -> Told {
    (step, ids_of(events))
}
