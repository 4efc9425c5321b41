//! Processes that are killed at a point, or told to end, and what they leave behind.

mod destination;
mod kill;
mod ledger;
mod site;
mod terminate;
mod victim;

#[tokio::test]
#[ignore = "no test: a process that other tests start, and end"]
async fn victim() {
    victim::run().await;
}
