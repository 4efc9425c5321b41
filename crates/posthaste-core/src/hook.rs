//! What happens around the commit of a transaction that wrote events.

use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tracing::error;

use crate::store::NewRow;

/// What a hook may fail with. It is logged and goes no further.
pub type HookError = Box<dyn Error + Send + Sync>;

/// Takes part in writing: before the insert, and after the end of the transaction.
///
/// The dispatcher's hot path is one of these hooks. Without any, nothing happens after a commit: that is the writer for
/// change data capture. Hooks run on the task that writes or commits, so they should be quick; a hook that fails or
/// panics is logged, does not reach that task, and does not keep the other hooks from running.
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// use posthaste::hook::HookError;
/// use posthaste::store::NewRow;
/// use posthaste::{Delivery, Event, MemoryStore, Outbox, WriteHook};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// /// Gives every event the region it was written in.
/// struct Region(&'static str);
///
/// impl WriteHook for Region {
///     fn before_write(&self, rows: &mut Vec<NewRow>) -> Result<(), HookError> {
///         for row in rows {
///             row.event = row.event.to_builder().header("region", self.0).build()?;
///         }
///         Ok(())
///     }
///
///     fn after_commit(&self, rows: &[NewRow]) -> Result<(), HookError> {
///         println!("{} events committed", rows.len());
///         Ok(())
///     }
/// }
///
/// let outbox = Outbox::builder(MemoryStore::new())
///     .hook(Region("eu-1"))
///     .listen_all(|event: Delivery| async move { assert_eq!(event.header("region"), Some("eu-1")) })
///     .start()
///     .await?;
/// let mut tx = outbox.begin().await?;
/// tx.write(Event::of_json("OrderPlaced", "{}")).await?;
/// tx.commit().await?;
/// outbox.shutdown().await;
/// assert_eq!(outbox.admin().counts().await?.done, 1);
/// # Ok(())
/// # }
/// ```
#[expect(unused_variables, reason = "the empty bodies use nothing, and the names document the arguments")]
pub trait WriteHook: Send + Sync + 'static {
    /// Before the insert: may change events, add them, or take them away. When none is left, nothing is written.
    ///
    /// # Errors
    /// What it fails with is logged, and the events are written as they were before this hook.
    fn before_write(&self, rows: &mut Vec<NewRow>) -> Result<(), HookError> {
        Ok(())
    }

    /// After the commit: once per transaction, with all its events in the order in which they were written.
    ///
    /// # Errors
    /// What it fails with is logged.
    fn after_commit(&self, rows: &[NewRow]) -> Result<(), HookError> {
        Ok(())
    }

    /// After a rollback, a dropped transaction or a commit that failed: once per transaction.
    ///
    /// # Errors
    /// What it fails with is logged.
    fn after_rollback(&self, rows: &[NewRow]) -> Result<(), HookError> {
        Ok(())
    }

    /// When nobody will ever say whether it was committed: the connection was lost in the commit, or the receipt of
    /// somebody else's transaction was dropped. Also after a commit, for rows that a statement of the user's may have undone
    /// where nobody could look: in a SERIALIZABLE transaction of PostgreSQL, or without SELECT on the table.
    ///
    /// # Errors
    /// What it fails with is logged.
    fn after_unknown(&self, rows: &[NewRow]) -> Result<(), HookError> {
        Ok(())
    }
}

impl<H: WriteHook + ?Sized> WriteHook for Arc<H> {
    fn before_write(&self, rows: &mut Vec<NewRow>) -> Result<(), HookError> {
        (**self).before_write(rows)
    }

    fn after_commit(&self, rows: &[NewRow]) -> Result<(), HookError> {
        (**self).after_commit(rows)
    }

    fn after_rollback(&self, rows: &[NewRow]) -> Result<(), HookError> {
        (**self).after_rollback(rows)
    }

    fn after_unknown(&self, rows: &[NewRow]) -> Result<(), HookError> {
        (**self).after_unknown(rows)
    }
}

/// All hooks of an outbox, in the order in which they were added.
#[derive(Clone, Default)]
pub(crate) struct Hooks(Vec<Arc<dyn WriteHook>>);

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Committed,
    RolledBack,
    Unknown,
}

impl Hooks {
    pub(crate) fn push(&mut self, hook: Arc<dyn WriteHook>) {
        self.0.push(hook);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn before_write(&self, mut rows: Vec<NewRow>) -> Vec<NewRow> {
        for hook in &self.0 {
            let mut changed = rows.clone();
            if contained("before_write", || hook.before_write(&mut changed)) {
                rows = changed;
            }
        }
        rows
    }

    pub(crate) fn after(&self, ending: Ending, rows: &[NewRow]) {
        if rows.is_empty() {
            return;
        }
        for hook in &self.0 {
            match ending {
                Ending::Committed => contained("after_commit", || hook.after_commit(rows)),
                Ending::RolledBack => contained("after_rollback", || hook.after_rollback(rows)),
                Ending::Unknown => contained("after_unknown", || hook.after_unknown(rows)),
            };
        }
    }
}

/// Runs a hook and says whether it succeeded; whatever it does ends here.
fn contained(step: &'static str, hook: impl FnOnce() -> Result<(), HookError>) -> bool {
    match catch_unwind(AssertUnwindSafe(hook)) {
        Ok(Ok(())) => true,
        Ok(Err(reason)) => {
            error!(step, error = %reason, "hook failed");
            false
        }
        Err(panic) => {
            error!(step, panic = panic_text(&*panic), "hook panicked");
            false
        }
    }
}

/// What a panic said.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a text")
}
