//! Planted histories: each is the valid one with something changed, and breaks exactly what it should.

use super::evidence::{subject, subjects};
use super::planted::{
    ACKED, CHANGED, LEDGER, Planted, RECEIVED, ROW, SETTLED, answer_lost, changed, message, row, settled, taken_over,
};
use super::{Conclusion, EXAMPLES, Ending, Fault, Outcome, Report, Rule, check};
use crate::history::{Entry, Message, Run, What};

fn spoiled(spoil: impl FnOnce(&mut Planted)) -> Report {
    let mut planted = Planted::valid();
    spoil(&mut planted);
    check(&planted.entries)
}

fn broken(report: &Report) -> Vec<Rule> {
    report.broken().map(|verdict| verdict.rule).collect()
}

fn outcome(report: &Report, rule: Rule) -> Outcome {
    report.verdicts.iter().find(|verdict| verdict.rule == rule).unwrap().outcome
}

/// Asserts that exactly these rules are broken, each by the same one event and the first for that reason.
fn breaks(rules: &[Rule], id: &str, why: &str, spoil: impl FnOnce(&mut Planted)) {
    let report = spoiled(spoil);
    assert_eq!(broken(&report), rules);
    for verdict in report.broken() {
        let ids: Vec<_> = verdict.examples.iter().map(|example| &*example.id).collect();
        assert_eq!((verdict.count, ids), (1, vec![id]), "{}", verdict.rule.name());
    }
    assert_eq!(report.broken().next().unwrap().examples[0].why, why);
    assert_eq!((report.conclusion, report.exit_code()), (Conclusion::Invalid, 1));
}

/// Asserts that nothing is broken and nothing in doubt.
fn is_valid(spoil: impl FnOnce(&mut Planted)) {
    let report = spoiled(spoil);
    assert_eq!((broken(&report), report.doubts.clone()), (vec![], vec![]));
    assert_eq!((report.conclusion, report.exit_code()), (Conclusion::Valid, 0));
}

/// Asserts that nothing is broken, but this is in doubt.
fn is_unknown(doubts: &[&str], spoil: impl FnOnce(&mut Planted)) {
    let report = spoiled(spoil);
    assert_eq!(broken(&report), []);
    assert_eq!(report.doubts, doubts);
    assert_eq!((report.conclusion, report.exit_code()), (Conclusion::Unknown, 2));
}

#[test]
fn the_planted_history_is_valid() {
    is_valid(|_| {});
    let report = spoiled(|_| {});
    assert!(report.verdicts.iter().all(|verdict| verdict.outcome == Outcome::Held));
    let rules: Vec<_> = report.verdicts.iter().map(|verdict| verdict.rule).collect();
    assert_eq!(rules, Rule::ALL);
}

#[test]
fn the_figures_are_counted() {
    let report = spoiled(|planted| planted.add(6000, "relay-2", answer_lost(&["a1", "p1"])));
    let totals = report.totals;
    assert_eq!((totals.written, totals.acked, totals.failed, totals.unknown), (5, 4, 1, 1));
    assert_eq!((totals.received, totals.refused, totals.duplicates), (5, 2, 1));
    assert_eq!((totals.dead, totals.malformed, totals.pending), (2, 1, 0));
    assert_eq!((totals.crashes, totals.lost_leases, totals.unanswered, totals.allowed), (1, 1, 2, 1));
    assert_eq!(report.faults, [Fault { name: "kill-relay".to_owned(), times: 1, effects: 1, intended: true }]);
}

#[test]
fn a_lease_is_lost_to_another_only() {
    let lost_leases = |next| {
        spoiled(|planted| planted.add(9000, "database", changed("a2", ["new", "new"], [Some("r1/5"), next])))
            .totals
            .lost_leases
    };
    assert_eq!([None, Some("r1/5"), Some("r1/6")].map(lost_leases), [1, 1, 2]);
    let refused = spoiled(|planted| planted.add(9000, "relay-1", settled("a1", "r1/1", "done", false)));
    assert_eq!(refused.totals.lost_leases, 1);
}

#[test]
fn the_first_line_says_what_was_intended() {
    let report = spoiled(|planted| planted.add(9000, "runner", What::Run(Run::default())));
    assert_eq!(report.run.seed, 42);
}

mod atomicity {
    use super::*;

    fn id(id: &str) -> String {
        id.to_owned()
    }

    #[test]
    fn an_acknowledged_business_row_is_missing() {
        breaks(&[Rule::Atomicity], "a9", "it was acknowledged, but its business row is missing", |planted| {
            planted.add(1800, "producer-1", What::Acked { id: id("a9") });
        });
    }

    #[test]
    fn the_business_row_of_a_failed_transaction_is_there() {
        breaks(&[Rule::Atomicity], "a2", "its transaction failed, but its business row is there", |planted| {
            planted.replace("a2", ACKED, What::Failed { id: id("a2"), error: id("rolled back") });
        });
    }

    #[test]
    fn a_transaction_was_found_that_is_not_there() {
        breaks(&[Rule::Atomicity], "a9", "it was looked up and found, but its business row is missing", |planted| {
            planted.add(1800, "producer-1", What::Resolved { id: id("a9"), committed: true });
        });
    }

    #[test]
    fn a_transaction_was_not_found_that_is_there() {
        breaks(&[Rule::Atomicity], "a3", "it was looked up and not found, but its business row is there", |planted| {
            let resolved = |what: &What| matches!(what, What::Resolved { .. });
            planted.replace("a3", resolved, What::Resolved { id: id("a3"), committed: false });
        });
    }

    #[test]
    fn an_event_is_missing() {
        breaks(&[Rule::Atomicity], "a2", "its business row is there, but its event is missing", |planted| {
            planted.forget("a2", ROW);
        });
    }

    #[test]
    fn a_business_row_is_missing() {
        // Received, it would be a phantom too.
        let rules = [Rule::Atomicity, Rule::FalseDone];
        breaks(&rules, "a9", "its event is there, but its business row is missing", |planted| {
            planted.add(12_000, "runner", row("a9", "done"));
            planted.add(9000, "database", changed("a9", ["new", "done"], [Some("r2/9"), None]));
        });
    }

    #[test]
    fn what_is_unknown_may_be_either_way() {
        is_valid(|planted| planted.forget_where(|what| matches!(what, What::Resolved { .. })));
        is_valid(|planted| planted.add(1800, "producer-1", What::Unknown { id: id("a9"), error: id("closed") }));
        is_valid(|planted| planted.forget("a2", ACKED));
    }
}

/// By the definitions, what is lost or falsely done breaks another rule as well: its row is DONE, pending or missing.
mod lost_and_false_done {
    use super::*;

    #[test]
    fn done_without_being_received() {
        let why = "it was never received, and its row is DONE";
        breaks(&[Rule::Lost, Rule::FalseDone], "a2", why, |planted| planted.forget("a2", RECEIVED));
    }

    #[test]
    fn pending_for_ever() {
        breaks(&[Rule::Lost, Rule::Stuck], "a2", "it was never received, and its row is RETRY", |planted| {
            planted.forget("a2", RECEIVED);
            planted.end_as("a2", "retry", "r2/2");
            planted.drain_until(15_000, 1);
        });
    }

    #[test]
    fn gone() {
        let why = "its business row is there, but its event is missing";
        breaks(&[Rule::Atomicity, Rule::Lost], "a2", why, |planted| {
            planted.forget("a2", RECEIVED);
            planted.forget("a2", ROW);
        });
    }

    #[test]
    fn a_malformed_row_done() {
        let why = "its row is DONE, but it was never received";
        breaks(&[Rule::FalseDone, Rule::Stuck], "m1", why, |planted| planted.end_as("m1", "done", "r2/7"));
    }

    /// Lets an event be received that many milliseconds after the database noted that it is DONE.
    fn received_after_done(millis: i64) -> impl Fn(&mut Planted) {
        move |planted| {
            let entry = planted.entries.iter_mut().find(|entry| entry.what == What::Received(message("b2")));
            entry.unwrap().at = (3301 + millis) * 1000;
        }
    }

    #[test]
    fn done_before_being_received() {
        let why = "it was DONE 51 ms before it was first received";
        breaks(&[Rule::FalseDone], "b2", why, received_after_done(51));
        is_valid(received_after_done(50));
        // Whatever became of the row afterwards.
        breaks(&[Rule::FalseDone, Rule::Fence], "b2", why, |planted| {
            received_after_done(51)(planted);
            planted.add(9000, "database", changed("b2", ["done", "dead"], [None, None]));
            planted.add(9001, "database", changed("b2", ["dead", "done"], [None, None]));
        });
    }

    #[test]
    fn only_the_first_delivery_must_come_before_done() {
        is_valid(|planted| {
            planted.add(3200, "relay-1", answer_lost(&["b2"]));
            planted.add(9000, "sink", What::Received(message("b2")));
        });
    }

    #[test]
    fn without_an_end_an_earlier_delivery_may_be_missing() {
        is_unknown(&["the history has no end"], |planted| {
            received_after_done(51)(planted);
            planted.forget_where(|what| *what == What::End);
        });
    }
}

#[test]
fn phantom() {
    breaks(&[Rule::Phantom], "a9", "it was received, but has no business row", |planted| {
        planted.add(9000, "sink", What::Received(message("a9")));
    });
    breaks(&[Rule::Phantom], "f1", "it was received, but has no business row", |planted| {
        planted.add(9000, "sink", What::Received(message("f1")));
    });
    breaks(&[Rule::Phantom], "m1", "it was received, but has no business row", |planted| {
        planted.add(9000, "sink", What::Received(message("m1")));
    });
}

#[test]
fn corrupt() {
    let right = message("a2");
    let wrong = [
        (r#"type "order.placed" came as "other""#, Message { event_type: "other".to_owned(), ..right.clone() }),
        (r#"key "a" came as "c""#, Message { key: "c".to_owned(), ..right.clone() }),
        (r#"number "2" came as "1""#, Message { number: 1, ..right.clone() }),
        (r#"hash "0000000000002638" came as "0000000000000001""#, Message { hash: 1, ..right.clone() }),
        (r#"poison "false" came as "true""#, Message { poison: true, ..right.clone() }),
    ];
    for (why, message) in wrong {
        breaks(&[Rule::Corrupt], "a2", why, |planted| planted.replace("a2", RECEIVED, What::Received(message)));
    }
    // A repeat must be the same, too.
    breaks(&[Rule::Corrupt], "a2", r#"number "2" came as "9""#, |planted| {
        planted.add(8000, "relay-2", answer_lost(&["a2"]));
        planted.add(9000, "sink", What::Received(Message { number: 9, ..right.clone() }));
    });
}

#[test]
fn wrongly_dead() {
    breaks(&[Rule::WronglyDead], "a2", "its row is DEAD, which nobody planned", |planted| {
        planted.end_as("a2", "dead", "r2/2");
    });
    let why = "its event is there, but its business row is missing";
    breaks(&[Rule::Atomicity, Rule::WronglyDead], "a9", why, |planted| {
        planted.add(9000, "database", changed("a9", ["new", "dead"], [Some("r2/9"), None]));
        planted.add(12_000, "runner", row("a9", "dead"));
    });
}

mod dead {
    use super::*;

    fn dead(id: &str, attempts: u32, error: Option<&str>) -> What {
        let (id, status, error) = (id.to_owned(), "dead".to_owned(), error.map(str::to_owned));
        What::Row { id, status, attempts, error }
    }

    fn wrong(id: &str, why: &str, attempts: u32, error: Option<&str>) {
        breaks(&[Rule::WronglyDead], id, why, |planted| planted.replace(id, ROW, dead(id, attempts, error)));
    }

    #[test]
    fn too_early_or_too_late() {
        wrong("p1", "its row is DEAD at failure 1, not 2", 1, Some("refused"));
        wrong("p1", "its row is DEAD at failure 3, not 2", 3, Some("refused"));
        wrong("p1", "its row is DEAD at failure 1, not 2; its row is DEAD without a reason", 1, None);
    }

    #[test]
    fn without_a_reason() {
        wrong("p1", "its row is DEAD without a reason", 2, None);
        wrong("p1", "its row is DEAD without a reason", 2, Some(""));
        wrong("m1", "its row is DEAD without a reason", 0, None);
    }

    #[test]
    fn a_malformed_row_is_not_tried() {
        for attempts in [0, 1, 2] {
            is_valid(|planted| planted.replace("m1", ROW, dead("m1", attempts, Some("no headers"))));
        }
    }

    #[test]
    fn the_attempts_may_be_unknown() {
        is_valid(|planted| {
            planted.run().attempts = 0;
            planted.replace("p1", ROW, dead("p1", 7, Some("refused")));
        });
    }
}

mod fence {
    use super::*;

    fn crossed(id: &str, why: &str, spoil: impl FnOnce(&mut Planted)) {
        breaks(&[Rule::Fence], id, why, spoil);
    }

    #[test]
    fn out_of_done_or_dead() {
        crossed("a2", "it went from DONE to RETRY", |planted| {
            planted.add(9000, "database", changed("a2", ["done", "retry"], [None, None]));
        });
        crossed("p1", "it went from DEAD to NEW", |planted| {
            planted.add(9000, "database", changed("p1", ["dead", "new"], [None, None]));
        });
        crossed("a2", "it went from DONE to DEAD", |planted| {
            planted.add(9000, "database", changed("a2", ["done", "dead"], [Some("r9/1"), None]));
        });
        crossed("a2", "its lease was changed after DONE", |planted| {
            planted.add(9000, "database", changed("a2", ["done", "done"], [Some("r9/1"), None]));
        });
    }

    #[test]
    fn without_a_lease() {
        crossed("a2", "it went from NEW to DONE without a lease", |planted| {
            planted.forget("a2", SETTLED);
            planted.replace("a2", CHANGED, changed("a2", ["new", "done"], [None, None]));
        });
    }

    #[test]
    fn with_a_lease_left_behind() {
        for next in ["r2/2", "r3/1"] {
            crossed("a2", "it went from NEW to DONE and was leased all the same", |planted| {
                planted.forget("a2", SETTLED);
                planted.replace("a2", CHANGED, changed("a2", ["new", "done"], [Some("r2/2"), Some(next)]));
            });
        }
    }

    #[test]
    fn under_a_lease_that_came_back() {
        crossed("a2", "lease r1/5 came back", |planted| {
            planted.add(2900, "database", changed("a2", ["new", "new"], [Some("r1/5"), None]));
            planted.add(2950, "database", changed("a2", ["new", "new"], [Some("r1/5"), Some("r2/2")]));
        });
    }

    #[test]
    fn settled_under_a_lease_that_never_stood() {
        let why = "done was written under lease r1/5, which the row did not have then";
        crossed("a2", why, |planted| planted.add(9000, "relay-1", settled("a2", "r1/5", "done", true)));
    }

    #[test]
    fn settled_under_a_lease_that_was_taken_over() {
        let why = "done was written under lease r1/1, which another had taken over";
        crossed("a1", why, |planted| planted.add(9000, "relay-1", settled("a1", "r1/1", "done", true)));
    }

    #[test]
    fn settled_under_a_lease_that_was_given_up() {
        let why = "done was written under lease r1/5, but the row became NEW";
        crossed("a2", why, |planted| {
            planted.add(2900, "database", changed("a2", ["new", "new"], [Some("r1/5"), None]));
            planted.add(9000, "relay-1", settled("a2", "r1/5", "done", true));
        });
    }

    #[test]
    fn given_back_and_changed_all_the_same() {
        crossed("p1", "release was written under lease r2/5, but the row became RETRY", |planted| {
            planted.replace("p1", SETTLED, settled("p1", "r2/5", "release", true));
        });
    }

    #[test]
    fn settled_twice_under_one_lease() {
        let why = "done was written under lease r2/2, which the row did not have then";
        crossed("a2", why, |planted| planted.add(9000, "relay-2", settled("a2", "r2/2", "done", true)));
    }

    #[test]
    fn settled_without_a_change() {
        let why = "done was written under lease r2/2, which the row did not have then";
        crossed("a2", why, |planted| planted.forget("a2", CHANGED));
    }

    #[test]
    fn a_lease_of_two_processes() {
        crossed("a2", "relay-2 and relay-1 both settled under lease r2/2", |planted| {
            planted.add(9000, "relay-1", settled("a2", "r2/2", "done", false));
        });
    }

    #[test]
    fn taken_over_before_it_had_run_out() {
        let held = |held_ms| {
            move |planted: &mut Planted| planted.replace("a1", CHANGED, taken_over("a1", ["r1/1", "r2/1"], held_ms))
        };
        crossed("a1", "its lease was taken over after 594 ms of 600", held(Some(594)));
        crossed("a1", "its lease was taken over after -3 ms of 600", held(Some(-3)));
        for held_ms in [Some(595), Some(600), Some(10_000), None] {
            is_valid(held(held_ms));
        }
        is_valid(|planted| {
            held(Some(1))(planted);
            planted.run().lease_ms = 0;
        });
    }

    #[test]
    fn a_lease_may_end_early_by_its_owner() {
        is_valid(|planted| {
            let mut given_back = changed("a2", ["new", "new"], [Some("r1/5"), None]);
            if let What::Changed { held_ms, .. } = &mut given_back {
                *held_ms = Some(1);
            }
            planted.add(2900, "database", given_back);
        });
    }

    #[test]
    fn late_settlements_may_be_refused() {
        is_valid(|planted| planted.add(9000, "relay-1", settled("a1", "r1/1", "done", false)));
    }

    #[test]
    fn rows_may_be_given_back_and_deferred() {
        is_valid(|planted| {
            for (lease, action) in [("r1/5", "release"), ("r1/6", "defer")] {
                planted.add(2900, "database", changed("a2", ["new", "new"], [Some(lease), None]));
                planted.add(2900, "relay-1", settled("a2", lease, action, true));
            }
        });
    }

    #[test]
    fn a_relay_may_be_killed_before_it_says_what_it_settled() {
        is_valid(|planted| planted.forget("a2", SETTLED));
    }
}

mod order {
    use super::*;

    fn early(planted: &mut Planted, id: &str) {
        let place = planted.entries.iter().position(|entry| RECEIVED(&entry.what)).unwrap();
        let entry = Entry { at: 1_900_000, who: "sink".to_owned(), what: What::Received(message(id)) };
        planted.entries.insert(place, entry);
        planted.add(1901, "relay-1", answer_lost(&[id]));
    }

    #[test]
    fn a_later_one_came_first() {
        breaks(&[Rule::Order], "a2", r#"number 2 of key "a" first came after number 3"#, |planted| {
            planted.forget("a3", RECEIVED);
            let place = planted.entries.iter().position(|entry| entry.what == What::Received(message("a2"))).unwrap();
            let entry = Entry { at: 3_050_000, who: "sink".to_owned(), what: What::Received(message("a3")) };
            planted.entries.insert(place, entry);
        });
    }

    #[test]
    fn all_that_come_after_a_later_one_are_late() {
        let report = spoiled(|planted| early(planted, "a3"));
        let verdict = report.broken().next().unwrap();
        let ids: Vec<_> = verdict.examples.iter().map(|example| &*example.id).collect();
        assert_eq!((verdict.rule, ids), (Rule::Order, vec!["a1", "a2"]));
    }

    #[test]
    fn without_an_end_an_earlier_delivery_may_be_missing() {
        is_unknown(&["the history has no end"], |planted| {
            early(planted, "a3");
            planted.forget_where(|what| *what == What::End);
        });
    }

    #[test]
    fn repeats_may_come_in_any_order() {
        is_valid(|planted| {
            planted.add(9000, "relay-2", answer_lost(&["a2"]));
            planted.add(9000, "sink", What::Received(message("a2")));
        });
    }

    #[test]
    fn numbers_may_be_missing() {
        is_valid(|planted| {
            planted.add(9000, "sink", What::Received(message("a9")));
            planted.add(9000, "relay-2", settled("a9", "r2/9", "done", true));
            planted.add(9000, "database", changed("a9", ["new", "done"], [Some("r2/9"), None]));
            planted.add(12_000, "runner", What::Ledger(message("a9")));
            planted.add(12_000, "runner", row("a9", "done"));
        });
    }

    #[test]
    fn nothing_is_asked_of_a_run_that_promises_none() {
        let report = spoiled(|planted| {
            early(planted, "a3");
            planted.run().ordered = false;
        });
        assert_eq!(outcome(&report, Rule::Order), Outcome::NotPromised);
        assert_eq!(report.conclusion, Conclusion::Valid);
    }

    #[test]
    fn poison_is_excepted() {
        // The poison is number 1 of key b, and comes after number 2.
        is_valid(|planted| planted.add(9000, "sink", What::Received(message("p1"))));
        is_valid(|planted| {
            planted.add(9000, "sink", What::Received(message("p1")));
            planted.end_as("p1", "done", "r2/5");
        });
    }

    #[test]
    fn the_dead_are_excepted() {
        breaks(&[Rule::WronglyDead], "a3", "its row is DEAD, which nobody planned", |planted| {
            early(planted, "a3");
            planted.end_as("a3", "dead", "r2/3");
        });
    }
}

mod duplicates {
    use super::*;

    fn repeat(planted: &mut Planted, id: &str, times: usize) {
        for _ in 0..times {
            planted.add(9000, "sink", What::Received(message(id)));
        }
    }

    /// Asserts that so many repeats of a2 are explained and no more: that one beyond them is found.
    fn unexplained(explained: u64, spoil: impl FnOnce(&mut Planted)) {
        let report = spoiled(|planted| {
            repeat(planted, "a2", 1 + usize::try_from(explained).unwrap());
            spoil(planted);
        });
        assert_eq!(broken(&report), [Rule::Duplicates]);
        let verdict = report.broken().next().unwrap();
        let found: Vec<_> = verdict.examples.iter().map(|example| (&*example.id, &*example.why)).collect();
        let why = format!("it was received {} times; repeats explained: {explained}", explained + 2);
        assert_eq!(found, [("a2", &*why)]);
        // The one of a1 is there already, and explained.
        assert_eq!((verdict.count, report.totals.allowed), (explained + 2, explained + 1));
    }

    /// Lets relay-3 give the event back under a lease that it had, at that moment.
    fn give_back(planted: &mut Planted, millis: i64, action: &str) {
        planted.add(millis, "database", changed("a2", ["new", "new"], [Some("r3/1"), None]));
        planted.add(millis, "relay-3", settled("a2", "r3/1", action, true));
    }

    fn exit(planted: &mut Planted, millis: i64, signal: Option<i32>) {
        let status = signal.is_none().then_some(3);
        planted.add(millis, "relay-3", What::Exited { status, signal, wanted: true });
    }

    #[test]
    fn what_befell_one_event_explains_no_repeat_of_another() {
        unexplained(0, |_| {});
        unexplained(0, |planted| {
            for number in 1..5 {
                let leases = [format!("r1/{number}"), format!("r1/{}", number + 1)];
                planted.add(2900, "database", taken_over("a3", [&leases[0], &leases[1]], Some(700)));
                planted.add(2900, "relay-1", answer_lost(&["a1", "a3"]));
            }
        });
    }

    #[test]
    fn a_lease_taken_over_explains_one() {
        let taken =
            |planted: &mut Planted| planted.add(3050, "database", taken_over("a2", ["r1/5", "r2/2"], Some(700)));
        is_valid(|planted| {
            repeat(planted, "a2", 1);
            taken(planted);
        });
        unexplained(1, taken);
    }

    #[test]
    fn a_lost_answer_explains_one_of_each_event_that_it_was_about() {
        is_valid(|planted| {
            repeat(planted, "a2", 1);
            repeat(planted, "a3", 1);
            planted.add(3050, "relay-1", answer_lost(&["a2", "a3"]));
        });
        unexplained(1, |planted| planted.add(3050, "relay-1", answer_lost(&["a2", "a3"])));
    }

    #[test]
    fn a_refused_settlement_explains_none() {
        // It was refused because the lease was taken over, which is noted, or because it had been written before.
        unexplained(0, |planted| planted.add(9000, "relay-2", settled("a2", "r2/2", "done", false)));
        unexplained(1, |planted| {
            planted.add(3050, "database", taken_over("a2", ["r1/5", "r2/2"], Some(700)));
            planted.add(9000, "relay-1", settled("a2", "r1/5", "done", false));
        });
    }

    #[test]
    fn a_kill_explains_none_by_itself() {
        unexplained(0, |planted| exit(planted, 3050, Some(9)));
    }

    #[test]
    fn an_event_given_back_at_the_end_of_a_process_explains_one() {
        let ending = |planted: &mut Planted| {
            give_back(planted, 3050, "release");
            exit(planted, 3060, None);
        };
        is_valid(|planted| {
            repeat(planted, "a2", 1);
            ending(planted);
        });
        unexplained(1, ending);
    }

    #[test]
    fn an_event_given_back_in_between_explains_none() {
        unexplained(0, |planted| give_back(planted, 3050, "release"));
        // Long before the end, or before another.
        unexplained(0, |planted| {
            give_back(planted, 3050, "release");
            exit(planted, 33_051, None);
        });
        unexplained(0, |planted| {
            give_back(planted, 3050, "release");
            exit(planted, 3060, Some(9));
            exit(planted, 4000, None);
        });
        unexplained(0, |planted| {
            give_back(planted, 3050, "release");
            exit(planted, 3040, None);
        });
    }

    #[test]
    fn an_event_put_off_explains_none() {
        unexplained(0, |planted| {
            give_back(planted, 3050, "defer");
            exit(planted, 3060, None);
        });
    }

    #[test]
    fn an_event_given_back_by_nobody_knows_whom_explains_one() {
        is_valid(|planted| {
            repeat(planted, "a2", 1);
            planted.add(3050, "database", changed("a2", ["new", "new"], [Some("r3/1"), None]));
        });
    }

    #[test]
    fn what_nobody_noted_may_explain_them() {
        is_unknown(&["not all changes were noted (rows concerned: 1)"], |planted| {
            repeat(planted, "a2", 1);
            planted.forget("a2", CHANGED);
            planted.forget("a2", SETTLED);
        });
    }

    #[test]
    fn without_an_end_what_explains_them_may_be_missing() {
        is_unknown(&["the history has no end"], |planted| {
            repeat(planted, "a2", 4);
            planted.forget_where(|what| *what == What::End);
        });
    }

    #[test]
    fn none_without_faults() {
        let report = spoiled(Planted::without_faults);
        assert_eq!((broken(&report), report.totals.allowed), (vec![Rule::Duplicates], 0));
        let report = spoiled(|planted| planted.forget_where(|what| matches!(what, What::Broken { .. })));
        assert_eq!((broken(&report), report.totals.allowed), (vec![Rule::Duplicates], 0));
        is_valid(|planted| {
            planted.without_faults();
            planted.forget("a1", RECEIVED);
            let place = planted.entries.iter().position(|entry| RECEIVED(&entry.what)).unwrap();
            let entry = Entry { at: 3_000_000, who: "sink".to_owned(), what: What::Received(message("a1")) };
            planted.entries.insert(place, entry);
        });
    }
}

mod stuck {
    use super::*;

    #[test]
    fn pending_when_the_patience_is_over() {
        let late = |planted: &mut Planted| {
            planted.end_as("a2", "retry", "r2/2");
            planted.drain_until(15_000, 1);
        };
        breaks(&[Rule::Stuck], "a2", "its row is still RETRY", late);
        assert!(spoiled(late).doubts.is_empty());
    }

    #[test]
    fn malformed_and_not_dead() {
        breaks(&[Rule::Stuck], "m1", "it is malformed, but its row is missing", |planted| planted.forget("m1", ROW));
        breaks(&[Rule::Stuck], "m1", "its row is still NEW", |planted| {
            planted.end_as("m1", "new", "r2/7");
            planted.replace("m1", SETTLED, settled("m1", "r2/7", "release", true));
            planted.drain_until(15_000, 1);
        });
    }

    #[test]
    fn pending_before_the_patience_is_over_proves_nothing() {
        is_unknown(&["the drain ended before its time (rows pending: 1)"], |planted| {
            planted.end_as("a2", "retry", "r2/2");
            planted.forget("a2", RECEIVED);
            planted.drain_until(14_999, 1);
        });
        is_unknown(&["the drain ended before its time (rows pending: 1)"], |planted| {
            planted.replace("a2", ROW, row("a2", "new"));
            planted.forget("a2", SETTLED);
            planted.forget("a2", CHANGED);
        });
    }
}

mod unknown {
    use super::*;

    #[test]
    fn no_end() {
        is_unknown(&["the history has no end"], |planted| planted.forget_where(|what| *what == What::End));
    }

    #[test]
    fn nothing_was_written() {
        is_unknown(&["nothing was written"], |planted| {
            planted.entries.retain(|entry| subject(&entry.what).is_none());
        });
    }

    #[test]
    fn nothing_was_read() {
        is_unknown(&["the business rows were not read"], |planted| planted.forget_where(LEDGER));
        is_unknown(&["the rows of the outbox were not read"], |planted| planted.forget_where(ROW));
    }

    #[test]
    fn no_drain() {
        is_unknown(&["the drain has no end"], |planted| {
            planted.forget_where(|what| matches!(what, What::Drained { .. }));
        });
        is_unknown(&["nothing says that everything was mended before the drain"], |planted| {
            planted.forget_where(|what| matches!(what, What::Healed { .. }));
        });
        is_unknown(&["the drain gave up on rows that were settled later (1)"], |planted| {
            planted.drain_until(15_000, 1);
        });
    }

    #[test]
    fn a_fault_that_did_not_happen() {
        is_unknown(&["cut never happened"], |planted| planted.run().faults.push("cut".to_owned()));
        is_unknown(&["cut was never mended"], |planted| {
            planted.run().faults.push("cut".to_owned());
            planted.add(6000, "nemesis", What::Broken { fault: "cut".to_owned(), detail: "all".to_owned() });
        });
        is_unknown(&["cut did nothing"], |planted| {
            planted.run().faults.push("cut".to_owned());
            planted.add(6000, "nemesis", What::Broken { fault: "cut".to_owned(), detail: "all".to_owned() });
            planted.add(7000, "nemesis", What::Mended { fault: "cut".to_owned(), effects: 0 });
        });
    }

    #[test]
    fn a_fault_may_do_nothing_once_if_it_does_something_another_time() {
        is_valid(|planted| planted.add(9000, "nemesis", What::Mended { fault: "kill-relay".to_owned(), effects: 0 }));
    }

    #[test]
    fn nobody_noted_the_changes() {
        is_unknown(&["not all changes were noted (rows concerned: 5)"], |planted| planted.forget_where(CHANGED));
    }

    #[test]
    fn an_empty_history() {
        let report = check(&[]);
        let doubts = ["the history does not say what was intended", "the history has no end", "the drain has no end"];
        assert_eq!(report.doubts, doubts);
        assert_eq!(report.exit_code(), 2);
    }

    #[test]
    fn without_an_end_what_is_missing_proves_nothing() {
        let report = spoiled(|planted| {
            planted.forget_where(|what| *what == What::End);
            planted.forget("a2", RECEIVED);
            planted.forget("a3", ROW);
            planted.forget("b2", LEDGER);
            planted.forget("m1", ROW);
            planted.add(9000, "relay-1", settled("a2", "r1/5", "done", true));
            planted.forget_where(|what| matches!(what, What::Exited { .. }));
        });
        assert_eq!((broken(&report), report.conclusion), (vec![], Conclusion::Unknown));
        assert!(report.verdicts.iter().all(|verdict| verdict.outcome == Outcome::NotJudged));
    }
}

#[test]
fn what_is_proved_wrong_beats_what_is_unknown() {
    let report = spoiled(|planted| {
        planted.forget_where(|what| matches!(what, What::End | What::Drained { .. }));
        planted.replace("a2", RECEIVED, What::Received(Message { hash: 1, ..message("a2") }));
        planted.run().faults.push("cut".to_owned());
    });
    assert_eq!(broken(&report), [Rule::Corrupt]);
    assert_eq!(report.doubts, ["the history has no end", "the drain has no end", "cut never happened"]);
    assert_eq!((report.conclusion, report.exit_code()), (Conclusion::Invalid, 1));
    assert_eq!(outcome(&report, Rule::Lost), Outcome::NotJudged);
}

#[test]
fn an_example_tells_its_whole_story() {
    let report = spoiled(|planted| {
        planted.add(8000, "relay-2", answer_lost(&["a2", "a1"]));
        planted.add(9000, "sink", What::Received(Message { number: 9, ..message("a1") }));
    });
    let story = &report.broken().next().unwrap().examples[0].story;
    let told: Vec<_> = story.iter().map(|entry| (entry.at / 1000, &*entry.who)).collect();
    let expected = [
        (1000, "producer-1"),
        (2000, "sink"),
        (2800, "database"),
        (3000, "sink"),
        (3001, "relay-2"),
        (3001, "database"),
        (8000, "relay-2"),
        (9000, "sink"),
        (12_000, "runner"),
        (12_000, "runner"),
    ];
    assert_eq!(told, expected);
    assert!(story.iter().all(|entry| subjects(&entry.what).any(|id| id == "a1")));
}

#[test]
fn examples_are_few_and_the_count_is_whole() {
    let report = spoiled(|planted| {
        for number in 10..40 {
            planted.add(9000, "sink", What::Received(message(&format!("x{number}"))));
        }
    });
    let verdict = report.broken().next().unwrap();
    assert_eq!((verdict.rule, verdict.count, verdict.examples.len()), (Rule::Phantom, 30, EXAMPLES));
}

#[test]
fn the_timeline_has_a_lane_for_each() {
    let timeline = spoiled(|_| {}).timeline;
    let lives: Vec<_> = timeline.processes.iter().map(|lane| (&*lane.name, lane.bars.len())).collect();
    assert_eq!(lives, [("sink", 1), ("producer-1", 1), ("relay-1", 1), ("relay-2", 1)]);
    let endings: Vec<_> = timeline.processes.iter().map(|lane| lane.bars[0].ending).collect();
    assert_eq!(endings, [Ending::Open, Ending::Open, Ending::Killed, Ending::Exited]);
    let fault = &timeline.faults[0].bars[0];
    assert_eq!((fault.from, fault.to, &*fault.note), (2.001, 2.5, "relay-1, effects: 1"));
    assert_eq!((timeline.seconds, timeline.healed, timeline.drained), (12.5, Some(10.0), Some(11.0)));
    assert_eq!(timeline.written[..4], [0.0, 4.0, 0.0, 0.0]);
    assert_eq!(timeline.received[..4], [0.0, 0.0, 1.0, 4.0]);
    assert_eq!(timeline.lag, [0, 5, 4, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn long_histories_are_drawn_in_coarser_steps_and_wrong_clocks_inside() {
    let timeline = spoiled(|planted| {
        planted.forget_where(|what| *what == What::End);
        planted.add(-3_600_000, "relay-2", What::Refused { id: "p1".to_owned() });
        planted.add(7_200_000, "runner", What::End);
    })
    .timeline;
    assert_eq!((timeline.step, timeline.written.len()), (12, 600));
    assert_eq!(timeline.written[0] * 12.0, 4.0);
}

#[test]
fn a_million_entries() {
    let mut planted = Planted::valid();
    planted.forget_where(|what| *what == What::End);
    planted.run().ordered = true;
    for number in 10..200_010 {
        let (id, lease) = (format!("c{number}"), format!("r2/{number}"));
        planted.add(6000, "producer-1", What::Acked { id: id.clone() });
        planted.add(6001, "sink", What::Received(message(&id)));
        planted.add(6002, "relay-2", settled(&id, &lease, "done", true));
        planted.add(6002, "database", changed(&id, ["new", "done"], [Some(&lease), None]));
        planted.add(12_000, "runner", What::Ledger(message(&id)));
        planted.add(12_000, "runner", row(&id, "done"));
    }
    planted.add(12_500, "runner", What::End);
    let report = check(&planted.entries);
    assert_eq!((report.conclusion, report.totals.written), (Conclusion::Valid, 200_005));
}

mod fallen {
    use super::*;

    fn ends(status: Option<i32>, signal: Option<i32>, wanted: bool) -> impl FnOnce(&mut Planted) {
        move |planted| planted.add(9000, "producer-1", What::Exited { status, signal, wanted })
    }

    #[test]
    fn nobody_ends_by_himself_or_in_disorder() {
        for (status, signal, wanted, why) in [
            (Some(0), None, false, "it ended with exit status 0"),
            (Some(101), None, true, "it ended with exit status 101"),
            (None, Some(11), false, "it ended with signal 11"),
            (None, Some(9), false, "it ended with signal 9"),
            (None, Some(11), true, "it ended with signal 11"),
            (None, Some(6), true, "it ended with signal 6"),
        ] {
            breaks(&[Rule::Fallen], "producer-1", why, ends(status, signal, wanted));
        }
        is_valid(ends(Some(3), None, true));
        is_valid(ends(None, Some(9), true));
        is_valid(ends(None, Some(15), true));
    }

    #[test]
    fn nobody_who_is_asked_to_end_stays() {
        breaks(&[Rule::Fallen], "producer-1", "it did not end when it was asked to", |planted| {
            planted.add(9000, "producer-1", What::DidNotEnd);
            ends(None, Some(9), true)(planted);
        });
    }
}
