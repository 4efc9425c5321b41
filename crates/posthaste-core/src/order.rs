//! Which events are delivered in order, and what holds when one of them cannot be delivered.

use std::collections::BTreeSet;

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

impl Ordered {
    /// The same text for the same events, which all relays of an outbox must have.
    pub(crate) fn settings(&self) -> String {
        match self {
            Self::All => "all".to_owned(),
            Self::None => "none".to_owned(),
            Self::Types(types) => {
                let types: BTreeSet<_> = types.iter().collect();
                let listed = serde_json::json!(types).to_string();
                // A column has its bounds.
                if listed.len() <= LONGEST_LIST {
                    return listed;
                }
                let hash = listed.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                    (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
                });
                format!("{} types, {hash:016x}", types.len())
            }
        }
    }

    /// What is in order by the [settings](crate::store::RelayOfLanes::settings) of a relay; nothing if they do not say.
    pub fn of_settings(settings: &str) -> Option<Self> {
        match settings {
            "all" => Some(Self::All),
            "none" => Some(Self::None),
            types => serde_json::from_str(types).ok().map(Self::Types),
        }
    }
}

/// The longest list of types that is written down.
const LONGEST_LIST: usize = 2000;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_equal_where_the_same_is_in_order() {
        let settings = |types: &[&str]| Ordered::types(types.iter().copied()).settings();
        assert_eq!(settings(&["B", "A", "B"]), settings(&["A", "B"]));
        assert_eq!(settings(&["A", "B"]), r#"["A","B"]"#);
        assert_ne!(settings(&["A, B"]), settings(&["A", "B"]));
        assert_ne!(Ordered::All.settings(), Ordered::None.settings());
        let many = |last: usize| (0..last).map(|number| format!("Type{number}")).collect::<Vec<_>>();
        let (some, more) = (Ordered::types(many(1000)).settings(), Ordered::types(many(1001)).settings());
        assert_ne!(some, more);
        assert!(some.len() < 100, "{some}");
    }

    #[test]
    fn settings_are_read_back_unless_they_are_too_many() {
        for ordered in [Ordered::All, Ordered::None, Ordered::types(["Order", "a \"b\", c"])] {
            assert_eq!(Ordered::of_settings(&ordered.settings()), Some(ordered));
        }
        let many = Ordered::types((0..1000).map(|number| format!("Type{number}"))).settings();
        for other in ["", "{}", "7", "nothing", &many] {
            assert_eq!(Ordered::of_settings(other), None, "{other}");
        }
    }
}
