//! Runs the example as a user would, and checks what it prints.

use std::process::Command;

#[test]
fn delivers_the_committed_order_and_only_that() {
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_example-standalone")).current_dir(&directory).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "order 1 placed, total \"19.90\"\n");
}

#[test]
fn is_the_program_of_the_readme() {
    let readme = include_str!("../../../../README.md");
    let program = include_str!("../../src/main.rs").split_once("\n\n").unwrap().1;
    assert!(readme.contains(program), "the README's program and examples/standalone/src/main.rs have grown apart");
}
