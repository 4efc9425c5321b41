//! Rows that are owned by lanes. Here for the memory store; it is the same for every other.

use std::time::Duration;

use posthaste_core::store::{
    Action, AdminStore, Claim, Key, Lane, LaneLease, LaneSettlement, LaneStore, Lease, NewRow, ReadLane, ReadLanes,
    RelayStore, Settled, Status, WriteStore,
};
use posthaste_core::{Event, EventId, MemoryStore};

const LEASE: Duration = Duration::from_secs(15);
const ALL: usize = 1000;

fn event(id: &str, order: &str) -> Event {
    Event::builder("OrderPlaced").id(id).aggregate("Order", order).json_text("{}").build().unwrap()
}

async fn written(store: &MemoryStore, events: impl IntoIterator<Item = Event>) {
    let mut tx = store.begin().await.unwrap();
    let rows: Vec<_> = events.into_iter().map(NewRow::new).collect();
    store.insert(&mut tx, &rows).await.unwrap();
    store.commit(tx).await.unwrap();
}

async fn leased(store: &MemoryStore, owner: &str) -> Vec<LaneLease> {
    store.lease_lanes(owner, ALL, LEASE).await.unwrap()
}

fn read_of(owner: &str, parts: Vec<ReadLane>) -> ReadLanes {
    ReadLanes { owner: owner.into(), parts, in_hand: Vec::new(), passed: Vec::new(), lease_duration: LEASE }
}

/// What is pending in these lanes, from a number on: lane, number, id.
async fn read(
    store: &MemoryStore,
    owner: &str,
    leases: &[LaneLease],
    after: i64,
    limit: usize,
) -> Vec<(Lane, i64, String)> {
    let parts = leases.iter().map(|lease| ReadLane { lease: *lease, after, until: None, limit, key: None });
    let rows = store.read_lanes(&read_of(owner, parts.collect())).await.unwrap().rows;
    rows.into_iter().map(|row| (row.lane, row.seq, row.row.unwrap().event.id().to_string())).collect()
}

/// The lease of the lane that orders of this number are in.
fn lease_of(store: &MemoryStore, leases: &[LaneLease], order: &str) -> LaneLease {
    let lane = store.lane_of(&event("9", order)).unwrap();
    *leases.iter().find(|lease| lease.lane == lane).unwrap()
}

async fn settle(store: &MemoryStore, owner: &str, leases: &[LaneLease], rows: &[(Lane, i64, String)]) -> Vec<Settled> {
    let settlement = |(lane, seq, id): &(Lane, i64, String)| LaneSettlement {
        lease: *leases.iter().find(|lease| lease.lane == *lane).unwrap(),
        seq: *seq,
        id: EventId::from_row(id.as_str()),
        action: Action::Done,
        closes: false,
    };
    let settlements: Vec<_> = rows.iter().map(settlement).collect();
    store.settle_in_lanes(owner, &settlements).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_lane_has_one_owner_and_each_lease_another_epoch() {
    let store = MemoryStore::new();
    let first = store.lease_lanes("a", 3, LEASE).await.unwrap();
    assert_eq!(first.len(), 3);
    let others = leased(&store, "b").await;
    assert_eq!(others.len() + 3, usize::from(store.count_lanes().await.unwrap()));
    assert!(others.iter().all(|other| first.iter().all(|lease| lease.lane != other.lane)));

    // Renewed, they outlive their first length; what was not is anybody's.
    store.advance(LEASE / 2);
    let renewed = store.renew_lanes("a", &first[..2], LEASE).await.unwrap();
    assert_eq!((renewed.held, renewed.relays), (vec![true; 2], vec!["a".to_owned()]));
    store.advance(LEASE * 3 / 4);
    let again = leased(&store, "c").await;
    assert_eq!(again.len(), others.len() + 1);
    assert!(again.contains(&LaneLease { lane: first[2].lane, epoch: first[2].epoch + 1 }));
    assert_eq!(store.renew_lanes("a", &first, LEASE).await.unwrap().held, [true, true, false]);
}

#[tokio::test(start_paused = true)]
async fn what_is_given_back_is_free_at_once_and_only_for_who_had_it() {
    let store = MemoryStore::new();
    let mine = leased(&store, "a").await;
    store.give_back_lanes("b", &mine).await.unwrap();
    assert_eq!(leased(&store, "b").await, []);
    store.give_back_lanes("a", &mine[..1]).await.unwrap();
    assert_eq!(leased(&store, "b").await, [LaneLease { lane: mine[0].lane, epoch: mine[0].epoch + 1 }]);
    store.give_back_lanes("a", &mine[..1]).await.unwrap();
    assert_eq!(leased(&store, "c").await, []);
}

#[tokio::test(start_paused = true)]
async fn relays_hear_who_is_there() {
    let store = MemoryStore::new();
    let renew = async |owner| store.renew_lanes(owner, &[], LEASE).await.unwrap().relays;
    renew("b").await;
    assert_eq!(renew("a").await, ["a", "b"]);
    // One goes, another one dies.
    assert_eq!(store.renew_lanes("b", &[], Duration::ZERO).await.unwrap().relays, ["a"]);
    assert_eq!(renew("a").await, ["a"]);
    store.advance(LEASE * 2);
    assert_eq!(renew("c").await, ["c"]);
}

#[tokio::test(start_paused = true)]
async fn a_key_is_in_one_lane_and_its_rows_come_by_number_whether_due_or_not() {
    let store = MemoryStore::new();
    let later = event("2", "7").to_builder().deliver_after(Duration::from_secs(60)).build().unwrap();
    written(&store, [event("1", "7"), later, event("3", "7"), event("4", "8")]).await;
    let leases = leased(&store, "a").await;
    let part = ReadLane { lease: lease_of(&store, &leases, "7"), after: 0, until: None, limit: ALL, key: None };
    let read = async |part: ReadLane| {
        let read = ReadLanes { in_hand: vec![4], ..read_of("a", vec![part]) };
        let rows = store.read_lanes(&read).await.unwrap().rows;
        rows.into_iter().map(|row| (row.seq, row.due_in.as_secs())).collect::<Vec<_>>()
    };
    let key = Key::of(&event("9", "7"));
    assert_eq!(read(ReadLane { key: key.clone(), ..part.clone() }).await, [(1, 0), (2, 60), (3, 0)]);
    assert_eq!(read(ReadLane { key: key.clone(), after: 1, limit: 1, ..part.clone() }).await, [(2, 60)]);
    assert_eq!(read(ReadLane { key, until: Some(2), ..part.clone() }).await, [(1, 0), (2, 60)]);
    assert_eq!(read(ReadLane { after: i64::MAX, ..part.clone() }).await, []);
    // That one is in hand.
    let lease = lease_of(&store, &leases, "8");
    assert!(read(ReadLane { lease, ..part.clone() }).await.iter().all(|(seq, _)| *seq != 4));
    assert_eq!(read(ReadLane { after: 3, until: Some(1), ..part }).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_settlement_holds_under_the_current_epoch_only() {
    let store = MemoryStore::new();
    written(&store, (0..100).map(|number| event(&format!("e{number}"), &format!("{number}")))).await;
    let old = leased(&store, "a").await;
    let rows = read(&store, "a", &old, 0, ALL).await;
    assert_eq!(rows.len(), 100);
    // What is in the first lane, which will be leased first again, comes first.
    let (last, rest) = rows.split_last().unwrap();
    assert_eq!(settle(&store, "b", &old, std::slice::from_ref(last)).await, [Settled::Lost]);
    assert_eq!(settle(&store, "a", &old, std::slice::from_ref(last)).await, [Settled::Applied]);
    // Twice is once.
    assert_eq!(settle(&store, "a", &old, std::slice::from_ref(last)).await, [Settled::Lost]);

    // It has run out, but nobody has taken it: it stands.
    store.advance(LEASE * 2);
    let (last, rest) = rest.split_last().unwrap();
    assert_eq!(settle(&store, "a", &old, std::slice::from_ref(last)).await, [Settled::Applied]);
    // Somebody takes one lane: of a batch, its rows alone are refused.
    let taken = store.lease_lanes("b", 1, LEASE).await.unwrap()[0];
    let settled = settle(&store, "a", &old, rest).await;
    for ((lane, ..), settled) in rest.iter().zip(&settled) {
        assert_eq!(*settled == Settled::Lost, *lane == taken.lane, "{lane:?}");
    }
    // Nor can the old owner read it any more.
    assert_eq!(read(&store, "a", &old, 0, ALL).await, []);
    let parts = old.iter().map(|lease| ReadLane { lease: *lease, after: 0, until: None, limit: ALL, key: None });
    let lost = store.read_lanes(&read_of("a", parts.collect())).await.unwrap().lost;
    assert_eq!(lost, [LaneLease { epoch: taken.epoch - 1, ..taken }]);
    let left = read(&store, "b", &[taken], 0, ALL).await;
    assert!(left.iter().all(|(lane, ..)| *lane == taken.lane) && !left.is_empty());
    assert_eq!(settle(&store, "b", &[taken], &left).await, vec![Settled::Applied; left.len()]);
    assert_eq!(store.counts().await.unwrap().done, 100);
}

#[tokio::test(start_paused = true)]
async fn a_row_that_somebody_has_leased_alone_is_not_due_before_that_lease_is_over() {
    let store = MemoryStore::new();
    written(&store, [event("1", "7")]).await;
    let claim = Claim { lease: Lease::new("old", 1), lease_duration: LEASE, limit: 1, skip_recent: Duration::ZERO };
    assert_eq!(store.claim(&claim).await.unwrap().rows.len(), 1);
    let mine = leased(&store, "a").await;
    let lease = lease_of(&store, &mine, "7");
    let read = read_of("a", vec![ReadLane { lease, after: 0, until: None, limit: ALL, key: None }]);
    let due_in = async || store.read_lanes(&read).await.unwrap().rows[0].due_in;
    assert_eq!(due_in().await, LEASE);
    store.advance(LEASE);
    assert_eq!(due_in().await, Duration::ZERO);
    let retry = LaneSettlement {
        lease,
        seq: 1,
        id: EventId::from_row("1"),
        action: Action::Retry { delay: Duration::from_secs(7), error: "no".into() },
        closes: false,
    };
    assert_eq!(store.settle_in_lanes("a", &[retry]).await.unwrap(), [Settled::Applied]);
    // The lease of the row is off, and it has one attempt more.
    assert_eq!(due_in().await, Duration::from_secs(7));
    let state = store.find(&EventId::from_row("1")).await.unwrap().unwrap().state;
    assert_eq!((state.status, state.attempts, state.lease), (Status::Retry, 1, None));
}

#[tokio::test(start_paused = true)]
async fn what_was_redriven_is_read_again_and_what_was_purged_is_not() {
    let store = MemoryStore::new().deleting_done();
    written(&store, [event("1", "7"), event("2", "7")]).await;
    let mine = leased(&store, "a").await;
    let rows = read(&store, "a", &mine, 0, ALL).await;
    let dead = LaneSettlement {
        lease: lease_of(&store, &mine, "7"),
        seq: rows[0].1,
        id: EventId::from_row("1"),
        action: Action::Dead { error: "no".into(), counts: true },
        closes: false,
    };
    assert_eq!(store.settle_in_lanes("a", &[dead]).await.unwrap(), [Settled::Applied]);
    assert_eq!(settle(&store, "a", &mine, &rows[1..]).await, [Settled::Applied]);
    assert_eq!(read(&store, "a", &mine, 0, ALL).await, []);
    let redrive = posthaste_core::store::Redrive::ids([EventId::from_row("1")]);
    assert_eq!(store.redrive(&redrive).await.unwrap(), 1);
    assert_eq!(read(&store, "a", &mine, 0, ALL).await, rows[..1]);
}

#[tokio::test(start_paused = true)]
async fn a_closed_key_is_not_read_until_somebody_lets_it_go_on_and_its_relay_forgets_it() {
    for skips in [false, true] {
        let store = MemoryStore::new();
        written(&store, [event("1", "7"), event("2", "7"), event("3", "8")]).await;
        let mine = leased(&store, "a").await;
        let lease = lease_of(&store, &mine, "7");
        let dead = LaneSettlement {
            lease,
            seq: 1,
            id: EventId::from_row("1"),
            action: Action::Dead { error: "no".into(), counts: true },
            closes: true,
        };
        assert_eq!(store.settle_in_lanes("b", std::slice::from_ref(&dead)).await.unwrap(), [Settled::Lost]);
        assert_eq!(store.closed_keys(ALL).await.unwrap(), []);
        assert_eq!(store.settle_in_lanes("a", &[dead]).await.unwrap(), [Settled::Applied]);
        let others = async || read(&store, "a", &mine, 0, ALL).await.into_iter().map(|(_, seq, _)| seq).collect();
        let seqs: Vec<i64> = others().await;
        assert_eq!(seqs, [3]);

        let key = Key::of(&event("9", "7")).unwrap();
        let closed = store.closed_keys(ALL).await.unwrap().pop().unwrap();
        assert_eq!((&closed.key, closed.head_seq, closed.reason.as_deref()), (&key, 1, Some("no")));
        let reopened = async || store.reopened_keys("a", &mine, ALL).await.unwrap().len();
        store.forget_keys("a", &[(lease, key.clone())]).await.unwrap();
        assert_eq!(reopened().await, 0);

        let let_go_on = async || {
            if skips { store.skip_head(&key).await.unwrap() } else { store.release_key(&key).await.unwrap() }
        };
        assert!(let_go_on().await);
        assert!(!let_go_on().await, "it does already");
        assert_eq!(reopened().await, 1);
        let seqs: Vec<i64> = others().await;
        assert_eq!(seqs, [3], "its relay has to know first where to begin");
        store.forget_keys("b", &[(lease, key.clone())]).await.unwrap();
        assert_eq!(reopened().await, 1);
        store.forget_keys("a", &[(lease, key.clone())]).await.unwrap();
        let mut seqs: Vec<i64> = others().await;
        seqs.sort_unstable();
        assert_eq!(seqs, if skips { vec![2, 3] } else { vec![1, 2, 3] });
    }
}

#[tokio::test(start_paused = true)]
async fn to_redrive_the_head_of_a_closed_key_is_to_release_it() {
    let store = MemoryStore::new();
    written(&store, [event("1", "7"), event("2", "7")]).await;
    let mine = leased(&store, "a").await;
    let dead = LaneSettlement {
        lease: lease_of(&store, &mine, "7"),
        seq: 1,
        id: EventId::from_row("1"),
        action: Action::Dead { error: "no".into(), counts: true },
        closes: true,
    };
    store.settle_in_lanes("a", &[dead]).await.unwrap();
    let redrive = posthaste_core::store::Redrive::ids([EventId::from_row("1")]);
    assert_eq!(store.redrive(&redrive).await.unwrap(), 1);
    assert_eq!(store.reopened_keys("a", &mine, ALL).await.unwrap().len(), 1);
}
