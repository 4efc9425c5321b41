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
    let taken = |planted: &mut Planted| planted.add(3050, "database", taken_over("a2", ["r1/5", "r2/2"], Some(700)));
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

/// Lets the server crash at that moment.
fn crash(planted: &mut Planted, millis: i64, database: &str) {
    planted.on(database);
    let fault = "database-crash".to_owned();
    planted.add(millis, "nemesis", What::Broken { fault: fault.clone(), detail: String::new() });
    planted.add(millis + 1, "nemesis", What::Mended { fault, effects: 1 });
}

#[test]
fn a_lease_that_a_crash_took_back_explains_one() {
    let claim = |planted: &mut Planted| planted.add(3000, "relay-1", claimed("r1/9", &["a1", "a2"]));
    is_valid(|planted| {
        repeat(planted, "a2", 1);
        claim(planted);
        crash(planted, 3900, "postgres");
    });
    // Not if the crash came when the claim was on disk, nor if it was over before it, nor on a database that waits for it.
    for (crashed, database) in [(4200, "postgres"), (2800, "postgres"), (3900, "mariadb")] {
        unexplained(0, |planted| {
            claim(planted);
            crash(planted, crashed, database);
        });
    }
    // Nor if there was no claim, or its end was noted, which explains one by itself.
    unexplained(0, |planted| crash(planted, 3900, "postgres"));
    unexplained(1, |planted| {
        claim(planted);
        crash(planted, 3900, "postgres");
        planted.add(3950, "database", taken_over("a2", ["r1/9", "r2/2"], Some(700)));
    });
}

#[test]
fn a_lease_is_taken_back_as_long_as_the_disk_is_full() {
    let fill = |planted: &mut Planted, mended: i64| {
        planted.on("postgres");
        let fault = "disk-full".to_owned();
        planted.add(2500, "nemesis", What::Broken { fault: fault.clone(), detail: String::new() });
        planted.add(mended, "nemesis", What::Mended { fault, effects: 1 });
        planted.add(3000, "relay-1", claimed("r1/9", &["a2"]));
    };
    is_valid(|planted| {
        repeat(planted, "a2", 1);
        fill(planted, 3500);
    });
    unexplained(0, |planted| fill(planted, 2800));
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
