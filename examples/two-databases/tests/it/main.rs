//! Runs the example as a user would, and checks what it prints.

use std::process::Command;

#[test]
fn every_order_is_billed_in_the_other_database() {
    let output = Command::new(env!("CARGO_BIN_EXE_example-two-databases")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8_lossy(&output.stdout);
    for order in 1..=3 {
        assert!(printed.contains(&format!("orders: order {order} placed")), "{printed}");
        assert!(printed.contains(&format!("billing: invoice for order {order} issued")), "{printed}");
    }
    assert!(printed.ends_with("orders: 3 events done; billing: 3 events done\n"), "{printed}");
}
