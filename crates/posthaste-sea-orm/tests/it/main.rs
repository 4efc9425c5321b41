//! What the adapter must do, on every database that SeaORM has a driver for. Names are those of the conformance suite.

#![allow(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

/// Makes a test of each case, for each of these databases.
macro_rules! tests {
    (every: $($case:ident),* $(,)?) => {
        mod postgres { crate::tests!(posthaste_conformance::PgFixture: $($case),*); }
        mod sqlite { crate::tests!(posthaste_conformance::SqliteFixture: $($case),*); }
        mod mariadb { crate::tests!(posthaste_conformance::MariaDbFixture: $($case),*); }
    };
    ($fixture:ty: $($case:ident),*) => {
        $(
            #[tokio::test]
            async fn $case() {
                super::$case::<$fixture>().await;
            }
        )*
    };
}
pub(crate) use tests;

mod between;
mod cancel;
mod certain;
mod closure;
mod commit;
mod counted;
mod deadlock;
mod doubt;
mod ended;
mod hook;
mod lost;
mod order;
mod rows;
mod savepoint;
mod support;
mod writer;
