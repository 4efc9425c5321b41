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

#[test]
fn a_claim_after_done_breaks_it() {
    let report = spoiled(|planted| planted.add(9000, "relay-1", claimed("r1/9", &["a2"])));
    assert_eq!(broken(&report), [Rule::Fence]);
    // One that was asked for before it was done may be told of later.
    is_valid(|planted| planted.add(3150, "relay-1", claimed("r1/9", &["a2"])));
}
