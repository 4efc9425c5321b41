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
