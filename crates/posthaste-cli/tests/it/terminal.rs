//! What a terminal shows: colours unless they are not wanted, and progress beside the data, not in it. And whoever sits at one is asked
//! before something is changed.

use serde_json::Value;

use crate::place::Place;

const BOLD: &str = "\u{1b}[1m";

/// By which every event becomes DEAD.
const NOWHERE: &str = "[[route]]\nmatch = { event_type = \"Nothing\" }\nto = \"stdout\"\n";

/// So many events, numbered from 1, that a relay has taken.
fn with_events(here: &Place, count: usize) {
    for n in 1..=count {
        here.ok(&["events", "write", "--id", &n.to_string(), "--type", "Odd", "{}"]);
    }
    here.ok(&["relay", "--once"]);
}

fn counted(here: &Place, status: &str) -> Value {
    here.json(&["stats", "--output", "json"])[status].clone()
}

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
}

/// By no-color.org: whatever it says, unless it says nothing.
#[test]
fn no_color_is_heeded_unless_it_is_empty() {
    let commands = [&["events", "list"][..], &["stats"], &["events", "show", "e1"], &["--help"]];
    for (variables, is_coloured) in [
        (&[("NO_COLOR", "1")][..], false),
        (&[("NO_COLOR", "0")], false),
        (&[("NO_COLOR", "false")], false),
        (&[("NO_COLOR", "1"), ("CLICOLOR_FORCE", "1")], false),
        (&[("NO_COLOR", "")], true),
        (&[("NO_COLOR", ""), ("CLICOLOR", "0")], false),
        (&[("NO_COLOR", ""), ("TERM", "dumb")], false),
    ] {
        let here = variables.iter().fold(Place::new(), |here, (name, value)| here.variable(name, value));
        here.ok(&["events", "write", "--id", "e1", "--type", "Ticked", "{}"]);
        for command in commands {
            let (printed, _) = here.on_terminal(1, command);
            // What clap prints is bold and underlined.
            let is_clap = command == ["--help"];
            if !is_clap || variables.len() == 1 {
                assert_eq!(printed.contains("\u{1b}["), is_coloured, "{variables:?} {command:?}: {printed:?}");
            }
            assert!(!printed.is_empty());
            if is_coloured {
                // An empty one forces nothing on a pipe.
                let (printed, _) = here.on_terminal(2, command);
                assert!(!printed.is_empty() && !printed.contains('\u{1b}'), "{variables:?} {command:?}: {printed:?}");
            }
        }
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

#[test]
fn progress_is_shown_on_standard_error_and_only_to_a_terminal() {
    let here = Place::with(NOWHERE);
    with_events(&here, 40);
    let redrive = ["dead", "redrive", "--all", "--chunk", "1", "--yes"];
    let (printed, said) = here.on_terminal(2, &redrive);
    assert_eq!(printed, "40 redriven\n");
    assert!(said.contains("/40 ") && said.contains('█'), "{said:?}");

    // Of which nothing is to be seen where standard error is no terminal, whatever standard output is.
    here.ok(&["relay", "--once"]);
    let (printed, said) = here.on_terminal(1, &redrive);
    assert_eq!(printed, "40 redriven\n");
    assert!(said.contains("40 events to redrive") && !said.contains('█') && !said.contains("/40 "), "{said:?}");
}

#[test]
fn progress_of_what_is_discarded_is_shown_to_a_terminal() {
    let here = Place::with(NOWHERE);
    let discard = ["dead", "discard", "--all", "--chunk", "1", "--yes"];
    with_events(&here, 40);
    let (printed, said) = here.on_terminal(2, &discard);
    assert_eq!((&*printed, counted(&here, "dead")), ("40 discarded\n", 0.into()));
    assert!(said.contains("40 events to discard") && said.contains("/40 ") && said.contains('█'), "{said:?}");
    // The bar is wiped away in the end.
    assert!(!said.rsplit("\u{1b}[2K").next().unwrap().contains('█'), "{said:?}");

    with_events(&here, 40);
    let (printed, said) = here.on_terminal(1, &discard);
    assert_eq!((&*printed, counted(&here, "dead")), ("40 discarded\n", 0.into()));
    assert!(said.contains("40 events to discard") && !said.contains("/40 ") && !said.contains('\u{1b}'), "{said:?}");
}

#[test]
fn progress_of_a_purge_is_shown_to_a_terminal() {
    let here = Place::with("[destination.out]\ntype = \"file\"\npath = \"out\"\n");
    let purge = ["purge", "--done-after", "0s", "--chunk", "1", "--yes"];
    with_events(&here, 40);
    let (printed, said) = here.on_terminal(2, &purge);
    assert_eq!((&*printed, counted(&here, "done")), ("40 deleted\n", 0.into()));
    assert!(said.contains("DONE events that ended") && said.contains("1 deleted"), "{said:?}");
    assert!(!said.rsplit("\u{1b}[2K").next().unwrap().contains("deleted"), "{said:?}");

    with_events(&here, 40);
    let (printed, said) = here.on_terminal(1, &purge);
    assert_eq!((&*printed, counted(&here, "done")), ("40 deleted\n", 0.into()));
    assert_eq!(said, "DONE events that ended more than 0s ago are deleted\n");
}

#[test]
fn whoever_is_asked_decides() {
    let here = Place::with(&format!("{NOWHERE}[[route]]\nmatch = {{ event_type = \"Good\" }}\nto = \"stdout\"\n"));
    with_events(&here, 9);
    for id in ["a", "b"] {
        here.ok(&["events", "write", "--id", id, "--type", "Good", "{}"]);
        here.ok(&["relay", "--once"]);
    }
    let counts = || {
        let stats = here.json(&["stats", "--output", "json"]);
        (stats["new"].clone(), stats["done"].clone(), stats["dead"].clone())
    };
    let before = counts();
    assert_eq!(before, (0.into(), 2.into(), 9.into()));

    let commands = [
        (&["dead", "redrive", "1", "2"][..], "redrive them? [y/N] "),
        (&["dead", "discard", "--all"], "discard them? [y/N] "),
        (&["purge", "--done-after", "0s"], "delete them? [y/N] "),
    ];
    for (command, question) in commands {
        // The end of input, where something stands on the line, needs the key twice.
        let more = if command[0] == "purge" { &["n^D^D", "whatever\n", "yes please\n"][..] } else { &[] };
        for answer in ["n\n", "\n", "^D"].iter().chain(more) {
            let ended = here.answering(answer, command);
            assert_eq!((ended.status, &*ended.printed), (1, ""), "{command:?} {answer:?}: {ended:?}");
            assert!(ended.said.contains(question), "{ended:?}");
            assert!(ended.said.ends_with("\nnothing was changed\n"), "{command:?} {answer:?}: {ended:?}");
            assert_eq!(counts(), before, "{command:?} {answer:?}");
        }
        // Whoever breaks it off has said no as well.
        let ended = here.answering("^C", command);
        assert_eq!((ended.status, &*ended.printed, counts()), (-2, "", before.clone()), "{command:?}: {ended:?}");

        // Where somebody could read the question and nobody answer, and the other way round, it is not asked.
        let said = here.fails(1, command);
        assert!(said.ends_with("nothing was changed; say --yes to go on\n") && !said.contains("[y/N]"), "{said}");
        assert_eq!(counts(), before, "{command:?}");
    }

    let yes = |answer: &str, command: &[&str]| {
        let ended = here.answering(answer, command);
        assert_eq!(ended.status, 0, "{ended:?}");
        ended.printed
    };
    assert_eq!(yes("y\n", &["dead", "redrive", "1", "2"]), "2 redriven\n");
    assert_eq!(counts(), (2.into(), 2.into(), 7.into()));
    assert_eq!(yes("yes\n", &["dead", "discard", "3"]), "1 discarded\n");
    assert_eq!(yes("Y\n", &["dead", "discard", "--all"]), "6 discarded\n");
    assert_eq!(counts(), (2.into(), 2.into(), 0.into()));
    assert_eq!(yes(" Yes \n", &["purge", "--done-after", "0s"]), "2 deleted\n");
    assert_eq!(counts(), (2.into(), 0.into(), 0.into()));
}

/// What is given up while he thinks about it was not shown to him.
#[test]
fn what_dies_after_the_question_is_left_alone() {
    for (command, done) in [("discard", "2 discarded\n"), ("redrive", "2 redriven\n")] {
        let here = Place::with(NOWHERE);
        with_events(&here, 3);
        // The first is on its way again.
        here.ok(&["dead", "redrive", "1", "--yes"]);
        let ended = here.answering_after(&["relay", "--once"], "y\n", &["dead", command, "--all"]);
        assert!(ended.said.contains(&format!("2 events to {command}")), "{ended:?}");
        assert_eq!((ended.status, &*ended.printed), (0, done), "{ended:?}");
        let left = here.json(&["dead", "list", "--each", "--output", "json"]);
        let left: Vec<_> = left.as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap()).collect();
        assert_eq!(left, ["1"], "{command}");
    }
}

#[test]
fn whoever_is_asked_decides_about_aggregates() {
    let here = Place::with(&format!("[relay]\nordered = true\n{NOWHERE}"));
    here.ok(&["migrate", "up", "--lanes"]);
    let of = ["--aggregate-type", "Order", "--aggregate-id", "42"];
    here.ok(&[&["events", "write", "--id", "e1", "--type", "Odd", "{}"], &of[..]].concat());
    here.ok(&["relay", "--once"]);
    let parked = || here.json(&["keys", "--output", "json"])[0]["state"].clone();
    for (command, question) in [("skip", "skip them? [y/N] "), ("release", "release them? [y/N] ")] {
        for answer in ["n\n", "\n", "^D"] {
            let ended = here.answering(answer, &["keys", command, "Order/42"]);
            assert_eq!((ended.status, &*ended.printed, parked()), (1, "", "parked".into()), "{answer:?}: {ended:?}");
            assert!(ended.said.contains(question) && ended.said.ends_with("\nnothing was changed\n"), "{ended:?}");
        }
    }
    let ended = here.answering("y\n", &["keys", "release", "Order/42"]);
    assert_eq!((ended.status, &*ended.printed), (0, "1 released\n"), "{ended:?}");
    assert_ne!(parked(), "parked");
}
