//! The primitives of the rooms that synchronise by hand.
//!
//! Outside of tests they are what they are called. In tests a scheduler may step in before each use of them, so that
//! [`explore`] can run the tasks of a test in many orders.

#[cfg(not(test))]
pub(crate) use std::sync::Mutex;
#[cfg(not(test))]
pub(crate) use tokio::sync::Notify;

#[cfg(test)]
pub(crate) use scheduled::{Mutex, Notify, explore};

#[cfg(test)]
mod scheduled {
    use std::cell::Cell;
    use std::sync::{LockResult, MutexGuard, TryLockError};

    use tokio::sync::futures::Notified;

    thread_local! {
        static EXPLORING: Cell<bool> = const { Cell::new(false) };
    }

    /// Lets another task go first, if the scheduler wants to.
    fn switch() {
        if EXPLORING.get() {
            shuttle::thread::yield_now();
        }
    }

    /// Runs a test many times, with its tasks in another order each time. A test whose tasks all wait fails.
    pub(crate) fn explore(test: impl Fn() + Send + Sync + 'static) {
        // Its clock, which stands still: what waits for a time waits for ever.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let entered = runtime.enter();
        EXPLORING.set(true);
        shuttle::check_random(test, 1000);
        EXPLORING.set(false);
        drop(entered);
    }

    /// Who finds it locked lets others go first: all tasks of an exploration share one thread.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(std::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
            while EXPLORING.get() {
                switch();
                match self.0.try_lock() {
                    Ok(guard) => return Ok(guard),
                    Err(TryLockError::Poisoned(poisoned)) => return Err(poisoned),
                    Err(TryLockError::WouldBlock) => {}
                }
            }
            self.0.lock()
        }
    }

    #[derive(Debug, Default)]
    pub(crate) struct Notify(tokio::sync::Notify);

    impl Notify {
        pub(crate) fn new() -> Self {
            Self::default()
        }

        pub(crate) fn notify_one(&self) {
            switch();
            self.0.notify_one();
        }

        pub(crate) fn notify_waiters(&self) {
            switch();
            self.0.notify_waiters();
        }

        pub(crate) fn notified(&self) -> Notified<'_> {
            switch();
            self.0.notified()
        }
    }
}
