//! The two bounded queues in front of the workers.

use std::collections::VecDeque;
use std::sync::{MutexGuard, PoisonError};

use crate::listener::Path;
use crate::sync::{Mutex, Notify};

/// Turns in a round of draining; the last of them belongs to the cold queue, the others to the hot one.
const TURNS: u8 = 3;

/// The most that is taken at once, so that nobody who writes waits long for the lock.
pub(crate) const AT_ONCE: usize = 256;

/// The most that is passed over to find what is wanted. With twice what is taken at once, a batch of any size is filled from
/// between as many others.
pub(crate) const PASSED_OVER: usize = 2 * AT_ONCE;

/// A hot and a cold queue, both bounded, drained two to one by any number of workers.
///
/// One short lock guards both, so a worker sees them together: it takes from the queue whose turn it is, or from the
/// other one if that has nothing, and sleeps only when both are empty. An idle queue cannot delay the other.
pub(crate) struct Queues<T> {
    state: Mutex<State<T>>,
    hot_capacity: usize,
    cold_capacity: usize,
    /// Something to do: one permit, handed on by whoever leaves work behind.
    work: Notify,
    /// The cold queue has the room that somebody waits for.
    room: Notify,
}

struct State<T> {
    hot: VecDeque<T>,
    cold: VecDeque<T>,
    /// Places in the hot queue that are promised to transactions not yet committed.
    reserved: usize,
    /// How much room in the cold queue is waited for. Whoever waits is not told of less.
    room_wanted: Option<usize>,
    turn: u8,
    closed: bool,
}

impl<T> State<T> {
    fn next_path(&self) -> Option<Path> {
        let preferred = if self.turn < TURNS - 1 { Path::Hot } else { Path::Cold };
        match (preferred, self.hot.is_empty(), self.cold.is_empty()) {
            (_, true, true) => None,
            (Path::Hot, false, _) | (Path::Cold, false, true) => Some(Path::Hot),
            (Path::Cold, _, false) | (Path::Hot, true, false) => Some(Path::Cold),
        }
    }

    fn queue(&mut self, path: Path) -> &mut VecDeque<T> {
        match path {
            Path::Hot => &mut self.hot,
            Path::Cold => &mut self.cold,
        }
    }

    fn pop(&mut self, path: Path) -> Option<T> {
        self.turn = (self.turn + 1) % TURNS;
        self.queue(path).pop_front()
    }
}

impl<T> Queues<T> {
    pub(crate) fn new(hot_capacity: usize, cold_capacity: usize) -> Self {
        Self {
            state: Mutex::new(State {
                hot: VecDeque::new(),
                cold: VecDeque::new(),
                reserved: 0,
                room_wanted: None,
                turn: 0,
                closed: false,
            }),
            hot_capacity,
            cold_capacity,
            work: Notify::new(),
            room: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Promises up to `wanted` places in the hot queue, and says how many.
    pub(crate) fn reserve_hot(&self, wanted: usize) -> usize {
        let mut state = self.state();
        if state.closed {
            return 0;
        }
        let free = self.hot_capacity.saturating_sub(state.hot.len() + state.reserved);
        let granted = wanted.min(free);
        state.reserved += granted;
        granted
    }

    /// Gives promised places back.
    pub(crate) fn unreserve_hot(&self, count: usize) {
        let mut state = self.state();
        state.reserved = state.reserved.saturating_sub(count);
    }

    /// Fills promised places. Refuses them all when closed.
    pub(crate) fn push_reserved(&self, items: Vec<T>) -> Result<(), Vec<T>> {
        let count = items.len();
        {
            let mut state = self.state();
            state.reserved = state.reserved.saturating_sub(count);
            if state.closed {
                return Err(items);
            }
            state.hot.extend(items);
        }
        if count > 0 {
            self.work.notify_one();
        }
        Ok(())
    }

    /// Adds to the cold queue until it is full, or nothing if it is closed. Gives back what it did not take.
    pub(crate) fn push_cold(&self, mut items: Vec<T>) -> Vec<T> {
        let refused = {
            let mut state = self.state();
            let room = if state.closed { 0 } else { self.cold_capacity.saturating_sub(state.cold.len()) };
            let refused = items.split_off(room.min(items.len()));
            if items.is_empty() {
                return refused;
            }
            state.cold.extend(items);
            refused
        };
        self.work.notify_one();
        refused
    }

    /// The next item; nothing once the queues are closed and empty.
    pub(crate) async fn take(&self) -> Option<T> {
        loop {
            {
                let mut state = self.state();
                if let Some(path) = state.next_path() {
                    let item = state.pop(path);
                    self.taken(state, path);
                    return item;
                }
                if state.closed {
                    // The next worker has to hear it too.
                    self.work.notify_one();
                    return None;
                }
            }
            self.work.notified().await;
        }
    }

    /// Takes more items that are wanted, in their order: at most `most`, and [`AT_ONCE`]. Says whether there may be more of them
    /// where these were. What is not wanted keeps its place, and at most [`PASSED_OVER`] of it is passed over. Never waits.
    pub(crate) fn take_wanted(&self, most: usize, items: &mut Vec<T>, mut wanted: impl FnMut(&T) -> bool) -> bool {
        let (mut state, mut room, mut last) = (self.state(), most.min(AT_ONCE), None);
        let mut passed_over = Vec::new();
        // Whose turn it was when the first was passed over: it is next, as if nobody had looked at it.
        let mut turn = None;
        while room > 0
            && passed_over.len() < PASSED_OVER
            && let Some(path) = state.next_path()
        {
            let before = state.turn;
            let Some(item) = state.pop(path) else { break };
            if wanted(&item) {
                items.push(item);
                room -= 1;
                // If any of them was cold there is more room.
                last = last.filter(|last| *last == Path::Cold).or(Some(path));
            } else {
                turn.get_or_insert(before);
                passed_over.push((path, item));
            }
        }
        state.turn = turn.unwrap_or(state.turn);
        for (path, item) in passed_over.into_iter().rev() {
            state.queue(path).push_front(item);
        }
        if let Some(path) = last {
            self.taken(state, path);
        }
        room == 0
    }

    fn taken(&self, mut state: MutexGuard<'_, State<T>>, path: Path) {
        let left = !state.hot.is_empty() || !state.cold.is_empty();
        let room = self.cold_capacity.saturating_sub(state.cold.len());
        let enough_room = path == Path::Cold && state.room_wanted.take_if(|wanted| *wanted <= room).is_some();
        drop(state);
        if left {
            // A permit is held once, however often it was given; whoever takes one item wakes the next worker.
            self.work.notify_one();
        }
        if enough_room {
            self.room.notify_waiters();
        }
    }

    /// How many items wait in each queue.
    pub(crate) fn depths(&self) -> (usize, usize) {
        let state = self.state();
        (state.hot.len(), state.cold.len())
    }

    /// How many items the cold queue would take now.
    pub(crate) fn cold_room(&self) -> usize {
        let state = self.state();
        if state.closed { 0 } else { self.cold_capacity.saturating_sub(state.cold.len()) }
    }

    /// Waits until the cold queue would take that many items, or as many as it ever can; for ever once it is closed.
    pub(crate) async fn cold_room_for(&self, wanted: usize) {
        let wanted = wanted.min(self.cold_capacity);
        loop {
            let enough = self.room.notified();
            tokio::pin!(enough);
            // Listen first, look second: what is taken in between is not missed.
            enough.as_mut().enable();
            {
                let mut state = self.state();
                if !state.closed && self.cold_capacity.saturating_sub(state.cold.len()) >= wanted {
                    return;
                }
                state.room_wanted = Some(state.room_wanted.map_or(wanted, |least| least.min(wanted)));
            }
            enough.await;
        }
    }

    /// Refuses new items; those inside are still taken.
    pub(crate) fn close(&self) {
        self.state().closed = true;
        self.work.notify_one();
        self.room.notify_waiters();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state().closed
    }

    /// Takes everything out at once.
    pub(crate) fn drain(&self) -> Vec<T> {
        let mut state = self.state();
        let hot = std::mem::take(&mut state.hot);
        let cold = std::mem::take(&mut state.cold);
        hot.into_iter().chain(cold).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Wake};

    use shuttle::future::{block_on, spawn};

    use super::*;
    use crate::sync::explore;

    fn filled(hot: usize, cold: usize) -> Queues<Path> {
        let queues = Queues::new(hot, cold);
        assert_eq!(queues.reserve_hot(hot), hot);
        queues.push_reserved(vec![Path::Hot; hot]).unwrap();
        for _ in 0..cold {
            assert!(queues.push_cold(vec![Path::Cold]).is_empty());
        }
        queues
    }

    #[tokio::test]
    async fn hot_gets_two_turns_of_three_while_both_have_work() {
        let queues = filled(300, 300);
        let mut hot = 0;
        for _ in 0..300 {
            if queues.take().await == Some(Path::Hot) {
                hot += 1;
            }
        }
        assert_eq!(hot, 200);
    }

    #[tokio::test]
    async fn an_empty_queue_gives_its_turn_away() {
        let queues = filled(0, 9);
        for _ in 0..9 {
            assert_eq!(queues.take().await, Some(Path::Cold));
        }
    }

    #[test]
    fn reserved_places_count_as_taken_until_they_are_given_back() {
        let queues: Queues<u8> = Queues::new(3, 1);
        assert_eq!(queues.reserve_hot(5), 3);
        assert_eq!(queues.reserve_hot(1), 0);
        queues.unreserve_hot(2);
        assert_eq!(queues.reserve_hot(5), 2);
    }

    #[tokio::test]
    async fn one_wake_up_reaches_every_idle_worker_while_work_is_left() {
        let queues = Arc::new(Queues::new(10, 10));
        let workers: Vec<_> = (0..4)
            .map(|_| {
                let queues = Arc::clone(&queues);
                tokio::spawn(async move { queues.take().await })
            })
            .collect();
        tokio::task::yield_now().await;
        assert_eq!(queues.reserve_hot(4), 4);
        queues.push_reserved(vec![1, 2, 3, 4]).unwrap();
        let mut taken = Vec::new();
        for worker in workers {
            taken.push(worker.await.unwrap().unwrap());
        }
        taken.sort_unstable();
        assert_eq!(taken, [1, 2, 3, 4]);
    }

    #[tokio::test]
    async fn who_waits_for_room_is_woken_once_and_only_when_there_is_enough() {
        #[derive(Default)]
        struct Woken(AtomicUsize);
        impl Wake for Woken {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let (queues, woken) = (filled(0, 4), Arc::new(Woken::default()));
        let waker = Arc::clone(&woken).into();
        let mut context = Context::from_waker(&waker);
        let mut room = pin!(queues.cold_room_for(3));
        assert!(room.as_mut().poll(&mut context).is_pending());
        for (taken, times) in [(1, 0), (2, 0), (3, 1), (4, 1)] {
            assert!(queues.take().await.is_some());
            assert_eq!(woken.0.load(Ordering::Relaxed), times, "after {taken} were taken");
        }
        assert!(room.as_mut().poll(&mut context).is_ready());
    }

    #[test]
    fn what_finds_no_room_is_given_back_in_its_order() {
        let queues = Queues::new(1, 3);
        assert!(queues.push_cold(vec![1, 2]).is_empty());
        assert_eq!(queues.push_cold(vec![3, 4, 5]), [4, 5]);
        assert_eq!(queues.push_cold(vec![6]), [6]);
        assert_eq!(queues.drain(), [1, 2, 3]);
    }

    #[tokio::test]
    async fn closing_refuses_new_items_and_ends_when_the_old_ones_are_taken() {
        let queues = filled(1, 1);
        queues.close();
        assert_eq!(queues.push_cold(vec![Path::Cold]), [Path::Cold]);
        assert_eq!(queues.reserve_hot(1), 0);
        assert!(queues.take().await.is_some());
        assert!(queues.take().await.is_some());
        assert_eq!(queues.take().await, None);
        assert_eq!(queues.take().await, None);
    }

    #[tokio::test]
    async fn more_is_taken_in_turn_and_what_is_not_wanted_keeps_its_place() {
        let queues = Queues::new(10, 10);
        assert_eq!(queues.reserve_hot(4), 4);
        queues.push_reserved(vec![1, 2, 3, 4]).unwrap();
        assert!(queues.push_cold(vec![11, 12, 13, 14]).is_empty());
        assert_eq!(queues.take().await, Some(1));
        let mut items = Vec::new();
        assert!(queues.take_wanted(0, &mut items, |_| true));
        assert!(queues.take_wanted(4, &mut items, |_| true));
        assert_eq!(items, [2, 11, 3, 4], "as one by one");
        assert!(!queues.take_wanted(9, &mut items, |item| *item != 13));
        assert!(!queues.take_wanted(9, &mut items, |item| *item != 13));
        assert_eq!(queues.depths(), (0, 1));
        assert!(!queues.take_wanted(9, &mut items, |_| true));
        assert_eq!(items, [2, 11, 3, 4, 12, 14, 13]);
    }

    #[test]
    fn what_is_passed_over_is_next_and_in_its_order_on_both_paths() {
        let queues = Queues::new(10, 10);
        assert_eq!(queues.reserve_hot(3), 3);
        queues.push_reserved(vec![1, 2, 3]).unwrap();
        assert!(queues.push_cold(vec![11, 12, 13]).is_empty());
        let mut items = Vec::new();
        queues.take_wanted(9, &mut items, |item| item % 2 == 0);
        items.sort_unstable();
        assert_eq!(items, [2, 12]);
        assert_eq!(queues.drain(), [1, 3, 11, 13]);
    }

    /// Whatever a batch has, and however many are passed over for it: nobody is so for ever.
    #[tokio::test]
    async fn whoever_is_passed_over_has_the_next_turn() {
        for (batch, hot, turns_before) in (1..=100)
            .flat_map(|batch| (1..=5).map(move |hot| (batch, hot)))
            .flat_map(|(batch, hot)| (0..TURNS).map(move |turns| (batch, hot, turns)))
        {
            let queues = Queues::new(hot, 200);
            queues.state().turn = turns_before;
            assert_eq!(queues.reserve_hot(hot), hot);
            queues.push_reserved(vec![Path::Hot; hot]).unwrap();
            let mut rounds = 0;
            loop {
                let (_, cold) = queues.depths();
                assert!(queues.push_cold(vec![Path::Cold; 200 - cold]).is_empty());
                let first = queues.take().await.unwrap();
                if first == Path::Hot {
                    break;
                }
                let mut hand = vec![first];
                queues.take_wanted(batch - 1, &mut hand, |next| *next == first);
                rounds += 1;
                assert!(rounds < 3, "batches of {batch} beside {hot} hot ones, turn {turns_before}");
            }
        }
    }

    #[test]
    fn batches_are_filled_from_between_as_many_others_and_nobody_looks_for_ever() {
        const BATCH: usize = 500;
        let queues = Queues::new(1, 3 * BATCH);
        assert!(queues.push_cold((0..BATCH).flat_map(|item| [(0, item), (1, item)]).collect()).is_empty());
        let mut items = Vec::new();
        while items.len() < BATCH {
            assert!(queues.take_wanted(BATCH - items.len(), &mut items, |(listener, _)| *listener == 1));
        }
        assert!(items.iter().copied().eq((0..BATCH).map(|item| (1, item))), "{items:?}");
        assert!(queues.push_cold(vec![(0, 0); PASSED_OVER - BATCH]).is_empty());
        assert!(queues.push_cold(vec![(1, 0)]).is_empty());
        assert!(!queues.take_wanted(1, &mut items, |(listener, _)| *listener == 1), "it is behind too many others");
    }

    #[tokio::test]
    async fn who_takes_many_tells_of_room_and_of_what_is_left() {
        let queues = Arc::new(filled(0, 4));
        let waits = {
            let queues = Arc::clone(&queues);
            tokio::spawn(async move { queues.cold_room_for(3).await })
        };
        tokio::task::yield_now().await;
        let mut items = Vec::new();
        assert!(queues.take_wanted(3, &mut items, |_| true));
        waits.await.unwrap();
        // A permit was left for another worker.
        assert!(pin!(queues.work.notified()).poll(&mut Context::from_waker(std::task::Waker::noop())).is_ready());
        assert_eq!(queues.take().await, Some(Path::Cold));
    }

    #[test]
    fn in_any_order_every_item_is_taken_once_and_every_worker_ends() {
        explore(|| {
            let queues = Arc::new(Queues::new(4, 2));
            let workers: Vec<_> = (0..3)
                .map(|_| {
                    let queues = Arc::clone(&queues);
                    spawn(async move {
                        let mut taken = Vec::new();
                        while let Some(item) = queues.take().await {
                            taken.push(item);
                            queues.take_wanted(2, &mut taken, |item| item % 2 == 0);
                        }
                        taken
                    })
                })
                .collect();
            let hot = {
                let queues = Arc::clone(&queues);
                spawn(async move {
                    for item in [0, 2] {
                        let granted = queues.reserve_hot(2);
                        assert_eq!(granted, 2);
                        queues.push_reserved(vec![item, item + 1]).unwrap();
                    }
                })
            };
            let cold = {
                let queues = Arc::clone(&queues);
                spawn(async move {
                    for item in 4..8 {
                        queues.cold_room_for(1).await;
                        assert!(queues.push_cold(vec![item]).is_empty());
                    }
                })
            };
            block_on(async {
                hot.await.unwrap();
                cold.await.unwrap();
                queues.close();
                let mut taken = Vec::new();
                for worker in workers {
                    taken.extend(worker.await.unwrap());
                }
                taken.sort_unstable();
                assert_eq!(taken, [0, 1, 2, 3, 4, 5, 6, 7]);
            });
        });
    }

    #[test]
    fn in_any_order_a_worker_that_is_cut_short_takes_no_wake_up_with_it() {
        explore(|| {
            let queues = Arc::new(Queues::new(2, 2));
            let take = |queues: &Arc<Queues<u8>>| {
                let queues = Arc::clone(queues);
                spawn(async move { queues.take().await })
            };
            let (cut_short, stays) = (take(&queues), take(&queues));
            let push = {
                let queues = Arc::clone(&queues);
                spawn(async move {
                    assert!(queues.push_cold(vec![1]).is_empty());
                    assert!(queues.push_cold(vec![2]).is_empty());
                })
            };
            cut_short.abort();
            block_on(async {
                push.await.unwrap();
                assert!(stays.await.unwrap().is_some());
            });
        });
    }

    #[test]
    fn in_any_order_no_more_places_are_promised_than_there_are_and_all_come_back() {
        explore(|| {
            let queues = Arc::new(Queues::new(3, 1));
            let writer = |commits: bool| {
                let queues = Arc::clone(&queues);
                spawn(async move {
                    let granted = queues.reserve_hot(2);
                    if commits {
                        let _ = queues.push_reserved(vec![0; granted]);
                    } else {
                        queues.unreserve_hot(granted);
                    }
                    let (hot, _) = queues.depths();
                    assert!(hot <= 3, "{hot} in a queue of three");
                })
            };
            let writers = [writer(true), writer(false), writer(true)];
            block_on(async {
                for writer in writers {
                    writer.await.unwrap();
                }
            });
            let waiting = queues.drain().len();
            assert!(waiting <= 3, "{waiting} in a queue of three");
            assert_eq!(queues.reserve_hot(9), 3);
        });
    }
}
