//! One transaction per request, on every database, through a real socket where that makes a difference.
//!
//! Tests that are named after a case show what the conformance suite shows for the outbox alone: here the layer ends the
//! transaction.

#![allow(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

mod ambient;
mod cancel;
mod ending;
mod error;
mod sharing;
mod support;

/// Makes a test of each case, for each kind of store.
macro_rules! tests {
    ($($store:ident: $fixture:ident),* => $module:ident $cases:tt) => {
        $(
            mod $store {
                crate::tests! { @each $fixture, $module $cases }
            }
        )*
    };
    (@each $fixture:ident, $module:ident { $($case:ident,)* }) => {
        $(
            #[tokio::test]
            async fn $case() {
                crate::$module::$case::<posthaste_conformance::$fixture>().await;
            }
        )*
    };
}
pub(crate) use tests;
