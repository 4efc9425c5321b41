//! Planted histories: each is the valid one with something changed, and breaks exactly what it should.

mod atomicity;
mod dead;
mod duplicates;
mod fallen;
mod fence;
mod lost_and_false_done;
mod order;
mod stuck;
mod unknown;

use super::evidence::{subject, subjects};
use super::planted::{
    ACKED, CHANGED, LEDGER, Planted, RECEIVED, ROW, SETTLED, answer_lost, changed, claimed, decided, message, row,
    settled, taken_over,
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

/// By the definitions, what is lost or falsely done breaks another rule as well: its row is DONE, pending or missing.

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
