//! Events in transactions of diesel-async, on real databases.

#![allow(clippy::unwrap_used, reason = "a case that meets an error has failed, and says where")]

mod database;
mod hooks;
mod observe;
mod pool;
mod postgres;
mod sqlite;
mod transactions;
mod writes;

/// Makes a test of every case, for both databases.
macro_rules! cases {
    ($($module:ident: $($case:ident),+ $(,)?;)+) => {
        mod on_postgres {
            $($(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    crate::$module::$case(crate::database::create::<posthaste_conformance::PgFixture>().await).await;
                }
            )+)+
        }

        mod on_sqlite {
            $($(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    crate::$module::$case(crate::database::create::<posthaste_conformance::SqliteFixture>().await).await;
                }
            )+)+
        }
    };
}

cases! {
    transactions:
        case_09_outside_a_transaction_nothing_is_written,
        case_09_a_transaction_that_somebody_ended,
        case_10_an_error_rolls_back,
        case_10_a_panic_rolls_back,
        case_10_a_failed_commit_leaves_nothing,
        case_10_a_savepoint_that_was_left_open_rolls_back,
        case_11_one_call_per_commit,
        case_11_receipts,
        case_19_cut_anywhere,
        case_19_cut_inner_transaction,
        it_does_not_begin_inside_of_another,
        a_test_transaction_delivers_nothing,
        savepoint_rolled_back_is_never_delivered,
        savepoint_kept_is_delivered,
        savepoint_of_somebody_else,
        savepoint_by_hand,
        it_can_be_spawned;
    hooks:
        case_12_broken_hooks,
        case_13_hook_changes_events,
        case_13_hook_takes_all,
        case_17_writer_only;
    writes:
        case_10_places_are_given_back,
        case_14_large_batch,
        case_14_empty_batch,
        case_14_all_or_none,
        case_15_full_hot_queue,
        case_16_delayed_events,
        case_20_fields_round_trip,
        case_21_duplicate_id,
        a_missing_table_says_what_to_do;
}
