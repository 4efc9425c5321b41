//! A model of ordered delivery by lanes, as `docs/design/ordering.md` describes it, searched exhaustively.
//!
//! The model is small: one lane, two relays, two keys, three events. But every order of every step is tried, with crashes and lost
//! leases at each of them, so what it allows never goes wrong, and what it catches comes with the shortest way there. (Which relay
//! is which does not matter to it, so they may change their numbers on the way.) The deliberate mistakes at the end show that it
//! would notice.

mod search;
mod world;

use search::{Searched, search};
use world::{ANY_NUMBER, Faults, Mistake, Policy, Rules, World};

/// More states than this, and the model has become too large for a test.
const MOST_STATES: usize = 800_000;

const NONE: Faults = Faults { crashes: 0, expiries: 0, either: 0, handovers: 0, failures: 0 };

fn searched(rules: Rules) -> Searched {
    let started_at = std::time::Instant::now();
    let searched = search(World::new(rules.faults), |world, steps| world.steps(&rules, steps), MOST_STATES);
    println!("{} states, {} steps, {:?}: {rules:?}", searched.states, searched.steps, started_at.elapsed());
    searched
}

#[track_caller]
fn holds(rules: Rules) {
    if let Some(wrong) = searched(rules).wrong {
        panic!("{wrong}");
    }
}

#[track_caller]
fn is_caught(rules: Rules, expected: &str) {
    let wrong = searched(rules).wrong.expect("the mistake was not noticed");
    println!("{wrong}");
    assert!(wrong.starts_with(expected), "{wrong}");
}

#[test]
fn order_and_every_event_survive_a_crash_at_any_step() {
    holds(Rules::new(Policy::Block, Faults { crashes: 1, failures: 1, ..NONE }));
}

/// At every step, any number of times, a relay crashes, or it goes on without its lease, and so does the other one.
#[test]
fn order_and_every_event_survive_crashes_and_lost_leases_at_every_step() {
    let faults = Faults { either: ANY_NUMBER, ..NONE };
    holds(Rules { hot: false, ..Rules::new(Policy::Block, faults) });
}

#[test]
fn order_and_every_event_survive_crashes_lost_leases_and_failures_at_every_step() {
    let faults = Faults { either: ANY_NUMBER, failures: ANY_NUMBER, ..NONE };
    for policy in [Policy::Block, Policy::Park, Policy::Skip] {
        holds(Rules { hot: false, cursor: false, ..Rules::new(policy, faults) });
    }
}

/// Also between what a read sees and what it takes, and where it is cut short.
#[test]
fn order_and_every_event_survive_crashes_and_lost_leases_during_a_read() {
    let faults = Faults { either: ANY_NUMBER, ..NONE };
    holds(Rules { hot: false, cursor: false, slow_reads: true, ..Rules::new(Policy::Block, faults) });
}

/// Also while a lane is drained that is to be handed over.
#[test]
fn order_and_every_event_survive_crashes_and_lost_leases_of_lanes_that_move() {
    let faults = Faults { either: ANY_NUMBER, handovers: ANY_NUMBER, ..NONE };
    holds(Rules { hot: false, cursor: false, ..Rules::new(Policy::Block, faults) });
}

#[test]
fn order_and_every_event_survive_crashes_and_lost_leases_with_the_hot_path() {
    let faults = Faults { either: ANY_NUMBER, failures: ANY_NUMBER, ..NONE };
    holds(Rules { cursor: false, ..Rules::new(Policy::Block, faults) });
}

#[test]
fn order_and_every_event_survive_lanes_that_move_and_a_crash() {
    let faults = Faults { crashes: 1, handovers: 2, ..NONE };
    holds(Rules { hot: false, ..Rules::new(Policy::Block, faults) });
    holds(Rules { cursor: false, ..Rules::new(Policy::Block, faults) });
}

#[test]
fn nothing_overtakes_a_parked_event_until_somebody_decides() {
    let faults = Faults { expiries: 1, failures: 1, ..NONE };
    holds(Rules { cursor: false, ..Rules::new(Policy::Park, faults) });
}

#[test]
fn what_is_behind_a_dead_event_goes_on_if_so_chosen() {
    let faults = Faults { expiries: 1, failures: 1, ..NONE };
    holds(Rules { hot: false, cursor: false, ..Rules::new(Policy::Skip, faults) });
}

#[test]
fn what_happens_during_a_read_is_not_forgotten() {
    let faults = Faults { failures: 1, ..NONE };
    holds(Rules { slow_reads: true, ..Rules::new(Policy::Park, faults) });
}

#[test]
fn without_faults_every_event_is_delivered_once() {
    holds(Rules::new(Policy::Block, Faults { handovers: 2, ..NONE }));
}

#[test]
fn writers_that_do_not_wait_for_each_other_lose_nothing() {
    let faults = Faults { crashes: 1, ..NONE };
    holds(Rules { serialised: false, hot: false, ..Rules::new(Policy::Block, faults) });
}

fn mistaken(mistake: Mistake) -> Rules {
    let faults = Faults { expiries: 1, handovers: 1, failures: 1, ..NONE };
    Rules { mistake: Some(mistake), ..Rules::new(Policy::Park, faults) }
}

#[test]
fn a_settlement_that_does_not_look_at_the_epoch_is_caught() {
    is_caught(mistaken(Mistake::SettlesUnderAnyEpoch), "a settlement was written under a lost lease");
}

#[test]
fn a_cursor_at_the_greatest_number_is_caught() {
    is_caught(mistaken(Mistake::ReadsPastTheGreatest), "an event was started before the one before it was done");
    // Also where there is no order to break.
    let rules = Rules { serialised: false, ..mistaken(Mistake::ReadsPastTheGreatest) };
    is_caught(Rules { faults: NONE, ..rules }, "not everything can be delivered any more");
}

#[test]
fn a_cursor_that_passes_open_transactions_and_forgets_them_is_caught() {
    is_caught(mistaken(Mistake::ForgetsWhoWasOpen), "an event was started before the one before it was done");
}

#[test]
fn a_hot_path_that_does_not_look_for_older_rows_is_caught() {
    is_caught(mistaken(Mistake::HotWithoutLooking), "an event was started before the one before it was done");
}

#[test]
fn a_hot_path_that_does_not_look_for_parked_keys_is_caught() {
    is_caught(mistaken(Mistake::HotPastParkedKeys), "an event was started before the one before it was done");
}

#[test]
fn a_promise_that_is_forgotten_without_those_behind_it_is_caught() {
    is_caught(mistaken(Mistake::KeepsFollowersOfForgotten), "an event was started before the one before it was done");
}

#[test]
fn a_lane_that_is_handed_over_without_a_drain_is_caught() {
    is_caught(mistaken(Mistake::HandsOverUndrained), "an event was started twice without a fault");
}

#[test]
fn a_read_that_is_taken_for_newer_than_it_is_is_caught() {
    let rules = mistaken(Mistake::TrustsOldReads);
    is_caught(Rules { slow_reads: true, ..rules }, "an event was started");
}

#[test]
fn a_lane_taken_without_a_new_epoch_is_caught() {
    is_caught(mistaken(Mistake::KeepsTheEpoch), "two relays have a lease of the same epoch");
}

/// Neither fault alone shows it: it takes one relay that goes on without its lease, and another one that starts.
#[test]
fn epochs_that_begin_again_when_a_relay_starts_are_caught() {
    let rules = |faults| {
        let rules = Rules { hot: false, cursor: false, ..Rules::new(Policy::Block, faults) };
        Rules { mistake: Some(Mistake::TidiesEpochsUp), ..rules }
    };
    holds(rules(Faults { crashes: 2, ..NONE }));
    holds(rules(Faults { expiries: 2, ..NONE }));
    let together = rules(Faults { crashes: 1, expiries: 1, ..NONE });
    is_caught(together, "two relays have a lease of the same epoch");
}
