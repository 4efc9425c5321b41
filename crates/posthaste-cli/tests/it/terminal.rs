//! What a terminal shows: colours unless they are not wanted, and progress beside the data, not in it.

use crate::place::Place;

const BOLD: &str = "\u{1b}[1m";

#[test]
fn colours_are_for_terminals_of_those_who_want_them() {
    let here = Place::new();
    here.ok(&["events", "write", "--id", "e1", "--type", "Ticked", "{}"]);
    for command in [&["events", "list"][..], &["stats"], &["events", "show", "e1"]] {
        let (printed, _) = here.on_terminal(1, command);
        assert!(printed.contains(BOLD), "{command:?}: {printed:?}");
        // A pipe is no terminal, also beside one.
        let (printed, _) = here.on_terminal(2, command);
        assert!(!printed.is_empty() && !printed.contains('\u{1b}'), "{command:?}: {printed:?}");
    }
    let plain = Place::new().variable("NO_COLOR", "1");
    plain.ok(&["events", "write", "--id", "e1", "--type", "Ticked", "{}"]);
    for command in [&["events", "list"][..], &["stats"], &["events", "show", "e1"]] {
        let (printed, _) = plain.on_terminal(1, command);
        assert!(!printed.is_empty() && !printed.contains('\u{1b}'), "{command:?}: {printed:?}");
    }
}

/// A log is read later, and elsewhere, so it has none.
#[test]
fn logs_are_the_same_on_a_terminal() {
    let here = Place::new().variable("POSTHASTE_HTTP_LISTEN", "127.0.0.1:0");
    let (_, said) = here.on_terminal(2, &["relay", "--once"]);
    assert!(said.contains("nothing more is to be done") && !said.contains('\u{1b}'), "{said:?}");
    let here = here.variable("RUST_LOG", "debug");
    let (_, said) = here.on_terminal(2, &["stats"]);
    assert!(said.contains("DEBUG") && !said.contains('\u{1b}'), "{said:?}");
}

/// An event that no route fits is DEAD.
#[test]
fn progress_is_shown_on_standard_error_and_only_to_a_terminal() {
    let here = Place::with("[[route]]\nmatch = { event_type = \"Nothing\" }\nto = \"stdout\"\n");
    for n in 1..=40 {
        here.ok(&["events", "write", "--id", &n.to_string(), "--type", "Odd", "{}"]);
    }
    let redrive = ["dead", "redrive", "--all", "--chunk", "1", "--yes"];
    here.ok(&["relay", "--once"]);
    let (printed, said) = here.on_terminal(2, &redrive);
    assert_eq!(printed, "40 redriven\n");
    assert!(said.contains("/40 ") && said.contains('█'), "{said:?}");

    // Of which nothing is to be seen where standard error is no terminal, whatever standard output is.
    here.ok(&["relay", "--once"]);
    let (printed, said) = here.on_terminal(1, &redrive);
    assert_eq!(printed, "40 redriven\n");
    assert!(said.contains("40 events to redrive") && !said.contains('█') && !said.contains("/40 "), "{said:?}");
}
