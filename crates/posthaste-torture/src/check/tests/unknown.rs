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
