//! Runs the example as a user would, and checks what it prints and what it leaves in its table.

use std::process::Command;

use posthaste::SqliteStore;
use posthaste::testing::{TestOutbox, Wanted};

#[tokio::test]
async fn delivers_the_committed_order_and_only_that() {
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_example-standalone")).current_dir(&directory).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "order 1 placed, total 1990\n");

    let table = TestOutbox::over(SqliteStore::open(directory.path().join("shop.db")).await.unwrap()).await;
    let placed = || Wanted::event("OrderPlaced").aggregate("Order", 1).json(|order| order["total"] == 1990);
    table.assert_written_event(placed().times(1)).await;
    table.wait_delivered(placed()).await;
    table.assert_not_written(Wanted::any().json(|order| order["total"] == -1)).await;
}

#[test]
fn is_the_program_of_the_readme() {
    let readme = include_str!("../../../../README.md");
    let program = include_str!("../../src/main.rs").split_once("\n\n").unwrap().1;
    assert!(readme.contains(program), "the README's program and examples/standalone/src/main.rs have grown apart");
}
