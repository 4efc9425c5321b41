//! Chores of the repository, run as `cargo xtask <command>`.

mod cases;
mod features;
mod matrix;
mod suite;
mod trees;

use std::env;
use std::process::ExitCode;

const USAGE: &str = "\
Usage: cargo xtask <command>

Commands:
  cases     print which conformance cases are tested for which store, and fail on holes
  trees     check that the façade with one adapter and one database depends on nothing of the others
  features  check that the command compiles without warnings with no feature, with the default ones, and with Kafka";

fn main() -> anyhow::Result<ExitCode> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["cases"] => cases::run(),
        ["features"] => features::run(),
        ["trees"] => trees::run(),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(ExitCode::SUCCESS)
        }
        _ => {
            eprintln!("{USAGE}");
            Ok(ExitCode::from(2))
        }
    }
}
