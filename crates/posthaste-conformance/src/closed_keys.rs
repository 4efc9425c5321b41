//! Keys that are closed, and what an operator decides about them.

use std::collections::HashSet;

use posthaste_core::store::{
    Action, AdminStore, Key, LaneLease, LaneSettlement, Purge, ReadLane, Redrive, Settled, Stall, Status,
};
use posthaste_core::{EventId, Ordered};

use crate::Fixture;
use crate::lane_store::{ALL, LEASE, Lanes, all_of, by_number, event, ids, key_of, lease_of, rows, settlement};
use crate::rows::{assert_at, counts, dead, insert};

/// A key that is closed together with a DEAD row is not read until an operator lets it go on, with that row or behind it, and
/// its relay forgets it.
pub async fn case_84_closed_keys<F: Fixture>(fixture: F) {
    let outbox = Lanes::of(&fixture).await;
    assert!(outbox.lanes.closes_keys());
    for skips in [false, true] {
        let (order, other) = if skips { ("70", "80") } else { ("7", "8") };
        let id = |n: u8| format!("{order}-{n}");
        let events = [event(&id(1), order), event(&id(2), order), event(&id(3), other)];
        insert(&outbox.store, &events).await;
        let mine = outbox.lease("a").await;
        let written = by_number(outbox.pending("a", &mine).await);
        let lease = lease_of(&mine, written[0].0);
        who_is_there(&outbox, &mine).await;
        let closing = LaneSettlement { closes: true, ..settlement(&mine, &written[0], dead()) };
        assert_eq!(outbox.settle("b", std::slice::from_ref(&closing)).await, [Settled::Lost]);
        assert_eq!(outbox.store.closed_keys(ALL).await.unwrap(), []);
        assert_eq!(outbox.settle("a", &[closing]).await, [Settled::Applied]);
        let pending = async || by_number(outbox.pending("a", &mine).await);
        assert_eq!(pending().await, written[2..]);
        // Nor by its own name.
        let key = key_of(order);
        let part = ReadLane { key: Some(key.clone()), ..all_of(lease) };
        assert_eq!(rows(outbox.read("a", vec![part], Vec::new()).await), []);

        let closed = outbox.store.closed_keys(ALL).await.unwrap();
        let [closed] = closed.as_slice() else { panic!("{closed:?}") };
        assert_eq!((&closed.key, closed.lane, closed.reopened), (&key, lease.lane, false));
        assert_eq!((closed.head_seq, closed.head_id.to_string()), (written[0].1, id(1)));
        assert_eq!(closed.reason.as_deref(), Some("it is dead"));
        let stalled = async || {
            let stalled = outbox.store.stalled_keys(ALL).await.unwrap();
            let [stalled] = <[_; 1]>::try_from(stalled).expect("one key stands still");
            assert_eq!(stalled.key, key);
            (stalled.stall, stalled.head_seq, stalled.waiting, stalled.reason)
        };
        let dead_for = Some("it is dead".to_owned());
        assert_eq!(stalled().await, (Stall::Parked, written[0].1, 1, dead_for.clone()));
        let reopened = async || outbox.lanes.reopened_keys("a", &mine, ALL).await.unwrap().len();
        outbox.lanes.forget_keys("a", &[(lease, key.clone())]).await.unwrap();
        assert_eq!((reopened().await, outbox.store.closed_keys(ALL).await.unwrap().len()), (0, 1));

        let head = closed.head_id.clone();
        let let_go_on = async |key: &Key, head: &EventId| {
            if skips {
                outbox.store.skip_head(key, head).await.unwrap()
            } else {
                outbox.store.release_key(key, head).await.unwrap()
            }
        };
        assert!(!let_go_on(&key_of(other), &head).await);
        assert!(!let_go_on(&key, &EventId::from_row(id(2))).await, "it is closed because of another event");
        assert!(let_go_on(&key, &head).await);
        assert!(!let_go_on(&key, &head).await, "it does already");
        assert_eq!(outbox.lanes.reopened_keys("b", &mine, ALL).await.unwrap(), []);
        assert_eq!(outbox.lanes.reopened_keys("a", &mine, ALL).await.unwrap()[0].key, key);
        assert!(outbox.store.closed_keys(ALL).await.unwrap()[0].reopened);
        let waiting = if skips { 1 } else { 2 };
        assert_eq!(stalled().await, (Stall::Reopened, written[0].1, waiting, dead_for));
        assert_eq!(pending().await, written[2..], "its relay has to know first where to begin");
        outbox.lanes.forget_keys("b", &[(lease, key.clone())]).await.unwrap();
        assert_eq!(reopened().await, 1);
        outbox.lanes.forget_keys("a", &[(lease, key.clone())]).await.unwrap();
        assert_eq!((reopened().await, outbox.store.closed_keys(ALL).await.unwrap().len()), (0, 0));
        let left = if skips { &written[1..] } else { &written[..] };
        assert_eq!(pending().await, left);
        assert_eq!(outbox.store.stalled_keys(ALL).await.unwrap(), []);
        let retry = Action::Retry { delay: LEASE, error: "not yet".into() };
        assert_eq!(outbox.settle("a", &[settlement(&mine, &left[0], retry)]).await, [Settled::Applied]);
        let of_key = if skips { 1 } else { 2 };
        assert_eq!(stalled().await, (Stall::Blocked, left[0].1, of_key - 1, Some("not yet".to_owned())));
        outbox.done("a", &mine, left).await;
        outbox.lanes.give_back_lanes("a", &mine).await.unwrap();
    }
}

/// An operator sees who has which lane, and what is delivered in order.
async fn who_is_there<S: AdminStore>(outbox: &Lanes<S>, mine: &[LaneLease]) {
    outbox.lanes.renew_lanes("a", mine, LEASE).await.unwrap();
    assert_eq!(outbox.lanes.agree("a", r#"["Order"]"#, LEASE).await.unwrap(), []);
    // A renewal leaves it as it was said.
    outbox.lanes.renew_lanes("a", mine, LEASE).await.unwrap();
    let holders = outbox.store.lane_holders().await.unwrap().expect("there are lanes");
    assert!(mine.iter().all(|lease| holders.of(lease.lane).is_some_and(|(owner, _)| owner == "a")), "{holders:?}");
    let relays: Vec<_> = holders.relays.iter().map(|relay| (&*relay.owner, relay.ordered.clone())).collect();
    assert_eq!(relays, [("a", Some(Ordered::types(["Order"])))]);
    assert_eq!([holders.orders("Order"), holders.orders("Invoice")], [Some(true), Some(false)]);
}

/// A key is closed in a batch with others, also where what is done is deleted. To redrive the head of a closed key is to release
/// it, and to redrive another row is not.
pub async fn case_84_redriven_head<F: Fixture>(fixture: F) {
    for deletes in [false, true] {
        let store = if deletes { fixture.deleting_done() } else { fixture.store() };
        let outbox = Lanes::on(&fixture, store).await;
        let id = |n: u8| format!("{deletes}-{n}");
        let events = [event(&id(1), "7"), event(&id(2), "7"), event(&id(3), "8"), event(&id(4), "9")];
        insert(&outbox.store, &events).await;
        let mine = outbox.lease("a").await;
        let written = by_number(outbox.pending("a", &mine).await);
        let batch = [
            LaneSettlement { closes: true, ..settlement(&mine, &written[0], dead()) },
            settlement(&mine, &written[2], Action::Done),
            settlement(&mine, &written[3], dead()),
        ];
        assert_eq!(outbox.settle("a", &batch).await, [Settled::Applied; 3]);
        assert_eq!(outbox.pending("a", &mine).await, []);
        let redrive = async |n: u8| outbox.store.redrive(&Redrive::ids([EventId::from_row(id(n))])).await.unwrap();
        assert_eq!(redrive(4).await, 1);
        assert_eq!(outbox.lanes.reopened_keys("a", &mine, ALL).await.unwrap(), []);
        assert_eq!(redrive(1).await, 1);
        let reopened = outbox.lanes.reopened_keys("a", &mine, ALL).await.unwrap();
        assert_eq!((reopened.len(), &reopened[0].key), (1, &key_of("7")));
        outbox.lanes.forget_keys("a", &[(lease_of(&mine, reopened[0].lane), key_of("7"))]).await.unwrap();
        let left = by_number(outbox.pending("a", &mine).await);
        assert_eq!(ids(&left), [id(1), id(2), id(4)]);
        outbox.done("a", &mine, &left).await;
        outbox.lanes.give_back_lanes("a", &mine).await.unwrap();
    }
}

/// The first event of a key, if it has failed, can be given up: it is DEAD, and its key goes on behind it when its relay has heard of
/// it. No other can, and what a listener makes of it that has it just then does not count.
pub async fn case_84_given_up_head<F: Fixture>(fixture: F) {
    let outbox = Lanes::of(&fixture).await;
    insert(&outbox.store, &[event("1", "7"), event("2", "7"), event("3", "8")]).await;
    let mine = outbox.lease("a").await;
    let written = by_number(outbox.pending("a", &mine).await);
    let give_up =
        async |order: &str, id: &str| outbox.store.give_up_head(&key_of(order), &EventId::from_row(id)).await.unwrap();
    assert!(!give_up("7", "1").await, "it has not failed");
    let retry = |row| settlement(&mine, row, Action::Retry { delay: LEASE, error: "not yet".into() });
    assert_eq!(outbox.settle("a", &[retry(&written[0]), retry(&written[1])]).await, [Settled::Applied; 2]);
    assert!(!give_up("7", "2").await, "it is behind another");
    for (order, id) in [("8", "1"), ("8", "3"), ("9", "1"), ("7", "9")] {
        assert!(!give_up(order, id).await, "{id} of {order}");
    }
    assert_eq!((counts(&outbox.store).await.dead, outbox.store.closed_keys(ALL).await.unwrap()), (0, Vec::new()));

    assert!(give_up("7", "1").await);
    assert!(!give_up("7", "1").await, "it is over");
    assert_at(&outbox.store, &EventId::from_row("1"), Status::Dead, 1).await;
    assert_eq!(outbox.done("a", &mine, &written[..1]).await, [Settled::Lost]);
    assert_eq!(by_number(outbox.pending("a", &mine).await), written[2..], "its relay has to know first");
    let reopened = outbox.lanes.reopened_keys("a", &mine, ALL).await.unwrap();
    let [reopened] = reopened.as_slice() else { panic!("{reopened:?}") };
    assert_eq!((&reopened.key, reopened.lane, reopened.head_seq), (&key_of("7"), written[0].0, written[0].1));
    assert_eq!(reopened.reason.as_deref(), Some("not yet"));
    outbox.lanes.forget_keys("a", &[(lease_of(&mine, reopened.lane), key_of("7"))]).await.unwrap();
    assert_eq!(by_number(outbox.pending("a", &mine).await), written[1..]);
    // The next one is the first now.
    assert!(give_up("7", "2").await);
    // While the key is as it was left, others may be given up as well.
    assert_eq!(outbox.settle("a", &[retry(&written[2])]).await, [Settled::Applied]);
    assert!(give_up("8", "3").await);
    assert_eq!((counts(&outbox.store).await.dead, outbox.store.closed_keys(ALL).await.unwrap().len()), (3, 2));
}

/// Of a key that is closed there is nothing to give up: the event that it is closed for is DEAD, and what is behind it has not failed.
/// Where one of these had failed before, that one is given up, and the key stays closed.
pub async fn case_84_given_up_when_closed<F: Fixture>(fixture: F) {
    let outbox = Lanes::of(&fixture).await;
    insert(&outbox.store, &[event("1", "7"), event("2", "7"), event("3", "8"), event("4", "8"), event("5", "8")]).await;
    let mine = outbox.lease("a").await;
    let written = by_number(outbox.pending("a", &mine).await);
    let give_up =
        async |order: &str, id: &str| outbox.store.give_up_head(&key_of(order), &EventId::from_row(id)).await.unwrap();
    let closed = async || {
        let closed = outbox.store.closed_keys(ALL).await.unwrap();
        closed.iter().map(|closed| (closed.head_id.to_string(), closed.reopened)).collect::<HashSet<_>>()
    };
    let failed = settlement(&mine, &written[3], Action::Retry { delay: LEASE, error: "not yet".into() });
    assert_eq!(outbox.settle("a", &[failed]).await, [Settled::Applied]);
    let closing = |row| LaneSettlement { closes: true, ..settlement(&mine, row, dead()) };
    assert_eq!(outbox.settle("a", &[closing(&written[0]), closing(&written[2])]).await, [Settled::Applied; 2]);
    for (order, id) in [("7", "1"), ("7", "2"), ("8", "3"), ("8", "5")] {
        assert!(!give_up(order, id).await, "{id} of {order}");
    }
    assert!(give_up("8", "4").await);
    assert_eq!(closed().await, HashSet::from([("1".to_owned(), false), ("3".to_owned(), false)]));
    assert_eq!(outbox.pending("a", &mine).await, []);
    assert_eq!(outbox.lanes.reopened_keys("a", &mine, ALL).await.unwrap(), []);

    assert!(outbox.store.release_key(&key_of("7"), &EventId::from_row("1")).await.unwrap());
    assert!(outbox.store.release_key(&key_of("8"), &EventId::from_row("3")).await.unwrap());
    for (order, row) in [("7", &written[0]), ("8", &written[2])] {
        outbox.lanes.forget_keys("a", &[(lease_of(&mine, row.0), key_of(order))]).await.unwrap();
    }
    assert_eq!(ids(&by_number(outbox.pending("a", &mine).await)), ["1", "2", "3", "5"]);
    assert_at(&outbox.store, &EventId::from_row("4"), Status::Dead, 1).await;
}

/// Whoever has much in hand, and may look for less, leaves closed keys out all the same: those that were closed before he had the lane,
/// those that he closes, and those that an operator has let go on.
pub async fn case_84_in_a_backlog<F: Fixture>(fixture: F) {
    let outbox = Lanes::of(&fixture).await;
    let orders = ["5", "6", "7", "8"];
    let events: Vec<_> =
        orders.iter().flat_map(|order| [1, 2].map(|n| event(&format!("{order}-{n}"), order))).collect();
    insert(&outbox.store, &events).await;
    // Numbers that no row has.
    let in_hand: Vec<i64> = (1_000_000..1_001_000).collect();
    let pending = async |owner: &str, mine: &[LaneLease]| {
        let parts = mine.iter().map(|lease| all_of(*lease)).collect();
        by_number(rows(outbox.read(owner, parts, in_hand.clone()).await))
    };
    let closing = |mine: &[LaneLease], row| LaneSettlement { closes: true, ..settlement(mine, row, dead()) };
    let theirs = outbox.lease("a").await;
    let written = pending("a", &theirs).await;
    assert_eq!(outbox.settle("a", &[closing(&theirs, &written[0])]).await, [Settled::Applied]);
    assert_eq!(pending("a", &theirs).await, written[2..]);
    outbox.lanes.give_back_lanes("a", &theirs).await.unwrap();

    let mine = outbox.lease("b").await;
    // More than once, since it may be the first read that finds out.
    for _ in 0..2 {
        assert_eq!(pending("b", &mine).await, written[2..]);
    }
    assert_eq!(outbox.settle("b", &[closing(&mine, &written[2])]).await, [Settled::Applied]);
    for _ in 0..2 {
        assert_eq!(pending("b", &mine).await, written[4..]);
    }
    let retry = Action::Retry { delay: LEASE, error: "not yet".into() };
    assert_eq!(outbox.settle("b", &[settlement(&mine, &written[4], retry)]).await, [Settled::Applied]);
    assert!(outbox.store.give_up_head(&key_of("7"), &EventId::from_row("7-1")).await.unwrap());
    assert!(outbox.store.release_key(&key_of("5"), &EventId::from_row("5-1")).await.unwrap());
    assert_eq!(pending("b", &mine).await, written[6..], "its relay has to know first");
    let reopened = [(lease_of(&mine, written[0].0), key_of("5")), (lease_of(&mine, written[4].0), key_of("7"))];
    outbox.lanes.forget_keys("b", &reopened).await.unwrap();
    assert_eq!(ids(&pending("b", &mine).await), ["5-1", "5-2", "7-2", "8-1", "8-2"]);
}

/// What a key is closed for is not purged before somebody has decided about it. Where it is gone all the same the key stays closed,
/// whatever becomes of other rows.
pub async fn case_84_purged_head<F: Fixture>(fixture: F) {
    let outbox = Lanes::of(&fixture).await;
    let store = &outbox.store;
    insert(store, &[event("1", "7"), event("2", "7"), event("3", "8"), event("4", "9"), event("5", "5")]).await;
    let mine = outbox.lease("a").await;
    let written = by_number(outbox.pending("a", &mine).await);
    let closing = |row| LaneSettlement { closes: true, ..settlement(&mine, row, dead()) };
    let mut batch = vec![closing(&written[0])];
    batch.extend(written[2..].iter().map(|row| settlement(&mine, row, dead())));
    assert_eq!(outbox.settle("a", &batch).await, [Settled::Applied; 4]);
    fixture.advance(LEASE).await;
    let discard = async |id: &str| store.discard(&Redrive::ids([EventId::from_row(id)])).await.unwrap();
    let closed = async || {
        let closed = store.closed_keys(ALL).await.unwrap();
        closed.iter().map(|closed| (closed.head_id.to_string(), closed.reopened)).collect::<Vec<_>>()
    };
    assert_eq!(discard("5").await, 1);
    let old = Purge { dead_after: Some(LEASE / 2), ..Purge::default() };
    assert_eq!((store.purge(&old).await.unwrap(), store.purge(&old).await.unwrap()), (2, 0));
    assert_at(store, &EventId::from_row("1"), Status::Dead, 1).await;
    assert_eq!(closed().await, [("1".to_owned(), false)]);
    assert!(store.skip_head(&key_of("7"), &EventId::from_row("1")).await.unwrap());
    assert_eq!(store.purge(&old).await.unwrap(), 1);
    outbox.lanes.forget_keys("a", &[(lease_of(&mine, written[0].0), key_of("7"))]).await.unwrap();
    assert_eq!(outbox.pending("a", &mine).await, written[1..2]);

    // Everything that is old goes, of whatever status.
    insert(store, &[event("6", "6"), event("7", "70"), event("8", "80")]).await;
    let written = by_number(outbox.pending("a", &mine).await);
    let at = |id: &str| written.iter().find(|row| row.2 == id).unwrap();
    let batch = [closing(at("6")), settlement(&mine, at("7"), dead()), settlement(&mine, at("8"), dead())];
    assert_eq!(outbox.settle("a", &batch).await, [Settled::Applied; 3]);
    fixture.advance(LEASE).await;
    insert(store, &[event("9", "6"), event("10", "90"), event("11", "91")]).await;
    let young = by_number(outbox.pending("a", &mine).await);
    let batch: Vec<_> = young.iter().filter(|row| ["10", "11"].contains(&&*row.2)).collect();
    let batch: Vec<_> = batch.into_iter().map(|row| settlement(&mine, row, dead())).collect();
    assert_eq!(outbox.settle("a", &batch).await, [Settled::Applied; 2]);
    let any = Purge { any_after: Some(LEASE / 2), ..Purge::default() };
    assert_eq!(store.purge(&any).await.unwrap(), 4);
    assert_eq!(discard("10").await, 1);
    assert_eq!(store.redrive(&Redrive::ids([EventId::from_row("11")])).await.unwrap(), 1);
    assert_eq!(closed().await, [("6".to_owned(), false)]);
    assert_eq!(ids(&outbox.pending("a", &mine).await), ["11"]);
    assert!(store.release_key(&key_of("6"), &EventId::from_row("6")).await.unwrap());
    assert_eq!(closed().await, [("6".to_owned(), true)]);
}
