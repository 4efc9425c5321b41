//! Completions and manual pages, read by those who they are for.

use std::process::{Command, Output};

use crate::place::Place;
use crate::{posthaste, stderr, stdout, tool};

/// Has a shell do something, each of which is in a package of its name.
fn run(shell: &str, arguments: &[&str]) -> Output {
    tool(shell, Command::new(shell).args(arguments))
}

#[test]
fn bash_completes_commands_and_flags() {
    let here = Place::new();
    here.write("posthaste.bash", &here.ok(&["completions", "bash"]));
    let ask = |words: &str, last: usize| {
        let script = format!(
            "set -e; source {}; COMP_WORDS=({words}); COMP_CWORD={last}; \
             _posthaste posthaste \"${{COMP_WORDS[{last}]}}\" \"\"; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            here.path("posthaste.bash").display()
        );
        let output = run("bash", &["--norc", "-c", &script]);
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output).lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(ask("posthaste mig", 1), ["migrate"]);
    assert_eq!(ask("posthaste migrate u", 2), ["up"]);
    assert_eq!(ask("posthaste migrate up --wr", 3), ["--write-function"]);
}

#[test]
fn fish_completes_commands_and_flags() {
    let here = Place::new();
    here.write("posthaste.fish", &here.ok(&["completions", "fish"]));
    let ask = |line: &str| {
        let script = format!("source {}; complete --do-complete '{line}'", here.path("posthaste.fish").display());
        let output = run("fish", &["--no-config", "-c", &script]);
        assert!(output.status.success(), "{}", stderr(&output));
        // Each with what it is for.
        let words = stdout(&output).lines().map(|line| line.split('\t').next().unwrap().to_owned());
        words.collect::<Vec<_>>()
    };
    assert_eq!(ask("posthaste mig"), ["migrate"]);
    assert_eq!(ask("posthaste migrate u"), ["up"]);
    assert_eq!(ask("posthaste migrate up --wr"), ["--write-function"]);
}

#[test]
fn every_shell_has_a_script_that_names_the_commands() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let output = posthaste(&["completions", shell]);
        assert_eq!(output.status.code(), Some(0), "{shell}: {}", stderr(&output));
        for word in ["posthaste", "relay", "write-function", "completions"] {
            assert!(stdout(&output).contains(word), "{shell} knows no {word}");
        }
    }
    // Those that Debian has have to accept theirs.
    let here = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        here.write(shell, &here.ok(&["completions", shell]));
        let output = run(shell, &["-n", here.path(shell).to_str().unwrap()]);
        assert!(output.status.success(), "{shell}: {}", stderr(&output));
    }
    let output = posthaste(&["completions", "cmd"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("bash, elvish, fish, powershell, zsh"), "{}", stderr(&output));
}

#[test]
fn there_is_a_manual_page_for_every_command() {
    let here = Place::new();
    let page = here.ok(&["man"]);
    assert!(page.contains(".TH posthaste 1"), "{page}");
    for command in ["posthaste\\-relay(1)", "posthaste\\-migrate(1)", "posthaste\\-dead(1)"] {
        assert!(page.contains(command), "no {command} in:\n{page}");
    }

    std::fs::create_dir(here.path("man1")).unwrap();
    assert_eq!(here.ok(&["man", "--directory", "man1"]), "");
    for (file, words) in [
        ("posthaste.1", "SUBCOMMANDS"),
        ("posthaste-relay.1", "\\-\\-once"),
        ("posthaste-migrate-up.1", "\\-\\-write\\-function"),
        ("posthaste-dead-redrive.1", "\\-\\-yes"),
    ] {
        let page = here.read(&format!("man1/{file}"));
        assert!(page.contains(words), "no {words} in {file}:\n{page}");
    }
    assert!(!page.contains("posthaste\\-help"), "{page}");
    for entry in std::fs::read_dir(here.path("man1")).unwrap() {
        let path = entry.unwrap().path();
        assert!(!path.to_str().unwrap().contains("help"), "{path:?}");
        // Whoever reads manual pages has nothing to say against them.
        let warnings = ["--warnings", "-l", "-E", "UTF-8", path.to_str().unwrap()];
        let mut man = Command::new("man");
        let read = tool("man-db", man.args(warnings).env("LC_ALL", "C.UTF-8").env("MANPAGER", "cat"));
        assert!(read.status.success(), "{path:?}: {}", stderr(&read));
        assert_eq!(stderr(&read), "", "{path:?}");
        assert!(stdout(&read).contains("NAME"), "{path:?}: {}", stdout(&read));
    }
    let error = here.fails(2, &["man", "--directory", "nowhere"]);
    assert!(error.contains("nowhere/posthaste.1 cannot be written"), "{error}");
}
