//! How durable it is what a destination acknowledges, as far as it can be asked.

/// A reason why a destination may lose what it has acknowledged, or may never acknowledge, and what to do about it.
///
/// For an operator who looks after a destination, not for the delivery: nothing here is asked while events are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Concern {
    /// What is the matter.
    pub what: String,
    /// What to do about it.
    pub fix: String,
    /// Whether it is a mistake. If not, somebody may have wanted it so.
    pub is_mistake: bool,
}

#[cfg(any(feature = "kafka", feature = "nats", feature = "rabbitmq", feature = "redis"))]
impl Concern {
    #[cfg(any(feature = "nats", feature = "rabbitmq", feature = "redis"))]
    pub(crate) fn mistake(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { what: what.into(), fix: fix.into(), is_mistake: true }
    }

    pub(crate) fn choice(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { what: what.into(), fix: fix.into(), is_mistake: false }
    }
}
