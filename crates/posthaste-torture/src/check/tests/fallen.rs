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
