//! What the options of connections have in common.

use std::time::Duration;

/// How long an answer may take, unless it is set.
pub(crate) fn five_seconds() -> Duration {
    Duration::from_secs(5)
}

/// The setters of every connection: what it is called, how long it may take, and when it is made.
macro_rules! connection_setters {
    (name: $name:literal, ack_timeout: $ack_timeout:literal, connect: $connect:literal) => {
        #[doc = concat!("Sets what it is called in logs and metrics. Default `", $name, "`.")]
        #[must_use]
        pub fn name(mut self, name: impl Into<String>) -> Self {
            self.name = name.into();
            self
        }

        #[doc = concat!("Sets how long ", $ack_timeout, ". Default 5 s.")]
        #[must_use]
        pub fn ack_timeout(mut self, timeout: Duration) -> Self {
            self.ack_timeout = timeout;
            self
        }

        /// Sets how long connecting to one server may take. Default 5 s.
        #[must_use]
        pub fn connect_timeout(mut self, timeout: Duration) -> Self {
            self.connect_timeout = timeout;
            self
        }

        #[doc = concat!(
                    "Whether to connect with the first batch only. A server that is away is then an outage and no error of [`",
                    $connect,
                    "`](super::",
                    $connect,
                    "). Default false: what is wrong is said at the start."
                )]
        #[must_use]
        pub fn lazy(mut self, lazy: bool) -> Self {
            self.lazy = lazy;
            self
        }
    };
}

pub(crate) use connection_setters;
