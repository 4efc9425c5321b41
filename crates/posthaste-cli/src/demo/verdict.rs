//! Whether the promises were kept, judged by the tables and by what the listener received.

use std::collections::{BTreeMap, BTreeSet};

use posthaste::Status;

use super::mailer::Mails;
use super::plan::OrderId;
use super::units::{count, counted};

/// What there is to be judged: this run's orders, this run's rows in the outbox, and everything the listener saw.
pub(super) struct History {
    /// The orders in the table `orders`. They are the truth.
    pub(super) committed: BTreeSet<OrderId>,
    /// The orders whose transactions were rolled back on purpose.
    pub(super) rolled_back: BTreeSet<OrderId>,
    /// The outbox: which order, and what its event stands at.
    pub(super) rows: Vec<(OrderId, Status)>,
    /// Events in the outbox, of this run or an earlier one, that still wait for their delivery.
    pub(super) pending: u64,
    /// What the listener received.
    pub(super) mails: BTreeMap<OrderId, Mails>,
    /// The order whose event cannot be delivered.
    pub(super) poison: OrderId,
    /// Events that an earlier run had left behind, which were to be delivered as well.
    pub(super) earlier: u64,
    /// The orders whose events the dispatcher had in hand when it was killed.
    pub(super) in_hand: BTreeSet<OrderId>,
}

/// What is made of a history.
pub(super) struct Verdict {
    promises: Vec<Promise>,
    repeats: Repeats,
}

/// One promise, and the orders that break it.
pub(super) struct Promise {
    pub(super) name: &'static str,
    pub(super) text: String,
    pub(super) kept: bool,
    pub(super) broken_by: Vec<OrderId>,
}

/// Mails that went out more than once, which at-least-once delivery allows.
pub(super) struct Repeats {
    /// Orders with more than one mail.
    pub(super) orders: u64,
    /// Those of them whose events were in hand at the kill.
    pub(super) by_the_kill: u64,
}

impl Promise {
    fn new(name: &'static str, text: String, broken_by: impl IntoIterator<Item = OrderId>) -> Self {
        let broken_by: Vec<_> = broken_by.into_iter().collect();
        Self { name, text, kept: broken_by.is_empty(), broken_by }
    }
}

impl Verdict {
    pub(super) fn of(history: &History) -> Self {
        Self {
            promises: vec![
                history.together(),
                history.nothing_lost(),
                history.no_phantom(),
                history.done_is_true(),
                history.dead_is_earned(),
                history.all_settled(),
            ],
            repeats: history.repeats(),
        }
    }

    /// Whether every promise was kept.
    pub(super) fn holds(&self) -> bool {
        self.promises.iter().all(|promise| promise.kept)
    }

    pub(super) fn promises(&self) -> &[Promise] {
        &self.promises
    }

    pub(super) fn repeats(&self) -> &Repeats {
        &self.repeats
    }
}

impl History {
    /// An order and its event are stored together or not at all.
    fn together(&self) -> Promise {
        let mut rows: BTreeMap<OrderId, usize> = BTreeMap::new();
        for (order, _) in &self.rows {
            *rows.entry(*order).or_default() += 1;
        }
        let without = self.committed.iter().filter(|order| rows.get(order) != Some(&1));
        let beyond = rows.keys().filter(|order| !self.committed.contains(order));
        let text = format!("{} committed, each with its one event", counted(self.committed.len() as u64, "order"));
        Promise::new("together", text, without.chain(beyond).copied())
    }

    fn nothing_lost(&self) -> Promise {
        let dead: BTreeSet<_> = self.rows_at(Status::Dead).collect();
        let lost = self.committed.iter().filter(|order| !self.was_mailed(**order) && !dead.contains(order));
        let lost: Vec<_> = lost.copied().collect();
        let (all, found) = (self.committed.len() as u64, (self.committed.len() - lost.len()) as u64);
        Promise::new("nothing lost", format!("{} of {} events delivered or dead", count(found), count(all)), lost)
    }

    fn no_phantom(&self) -> Promise {
        let phantoms = self.mails.keys().filter(|order| !self.committed.contains(order));
        let rolled_back = counted(self.rolled_back.len() as u64, "rolled-back order");
        Promise::new("no phantom", format!("none of {rolled_back} reached the listener"), phantoms.copied())
    }

    fn done_is_true(&self) -> Promise {
        let false_ones = self.rows_at(Status::Done).filter(|order| !self.was_mailed(*order));
        let done = count(self.rows_at(Status::Done).count() as u64);
        Promise::new("DONE is true", format!("{done} DONE, each received by the listener"), false_ones)
    }

    fn dead_is_earned(&self) -> Promise {
        let unearned = self.rows_at(Status::Dead).filter(|order| *order != self.poison);
        let escaped = self.rows_at(Status::Dead).all(|order| order != self.poison) || self.was_mailed(self.poison);
        let text = format!("the poison event of order {} is DEAD, and no other", self.poison);
        Promise::new("DEAD is earned", text, unearned.chain(escaped.then_some(self.poison)))
    }

    fn all_settled(&self) -> Promise {
        let pending = self.rows.iter().filter(|(_, status)| !status.is_final()).map(|(order, _)| *order);
        let shown = if self.pending == 0 { "none".to_owned() } else { count(self.pending) };
        let promise = Promise::new("all settled", format!("{shown} left pending"), pending);
        // What an earlier run left behind is not among the rows, but had to be delivered as well.
        Promise { kept: promise.kept && self.pending == 0, ..promise }
    }

    fn repeats(&self) -> Repeats {
        let repeated = || self.mails.iter().filter(|(_, mails)| mails.sent > 1).map(|(order, _)| order);
        Repeats {
            orders: repeated().count() as u64,
            by_the_kill: repeated().filter(|order| self.in_hand.contains(order)).count() as u64,
        }
    }

    fn was_mailed(&self, order: OrderId) -> bool {
        self.mails.get(&order).is_some_and(|mails| mails.sent > 0)
    }

    fn rows_at(&self, status: Status) -> impl Iterator<Item = OrderId> {
        self.rows.iter().filter(move |(_, stands_at)| *stands_at == status).map(|(order, _)| *order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POISON: OrderId = 3;

    /// Orders 1 to 6, of which 5 and 6 were rolled back and 3 is poison; 4 failed once, and 2 came twice after the kill.
    fn good() -> History {
        let mails = [(1, 1, 1), (2, 2, 2), (3, 1, 0), (4, 2, 1)];
        History {
            committed: BTreeSet::from([1, 2, 3, 4]),
            rolled_back: BTreeSet::from([5, 6]),
            rows: vec![(1, Status::Done), (2, Status::Done), (3, Status::Dead), (4, Status::Done)],
            pending: 0,
            mails: mails.into_iter().map(|(order, calls, sent)| (order, Mails { calls, sent })).collect(),
            poison: POISON,
            earlier: 0,
            in_hand: BTreeSet::from([2, 4]),
        }
    }

    /// The promises that are broken after the history was tampered with, and by whom.
    fn broken(tamper: impl FnOnce(&mut History)) -> Vec<(&'static str, Vec<OrderId>)> {
        let mut history = good();
        tamper(&mut history);
        let verdict = Verdict::of(&history);
        let broken: Vec<_> =
            verdict.promises.into_iter().filter(|promise| !promise.kept).map(|p| (p.name, p.broken_by)).collect();
        broken
    }

    fn set(history: &mut History, order: OrderId, status: Status) {
        history.rows.iter_mut().find(|(id, _)| *id == order).unwrap().1 = status;
    }

    #[test]
    fn good_history_holds_and_its_repeats_are_counted() {
        let verdict = Verdict::of(&good());
        assert!(verdict.holds());
        assert_eq!((verdict.repeats.orders, verdict.repeats.by_the_kill), (1, 1));
    }

    #[test]
    fn event_that_never_arrived_but_is_done_is_lost_and_its_done_is_false() {
        let broken = broken(|history| {
            history.mails.remove(&1);
        });
        assert_eq!(broken, [("nothing lost", vec![1]), ("DONE is true", vec![1])]);
    }

    #[test]
    fn event_whose_calls_all_failed_is_lost_too() {
        let broken = broken(|history| history.mails.get_mut(&4).unwrap().sent = 0);
        assert_eq!(broken, [("nothing lost", vec![4]), ("DONE is true", vec![4])]);
    }

    #[test]
    fn order_without_a_row_is_not_together_with_its_event() {
        let broken = broken(|history| {
            history.rows.retain(|(order, _)| *order != 1);
            history.mails.remove(&1);
        });
        assert_eq!(broken, [("together", vec![1]), ("nothing lost", vec![1])]);
    }

    #[test]
    fn order_with_two_rows_is_not_together_with_one_event() {
        assert_eq!(broken(|history| history.rows.push((1, Status::Done))), [("together", vec![1])]);
    }

    #[test]
    fn row_of_a_rolled_back_order_is_not_together_with_an_order() {
        let broken = broken(|history| history.rows.push((5, Status::New)));
        assert_eq!(broken, [("together", vec![5]), ("all settled", vec![5])]);
    }

    #[test]
    fn rolled_back_order_that_reached_the_listener_is_a_phantom_even_if_it_failed_there() {
        let broken = broken(|history| {
            history.mails.insert(6, Mails { calls: 1, sent: 0 });
        });
        assert_eq!(broken, [("no phantom", vec![6])]);
    }

    #[test]
    fn delivered_order_that_nobody_placed_is_a_phantom() {
        let broken = broken(|history| {
            history.mails.insert(99, Mails { calls: 1, sent: 1 });
        });
        assert_eq!(broken, [("no phantom", vec![99])]);
    }

    #[test]
    fn dead_event_that_is_not_the_poison_one_is_wrongly_dead() {
        assert_eq!(broken(|history| set(history, 4, Status::Dead)), [("DEAD is earned", vec![4])]);
    }

    #[test]
    fn poison_event_that_is_not_dead_or_was_delivered_breaks_a_promise() {
        let done = broken(|history| set(history, POISON, Status::Done));
        let expected = [("nothing lost", vec![3]), ("DONE is true", vec![3]), ("DEAD is earned", vec![3])];
        assert_eq!(done, expected);
        let delivered = broken(|history| history.mails.get_mut(&POISON).unwrap().sent = 1);
        assert_eq!(delivered, [("DEAD is earned", vec![3])]);
    }

    #[test]
    fn delivered_event_that_stays_pending_is_not_settled() {
        let broken = broken(|history| {
            set(history, 1, Status::Retry);
            history.pending = 1;
        });
        assert_eq!(broken, [("all settled", vec![1])]);
    }

    #[test]
    fn pending_event_of_an_earlier_run_is_not_settled() {
        assert_eq!(broken(|history| history.pending = 1), [("all settled", vec![])]);
    }

    #[test]
    fn run_in_which_nothing_happened_does_not_hold() {
        let history = History {
            committed: BTreeSet::new(),
            rolled_back: BTreeSet::new(),
            rows: Vec::new(),
            pending: 0,
            mails: BTreeMap::new(),
            poison: POISON,
            earlier: 0,
            in_hand: BTreeSet::new(),
        };
        assert!(!Verdict::of(&history).holds());
    }
}
