//! Rows that are owned by lanes: who has a lane.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::store::{
    Action, AdminStore, Error, Key, Lane, LaneLease, LaneRows, LaneSettlement, LaneStore, ReadLane, ReadLanes,
    RelayOfLanes, RelayStore, Settled, WriteStore,
};
use posthaste_core::{Event, EventId};

use crate::rows::insert;
use crate::{Fixture, Tables};

pub(crate) const LEASE: Duration = Duration::from_secs(300);
pub(crate) const ALL: usize = 1000;

/// The lane, the number and the id of a row.
pub(crate) type Row = (Lane, i64, String);

/// An outbox that is prepared for lanes.
pub(crate) struct Lanes<S> {
    pub(crate) store: S,
    pub(crate) lanes: Arc<dyn LaneStore>,
}

impl<S: WriteStore + RelayStore + AdminStore> Lanes<S> {
    pub(crate) async fn of<F: Fixture<Store = S>>(fixture: &F) -> Self {
        Self::on(fixture, fixture.store()).await
    }

    pub(crate) async fn on<F: Fixture<Store = S>>(fixture: &F, store: S) -> Self {
        fixture.prepare_lanes().await;
        let lanes = store.lanes().unwrap();
        Self { store, lanes }
    }

    /// Leases all that nobody has.
    pub(crate) async fn lease(&self, owner: &str) -> Vec<LaneLease> {
        self.lanes.lease_lanes(owner, ALL, LEASE).await.unwrap()
    }

    pub(crate) async fn renew(&self, owner: &str, leases: &[LaneLease]) -> (Vec<bool>, Vec<String>) {
        let renewed = self.lanes.renew_lanes(owner, leases, LEASE).await.unwrap();
        (renewed.held, renewed.relays)
    }

    pub(crate) async fn read(&self, owner: &str, parts: Vec<ReadLane>, in_hand: Vec<i64>) -> LaneRows {
        let read = ReadLanes { owner: owner.into(), parts, in_hand, passed: Vec::new(), lease_duration: LEASE };
        self.lanes.read_lanes(&read).await.unwrap()
    }

    /// What is pending in these lanes, after a number.
    pub(crate) async fn pending_after(&self, owner: &str, leases: &[LaneLease], after: i64) -> Vec<Row> {
        let parts = leases.iter().map(|lease| ReadLane { after, ..all_of(*lease) });
        rows(self.read(owner, parts.collect(), Vec::new()).await)
    }

    pub(crate) async fn pending(&self, owner: &str, leases: &[LaneLease]) -> Vec<Row> {
        self.pending_after(owner, leases, 0).await
    }

    pub(crate) async fn settle(&self, owner: &str, settlements: &[LaneSettlement]) -> Vec<Settled> {
        let settled = self.lanes.settle_in_lanes(owner, settlements).await.unwrap();
        assert_eq!(settled.len(), settlements.len());
        settled
    }

    /// Says of these rows that they are done.
    pub(crate) async fn done(&self, owner: &str, leases: &[LaneLease], rows: &[Row]) -> Vec<Settled> {
        let settlements: Vec<_> = rows.iter().map(|row| settlement(leases, row, Action::Done)).collect();
        self.settle(owner, &settlements).await
    }
}

pub(crate) fn event(id: &str, order: &str) -> Event {
    Event::builder("OrderPlaced").id(id).aggregate("Order", order).json_text("{}").build().unwrap()
}

pub(crate) fn key_of(order: &str) -> Key {
    Key::of(&event("9", order)).unwrap()
}

/// Everything that is pending in a lane.
pub(crate) fn all_of(lease: LaneLease) -> ReadLane {
    ReadLane { lease, after: 0, until: None, limit: ALL, key: None }
}

pub(crate) fn rows(found: LaneRows) -> Vec<Row> {
    found.rows.into_iter().map(|row| (row.lane, row.seq, row.row.unwrap().event.id().to_string())).collect()
}

pub(crate) fn ids(rows: &[Row]) -> Vec<&str> {
    rows.iter().map(|(.., id)| id.as_str()).collect()
}

/// The same rows in the order of their numbers, whatever their lanes.
pub(crate) fn by_number(mut rows: Vec<Row>) -> Vec<Row> {
    rows.sort_by_key(|(_, seq, _)| *seq);
    rows
}

pub(crate) fn lease_of(leases: &[LaneLease], lane: Lane) -> LaneLease {
    *leases.iter().find(|lease| lease.lane == lane).unwrap()
}

pub(crate) fn settlement(leases: &[LaneLease], (lane, seq, id): &Row, action: Action) -> LaneSettlement {
    let (lease, id) = (lease_of(leases, *lane), EventId::from_row(id.as_str()));
    LaneSettlement { lease, seq: *seq, id, action, closes: false }
}

/// A lane has one owner at a time, and each lease another epoch. A lease that is renewed outlives its first length; others are
/// anybody's when they have run out.
pub async fn case_81_one_owner<F: Fixture>(fixture: F) {
    let outbox = Lanes::of(&fixture).await;
    let count = usize::from(outbox.lanes.count_lanes().await.unwrap());
    assert!(count.is_power_of_two());
    let first = outbox.lanes.lease_lanes("a", 3, LEASE).await.unwrap();
    assert_eq!(first.len(), 3.min(count));
    assert_eq!(outbox.lanes.lease_lanes("b", 0, LEASE).await.unwrap(), []);
    let others = outbox.lease("b").await;
    assert_eq!(others.len() + first.len(), count);
    assert!(others.iter().all(|other| first.iter().all(|lease| lease.lane != other.lane)));

    fixture.advance(LEASE / 2).await;
    let (last, kept) = first.split_last().unwrap();
    assert_eq!(outbox.renew("a", kept).await, (vec![true; kept.len()], vec!["a".to_owned()]));
    fixture.advance(LEASE * 3 / 4).await;
    let again = outbox.lease("c").await;
    assert_eq!(again.len(), others.len() + 1);
    assert!(again.contains(&LaneLease { lane: last.lane, epoch: last.epoch + 1 }));
    let mut held = vec![true; kept.len()];
    held.push(false);
    assert_eq!(outbox.renew("a", &first).await.0, held);
    assert_eq!(outbox.renew("b", &others).await.0, vec![false; others.len()]);
}

/// What is given back is free at once, and only by who has it.
pub async fn case_81_given_back<F: Fixture>(fixture: F) {
    let outbox = Lanes::of(&fixture).await;
    let mine = outbox.lease("a").await;
    outbox.lanes.give_back_lanes("b", &mine).await.unwrap();
    outbox.lanes.give_back_lanes("a", &[]).await.unwrap();
    assert_eq!(outbox.lease("b").await, []);
    let next = LaneLease { lane: mine[0].lane, epoch: mine[0].epoch + 1 };
    outbox.lanes.give_back_lanes("a", &[next]).await.unwrap();
    assert_eq!(outbox.lease("b").await, []);
    outbox.lanes.give_back_lanes("a", &mine[..1]).await.unwrap();
    assert_eq!(outbox.lease("b").await, [next]);
    outbox.lanes.give_back_lanes("a", &mine[..1]).await.unwrap();
    assert_eq!(outbox.lease("c").await, []);
    assert!(!outbox.renew("a", &mine).await.0[0]);
}

/// Relays hear who is there: those that have said so lately and are not going.
pub async fn case_81_relays<F: Fixture>(fixture: F) {
    let outbox = Lanes::of(&fixture).await;
    let renew = async |owner| outbox.renew(owner, &[]).await.1;
    assert_eq!(renew("b").await, ["b"]);
    assert_eq!(renew("a").await, ["a", "b"]);
    // One goes, another one dies.
    let relays = outbox.lanes.renew_lanes("b", &[], Duration::ZERO).await.unwrap().relays;
    assert_eq!(relays, ["a"]);
    assert_eq!(renew("a").await, ["a"]);
    fixture.advance(LEASE * 2).await;
    assert_eq!(renew("c").await, ["c"]);
}

/// Relays with other settings are told of each other, of two at once one, and who is told is not there for the others.
pub async fn case_95_settings<F: Fixture>(fixture: F) {
    let outbox = Lanes::of(&fixture).await;
    let agree = async |owner, settings| outbox.lanes.agree(owner, settings, LEASE).await.unwrap();
    let relays = async || outbox.lanes.relays().await.unwrap();
    let relay = |owner: &str, settings: &str| RelayOfLanes { owner: owner.to_owned(), settings: settings.to_owned() };
    assert_eq!(agree("a", "all").await, []);
    assert_eq!(agree("b", "all").await, []);
    assert_eq!(relays().await, [relay("a", "all"), relay("b", "all")]);
    assert_eq!(agree("c", "none").await, [relay("a", "all"), relay("b", "all")]);
    assert_eq!(relays().await, [relay("a", "all"), relay("b", "all")]);
    // A renewal leaves settings as they are, also of one that has none, which has to agree before it goes on.
    let to_agree = async |owner| outbox.lanes.renew_lanes(owner, &[], LEASE).await.unwrap().to_agree;
    assert_eq!((to_agree("a").await, to_agree("c").await), (false, true));
    assert_eq!(relays().await, [relay("a", "all"), relay("b", "all"), relay("c", "")]);
    assert_eq!(agree("a", "all").await, []);
    // One goes, another one dies, and comes back when its place is taken.
    outbox.lanes.renew_lanes("a", &[], Duration::ZERO).await.unwrap();
    assert_eq!(agree("c", "none").await, [relay("b", "all")]);
    fixture.advance(LEASE * 2).await;
    assert_eq!(agree("c", "none").await, []);
    // It comes too late, so what it had said does not count any more, and nobody minds.
    assert_eq!((to_agree("b").await, to_agree("c").await), (true, false));
    assert_eq!(relays().await, [relay("b", ""), relay("c", "none")]);
    assert_eq!(agree("b", "all").await, [relay("c", "none")]);
    outbox.renew("b", &[]).await;
    assert_eq!(agree("c", "none").await, []);
    assert_eq!(relays().await, [relay("b", ""), relay("c", "none")]);
    for owner in ["b", "c"] {
        outbox.lanes.renew_lanes(owner, &[], Duration::ZERO).await.unwrap();
    }
    for _ in 0..10 {
        let (one, other) = tokio::join!(agree("d", "one"), agree("e", "other"));
        assert_eq!(one.len() + other.len(), 1, "{one:?} {other:?}");
        for owner in ["d", "e"] {
            outbox.lanes.renew_lanes(owner, &[], Duration::ZERO).await.unwrap();
        }
    }
}

/// Nothing has lanes that was not prepared for them, and whoever asks hears what to do. To prepare twice, or in two processes at
/// once, changes nothing more. Without lanes an operator finds no closed keys.
pub async fn case_81_not_prepared<F: Tables>(fixture: F) {
    let store = fixture.store();
    let lanes = store.lanes().unwrap();
    let error = lanes.count_lanes().await.unwrap_err();
    assert!(matches!(error, Error::Schema { .. }), "{error:?}");
    assert!(error.to_string().contains("prepare_lanes()"), "{error}");
    insert(&store, &[event("1", "7")]).await;
    assert_eq!(store.closed_keys(ALL).await.unwrap(), []);
    assert_eq!((store.stalled_keys(ALL).await.unwrap(), store.lane_holders().await.unwrap()), (Vec::new(), None));
    let (key, head) = (key_of("7"), EventId::from_row("1"));
    assert!(!store.release_key(&key, &head).await.unwrap() && !store.skip_head(&key, &head).await.unwrap());
    assert!(!store.give_up_head(&key, &head).await.unwrap());

    tokio::join!(fixture.prepare_lanes(), fixture.prepare_lanes());
    let lanes = fixture.node().await.lanes().unwrap();
    assert!(lanes.count_lanes().await.unwrap() > 0);
    let leases = lanes.lease_lanes("a", ALL, LEASE).await.unwrap();
    fixture.prepare_lanes().await;
    assert_eq!(lanes.renew_lanes("a", &leases, LEASE).await.unwrap().held, vec![true; leases.len()]);
    let outbox = Lanes::of(&fixture).await;
    // What was there before has a lane as well.
    assert_eq!(ids(&outbox.pending("a", &leases).await), ["1"]);
}
