use super::super::planted::Kind;
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

const TAKEN: Kind = |what| matches!(what, What::Taken { .. });

/// Lets the destination be a broker: relays were told what it has, and it is read at the end.
fn at_a_broker(planted: &mut Planted) {
    planted.run().destination = "kafka".to_owned();
    let mut read = Vec::new();
    for entry in &mut planted.entries {
        if let What::Received(message) = &entry.what {
            let taken = What::Taken { id: message.id.clone() };
            let what = std::mem::replace(&mut entry.what, taken);
            read.push(Entry { at: 11_800_000, who: "reader".to_owned(), what });
        }
    }
    planted.entries.extend(read);
}

#[test]
fn what_a_broker_has_may_be_read_long_after_done() {
    is_valid(at_a_broker);
    let report = spoiled(at_a_broker);
    assert_eq!((report.totals.received, report.totals.duplicates, report.totals.allowed), (5, 1, 1));
    // It is drawn when it was taken.
    assert_eq!(report.timeline.received[..4], [0.0, 0.0, 1.0, 4.0]);
    assert_eq!(report.timeline.lag, spoiled(|_| {}).timeline.lag);
}

#[test]
fn what_a_broker_lost_is_told_from_what_it_never_had() {
    let why = "the broker said that it has it, and does not have it at the end, and its row is DONE";
    breaks(&[Rule::Lost, Rule::FalseDone], "a2", why, |planted| {
        at_a_broker(planted);
        planted.forget("a2", RECEIVED);
    });
    breaks(&[Rule::Lost, Rule::FalseDone], "a2", "it was never received, and its row is DONE", |planted| {
        at_a_broker(planted);
        planted.forget("a2", RECEIVED);
        planted.forget("a2", TAKEN);
    });
}

#[test]
fn done_before_a_broker_had_it_or_without_its_word() {
    let why = "its row is DONE, but nobody was told that the broker has it";
    breaks(&[Rule::FalseDone], "a2", why, |planted| {
        at_a_broker(planted);
        planted.forget("a2", TAKEN);
    });
    breaks(&[Rule::FalseDone], "b2", "it was DONE 51 ms before it was first received", |planted| {
        received_after_done(51)(planted);
        at_a_broker(planted);
    });
}

#[test]
fn what_a_broker_has_and_nobody_wrote_is_a_phantom() {
    breaks(&[Rule::Phantom], "f1", "it was received, but has no business row", |planted| {
        at_a_broker(planted);
        planted.add(11_900, "reader", What::Received(message("f1")));
    });
}
