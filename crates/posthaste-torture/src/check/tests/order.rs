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

/// The same history of a run in which rows are owned by lanes, and have no leases of their own.
fn by_lanes(planted: &mut Planted) {
    planted.run().lanes = true;
    planted.forget_where(|what| matches!(what, What::Changed { status: [before, after], .. } if before == after));
    for entry in &mut planted.entries {
        match &mut entry.what {
            What::Changed { lease, .. } => *lease = [None, None],
            What::Settled { lease, .. } => *lease = "lane 3/7".to_owned(),
            _ => {}
        }
    }
    planted.add(1990, "relay-1", claimed("lane 3/6", &["a1"]));
    planted.add(2990, "relay-2", claimed("lane 3/7", &["a1", "a2", "a3", "b2", "p1"]));
}

#[test]
fn with_lanes_nobody_asks_for_leases_of_rows() {
    is_valid(by_lanes);
}

#[test]
fn with_lanes_one_that_is_started_before_the_one_before_it_was_done_is_found() {
    breaks(&[Rule::Order], "a2", r#"number 2 of key "a" first came after number 3"#, |planted| {
        by_lanes(planted);
        planted.forget("a3", RECEIVED);
        let place = planted.entries.iter().position(|entry| entry.what == What::Received(message("a2"))).unwrap();
        let entry = Entry { at: 3_050_000, who: "sink".to_owned(), what: What::Received(message("a3")) };
        planted.entries.insert(place, entry);
    });
}

#[test]
fn with_lanes_a_repeat_needs_a_read_of_its_own() {
    let report = spoiled(|planted| {
        by_lanes(planted);
        planted.add(9000, "sink", What::Received(message("a2")));
    });
    let verdict = report.broken().next().unwrap();
    let examples: Vec<_> = verdict.examples.iter().map(|example| (&*example.id, &*example.why)).collect();
    // That of a1 was read by the next who had the lane.
    assert_eq!((verdict.rule, verdict.count), (Rule::Duplicates, 2));
    assert_eq!(examples, [("a2", "it was received 2 times; repeats explained: 0")]);
}

#[test]
fn with_lanes_a_row_is_ended_once_and_an_epoch_has_one_owner() {
    breaks(&[Rule::Fence], "a2", "it was ended more than once: done under lane 3/7, done under lane 3/8", |planted| {
        by_lanes(planted);
        planted.add(9000, "relay-1", settled("a2", "lane 3/8", "done", true));
    });
    breaks(&[Rule::Fence], "a2", "relay-2 and relay-1 both settled under lease lane 3/7", |planted| {
        by_lanes(planted);
        planted.add(9000, "relay-1", settled("a2", "lane 3/7", "done", false));
    });
}

/// The same of a run in which those behind p1, which is number 1 of key b, wait until somebody gives it up.
fn waiting(planted: &mut Planted, policy: &str) {
    by_lanes(planted);
    policy.clone_into(&mut planted.run().on_dead);
}

#[test]
fn what_waits_for_an_operator_may_come_when_he_has_decided() {
    is_valid(|planted| {
        waiting(planted, "park");
        planted.add(3299, "operator", decided("p1", "skip"));
    });
    is_valid(|planted| {
        waiting(planted, "block");
        planted.add(3299, "operator", decided("p1", "give up"));
    });
}

#[test]
fn what_does_not_wait_for_the_operator_is_found() {
    let why = r#"number 2 of key "b" came before anybody gave up number 1"#;
    breaks(&[Rule::Order], "b2", why, |planted| {
        waiting(planted, "park");
        planted.add(3301, "operator", decided("p1", "skip"));
    });
    // To try it again is not to give it up.
    let report = spoiled(|planted| {
        waiting(planted, "park");
        planted.add(3299, "operator", decided("p1", "release"));
    });
    assert_eq!(broken(&report), [Rule::Order]);
    assert_eq!(report.doubts, ["no key had to wait for an operator"]);
    // Who blocks may not skip it by himself.
    let report = spoiled(|planted| waiting(planted, "block"));
    assert_eq!(broken(&report), [Rule::WronglyDead, Rule::Order]);
}

#[test]
fn an_operator_may_have_a_dead_event_tried_again_as_often_as_he_says() {
    let again = |planted: &mut Planted| {
        waiting(planted, "park");
        planted.add(3299, "operator", decided("p1", "skip"));
        planted.add(6000, "database", changed("p1", ["dead", "new"], [None, None]));
        planted.add(7000, "database", changed("p1", ["new", "dead"], [None, None]));
        planted.add(7000, "relay-2", settled("p1", "lane 3/7", "dead", true));
    };
    is_valid(|planted| {
        again(planted);
        planted.add(5999, "operator", decided("p1", "release"));
    });
    let why = "it went from DEAD to NEW; it was ended more than once: dead under lane 3/7, dead under lane 3/7";
    breaks(&[Rule::Fence], "p1", why, again);
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
