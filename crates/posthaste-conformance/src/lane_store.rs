//! Rows that are owned by lanes: who has a lane, what is read from it, and what becomes of it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::store::{
    Action, AdminStore, Claim, Error, Key, Lane, LaneLease, LaneRows, LaneSettlement, LaneStore, Lease, NewRow, Purge,
    ReadLane, ReadLanes, Redrive, RelayOfLanes, RelayStore, Settled, Stall, Status, WriteStore,
};
use posthaste_core::{Event, EventId, Ordered};

use crate::rows::{assert_at, counts, dead, insert, retry};
use crate::{Fixture, Served, Tables};

const LEASE: Duration = Duration::from_secs(300);
const ALL: usize = 1000;

/// The lane, the number and the id of a row.
type Row = (Lane, i64, String);

/// An outbox that is prepared for lanes.
struct Lanes<S> {
    store: S,
    lanes: Arc<dyn LaneStore>,
}

impl<S: WriteStore + RelayStore + AdminStore> Lanes<S> {
    async fn of<F: Fixture<Store = S>>(fixture: &F) -> Self {
        Self::on(fixture, fixture.store()).await
    }

    async fn on<F: Fixture<Store = S>>(fixture: &F, store: S) -> Self {
        fixture.prepare_lanes().await;
        let lanes = store.lanes().unwrap();
        Self { store, lanes }
    }

    /// Leases all that nobody has.
    async fn lease(&self, owner: &str) -> Vec<LaneLease> {
        self.lanes.lease_lanes(owner, ALL, LEASE).await.unwrap()
    }

    async fn renew(&self, owner: &str, leases: &[LaneLease]) -> (Vec<bool>, Vec<String>) {
        let renewed = self.lanes.renew_lanes(owner, leases, LEASE).await.unwrap();
        (renewed.held, renewed.relays)
    }

    async fn read(&self, owner: &str, parts: Vec<ReadLane>, in_hand: Vec<i64>) -> LaneRows {
        let read = ReadLanes { owner: owner.into(), parts, in_hand, passed: Vec::new(), lease_duration: LEASE };
        self.lanes.read_lanes(&read).await.unwrap()
    }

    /// What is pending in these lanes, after a number.
    async fn pending_after(&self, owner: &str, leases: &[LaneLease], after: i64) -> Vec<Row> {
        let parts = leases.iter().map(|lease| ReadLane { after, ..all_of(*lease) });
        rows(self.read(owner, parts.collect(), Vec::new()).await)
    }

    async fn pending(&self, owner: &str, leases: &[LaneLease]) -> Vec<Row> {
        self.pending_after(owner, leases, 0).await
    }

    async fn settle(&self, owner: &str, settlements: &[LaneSettlement]) -> Vec<Settled> {
        let settled = self.lanes.settle_in_lanes(owner, settlements).await.unwrap();
        assert_eq!(settled.len(), settlements.len());
        settled
    }

    /// Says of these rows that they are done.
    async fn done(&self, owner: &str, leases: &[LaneLease], rows: &[Row]) -> Vec<Settled> {
        let settlements: Vec<_> = rows.iter().map(|row| settlement(leases, row, Action::Done)).collect();
        self.settle(owner, &settlements).await
    }
}

fn event(id: &str, order: &str) -> Event {
    Event::builder("OrderPlaced").id(id).aggregate("Order", order).json_text("{}").build().unwrap()
}

fn key_of(order: &str) -> Key {
    Key::of(&event("9", order)).unwrap()
}

/// Everything that is pending in a lane.
fn all_of(lease: LaneLease) -> ReadLane {
    ReadLane { lease, after: 0, until: None, limit: ALL, key: None }
}

fn rows(found: LaneRows) -> Vec<Row> {
    found.rows.into_iter().map(|row| (row.lane, row.seq, row.row.unwrap().event.id().to_string())).collect()
}

fn ids(rows: &[Row]) -> Vec<&str> {
    rows.iter().map(|(.., id)| id.as_str()).collect()
}

/// The same rows in the order of their numbers, whatever their lanes.
fn by_number(mut rows: Vec<Row>) -> Vec<Row> {
    rows.sort_by_key(|(_, seq, _)| *seq);
    rows
}

fn lease_of(leases: &[LaneLease], lane: Lane) -> LaneLease {
    *leases.iter().find(|lease| lease.lane == lane).unwrap()
}

fn settlement(leases: &[LaneLease], (lane, seq, id): &Row, action: Action) -> LaneSettlement {
    let (lease, id) = (lease_of(leases, *lane), EventId::from_row(id.as_str()));
    LaneSettlement { lease, seq: *seq, id, action, closes: false }
}

fn is_about(length: Duration, seconds: u64) -> bool {
    length <= Duration::from_secs(seconds) && length + Duration::from_secs(30) > Duration::from_secs(seconds)
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

/// A key is in one lane, and its rows come by number, whether they are due or not: after a number and up to another, as many as
/// are wanted beside those in hand, of all keys or of one.
pub async fn case_82_read_by_number<F: Fixture>(fixture: F) {
    let outbox = Lanes::of(&fixture).await;
    let later = event("2", "7").to_builder().deliver_after(Duration::from_secs(60)).build().unwrap();
    let alone = Event::builder("Happened").id("5").json_text("{}").build().unwrap();
    insert(&outbox.store, &[event("1", "7"), later, event("3", "7"), event("4", "8"), alone]).await;
    let leases = outbox.lease("a").await;
    let written = by_number(outbox.pending("a", &leases).await);
    assert_eq!(ids(&written), ["1", "2", "3", "4", "5"]);
    let lane = written[0].0;
    assert!(written[..3].iter().all(|row| row.0 == lane), "{written:?}");
    let seqs: Vec<i64> = written.iter().map(|row| row.1).collect();
    assert_eq!(outbox.pending_after("a", &leases, seqs[4]).await, []);

    let part = ReadLane { key: Some(key_of("7")), ..all_of(lease_of(&leases, lane)) };
    let read = async |part: ReadLane, in_hand: &[i64]| rows(outbox.read("a", vec![part], in_hand.to_vec()).await);
    let of_lane = outbox.read("a", vec![part.clone()], Vec::new()).await;
    let due: Vec<_> = of_lane.rows.iter().map(|row| row.due_in).collect();
    assert!(due[0].is_zero() && is_about(due[1], 60) && due[1] > due[2] && due[2].is_zero(), "{due:?}");
    assert_eq!(rows(of_lane), written[..3]);
    assert_eq!(read(ReadLane { after: seqs[0], limit: 1, ..part.clone() }, &[]).await, written[1..2]);
    assert_eq!(read(ReadLane { until: Some(seqs[1]), ..part.clone() }, &[]).await, written[..2]);
    assert_eq!(read(ReadLane { limit: 1, ..part.clone() }, &seqs[..2]).await, written[2..3]);
    assert_eq!(read(ReadLane { limit: 0, ..part.clone() }, &[]).await, []);
    for (after, until) in [(i64::MAX, None), (seqs[2], Some(seqs[0])), (seqs[2], None)] {
        assert_eq!(read(ReadLane { after, until, ..part.clone() }, &[]).await, [], "{after} {until:?}");
    }
    let nobody = Some(Key { aggregate_type: "Invoice".into(), aggregate_id: "7".into() });
    assert_eq!(read(ReadLane { key: nobody, ..part.clone() }, &[]).await, []);
    // Many in hand do not count, wherever they are.
    let in_hand: Vec<i64> = (-5000..=seqs[1]).collect();
    let one_each = leases.iter().map(|lease| ReadLane { limit: 1, ..all_of(*lease) }).collect();
    let first = rows(outbox.read("a", one_each, in_hand).await);
    assert!(first.contains(&written[2]), "{first:?}");
}

/// Rows come of lanes that are held under that epoch, and the others are told.
pub async fn case_82_reads_are_fenced<F: Fixture>(fixture: F) {
    let outbox = Lanes::of(&fixture).await;
    insert(&outbox.store, &(0..50).map(|n| event(&format!("e{n}"), &format!("{n}"))).collect::<Vec<_>>()).await;
    let old = outbox.lease("a").await;
    let all = outbox.pending("a", &old).await;
    assert_eq!(all.len(), 50);
    let found = outbox.read("b", old.iter().copied().map(all_of).collect(), Vec::new()).await;
    assert_eq!(found.lost.iter().collect::<HashSet<_>>(), old.iter().collect());
    assert_eq!(rows(found), []);
    // It has run out, and nobody has it: it stands.
    fixture.advance(LEASE * 2).await;
    assert_eq!(outbox.pending("a", &old).await, all);
    let new = outbox.lanes.lease_lanes("b", 1, LEASE).await.unwrap();
    let found = outbox.read("a", old.iter().copied().map(all_of).collect(), Vec::new()).await;
    assert_eq!(found.lost, [lease_of(&old, new[0].lane)]);
    let (taken, left): (Vec<Row>, Vec<Row>) = all.into_iter().partition(|row| row.0 == new[0].lane);
    assert_eq!(rows(found), left);
    assert_eq!(outbox.pending("b", &new).await, taken);
}

/// A row that a relay without lanes has leased is not due before that lease is over. A settlement takes it off.
pub async fn case_82_leases_of_rows<F: Fixture>(fixture: F) {
    let outbox = Lanes::of(&fixture).await;
    insert(&outbox.store, &[event("1", "7")]).await;
    let claim = Claim { lease: Lease::new("old", 1), lease_duration: LEASE, limit: 1, skip_recent: Duration::ZERO };
    assert_eq!(outbox.store.claim(&claim).await.unwrap().rows.len(), 1);
    let mine = outbox.lease("a").await;
    let row = outbox.pending("a", &mine).await.pop().unwrap();
    let due_in = async || {
        let part = all_of(lease_of(&mine, row.0));
        outbox.read("a", vec![part], Vec::new()).await.rows[0].due_in
    };
    assert!(is_about(due_in().await, LEASE.as_secs()));
    fixture.advance(LEASE).await;
    assert_eq!(due_in().await, Duration::ZERO);
    let again = settlement(&mine, &row, retry(Duration::from_secs(70)));
    assert_eq!(outbox.settle("a", &[again]).await, [Settled::Applied]);
    assert!(is_about(due_in().await, 70));
    assert_at(&outbox.store, &EventId::from_row("1"), Status::Retry, 1).await;
}

/// A row that is no event has its place in the order, and its key.
pub async fn case_82_undecodable_row<F: Fixture>(fixture: F) {
    let outbox = Lanes::of(&fixture).await;
    insert(&outbox.store, &[event("1", "7"), event("2", "7")]).await;
    let mine = outbox.lease("a").await;
    let written = outbox.pending("a", &mine).await;
    fixture.damage(&EventId::from_row("1")).await;
    let found = outbox.read("a", mine.iter().copied().map(all_of).collect(), Vec::new()).await.rows;
    assert_eq!(found.iter().map(|row| row.seq).collect::<Vec<_>>(), [written[0].1, written[1].1]);
    let bad = found[0].row.as_ref().unwrap_err();
    assert_eq!((bad.malformed.id.as_str(), &bad.key), ("1", &Some(key_of("7"))));
    assert!(found[1].row.is_ok());
}

/// What was redriven is read again, and what was deleted is not.
pub async fn case_82_redriven_and_deleted<F: Fixture>(fixture: F) {
    let outbox = Lanes::on(&fixture, fixture.deleting_done()).await;
    insert(&outbox.store, &[event("1", "7"), event("2", "7"), event("3", "8"), event("4", "9")]).await;
    let mine = outbox.lease("a").await;
    let written = by_number(outbox.pending("a", &mine).await);
    // What is done is deleted, whether it comes alone or not.
    let mixed = [settlement(&mine, &written[0], dead()), settlement(&mine, &written[1], Action::Done)];
    assert_eq!(outbox.settle("a", &mixed).await, [Settled::Applied; 2]);
    assert_eq!(outbox.done("a", &mine, &written[2..]).await, [Settled::Applied; 2]);
    assert_eq!(outbox.pending("a", &mine).await, []);
    let count = counts(&outbox.store).await;
    assert_eq!((count.dead, count.total()), (1, 1));
    let redrive = Redrive::ids([EventId::from_row("1")]);
    assert_eq!(outbox.store.redrive(&redrive).await.unwrap(), 1);
    assert_eq!(outbox.pending("a", &mine).await, written[..1]);
}

/// Outcomes are written back under the current epoch only. Of a batch, those alone are refused whose lanes somebody else has,
/// or whose rows are not pending.
pub async fn case_83_current_epoch<F: Fixture>(fixture: F) {
    let outbox = Lanes::of(&fixture).await;
    insert(&outbox.store, &(0..100).map(|n| event(&format!("e{n}"), &format!("{n}"))).collect::<Vec<_>>()).await;
    let old = outbox.lease("a").await;
    let rows = outbox.pending("a", &old).await;
    assert_eq!(rows.len(), 100);
    assert_eq!(outbox.settle("a", &[]).await, []);
    let (last, rest) = rows.split_last().unwrap();
    let last = std::slice::from_ref(last);
    assert_eq!(outbox.done("b", &old, last).await, [Settled::Lost]);
    assert_eq!(outbox.done("a", &old, last).await, [Settled::Applied]);
    assert_eq!(outbox.done("a", &old, last).await, [Settled::Lost]);

    fixture.advance(LEASE * 2).await;
    let (second, rest) = rest.split_last().unwrap();
    assert_eq!(outbox.done("a", &old, std::slice::from_ref(second)).await, [Settled::Applied]);
    let taken = outbox.lanes.lease_lanes("b", 1, LEASE).await.unwrap();
    let lane = taken[0].lane;
    let (mine, theirs): (Vec<Row>, Vec<Row>) = rest.iter().cloned().partition(|row| row.0 != lane);
    // A batch of which every kind of outcome is a part, with a row that is done already, and with those of the lost lane.
    let mut batch: Vec<_> = rest.iter().map(|row| settlement(&old, row, Action::Done)).collect();
    for (place, settlement) in batch.iter_mut().enumerate() {
        match place % 5 {
            0 => settlement.action = retry(Duration::from_secs(3600)),
            1 => settlement.action = dead(),
            2 => settlement.action = Action::Defer { delay: Duration::from_secs(3600) },
            3 => settlement.action = Action::Release,
            _ => {}
        }
    }
    batch.push(settlement(&old, &last[0], Action::Done));
    let settled = outbox.settle("a", &batch).await;
    for (settlement, settled) in batch.iter().zip(&settled) {
        let lost = settlement.lease.lane == lane || settlement.id.as_str() == last[0].2;
        assert_eq!(*settled == Settled::Lost, lost, "{settlement:?}");
    }
    let is_dead = |settlement: &LaneSettlement| matches!(settlement.action, Action::Dead { .. });
    let died =
        batch.iter().zip(&settled).filter(|(one, settled)| is_dead(one) && **settled == Settled::Applied).count();
    assert_eq!(outbox.pending("b", &taken).await, theirs);
    // Of those that are done alone, too.
    let pending = outbox.pending("a", &old).await;
    assert!(pending.iter().all(|row| mine.contains(row)));
    assert_eq!(pending.is_empty(), old.len() == 1, "it has the only lane there is");
    let both: Vec<Row> = pending.iter().chain(&theirs).cloned().collect();
    let settled = outbox.done("a", &old, &both).await;
    let applied = settled.iter().filter(|settled| **settled == Settled::Applied).count();
    assert_eq!(applied, pending.len());
    assert!(settled[pending.len()..].iter().all(|settled| *settled == Settled::Lost));
    assert_eq!(outbox.done("b", &taken, &theirs).await, vec![Settled::Applied; theirs.len()]);
    let counts = counts(&outbox.store).await;
    assert_eq!((counts.done, counts.dead), (100 - died as u64, died as u64));
}

/// An owner that has lost a lane and leased it anew settles nothing under the epoch of before, also beside what it settles under
/// the new one.
pub async fn case_83_epoch_of_before<F: Fixture>(fixture: F) {
    let outbox = Lanes::of(&fixture).await;
    insert(&outbox.store, &[event("1", "7"), event("2", "7")]).await;
    let old = outbox.lease("a").await;
    let written = outbox.pending("a", &old).await;
    fixture.advance(LEASE * 2).await;
    let new = outbox.lease("a").await;
    assert_eq!(new.len(), old.len());
    let late = settlement(&old, &written[0], Action::Done);
    for next in [Action::Done, retry(Duration::ZERO)] {
        let batch = [late.clone(), settlement(&new, &written[1], next), late.clone()];
        assert_eq!(outbox.settle("a", &batch).await[0], Settled::Lost);
    }
    assert_eq!(outbox.pending("a", &new).await, written[..1]);
}

/// The second outcome of a row in a batch finds what the first one made of it.
pub async fn case_83_twice_in_a_batch<F: Fixture>(fixture: F) {
    let outbox = Lanes::of(&fixture).await;
    insert(&outbox.store, &[event("1", "7"), event("2", "8")]).await;
    let mine = outbox.lease("a").await;
    let written = by_number(outbox.pending("a", &mine).await);
    let [first, second] = [0, 1].map(|row| move |action| (row, action));
    let batch =
        [first(retry(Duration::ZERO)), second(Action::Done), first(dead()), second(dead()), first(Action::Done)];
    let batch = batch.map(|(row, action)| settlement(&mine, &written[row], action));
    let [applied, lost] = [Settled::Applied, Settled::Lost];
    assert_eq!(outbox.settle("a", &batch).await, [applied, applied, applied, lost, lost]);
    assert_at(&outbox.store, &EventId::from_row("1"), Status::Dead, 2).await;
    assert_at(&outbox.store, &EventId::from_row("2"), Status::Done, 0).await;
}

/// A settlement and a lease of the same lanes that meet: of each lane, the lease comes after all of it, or before.
pub async fn case_83_lease_meets_settlement<F: Fixture>(fixture: F) {
    let outbox = Lanes::of(&fixture).await;
    let (here, there) = (&outbox, fixture.node().await.lanes().unwrap());
    for round in 0..20 {
        let events: Vec<_> = (0..40).map(|n| event(&format!("{round}-{n}"), &format!("{n}"))).collect();
        insert(&outbox.store, &events).await;
        let mine = here.lease("a").await;
        let rows = here.pending("a", &mine).await;
        assert_eq!(rows.len(), 40);
        fixture.advance(LEASE * 2).await;
        let settle = here.done("a", &mine, &rows);
        let lease = async {
            for _ in 0..round {
                tokio::task::yield_now().await;
            }
            there.lease_lanes("b", ALL, LEASE).await.unwrap()
        };
        let (settled, theirs) = tokio::join!(settle, lease);
        let lost = rows.iter().zip(&settled).filter(|(_, settled)| **settled == Settled::Lost);
        let lost: HashSet<&Row> = lost.map(|(row, _)| row).collect();
        let pending = here.pending("b", &theirs).await;
        assert_eq!(pending.iter().collect::<HashSet<_>>(), lost, "round {round}");
        assert!(here.done("b", &theirs, &pending).await.iter().all(|settled| *settled == Settled::Applied));
        here.lanes.give_back_lanes("b", &theirs).await.unwrap();
        fixture.advance(LEASE * 2).await;
    }
    assert_eq!(counts(&outbox.store).await.done, 800);
}

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

        let let_go_on = async |key: &Key| {
            if skips {
                outbox.store.skip_head(key).await.unwrap()
            } else {
                outbox.store.release_key(key).await.unwrap()
            }
        };
        assert!(!let_go_on(&key_of(other)).await);
        assert!(let_go_on(&key).await);
        assert!(!let_go_on(&key).await, "it does already");
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

    assert!(outbox.store.release_key(&key_of("7")).await.unwrap());
    assert!(outbox.store.release_key(&key_of("8")).await.unwrap());
    for (order, row) in [("7", &written[0]), ("8", &written[2])] {
        outbox.lanes.forget_keys("a", &[(lease_of(&mine, row.0), key_of(order))]).await.unwrap();
    }
    assert_eq!(ids(&by_number(outbox.pending("a", &mine).await)), ["1", "2", "3", "5"]);
    assert_at(&outbox.store, &EventId::from_row("4"), Status::Dead, 1).await;
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
    assert!(store.skip_head(&key_of("7")).await.unwrap());
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
    assert!(store.release_key(&key_of("6")).await.unwrap());
    assert_eq!(closed().await, [("6".to_owned(), true)]);
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
    assert!(!store.release_key(&key_of("7")).await.unwrap() && !store.skip_head(&key_of("7")).await.unwrap());
    assert!(!store.give_up_head(&key_of("7"), &EventId::from_row("1")).await.unwrap());

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

/// A lower number that commits after a higher one is seen by the next read from before it. Until then its writer is named as open,
/// beside every read, and also when he was passed and his number is before the range.
pub async fn case_82_late_commit<F: Served>(fixture: F) {
    let outbox = Lanes::of(&fixture).await;
    let mine = outbox.lease("a").await;
    let parts = |after| mine.iter().map(|lease| ReadLane { after, ..all_of(*lease) }).collect::<Vec<_>>();
    let mut late = outbox.store.begin().await.unwrap();
    outbox.store.insert(&mut *late, &[NewRow::new(event("late", "7"))]).await.unwrap();
    insert(&outbox.store, &[event("early", "8")]).await;

    let found = outbox.read("a", parts(0), Vec::new()).await;
    let open = found.open.clone();
    let seen = rows(found);
    assert_eq!(ids(&seen), ["early"]);
    assert!(!open.is_empty());
    // Of those that are named now, whoever is named for as long as that transaction is open is its writer.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let read = ReadLanes {
        owner: "a".into(),
        parts: parts(seen[0].1),
        in_hand: Vec::new(),
        passed: open.clone(),
        lease_duration: LEASE,
    };
    let beyond = outbox.lanes.read_lanes(&read).await.unwrap();
    let still: Vec<_> = open.into_iter().filter(|writer| beyond.open.contains(writer)).collect();
    assert_eq!(still.len(), 1, "{:?}", beyond.open);
    assert_eq!(rows(beyond), []);

    outbox.store.commit(late).await.unwrap();
    let beyond = outbox.lanes.read_lanes(&read).await.unwrap();
    assert!(!beyond.open.contains(&still[0]), "{:?}", beyond.open);
    let all = by_number(outbox.pending("a", &mine).await);
    assert_eq!(ids(&all), ["late", "early"]);
}

/// Whoever rolls back is not waited for any more.
pub async fn case_82_rolled_back<F: Served>(fixture: F) {
    let outbox = Lanes::of(&fixture).await;
    let mine = outbox.lease("a").await;
    let mut tx = outbox.store.begin().await.unwrap();
    outbox.store.insert(&mut *tx, &[NewRow::new(event("1", "7"))]).await.unwrap();
    let open = async || outbox.read("a", mine.iter().copied().map(all_of).collect(), Vec::new()).await.open;
    let before = open().await;
    assert_eq!(before.len(), 1, "{before:?}");
    outbox.store.rollback(tx).await.unwrap();
    assert_eq!(open().await, []);
}
