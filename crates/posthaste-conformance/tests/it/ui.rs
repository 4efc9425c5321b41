//! What is not a transaction is refused by the compiler, of every library, and it says what it wants instead.

use std::env;
use std::process::Command;

/// What trybuild has the compiler told, but for the width of its messages, which is the same without.
const FLAGS: [&str; 5] = ["--cfg", "trybuild", "--verbose", "-A", "dead_code"];

/// trybuild checks all libraries once without that width, and once more with it. Told here, it is the same for both, and half of
/// the price.
#[test]
fn only_transactions_are_written_in() {
    let own = env::current_exe().expect("a test is a program");
    let files = Command::new(own)
        .args(["--exact", "ui::files", "--ignored", "--nocapture"])
        .env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\u{1f}"))
        .status();
    assert!(files.expect("it starts").success(), "see above");
}

#[test]
#[ignore = "no test: a process that the one above starts"]
fn files() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
