//! What is in hand, step by step; `schedules` has any order of workers, `world` any order of steps.

mod schedules;
mod world;

use futures_util::FutureExt;

use super::*;
use crate::store::ClaimedRow;

const LEASE: LaneLease = LaneLease { lane: Lane(0), epoch: 1 };

fn far() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

fn keys(capacity: usize) -> Arc<Keys> {
    let keys = Keys::new(capacity, Ordered::All, Wake::new(), Wake::new());
    keys.leased(LEASE, far());
    Arc::new(keys)
}

fn event(key: u8, seq: i64) -> Event {
    Event::builder("T").id(format!("e{seq}")).aggregate("Order", key).json_text("1").build().unwrap()
}

fn row_due(key: u8, seq: i64, due_in: Duration) -> LaneRow {
    let row = Ok(ClaimedRow { seq, event: event(key, seq), attempts: 0, lag: Duration::ZERO });
    LaneRow { lane: LEASE.lane, seq, due_in, row }
}

fn row(key: u8, seq: i64) -> LaneRow {
    row_due(key, seq, Duration::ZERO)
}

fn id(key: u8) -> KeyId {
    KeyId::Aggregate(Arc::new(Key::of(&event(key, 0)).unwrap()))
}

fn seqs(run: &Run) -> Vec<i64> {
    run.items().iter().map(|item| item.seq).collect()
}

fn taken(keys: &Arc<Keys>) -> Option<Run> {
    keys.take(|_| 100).now_or_never().flatten()
}

impl Keys {
    /// Takes in hand what a read has found in one lane.
    fn take_in_of(&self, lease: LaneLease, rows: Vec<LaneRow>, not_wanted: &[i64]) -> Taken {
        self.take_in(vec![(lease, rows)], not_wanted).remove(0)
    }
}

fn check(keys: &Keys) {
    keys.state().check(keys.capacity);
}

#[tokio::test(start_paused = true)]
async fn what_lanes_have_is_taken_in_the_order_of_the_numbers_of_all() {
    let keys = keys(3);
    let other = LaneLease { lane: Lane(1), epoch: 1 };
    keys.leased(other, far());
    let of = |lease: LaneLease, rows: [LaneRow; 2]| (lease, rows.map(|row| LaneRow { lane: lease.lane, ..row }).into());
    let taken_in = keys.take_in(vec![of(LEASE, [row(1, 1), row(2, 4)]), of(other, [row(3, 2), row(4, 3)])], &[]);
    let told: Vec<_> = taken_in.iter().map(|taken| (taken.seen, taken.refused, taken.count)).collect();
    assert_eq!(told, [(Some(1), true, 1), (Some(3), false, 2)]);
    let runs: Vec<_> = std::iter::from_fn(|| taken(&keys)).collect();
    assert_eq!(runs.iter().flat_map(seqs).collect::<Vec<_>>(), [1, 2, 3]);
    check(&keys);
}

#[tokio::test(start_paused = true)]
async fn a_key_is_with_one_worker_and_goes_on_when_that_one_is_through() {
    let keys = keys(100);
    keys.take_in_of(LEASE, vec![row(1, 1), row(2, 2), row(1, 3)], &[]);
    let mut first = taken(&keys).unwrap();
    assert_eq!(seqs(&first), [1, 3]);
    assert_eq!(seqs(&taken(&keys).unwrap()), [2]);
    keys.take_in_of(LEASE, vec![row(1, 4)], &[]);
    let second = taken(&keys).unwrap();
    assert_eq!(seqs(&second), [2], "it came back, since nobody has begun it");
    assert!(taken(&keys).is_none());
    first.pass();
    drop(first);
    assert_eq!(seqs(&taken(&keys).unwrap()), [3, 4]);
    // The first is in hand until its outcome is written.
    assert_eq!(keys.begin_read([(LEASE.lane, 0)]), [1, 2, 3, 4]);
    keys.ended([Ended { lease: LEASE, seq: 1, then: Then::Done }]);
    assert_eq!(keys.begin_read([(LEASE.lane, 2)]), [3, 4]);
    check(&keys);
}

#[tokio::test(start_paused = true)]
async fn behind_an_event_that_has_failed_nothing_begins_before_that_is_written_and_it_is_due() {
    let keys = keys(100);
    keys.take_in_of(LEASE, vec![row(1, 1), row(1, 2)], &[]);
    let mut run = taken(&keys).unwrap();
    let mut failed = run.stop().unwrap();
    assert!(!run.goes_on());
    drop(run);
    assert!(taken(&keys).is_none());
    failed.due_at = Instant::now() + Duration::from_millis(500);
    keys.ended([Ended { lease: LEASE, seq: 1, then: Then::Later(id(1), failed) }]);
    assert!(taken(&keys).is_none());
    check(&keys);
    let waited_since = Instant::now();
    assert_eq!(seqs(&keys.take(|_| 9).await.unwrap()), [1, 2]);
    assert_eq!(waited_since.elapsed().as_millis(), 500);
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_long_is_not_kept_and_read_again_when_it_is_due() {
    let keys = keys(100);
    let hour = Duration::from_secs(3600);
    keys.take_in_of(LEASE, vec![row_due(1, 1, hour), row(1, 2), row(2, 3)], &[]);
    assert_eq!((keys.in_hand(), keys.queued()), (1, 1));
    check(&keys);
    // Others of the key are left, and need not be read again.
    let left = keys.take_in_of(LEASE, vec![row(1, 4)], &[]);
    assert_eq!((left.left, left.seen, left.count), (vec![4], Some(4), 0));
    assert_eq!(keys.next_behind(9), None);
    tokio::time::sleep(hour).await;
    drop(taken(&keys));
    let catch_up = keys.next_behind(9).unwrap();
    assert_eq!((&catch_up.id, catch_up.after, catch_up.limit), (&id(1), 0, 9));
    keys.caught_up(&catch_up, vec![row(1, 1), row(1, 2), row(1, 4)], &[]);
    check(&keys);
    assert_eq!(seqs(&taken(&keys).unwrap()), [3]);
    let both = [taken(&keys).unwrap(), taken(&keys).unwrap()];
    assert!(both.iter().any(|run| seqs(run) == [1, 2, 4]));
    // It is through with more, so other reads bring what is new.
    assert_eq!(keys.take_in_of(LEASE, vec![row(1, 5)], &[]).count, 1);
}

#[tokio::test(start_paused = true)]
async fn a_key_whose_head_an_operator_has_given_up_waits_no_more() {
    let keys = keys(100);
    let (hour, soon) = (Duration::from_secs(3600), Duration::from_millis(500));
    // The rows of one are not kept, those of another are, and the third is with a worker.
    let rows = [row_due(1, 1, hour), row(1, 2), row_due(2, 3, soon), row(2, 4), row(3, 5), row(3, 6)];
    keys.take_in_of(LEASE, rows.into(), &[]);
    let mut running = taken(&keys).unwrap();
    assert_eq!(seqs(&running), [5, 6]);
    let mut runs = Vec::new();
    for (number, head) in [(1, 1), (2, 3)] {
        let key = id(number).key().unwrap().clone();
        assert!(keys.reopen(LEASE, key.clone(), head));
        check(&keys);
        assert!(keys.take_in_of(LEASE, vec![row(number, head + 1)], &[]).count == 0 && keys.next_behind(9).is_none());
        keys.reopened(LEASE, key);
        let catch_up = keys.next_behind(9).unwrap();
        assert_eq!((&catch_up.id, catch_up.after), (&id(number), head - 1));
        keys.caught_up(&catch_up, vec![row(number, head + 1)], &[]);
        runs.push(taken(&keys).unwrap());
        assert_eq!(seqs(runs.last().unwrap()), [head + 1]);
        check(&keys);
    }
    // What its worker says of it is refused, and it is read again then.
    assert!(!keys.reopen(LEASE, id(3).key().unwrap().clone(), 5), "not while it is with a worker");
    assert!(keys.next_behind(9).is_none() && taken(&keys).is_none());
    running.stop().unwrap();
    drop(running);
    keys.ended([Ended { lease: LEASE, seq: 5, then: Then::Reread(id(3), Instant::now()) }]);
    assert_eq!(keys.next_behind(9).unwrap().after, 4);
    check(&keys);
}

#[tokio::test(start_paused = true)]
async fn a_key_whose_head_was_given_up_while_it_was_delivered_is_read_again_from_there() {
    let keys = keys(100);
    let key = || id(1).key().unwrap().clone();
    keys.take_in_of(LEASE, vec![row(1, 3), row(1, 4)], &[]);
    assert!(!keys.reopen(LEASE, key(), 3), "it is in line");
    let mut run = taken(&keys).unwrap();
    assert!(!keys.reopen(LEASE, key(), 3), "it is with a worker");
    // Meanwhile reads leave the key alone, and pass what is new of it. Its worker knows nothing of that, and delivers.
    run.pass();
    run.pass();
    drop(run);
    keys.ended([3, 4].map(|seq| Ended { lease: LEASE, seq, then: Then::Done }));
    assert!(keys.reopen(LEASE, key(), 3));
    keys.reopened(LEASE, key());
    assert_eq!(keys.next_behind(9).unwrap().after, 2);
    check(&keys);
}

#[tokio::test(start_paused = true)]
async fn what_comes_late_to_a_key_that_has_more_is_taken_at_once() {
    let keys = keys(100);
    let hour = Duration::from_secs(3600);
    // Those behind the head are not kept, and what is new of the key is left.
    keys.take_in_of(LEASE, vec![row_due(1, 5, hour), row(1, 6)], &[]);
    assert_eq!(keys.take_in_of(LEASE, vec![row(1, 7)], &[]).left, [7]);
    // A lower number has been committed since, or was redriven. A read of the key alone begins behind it.
    let late = keys.take_in_of(LEASE, vec![row(1, 2)], &[]);
    assert_eq!((late.count, late.left.len()), (1, 0));
    check(&keys);
    let mut run = taken(&keys).unwrap();
    assert_eq!(seqs(&run), [2]);
    run.pass();
    drop(run);
    keys.ended([Ended { lease: LEASE, seq: 2, then: Then::Done }]);
    let catch_up = keys.next_behind(9).unwrap();
    assert_eq!((&catch_up.id, catch_up.after), (&id(1), 4));
    check(&keys);
}

#[tokio::test(start_paused = true)]
async fn what_comes_late_and_does_not_fit_is_read_again_with_its_key() {
    let keys = keys(6);
    let rows = (11..=20).map(|seq| row(1, seq)).collect();
    keys.take_in_of(LEASE, rows, &[]);
    let queued = keys.queued();
    let late = keys.take_in_of(LEASE, vec![row(1, 2)], &[]);
    assert_eq!((late.count, late.left, keys.queued()), (0, vec![2], queued));
    check(&keys);
    let mut run = taken(&keys).unwrap();
    while run.pass().is_some() {}
    drop(run);
    assert_eq!(keys.next_behind(9).unwrap().after, 1);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_to_be_read_again_later_waits_for_that() {
    let keys = keys(100);
    keys.take_in_of(LEASE, vec![row(1, 1), row(1, 2)], &[]);
    let mut run = taken(&keys).unwrap();
    run.stop();
    drop(run);
    let at = Instant::now() + Duration::from_millis(300);
    keys.ended([Ended { lease: LEASE, seq: 1, then: Then::Reread(id(1), at) }]);
    check(&keys);
    assert_eq!((keys.in_hand(), keys.next_behind(9)), (0, None));
    tokio::time::sleep_until(at).await;
    // Whoever looks for work finds that it is due.
    assert!(taken(&keys).is_none());
    assert_eq!(keys.next_behind(9).unwrap().after, 0);
    check(&keys);
}

#[tokio::test(start_paused = true)]
async fn keys_are_caught_up_with_together_only_where_that_may_be() {
    let (keys, other) = (keys(100), LaneLease { lane: Lane(1), epoch: 1 });
    keys.leased(other, far());
    let at = Instant::now();
    for (key, lease) in [(1, LEASE), (2, other)] {
        keys.take_in_of(lease, vec![LaneRow { lane: lease.lane, ..row(key, key.into()) }], &[]);
        let mut run = taken(&keys).unwrap();
        run.stop();
        drop(run);
        keys.ended([Ended { lease, seq: key.into(), then: Then::Reread(id(key), at) }]);
    }
    assert_eq!(keys.catch_up_together(|lease| lease == other), [(other, 1)]);
    assert_eq!(keys.next_behind(9).unwrap().id, id(1));
    assert_eq!(keys.next_behind(9), None);
    check(&keys);
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_room_hears_of_it_whatever_has_made_it() {
    let (reader, other) = (Wake::new(), LaneLease { lane: Lane(1), epoch: 1 });
    let keys = Keys::new(1, Ordered::All, reader.clone(), Wake::new());
    let in_a_moment = || reader.sleep_until(Instant::now() + Duration::from_millis(1));
    for (seq, make) in [Keys::give_up, Keys::lost].into_iter().enumerate() {
        keys.leased(LEASE, far());
        keys.leased(other, far());
        keys.take_in_of(LEASE, vec![row(1, seq as i64)], &[]);
        reader.reset();
        keys.want_room(1);
        let began_at = Instant::now();
        in_a_moment().await;
        assert_eq!(began_at.elapsed().as_millis(), 1, "there is none yet");
        reader.reset();
        make(&keys, LEASE);
        let began_at = Instant::now();
        in_a_moment().await;
        assert!(began_at.elapsed().is_zero(), "it was not woken");
        keys.lost(LEASE);
    }
}

#[tokio::test(start_paused = true)]
async fn more_is_taken_of_the_keys_that_begin_with_what_is_wanted_and_the_others_keep_their_places() {
    let keys = keys(100);
    let odd = |item: &Item| item.seq % 2 == 1;
    // Keys 1 and 3 begin with what is wanted; 3 goes on with something else.
    let rows = [row(1, 1), row(2, 2), row(3, 3), row(1, 5), row(4, 6), row(3, 8), row(1, 11), row(5, 13)];
    keys.take_in_of(LEASE, rows.into(), &[]);
    let runs = keys.take_wanted(4, 2, odd);
    assert_eq!(runs.iter().map(seqs).collect::<Vec<_>>(), [vec![1, 5], vec![3], vec![13]]);
    check(&keys);
    let others: Vec<_> = std::iter::from_fn(|| taken(&keys)).collect();
    assert_eq!(others.iter().map(seqs).collect::<Vec<_>>(), [[2], [6]]);
    // What is left of those keys goes on when they are through.
    drop((runs, others));
    check(&keys);
    assert_eq!(keys.take_wanted(3, 9, odd).iter().map(seqs).collect::<Vec<_>>(), [vec![1, 5, 11]]);
}

#[tokio::test(start_paused = true)]
async fn no_key_fills_the_room() {
    let keys = keys(30);
    let hot = (1..=100).map(|seq| row(1, seq));
    let taken_in = keys.take_in_of(LEASE, hot.chain([row(2, 101), row(3, 102)]).collect(), &[]);
    assert!(!taken_in.refused);
    assert_eq!(keys.queued(), 12);
    check(&keys);
    // While much of it is in hand it is not caught up with; later it is, from where it was left.
    assert_eq!(keys.next_behind(99), None);
    let run = keys.take_wanted(9, 100, |_| true).pop().unwrap();
    assert_eq!(seqs(&run), (1..=9).collect::<Vec<_>>());
    let catch_up = keys.next_behind(99).unwrap();
    assert_eq!(catch_up.after, 10);
    let rows: Vec<_> = (11..).take(catch_up.limit).map(|seq| row(1, seq)).collect();
    let found = rows.len();
    assert!(keys.caught_up(&catch_up, rows, &[]) > 0);
    assert!(found < 20, "{found}");
    check(&keys);
}

#[tokio::test(start_paused = true)]
async fn when_places_are_short_many_small_keys_are_read_again_together_and_none_for_itself() {
    let keys = keys(64);
    // Two of each of thirty keys, then a third one of each.
    let rows = (0..90).map(|seq| row(u8::try_from(seq % 30).unwrap(), seq)).collect();
    let taken = keys.take_in_of(LEASE, rows, &[]);
    assert!(taken.refused && taken.left.is_empty(), "{taken:?}");
    assert_eq!(taken.seen, Some(i64::try_from(taken.count).unwrap() - 1));
    assert!(taken.count >= 60, "{taken:?}");
    assert_eq!(keys.behind(), 0);
    check(&keys);
}

#[tokio::test(start_paused = true)]
async fn when_places_are_short_nobody_waits_for_long_for_a_key_whose_worker_is_slow() {
    let keys = keys(64);
    // Thirty keys with two places each, all of them with workers that do not come to an end.
    keys.take_in_of(LEASE, (0..60).map(|seq| row(u8::try_from(seq % 30).unwrap(), seq)).collect(), &[]);
    let runs: Vec<_> = std::iter::from_fn(|| keys.take(|_| 1).now_or_never().flatten()).collect();
    assert_eq!((runs.len(), keys.queued()), (30, 30));
    let more = || (60..92).map(|seq| row(u8::try_from(seq % 30).unwrap(), seq)).chain([row(99, 92)]).collect();
    let first = keys.take_in_of(LEASE, more(), &[]);
    assert!(first.refused && first.seen < Some(92), "{first:?}");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let second = keys.take_in_of(LEASE, more(), &[]);
    assert_eq!((second.seen, second.refused), (Some(92), false), "{second:?}");
    assert_eq!(seqs(&taken(&keys).unwrap()), [92]);
    check(&keys);
}

#[tokio::test(start_paused = true)]
async fn when_places_are_short_nobody_waits_for_a_key_that_waits() {
    let keys = keys(64);
    let later = Duration::from_millis(500);
    // Two of each of thirty keys that wait for a moment, then a third one of each, then another key.
    let mut rows: Vec<_> = (0..90).map(|seq| row_due(u8::try_from(seq % 30).unwrap(), seq, later)).collect();
    rows.push(row(99, 90));
    let taken_in = keys.take_in_of(LEASE, rows, &[]);
    assert_eq!((taken_in.seen, taken_in.refused), (Some(90), false), "{taken_in:?}");
    assert_eq!(seqs(&taken(&keys).unwrap()), [90]);
    check(&keys);
}

#[tokio::test(start_paused = true)]
async fn rows_without_an_order_are_keys_of_their_own() {
    let keys = Keys::new(100, Ordered::types(["Invoice"]), Wake::new(), Wake::new());
    keys.leased(LEASE, far());
    let keys = Arc::new(keys);
    keys.take_in_of(LEASE, vec![row(1, 1), row(1, 2), row_due(1, 3, Duration::from_secs(60))], &[]);
    let (first, second) = (taken(&keys).unwrap(), taken(&keys).unwrap());
    assert_eq!((seqs(&first), seqs(&second)), (vec![1], vec![2]));
    assert!(taken(&keys).is_none());
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(taken(&keys).is_none());
    let catch_up = keys.next_behind(9).unwrap();
    assert_eq!((&catch_up.id, catch_up.after), (&KeyId::Row(3), 2));
    keys.caught_up(&catch_up, vec![row(1, 3)], &[]);
    assert_eq!(seqs(&taken(&keys).unwrap()), [3]);
    assert_eq!(keys.next_behind(9), None);
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_is_given_up_is_drained_when_what_was_begun_is_written() {
    let keys = keys(100);
    keys.take_in_of(LEASE, vec![row(1, 1), row(1, 2), row(2, 3)], &[]);
    let mut run = taken(&keys).unwrap();
    keys.give_up(LEASE);
    assert!(taken(&keys).is_none() && !run.goes_on());
    assert_eq!((keys.queued(), keys.drained().len()), (0, 0));
    run.pass();
    drop(run);
    assert_eq!(keys.drained().len(), 0);
    assert!(keys.take_in_of(LEASE, vec![row(2, 3)], &[]).refused);
    keys.ended([Ended { lease: LEASE, seq: 1, then: Then::Done }]);
    assert_eq!((keys.drained().len(), keys.in_hand()), (1, 0));
    check(&keys);
}

#[tokio::test(start_paused = true)]
async fn of_a_lane_that_is_lost_nothing_counts_any_more() {
    let keys = keys(100);
    keys.take_in_of(LEASE, vec![row(1, 1), row(1, 2)], &[]);
    let mut run = taken(&keys).unwrap();
    keys.lost(LEASE);
    assert!(!run.goes_on() && run.held().is_cut() && !keys.settles(LEASE));
    let next = LaneLease { epoch: 2, ..LEASE };
    keys.leased(next, far());
    keys.take_in_of(next, vec![row(1, 1), row(1, 2)], &[]);
    // What comes late from before does not meddle with it.
    let failed = run.stop().unwrap();
    drop(run);
    keys.ended([Ended { lease: LEASE, seq: 1, then: Then::Later(id(1), failed) }]);
    check(&keys);
    assert_eq!(seqs(&taken(&keys).unwrap()), [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn what_was_settled_or_closed_during_a_read_is_not_taken_from_it() {
    let keys = keys(100);
    keys.take_in_of(LEASE, vec![row(1, 1), row(2, 2)], &[]);
    let known = keys.begin_read([(LEASE.lane, 0)]);
    let (mut done, mut dead) = (taken(&keys).unwrap(), taken(&keys).unwrap());
    done.pass();
    dead.stop();
    drop((done, dead));
    keys.ended([
        Ended { lease: LEASE, seq: 1, then: Then::Done },
        Ended { lease: LEASE, seq: 2, then: Then::Close(id(2)) },
    ]);
    let found = vec![row(1, 1), row(2, 2), row(2, 3), row(1, 4)];
    assert_eq!(keys.take_in_of(LEASE, found, &known).count, 1);
    assert_eq!(seqs(&taken(&keys).unwrap()), [4]);
    check(&keys);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_may_be_over_cuts_what_is_under_way() {
    let keys = Arc::new(Keys::new(9, Ordered::All, Wake::new(), Wake::new()));
    keys.leased(LEASE, Instant::now() + Duration::from_secs(10));
    keys.take_in_of(LEASE, vec![row(1, 1)], &[]);
    let run = taken(&keys).unwrap();
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert_eq!(keys.run_out(Instant::now()), Some(Instant::now() + Duration::from_secs(1)));
    run.held().renewed(Instant::now() + Duration::from_secs(2));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(run.goes_on());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!run.goes_on(), "before anybody has looked");
    assert_eq!(keys.run_out(Instant::now()), None);
    run.held().until_cut().await;
    drop(run);
    assert_eq!(keys.drained().len(), 1);
}
