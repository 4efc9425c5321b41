//! What every command says of itself, kept in `tests/it/golden/help.txt`. To accept a change:
//!
//! ```sh
//! POSTHASTE_GOLDEN=overwrite cargo test -p posthaste-cli --all-features --test it help::
//! ```

use crate::golden::assert_kept;
use crate::{posthaste, stdout};

const COMMANDS: &[&[&str]] = &[
    &[],
    &["relay"],
    &["init"],
    &["config"],
    &["config", "check"],
    &["config", "print"],
    &["migrate"],
    &["migrate", "up"],
    &["migrate", "status"],
    &["migrate", "sql"],
    &["events"],
    &["events", "list"],
    &["events", "show"],
    &["events", "write"],
    &["events", "tail"],
    &["dead"],
    &["dead", "list"],
    &["dead", "redrive"],
    &["dead", "discard"],
    &["keys"],
    &["keys", "skip"],
    &["keys", "release"],
    &["stats"],
    &["pause"],
    &["pause", "route"],
    &["pause", "destination"],
    &["pause", "list"],
    &["resume"],
    &["resume", "route"],
    &["resume", "destination"],
    &["purge"],
    &["doctor"],
    &["completions"],
    &["man"],
];

#[test]
fn help_is_as_it_was() {
    let mut all = String::new();
    for command in COMMANDS {
        let output = posthaste(&[command, &["--help"][..]].concat());
        assert_eq!(output.status.code(), Some(0), "{command:?}");
        let said: Vec<&str> = stdout(&output).lines().map(str::trim_end).collect();
        let command = [&["posthaste"][..], command, &["--help"]].concat().join(" ");
        all += &format!("$ {command}\n{}\n\n", said.join("\n").trim_end());
    }
    assert_kept("help.txt", &all);
}
