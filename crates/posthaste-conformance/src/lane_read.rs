//! What is read from lanes.

use std::collections::HashSet;
use std::time::Duration;

use posthaste_core::store::{
    Action, AdminStore, Claim, Key, Lease, NewRow, ReadLane, ReadLanes, Redrive, RelayStore, Settled, Status,
    WriteStore,
};
use posthaste_core::{Event, EventId};

use crate::lane_store::{LEASE, Lanes, Row, all_of, by_number, event, ids, key_of, lease_of, rows, settlement};
use crate::rows::{assert_at, counts, dead, insert, retry};
use crate::{Fixture, Served};

fn is_about(length: Duration, seconds: u64) -> bool {
    length <= Duration::from_secs(seconds) && length + Duration::from_secs(30) > Duration::from_secs(seconds)
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
