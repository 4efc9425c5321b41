//! What is to happen, all of it decided by the seed.

use std::time::Duration;

/// An order by its number, which is its key in the table `orders` and the aggregate id of its event.
pub(super) type OrderId = i64;

/// Of all transactions, the share that is rolled back.
const ROLLED_BACK: f64 = 0.05;

/// Of all deliveries, the share that fails and is tried again.
const FAILING: f64 = 0.02;

/// What is to happen. The same seed gives the same orders, the same rollbacks and the same failures.
pub(super) struct Plan {
    seed: u64,
    first: OrderId,
    events: u64,
    rate: u32,
    poison: OrderId,
}

/// An order to be placed.
pub(super) struct Order {
    pub(super) id: OrderId,
    pub(super) customer: &'static str,
    pub(super) total_cents: i64,
    pub(super) ending: Ending,
}

/// How the transaction of an order is meant to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Commit,
    /// Rolled back by a call.
    Rollback,
    /// Rolled back by dropping it, as an early return does.
    Drop,
}

/// What a random number is for, so that no two decisions share one.
#[derive(Clone, Copy)]
enum Roll {
    Poison = 1,
    Order = 2,
    Ending = 3,
    Failure = 4,
}

impl Plan {
    /// A plan for that many orders, numbered from `first` on.
    pub(super) fn new(seed: u64, first: OrderId, events: u64, rate: u32) -> Self {
        let mut plan = Self { seed, first, events, rate, poison: first };
        plan.poison = first + plan.dice(Roll::Poison, first, 0).i64(0..plan.placeable());
        plan
    }

    pub(super) fn seed(&self) -> u64 {
        self.seed
    }

    pub(super) fn events(&self) -> u64 {
        self.events
    }

    pub(super) fn first(&self) -> OrderId {
        self.first
    }

    /// The order whose event no listener can handle. Its transaction is never rolled back.
    pub(super) fn poison(&self) -> OrderId {
        self.poison
    }

    /// The order at that place, with the moment at which it is due, counted from the start.
    pub(super) fn order(&self, index: u64) -> Option<(Order, Duration)> {
        if index >= self.events {
            return None;
        }
        let id = self.first + i64::try_from(index).ok()?;
        let mut dice = self.dice(Roll::Order, id, 0);
        let customer = ["Ada", "Barbara", "Edsger", "Frances", "Grace", "Tony"][dice.usize(..6)];
        let order = Order { id, customer, total_cents: dice.i64(199..=49_999), ending: self.ending(id) };
        let due = if self.rate == 0 { 0.0 } else { index as f64 / f64::from(self.rate) };
        Some((order, Duration::from_secs_f64(due)))
    }

    /// The orders that are meant to be rolled back.
    pub(super) fn rolled_back(&self) -> impl Iterator<Item = OrderId> {
        (self.first..self.first + self.placeable()).filter(|id| self.ending(*id) != Ending::Commit)
    }

    /// Whether that attempt to deliver the order's event fails.
    pub(super) fn fails(&self, id: OrderId, attempt: u32) -> bool {
        self.dice(Roll::Failure, id, attempt).f64() < FAILING
    }

    fn ending(&self, id: OrderId) -> Ending {
        let mut dice = self.dice(Roll::Ending, id, 0);
        if id == self.poison || dice.f64() >= ROLLED_BACK {
            Ending::Commit
        } else if dice.bool() {
            Ending::Rollback
        } else {
            Ending::Drop
        }
    }

    fn placeable(&self) -> i64 {
        i64::try_from(self.events).unwrap_or(i64::MAX)
    }

    /// Randomness of its own for every decision, so that no decision depends on which task came first. Orders count
    /// from the start of the plan, so that a second run on a kept database repeats the first.
    fn dice(&self, roll: Roll, id: OrderId, attempt: u32) -> fastrand::Rng {
        let place = (id - self.first).unsigned_abs();
        let parts = [self.seed, roll as u64, place, u64::from(attempt)];
        fastrand::Rng::with_seed(parts.into_iter().fold(0, |mixed, part| scramble(mixed ^ part)))
    }
}

/// The finaliser of SplitMix64: neighbouring numbers come out far apart.
fn scramble(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_gives_the_same_plan_wherever_it_begins() {
        let (one, other) = (Plan::new(7, 1, 1000, 0), Plan::new(7, 501, 1000, 0));
        assert_eq!(one.poison() + 500, other.poison());
        let moved: Vec<_> = one.rolled_back().map(|id| id + 500).collect();
        assert_eq!(moved, other.rolled_back().collect::<Vec<_>>());
        assert!((1..=1000).all(|id| one.fails(id, 1) == other.fails(id + 500, 1)));
    }

    #[test]
    fn shares_are_about_what_they_should_be() {
        for seed in 0..20 {
            let plan = Plan::new(seed, 1, 10_000, 0);
            let rolled_back = plan.rolled_back().count();
            assert!((400..600).contains(&rolled_back), "{rolled_back}");
            let failing = (1..=10_000).filter(|id| plan.fails(*id, 1)).count();
            assert!((140..260).contains(&failing), "{failing}");
            assert!(plan.rolled_back().all(|id| id != plan.poison()));
        }
    }

    #[test]
    fn orders_are_due_at_the_rate_and_end() {
        let plan = Plan::new(1, 1, 3, 2);
        let due: Vec<_> = (0..5).map_while(|index| plan.order(index)).map(|(_, due)| due.as_millis()).collect();
        assert_eq!(due, [0, 500, 1000]);
    }
}
