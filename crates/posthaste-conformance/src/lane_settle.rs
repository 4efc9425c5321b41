//! What becomes of rows that were read from lanes.

use std::collections::HashSet;
use std::time::Duration;

use posthaste_core::EventId;
use posthaste_core::store::{Action, LaneSettlement, RelayStore, Settled, Status};

use crate::Fixture;
use crate::lane_store::{ALL, LEASE, Lanes, Row, by_number, event, settlement};
use crate::rows::{assert_at, counts, dead, insert, retry};

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
