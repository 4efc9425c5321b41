//! The cases that every Posthaste store and the dispatcher must pass: `cases.txt` lists them, `cargo xtask cases` shows
//! which of them are tested for which store.
//!
//! A case is an async function that is generic over a [`Fixture`], in the file of its subject. Its doc comment says what
//! must hold. [`store_tests!`] makes a test of each, named after it, for one kind of store.
//!
//! Cases wait for what is to happen, through the signals of [`Tap`] (a listener), [`Meter`] (metrics) and [`Faults`] (a
//! store that fails on demand). What is not to happen is looked for after something later has happened.

#![allow(clippy::unwrap_used, reason = "a case that meets an error has failed, and says where")]
#![allow(clippy::missing_panics_doc, reason = "to panic is how a case fails")]

mod fixture;

// What the cases are made of.
mod course;
mod faulty;
mod journal;
mod meter;
mod outboxes;
mod rows;
mod tap;
mod wait;
mod wire;
mod witness;

// Part B.
#[doc(hidden)]
pub mod ambient;
#[doc(hidden)]
pub mod cancel;
#[doc(hidden)]
pub mod ended;
#[doc(hidden)]
pub mod hook;
#[doc(hidden)]
pub mod savepoint;
pub mod writer;

// Part C.
#[doc(hidden)]
pub mod admin;
#[doc(hidden)]
pub mod claim;
#[doc(hidden)]
pub mod closed_keys;
#[doc(hidden)]
pub mod foreign;
#[doc(hidden)]
pub mod insert;
#[doc(hidden)]
pub mod lane_read;
#[doc(hidden)]
pub mod lane_settle;
#[doc(hidden)]
pub mod lane_store;
#[doc(hidden)]
pub mod pause;
#[doc(hidden)]
pub mod settle;
#[doc(hidden)]
pub mod table;

// Part D.
#[doc(hidden)]
pub mod dispatch;
#[doc(hidden)]
pub mod intercept;
#[doc(hidden)]
pub mod outcome;
#[doc(hidden)]
pub mod routing;

// Part E.
#[doc(hidden)]
pub mod poll;

// Part F.
#[doc(hidden)]
pub mod clock;
#[doc(hidden)]
pub mod nodes;

// Part G.
#[doc(hidden)]
pub mod failing_head;
#[doc(hidden)]
pub mod lane_relays;
#[doc(hidden)]
pub mod order;

pub use faulty::{Call, Fault, Faults, Faulty};
pub use fixture::{
    Fixture, ForeignTx, Lanes, MariaDbFixture, MemoryFixture, PartitionedFixture, PgFixture, Polled, Served,
    SqliteFixture, Tables, Value,
};
pub use meter::{Meter, Tally};
pub use outboxes::{no_interval, start};
pub use tap::{Inbox, Tap};
pub use wait::Gate;

/// What the cases are made of besides, for the tests of adapters.
pub mod testing {
    pub use crate::journal::Journal;
    pub use crate::outboxes::watched;
    pub use crate::rows::{event, event_with_id, events, ids_of};
    pub use crate::wait::{cut_short, eventually, within};
    pub use crate::wire::Wire;
    pub use crate::witness::{Told, Witness, told};
}

/// Makes a test of every case that concerns all stores, for the given [`Fixture`]. Call it in a module with the name of
/// the store.
#[macro_export]
macro_rules! store_tests {
    ($fixture:ty) => {
        $crate::tests! { #[tokio::test] $fixture;
            hook {
                case_10_nothing_survives,
                case_10_places_are_given_back,
                case_11_one_call_per_commit,
                case_11_receipts,
                case_12_broken_hooks,
                case_13_hook_changes_events,
                case_13_hook_takes_all,
                case_17_writer_only,
                case_17_writer_only_with_hook,
            }
            writer {
                case_09_only_inside_a_transaction,
                case_14_large_batch,
                case_14_empty_batch,
                case_14_all_or_none,
                case_15_full_hot_queue,
                case_16_delayed_events,
                case_16_delay_ends_by_itself,
                case_18_lost_answer_of_a_commit,
                case_18_lost_commit,
                case_21_duplicate_reaches_the_writer,
                case_65_dropped_receipt,
                case_66_commit_after_shutdown,
                case_67_long_transaction,
            }
            cancel {
                case_19_cut_anywhere,
                case_19_cut_commit,
                case_19_commit_goes_on,
                case_19_begin_goes_on,
                case_19_cut_write,
                case_19_cut_write_after_another,
            }
            savepoint {
                case_79_undone,
                case_79_kept,
                case_79_of_somebody_else,
                case_79_forgotten,
                case_79_cut_off,
                case_79_cut_anywhere,
                case_79_cut_end,
            }
            ambient {
                case_80_refused_outside,
                case_80_commits,
                case_80_rolls_back,
                case_80_one_inside_another,
                case_80_cut_anywhere,
            }
            insert {
                case_20_fields_round_trip,
                case_20_batches_of_every_kind,
                case_20_fields_at_their_limits,
                case_20_rows_are_born_leased,
                case_21_duplicate_id,
                case_21_owner_decides,
            }
            settle {
                case_22_done_twice,
                case_23_final_states,
                case_24_retry,
                case_24_error_text,
                case_24_longest_delay,
                case_25_dead,
                case_25_deferred,
                case_26_mixed_batch,
                case_26_numbers_and_ids,
                case_26_large_batch,
                case_32_lost_lease,
                case_32_expired_but_not_taken,
                case_78_done_is_deleted,
                case_78_every_other_outcome_is_kept,
                case_78_mixed_batch,
                case_78_deleted_after_delivery,
            }
            claim {
                case_27_pending_rows,
                case_27_skip_recent,
                case_27_limit_and_order,
                case_28_skips_live_leases,
                case_28_takes_expired_leases,
                case_28_lease_duration_is_the_claims,
                case_28_never_before_its_moment,
                case_28_tells_lag_and_next_moment,
                case_30_order_of_claimed_rows,
                case_31_lease_round_trip,
                case_31_ids_of_any_look,
                case_33_renew,
                case_33_release,
            }
            lane_store {
                case_81_one_owner,
                case_81_given_back,
                case_81_relays,
                case_95_settings,
            }
            lane_read {
                case_82_read_by_number,
                case_82_reads_are_fenced,
                case_82_leases_of_rows,
                case_82_undecodable_row,
                case_82_redriven_and_deleted,
            }
            lane_settle {
                case_83_current_epoch,
                case_83_epoch_of_before,
                case_83_twice_in_a_batch,
            }
            closed_keys {
                case_84_closed_keys,
                case_84_redriven_head,
                case_84_given_up_head,
                case_84_given_up_when_closed,
                case_84_purged_head,
                case_84_in_a_backlog,
            }
            admin {
                case_34_counts,
                case_34_find,
                case_34_filters,
                case_34_paging,
                case_35_redrive_by_id,
                case_35_redrive_by_filter,
                case_35_redrive_what_dies_again,
                case_35_discard,
                case_35_discard_what_was_seen,
                case_36_retention_per_status,
                case_36_chunks,
                case_36_append_only,
                case_36_scheduled,
            }
            pause {
                case_96_kept_until_resumed,
                case_96_names_of_any_look,
                case_97_heeded_by_every_relay,
            }
            routing {
                case_40_most_exact_route,
                case_40_duplicate_registration,
                case_40_fan_out,
                case_41_unroutable,
                case_41_listeners_are_complete_at_the_start,
                case_41_no_listener_at_all,
            }
            outcome {
                case_42_backoff_until_dead,
                case_42_one_attempt,
                case_42_policy_of_a_listener,
                case_43_outcomes,
                case_43_deferrals_do_not_count,
                case_46_panic_in_a_listener,
                case_46_panic_elsewhere,
                case_47_time_limit,
                case_47_time_limit_of_the_options,
                case_47_blocking_listener,
                case_68_slices,
                case_68_wrong_number_of_answers,
            }
            intercept {
                case_44_order,
                case_44_before_fails,
                case_44_after_fails,
                case_46_panic_in_an_interceptor,
            }
            dispatch {
                case_45_settled_again,
                case_45_redelivered,
                case_45_one_bad_row,
                case_48_idle_queue,
                case_49_share_of_hot_and_cold,
                case_50_late_end_of_an_old_attempt,
                case_50_tracker,
                case_52_drains,
                case_52_drains_both_queues,
                case_52_keeps_to_the_deadline,
                case_52_database_does_not_answer,
                case_52_twice_and_at_once,
                case_52_cut_short,
                case_69_lease_is_adopted,
                case_69_adopted_while_settling,
                case_69_claimed_before_the_answer,
                case_70_slow_listener_keeps_its_lease,
                case_70_failed_renewal,
                case_75_lease_runs_out_in_the_queue,
            }
            poll {
                case_53_free_capacity,
                case_53_outbox_claims_what_fits,
                case_53_large_payloads,
                case_54_handler_refuses,
                case_55_undecodable_row,
                case_55_undecodable_batch,
                case_56_lag_is_not_guessed,
                case_56_errors_back_off,
                case_57_start_twice,
                case_57_close_in_any_order,
                case_57_close_during_a_claim,
                case_58_backlog,
                case_58_exactly_full,
                case_58_handler_without_signal,
                case_74_next_moment,
                case_74_wake,
            }
            nodes {
                case_60_node_dies,
                case_63_two_databases,
                case_64_thousand_cycles,
                case_64_outboxes_come_and_go,
                case_71_takeover_at_the_start,
                case_72_too_late,
                case_73_dropped_outbox,
            }
        }
        // Where it matters that things happen at the same time.
        $crate::tests! { #[tokio::test(flavor = "multi_thread", worker_threads = 4)] $fixture;
            claim {
                case_29_concurrent_claims,
            }
            dispatch {
                case_51_workers,
            }
            lane_settle {
                case_83_lease_meets_settlement,
            }
            nodes {
                case_59_two_nodes,
                case_61_hot_here_cold_there,
                case_62_burst,
                case_66_commits_during_shutdown,
            }
        }
    };
}

/// Makes a test of every case that concerns stores with tables, for a [`Fixture`] that has [`Tables`].
#[macro_export]
macro_rules! table_tests {
    ($fixture:ty) => {
        $crate::tests! { #[tokio::test] $fixture;
            table {
                case_37_custom_names,
                case_37_hostile_names,
                case_38_urls,
                case_39_missing_table,
                case_39_from_empty_and_repeated,
                case_39_dry_run,
                case_39_outbox_without_a_table,
            }
            ended {
                case_18_committed_by_a_statement,
            }
            savepoint {
                case_79_cut_off_by_others,
            }
            lane_store {
                case_81_not_prepared,
            }
            foreign {
                case_76_inserted_by_another_program,
                case_76_marked_by_another_program,
                case_76_without_a_payload,
            }
        }
        $crate::tests! { #[tokio::test(flavor = "multi_thread", worker_threads = 4)] $fixture;
            table {
                case_39_two_processes_at_once,
            }
        }
    };
}

/// Makes a test of every case that concerns stores on servers, for a [`Fixture`] that is [`Served`]. The program needs an
/// ignored test `node` at its root, which runs [`clock::node`].
#[macro_export]
macro_rules! server_tests {
    ($fixture:ty) => {
        $crate::tests! { #[tokio::test] $fixture;
            ended {
                case_10_lost_deadlock,
                case_10_lost_deadlock_in_a_savepoint,
                case_10_lost_deadlock_of_somebody_else,
            }
            lane_read {
                case_82_late_commit,
                case_82_rolled_back,
            }
            clock {
                case_77_an_hour_ahead,
                case_77_an_hour_behind,
            }
        }
    };
}

/// Makes a test of every case that concerns stores with lanes, for a [`Fixture`] that has [`Lanes`]. The attribute is that of the
/// tests that need no more than one thread; it may pause the clock if the store's clock is tokio's.
#[macro_export]
macro_rules! lane_tests {
    (#[$test:meta] $fixture:ty) => {
        $crate::tests! { #[$test] $fixture, with_lanes as $crate::Lanes;
            order {
                case_90_batches,
                case_92_delayed_head,
                case_92_without_order,
                case_93_open_writers,
                case_93_in_a_backlog,
                case_93_writers_at_once,
                case_94_hot_by_reading,
            }
            failing_head {
                case_87_block,
                case_87_given_up,
                case_87_given_up_when_parked,
                case_87_skip,
                case_87_park,
                case_87_undecodable,
            }
            lane_relays {
                case_88_takeover,
                case_89_rolling_start,
                case_91_shutdown,
                case_91_deadline,
                case_95_refused,
                case_95_noticed,
            }
        }
        $crate::tests! { #[tokio::test(flavor = "multi_thread", worker_threads = 4)] $fixture, with_lanes as $crate::Lanes;
            order {
                case_85_two_relays,
                case_85_slow_listeners,
                case_86_hot_key,
            }
        }
    };
}

/// One test for each name, which runs the case of that name on a fresh store.
#[doc(hidden)]
#[macro_export]
macro_rules! tests {
    (#[$test:meta] $fixture:ty; $($module:ident { $($case:ident,)* })*) => {
        $crate::tests! { @flat [#[$test] $fixture, create as $crate::Fixture] $($($module $case)*)* }
    };
    (#[$test:meta] $fixture:ty, $create:ident as $trait:path; $($module:ident { $($case:ident,)* })*) => {
        $crate::tests! { @flat [#[$test] $fixture, $create as $trait] $($($module $case)*)* }
    };
    (@flat [#[$test:meta] $fixture:ty, $create:ident as $trait:path] $($module:ident $case:ident)*) => {
        $(
            #[$test]
            async fn $case() {
                let fixture = <$fixture as $trait>::$create().await;
                $crate::$module::$case(fixture).await;
            }
        )*
    };
}
