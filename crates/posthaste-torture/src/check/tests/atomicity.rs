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
