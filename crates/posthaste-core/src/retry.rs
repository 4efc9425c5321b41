//! When to try again.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// When a failed event is tried again, and after how many attempts it is DEAD.
///
/// The default doubles from 200 ms to 60 s, spread by a random factor between 0.5 and 1.5, and gives up at the tenth
/// failure.
///
/// ```
/// # extern crate posthaste_core as posthaste;
/// use std::time::Duration;
/// use posthaste::RetryPolicy;
///
/// let patient = RetryPolicy::exponential(Duration::from_secs(1), Duration::from_secs(3600)).max_attempts(30);
/// let brisk = RetryPolicy::fixed([100, 200, 400, 800, 1600].map(Duration::from_millis));
/// assert_eq!(brisk.attempts(), 6);
/// # let _ = patient;
/// ```
#[derive(Clone)]
pub struct RetryPolicy {
    schedule: Schedule,
    max_attempts: u32,
}

#[derive(Clone)]
enum Schedule {
    Exponential { base: Duration, max: Duration },
    Fixed(Arc<[Duration]>),
    Custom(Arc<dyn Fn(u32) -> Duration + Send + Sync>),
}

impl RetryPolicy {
    /// The first delay of the default policy.
    pub const BASE: Duration = Duration::from_millis(200);
    /// The longest delay of the default policy.
    pub const MAX: Duration = Duration::from_secs(60);
    /// The attempts of the default policy.
    pub const ATTEMPTS: u32 = 10;

    /// Doubles the delay from `base` up to `max`, times a random factor in [0.5, 1.5), never over `max`.
    pub fn exponential(base: Duration, max: Duration) -> Self {
        Self { schedule: Schedule::Exponential { base, max }, max_attempts: Self::ATTEMPTS }
    }

    /// Waits exactly these delays, one after each failure, and gives up at the failure after the last of them.
    ///
    /// With a higher [`max_attempts`](Self::max_attempts) the last delay repeats; with a lower one the rest is not used.
    pub fn fixed(delays: impl IntoIterator<Item = Duration>) -> Self {
        let delays: Arc<[Duration]> = delays.into_iter().collect();
        let attempts = u32::try_from(delays.len()).unwrap_or(u32::MAX).saturating_add(1);
        Self { schedule: Schedule::Fixed(delays), max_attempts: attempts }
    }

    /// Asks a function for the delay after the k-th failure; k starts at 1.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use std::time::Duration;
    ///
    /// use posthaste::RetryPolicy;
    /// use posthaste::retry::Jitter;
    ///
    /// let longer_each_time = RetryPolicy::custom(|failures| Duration::from_secs(60) * failures).max_attempts(5);
    /// assert_eq!(longer_each_time.next_delay(2, &Jitter::default()), Some(Duration::from_secs(120)));
    /// assert_eq!(longer_each_time.next_delay(5, &Jitter::default()), None);
    /// ```
    pub fn custom(delay: impl Fn(u32) -> Duration + Send + Sync + 'static) -> Self {
        Self { schedule: Schedule::Custom(Arc::new(delay)), max_attempts: Self::ATTEMPTS }
    }

    /// Makes the first failure the last: the event is DEAD at once.
    ///
    /// ```
    /// # extern crate posthaste_core as posthaste;
    /// use posthaste::RetryPolicy;
    ///
    /// assert_eq!(RetryPolicy::never().attempts(), 1);
    /// ```
    pub fn never() -> Self {
        Self::fixed([])
    }

    /// Sets at which failure the event is DEAD. 1 means no second attempt; 0 counts as 1.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts.max(1);
        self
    }

    /// At which failure the event is DEAD.
    pub fn attempts(&self) -> u32 {
        self.max_attempts
    }

    /// How long to wait after the `failures`-th failure, or nothing if that was the last.
    pub fn next_delay(&self, failures: u32, jitter: &Jitter) -> Option<Duration> {
        (failures < self.max_attempts).then(|| self.delay(failures, jitter))
    }

    /// How long the schedule waits after the `failures`-th failure, whether or not there is another attempt.
    pub fn delay(&self, failures: u32, jitter: &Jitter) -> Duration {
        let failures = failures.max(1);
        match &self.schedule {
            Schedule::Exponential { base, max } => {
                // 2^63 times anything over zero is over every limit, and larger shifts would overflow.
                let doublings = (failures - 1).min(63);
                let micros = base.as_micros().saturating_mul(1 << doublings).min(max.as_micros());
                let micros = u64::try_from(micros).unwrap_or(u64::MAX);
                Duration::from_micros(micros).mul_f64(jitter.factor()).min(*max)
            }
            Schedule::Fixed(delays) => {
                let index = usize::try_from(failures - 1).unwrap_or(usize::MAX);
                delays.get(index).or(delays.last()).copied().unwrap_or_default()
            }
            Schedule::Custom(delay) => delay(failures),
        }
    }
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self::exponential(Self::BASE, Self::MAX)
    }
}

impl fmt::Debug for RetryPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.schedule {
            Schedule::Exponential { base, max } => write!(f, "exponential from {base:?} to {max:?}")?,
            Schedule::Fixed(delays) => write!(f, "fixed {delays:?}")?,
            Schedule::Custom(_) => write!(f, "custom")?,
        }
        write!(f, ", {} attempts", self.max_attempts)
    }
}

/// The randomness that spreads retries, passed in so that a test can repeat it.
#[derive(Clone, Debug)]
pub struct Jitter(Option<Arc<Mutex<fastrand::Rng>>>);

impl Jitter {
    /// The same spread every time.
    pub fn seeded(seed: u64) -> Self {
        Self(Some(Arc::new(Mutex::new(fastrand::Rng::with_seed(seed)))))
    }

    /// No spread: a test can tell to the microsecond when something is tried again. Programs would all try at once.
    pub fn none() -> Self {
        Self(None)
    }

    /// A factor in [0.5, 1.5).
    pub fn factor(&self) -> f64 {
        self.0.as_ref().map_or(1.0, |rng| 0.5 + rng.lock().unwrap_or_else(PoisonError::into_inner).f64())
    }
}

impl Default for Jitter {
    fn default() -> Self {
        Self(Some(Arc::new(Mutex::new(fastrand::Rng::new()))))
    }
}
