//! Workers, readers and owners, whoever of them runs when.

use shuttle::future::{block_on, spawn};

use super::*;
use crate::sync::explore;

#[test]
fn in_any_order_a_key_is_with_one_worker_and_its_events_come_in_order() {
    explore(|| {
        let keys = keys(4);
        let told = Arc::new(Mutex::new(Vec::new()));
        let workers: Vec<_> = (0..2)
            .map(|_| {
                let (keys, told) = (Arc::clone(&keys), Arc::clone(&told));
                spawn(async move {
                    while let Some(mut run) = keys.take(|_| 2).await {
                        while run.goes_on() {
                            let seq = run.items()[0].seq;
                            told.lock().unwrap().push((run.id().clone(), seq));
                            run.pass();
                            keys.ended([Ended { lease: LEASE, seq, then: Then::Done }]);
                        }
                    }
                })
            })
            .collect();
        let reader = {
            let keys = Arc::clone(&keys);
            spawn(async move {
                let mut rows: VecDeque<_> = [(1, 1), (2, 2), (1, 3), (1, 4), (2, 5)].into();
                while let Some((key, seq)) = rows.front().copied() {
                    while let Some(catch_up) = keys.next_behind(9) {
                        // There is nothing before what is read next.
                        keys.caught_up(&catch_up, Vec::new(), &[]);
                    }
                    let taken = keys.take_in_of(LEASE, vec![row(key, seq)], &[]);
                    if taken.count == 1 {
                        rows.pop_front();
                    }
                    shuttle::future::yield_now().await;
                }
            })
        };
        block_on(async {
            reader.await.unwrap();
            while keys.in_hand() > 0 {
                shuttle::future::yield_now().await;
            }
            keys.close();
            for worker in workers {
                worker.await.unwrap();
            }
        });
        let told = told.lock().unwrap();
        assert_eq!(told.len(), 5);
        for key in [1, 2] {
            let seqs: Vec<_> = told.iter().filter(|(told, _)| *told == id(key)).map(|(_, seq)| *seq).collect();
            assert!(seqs.is_sorted(), "{seqs:?}");
        }
        check(&keys);
    });
}

#[test]
fn in_any_order_an_event_that_failed_is_before_those_behind_it() {
    explore(|| {
        let keys = keys(9);
        keys.take_in_of(LEASE, vec![row(1, 1), row(1, 2), row(1, 3)], &[]);
        let (begun, outcomes) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(VecDeque::new())));
        let workers: Vec<_> = (0..2)
            .map(|_| {
                let (keys, begun, outcomes) = (Arc::clone(&keys), Arc::clone(&begun), Arc::clone(&outcomes));
                spawn(async move {
                    while let Some(mut run) = keys.take(|_| 9).await {
                        while run.goes_on() {
                            let (seq, id) = (run.items()[0].seq, run.id().clone());
                            begun.lock().unwrap().push(seq);
                            let failed = begun.lock().unwrap().len() == 1;
                            let then = if failed {
                                Then::Later(id, run.stop().unwrap())
                            } else {
                                run.pass();
                                Then::Done
                            };
                            // From here on it may be written, before this worker does anything else.
                            outcomes.lock().unwrap().push_back(Ended { lease: LEASE, seq, then });
                        }
                    }
                })
            })
            .collect();
        let settler = {
            let (keys, outcomes) = (Arc::clone(&keys), Arc::clone(&outcomes));
            spawn(async move {
                while keys.in_hand() > 0 {
                    let next = outcomes.lock().unwrap().pop_front();
                    keys.ended(next);
                    shuttle::future::yield_now().await;
                }
                keys.close();
            })
        };
        block_on(async {
            settler.await.unwrap();
            for worker in workers {
                worker.await.unwrap();
            }
        });
        assert_eq!(*begun.lock().unwrap(), [1, 1, 2, 3]);
        check(&keys);
    });
}

#[test]
fn in_any_order_a_lane_that_is_given_up_is_drained_once() {
    explore(|| {
        let keys = keys(9);
        keys.take_in_of(LEASE, vec![row(1, 1), row(1, 2), row(2, 3)], &[]);
        let worker = {
            let keys = Arc::clone(&keys);
            spawn(async move {
                while let Some(mut run) = keys.take(|_| 2).await {
                    while run.goes_on() {
                        let seq = run.pass().unwrap().seq;
                        keys.ended([Ended { lease: LEASE, seq, then: Then::Done }]);
                    }
                }
            })
        };
        let owner = {
            let keys = Arc::clone(&keys);
            spawn(async move {
                keys.give_up(LEASE);
                let far = far();
                loop {
                    keys.owner.reset();
                    if !keys.drained().is_empty() {
                        return;
                    }
                    keys.owner.sleep_until(far).await;
                }
            })
        };
        block_on(async {
            owner.await.unwrap();
            assert!(keys.leases().is_empty() && keys.in_hand() == 0);
            keys.close();
            worker.await.unwrap();
        });
    });
}
