//! Which events are delivered in order, and what holds when one of them cannot be delivered.

/// Which events are delivered in order: those of one aggregate, each after the one before it.
///
/// Given to [`OutboxBuilder::ordered`](crate::OutboxBuilder::ordered). Events of other types, and events without an aggregate id,
/// go in parallel with all others.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ordered {
    /// Those of all aggregates.
    All,
    /// Those of aggregates of these types.
    Types(Vec<String>),
    /// None. Rows are owned by lanes all the same, which writes each of them once instead of twice.
    None,
}

impl Ordered {
    /// Events of all aggregates.
    pub fn all() -> Self {
        Self::All
    }

    /// Events of aggregates of these types.
    pub fn types(types: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self::Types(types.into_iter().map(Into::into).collect())
    }

    /// Whether events of aggregates of this type are delivered in order.
    pub fn includes(&self, aggregate_type: &str) -> bool {
        match self {
            Self::All => true,
            Self::Types(types) => types.iter().any(|ordered| ordered == aggregate_type),
            Self::None => false,
        }
    }
}

/// What becomes of an aggregate in an outbox with [order](Ordered) when an event of it has used up its attempts, or will never
/// work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnDead {
    /// The event is DEAD, and nothing of its aggregate is delivered until an operator lets it go on:
    /// [`release_key`](crate::store::AdminStore::release_key) delivers it again, [`skip_head`](crate::store::AdminStore::skip_head)
    /// goes on behind it. The default.
    #[default]
    Park,
    /// It is tried again at the longest delay of its retry policy, until it works. Nothing is DEAD but a row that is no event.
    Block,
    /// The event is DEAD, and those behind it go on.
    Skip,
}
