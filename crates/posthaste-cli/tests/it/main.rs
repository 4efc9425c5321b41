//! The command as a user meets it: run as a program, judged by what it prints and by its exit status.

#![allow(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

mod bench;
mod brokers;
mod clock;
mod config;
mod demo;
mod doctor;
mod ending;
mod fanout;
mod golden;
mod help;
#[cfg(feature = "kafka")]
mod kafka;
mod keys;
mod languages;
mod operations;
mod operator;
mod order;
mod packaging;
mod pause;
mod pipes;
mod place;
mod receiver;
mod relay;
mod routes;
mod shell;
mod standard_output;
#[cfg(feature = "otlp")]
mod telemetry;
mod terminal;
mod untouched;

use std::io::ErrorKind;
use std::process::{Command, Output};

/// Runs the command with these arguments and no terminal.
fn posthaste(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste"));
    command.args(arguments).env_remove("RUST_LOG");
    command.output().expect("the command can be started")
}

/// Runs a program of the machine that is not ours, which is in that package of Debian.
fn tool(package: &str, command: &mut Command) -> Output {
    match command.output() {
        Err(error) if error.kind() == ErrorKind::NotFound => panic!(
            "{} is not there: run scripts/test, which installs it, or: apt-get install {package}",
            command.get_program().display()
        ),
        output => output.expect("the program can be started"),
    }
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).expect("the command prints UTF-8")
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).expect("the command prints UTF-8")
}

#[test]
fn version_is_told() {
    let output = posthaste(&["--version"]);
    assert!(output.status.success());
    assert_eq!(stdout(&output), format!("posthaste {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn help_is_shown_when_nothing_is_asked() {
    let output = posthaste(&[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("Usage: posthaste <COMMAND>"), "{}", stderr(&output));
    assert!(stderr(&output).contains("demo"), "{}", stderr(&output));
}
