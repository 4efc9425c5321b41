//! What becomes of a command that nobody reads, as with `| head -1`: it ends quietly, and has done what it was told.

use crate::place::Place;
use crate::stderr;

#[track_caller]
fn assert_quiet(here: &Place, arguments: &[&str]) {
    let output = here.unread(arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
    for word in ["panicked", "Broken pipe", "error"] {
        assert!(!stderr(&output).contains(word), "{arguments:?}: {}", stderr(&output));
    }
}

#[test]
fn whoever_reads_nothing_more_ends_a_command_quietly() {
    let here = Place::with("[[route]]\nmatch = { event_type = \"Order*\" }\nto = \"stdout\"\n");
    for before in
        [&["migrate", "sql"][..], &["config", "print"], &["config", "check"], &["completions", "bash"], &["man"]]
    {
        assert_quiet(&here, before);
    }
    // The status is an answer, too.
    for no in [&["migrate", "status"][..], &["doctor"]] {
        let output = here.unread(no);
        assert_eq!(output.status.code(), Some(1), "{no:?}: {}", stderr(&output));
    }
    // Everything is done, although the first line could not be printed.
    assert_quiet(&here, &["migrate", "up", "--lanes"]);
    here.ok(&["migrate", "status"]);
    assert!(!stderr(&here.run(&["keys"])).contains("not prepared"));
    assert_quiet(&here, &["init", "another.toml"]);
    assert!(here.read("another.toml").contains("[database]"));
    assert_quiet(&here, &["events", "write", "--id", "e1", "--type", "Odd", "{}"]);
    here.ok(&["relay", "--once"]);
    assert_eq!(here.json(&["stats", "--output", "json"])["dead"], 1);
    for form in ["table", "json", "ndjson"] {
        for command in [
            &["events", "list"][..],
            &["events", "show", "e1"],
            &["events", "tail"],
            &["dead", "list"],
            &["dead", "list", "--each"],
            &["stats"],
            &["doctor"],
        ] {
            assert_quiet(&here, &[command, &["--output", form]].concat());
        }
        for empty in ["keys", "pause list"] {
            assert_quiet(&here, &[&empty.split(' ').collect::<Vec<_>>()[..], &["--output", form]].concat());
        }
    }
    for command in [&["migrate", "status"][..], &["--help"], &["relay", "--help"], &["--version"]] {
        assert_quiet(&here, command);
    }
    assert_quiet(&here, &["pause", "route", "route-1", "--anyway"]);
    assert_eq!(here.json(&["pause", "list", "--output", "json"])[0]["name"], "route-1");
    assert_quiet(&here, &["resume", "route", "route-1"]);
    assert_eq!(here.json(&["pause", "list", "--output", "json"]).as_array().unwrap().len(), 0);
    let output = here.unread(&["dead", "redrive", "--all", "--yes"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(here.json(&["stats", "--output", "json"])["new"], 1);
    assert_eq!(here.unread(&["purge", "--done-after", "0s", "--yes"]).status.code(), Some(0));
}

/// As with `2>&1 | head -1`.
#[test]
fn whoever_hears_nothing_more_changes_no_status() {
    let wrong = Place::with("[relay]\nworker = 4\n[log]\nformat = \"xml\"\n");
    assert_eq!(wrong.unheard(&["config", "check"]), Some(3));
    assert_eq!(wrong.unheard(&["config", "print"]), Some(3));
    let here = Place::with("[destination.out]\ntype = \"file\"\npath = \"out\"\n").variable("RUST_LOG", "debug");
    assert_eq!(here.unheard(&["stats"]), Some(5));
    here.ok(&["migrate", "up"]);
    assert_eq!(here.unheard(&["events", "show", "nobody"]), Some(1));
    assert_eq!(here.unheard(&["dead", "redrive", "nobody"]), Some(1));
    assert_eq!(here.unheard(&["keys"]), Some(0));
    // A relay delivers although nobody reads its log.
    here.ok(&["events", "write", "--type", "Ticked", "{}"]);
    assert_eq!(here.unheard(&["relay", "--once"]), Some(0));
    assert_eq!(here.read("out").lines().count(), 1);
    assert_eq!(here.unheard(&["purge", "--done-after", "0s", "--yes"]), Some(0));
}
