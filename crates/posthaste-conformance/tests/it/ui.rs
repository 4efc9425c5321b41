//! What is not a transaction is refused by the compiler, of every library, and it says what it wants instead.

#[test]
fn only_transactions_are_written_in() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
