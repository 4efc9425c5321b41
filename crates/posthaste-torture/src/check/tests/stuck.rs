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
