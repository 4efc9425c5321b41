//! Runs the example as a user would, and checks what it prints and what it leaves in its table.

use std::process::Command;

use posthaste::testing::{TestOutbox, Wanted};
use posthaste_conformance::{Fixture, PgFixture, Served, Tables};

#[tokio::test]
async fn delivers_what_was_committed_and_only_that() {
    let database = PgFixture::<false>::empty().await;
    // Without the parameters that only sqlx knows.
    let url = database.url().split('?').next().unwrap().to_owned();
    let output = Command::new(env!("CARGO_BIN_EXE_example-diesel")).env("DATABASE_URL", url).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines: Vec<_> = printed.lines().collect();
    // Deliveries go on while the program does.
    lines.sort_unstable();
    let refused = "new row for relation \"orders\" violates check constraint \"orders_total_check\"";
    let expected = [
        "not cancelled: order 1 is not open".to_owned(),
        format!("not placed: {refused}"),
        "order 1 cancelled".to_owned(),
        "order 1 placed: a lamp, 1990 cents".to_owned(),
    ];
    assert_eq!(lines, expected);

    let table = TestOutbox::over(database.store()).await;
    let placed = || Wanted::event("OrderPlaced").aggregate("Order", 1).json(|order| order["total"] == 1990);
    table.assert_written_event(placed().times(1)).await;
    table.wait_delivered(placed()).await;
    table.assert_written_event(Wanted::event("OrderCancelled").aggregate("Order", 1).times(1)).await;
    table.assert_not_written(Wanted::any().json(|order| order["total"] == 0)).await;
}
