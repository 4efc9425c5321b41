//! Part C: which rows a claim leases, and how long it keeps them.

use std::collections::HashSet;
use std::time::Duration;

use posthaste_core::store::{Action, Claim, Lease, NewRow, Redrive, RelayStore, Settled, Settlement, Status};
use posthaste_core::{Event, EventId};

use crate::fixture::Fixture;
use crate::rows::{
    LEASE, assert_at, claim, claim_ids, claim_of, dead, delayed, event, events, ids_of, insert, insert_rows, lease,
    leased, one_leased, retry, settle, state,
};

const MINUTE: Duration = Duration::from_secs(60);

/// NEW and RETRY rows that are available and not leased are pending, and no others.
pub async fn case_27_pending_rows<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let [done, died, failed, failed_for_long, deferred, given_back] = [(); 6].map(|()| event("Claimed"));
    insert(&store, &[done.clone(), died.clone(), failed.clone()]).await;
    insert(&store, &[failed_for_long.clone(), deferred.clone(), given_back.clone()]).await;
    let (lease, rows) = claim(&store, 10).await;
    assert_eq!(rows.len(), 6);
    for (event, action) in [
        (&done, Action::Done),
        (&died, dead()),
        (&failed, retry(Duration::ZERO)),
        (&failed_for_long, retry(MINUTE)),
        (&deferred, Action::Defer { delay: MINUTE }),
        (&given_back, Action::Release),
    ] {
        assert_eq!(settle(&store, event.id(), &lease, action).await, Settled::Applied);
    }
    let (new, held, late) = (event("New"), event("Held"), delayed(MINUTE));
    insert_rows(&store, &[NewRow::new(new.clone()), leased(&held, &self::lease()), NewRow::new(late.clone())]).await;

    let pending: HashSet<String> = claim_ids(&store, 100).await.into_iter().collect();
    let expected = ids_of(&[failed, given_back, new]);
    assert_eq!(pending, expected.into_iter().collect());
    // A minute later the leases still hold, and what waited is pending.
    fixture.advance(MINUTE).await;
    let pending: HashSet<String> = claim_ids(&store, 100).await.into_iter().collect();
    assert_eq!(pending, ids_of(&[failed_for_long, deferred, late]).into_iter().collect());
}

/// The youngest rows are left alone when asked for.
pub async fn case_27_skip_recent<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let (old, young) = (event("Old"), event("Young"));
    insert(&store, std::slice::from_ref(&old)).await;
    fixture.advance(MINUTE).await;
    insert(&store, std::slice::from_ref(&young)).await;
    let cautious = || Claim { skip_recent: MINUTE, ..claim_of(10) };
    let claimed = store.claim(&cautious()).await.unwrap();
    assert_eq!(claimed.rows.iter().map(|row| row.event.id()).collect::<Vec<_>>(), [old.id()]);
    fixture.advance(MINUTE).await;
    let claimed = store.claim(&cautious()).await.unwrap();
    assert_eq!(claimed.rows.iter().map(|row| row.event.id()).collect::<Vec<_>>(), [young.id()]);
}

/// The limit holds, and rows come in the order of their creation, whatever their ids.
pub async fn case_27_limit_and_order<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let expected: Vec<String> = (0..40).map(|n| format!("{:02}", (n * 27 + 5) % 40)).collect();
    for ids in expected.chunks(7) {
        let rows: Vec<Event> = ids.iter().map(|id| crate::rows::event_with_id(id)).collect();
        insert(&store, &rows).await;
    }
    assert_eq!(claim_ids(&store, 0).await, [""; 0]);
    let mut claimed = Vec::new();
    for limit in [1, 2, 30, 30] {
        let ids = claim_ids(&store, limit).await;
        assert!(ids.len() <= limit);
        claimed.extend(ids);
    }
    assert_eq!(claimed, expected);
}

/// Others' leases are respected while they last, and so are one's own from another claim.
pub async fn case_28_skips_live_leases<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let (first, born, last) = (event("A"), event("B"), event("C"));
    insert(&store, std::slice::from_ref(&first)).await;
    let mine = Claim { lease: Lease::new("me", 1), ..claim_of(10) };
    assert_eq!(store.claim(&mine).await.unwrap().rows.len(), 1);
    insert_rows(&store, &[leased(&born, &lease()), NewRow::new(last.clone())]).await;
    let again = Claim { lease: Lease::new("me", 2), ..claim_of(10) };
    let rows = store.claim(&again).await.unwrap().rows;
    assert_eq!(rows.iter().map(|row| row.event.id()).collect::<Vec<_>>(), [last.id()]);
    assert_eq!(state(&store, first.id()).await.lease.unwrap().0, "me/1");
}

/// A lease that has run out protects nothing: the row goes to the next claim, in its old place.
pub async fn case_28_takes_expired_leases<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let (claimed, born) = (event("A"), event("B"));
    insert(&store, std::slice::from_ref(&claimed)).await;
    claim(&store, 1).await;
    insert_rows(&store, &[leased(&born, &lease())]).await;
    fixture.advance(LEASE - MINUTE).await;
    let young = event("C");
    insert(&store, std::slice::from_ref(&young)).await;
    let taken = claim(&store, 10).await.1;
    assert_eq!(taken.iter().map(|row| row.event.id()).collect::<Vec<_>>(), [young.id()]);
    fixture.advance(MINUTE).await;
    let fresh = event("D");
    insert(&store, std::slice::from_ref(&fresh)).await;
    let (lease, taken) = claim(&store, 10).await;
    let ids: Vec<_> = taken.iter().map(|row| row.event.id()).collect();
    assert_eq!(ids, [claimed.id(), born.id(), fresh.id()]);
    assert_eq!(state(&store, born.id()).await.lease.unwrap().0, lease.as_str());
}

/// How long a lease lasts is the claim's to say, for leases of anybody.
pub async fn case_28_lease_duration_is_the_claims<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let (id, _) = one_leased(&store).await;
    fixture.advance(MINUTE).await;
    assert_eq!(claim_ids(&store, 10).await, [""; 0]);
    let impatient = Claim { lease_duration: MINUTE, ..claim_of(10) };
    assert_eq!(store.claim(&impatient).await.unwrap().rows[0].event.id(), &id);
}

/// A row that waits for its moment is not claimed before, not even when its lease has run out.
pub async fn case_28_never_before_its_moment<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let waits = delayed(LEASE * 2);
    insert_rows(&store, &[leased(&waits, &lease())]).await;
    let at = Event::builder("At")
        .available_at(posthaste_core::Timestamp::now() + LEASE * 2)
        .json_text("{}")
        .build()
        .unwrap();
    insert(&store, std::slice::from_ref(&at)).await;
    fixture.advance(LEASE + MINUTE).await;
    assert_eq!(claim_ids(&store, 10).await, [""; 0]);
    fixture.advance(LEASE).await;
    let due: HashSet<String> = claim_ids(&store, 10).await.into_iter().collect();
    assert_eq!(due, ids_of(&[waits, at]).into_iter().collect());
}

/// A claim that found less than it could take says when the next row is due; for how long a row waited is told, too.
pub async fn case_28_tells_lag_and_next_moment<F: Fixture>(fixture: F) {
    let store = fixture.store();
    insert(&store, &[event("Now")]).await;
    insert(&store, &[delayed(MINUTE * 3), delayed(MINUTE * 2)]).await;
    fixture.advance(MINUTE).await;
    let claimed = store.claim(&claim_of(10)).await.unwrap();
    assert_eq!(claimed.rows.len(), 1);
    assert!(claimed.rows[0].lag >= MINUTE && claimed.rows[0].lag < MINUTE * 2, "{:?}", claimed.rows[0].lag);
    let next = claimed.next_in.expect("two rows wait");
    assert!(next <= MINUTE && next > MINUTE / 2, "{next:?}");
}

/// Eight claimers at once, half of them from another process, get disjoint sets that add up.
pub async fn case_29_concurrent_claims<F: Fixture>(fixture: F) {
    const ROWS: usize = 400;
    let store = fixture.store();
    let all = events(ROWS);
    insert(&store, &all).await;
    let other = fixture.node().await;
    let mut claimers = tokio::task::JoinSet::new();
    let start = std::sync::Arc::new(tokio::sync::Barrier::new(8));
    for number in 0..8 {
        let store = if number % 2 == 0 { store.clone() } else { other.clone() };
        let start = start.clone();
        claimers.spawn(async move {
            start.wait().await;
            let mut ids = Vec::new();
            loop {
                let more = claim_ids(&store, 7).await;
                if more.is_empty() {
                    return ids;
                }
                ids.extend(more);
            }
        });
    }
    let mut claimed: Vec<String> = claimers.join_all().await.into_iter().flatten().collect();
    claimed.sort_unstable();
    let mut expected = ids_of(&all);
    expected.sort_unstable();
    assert_eq!(claimed, expected);
}

/// The rows of one claim come in the order in which they became available, those of one moment by `seq`.
pub async fn case_30_order_of_claimed_rows<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let rows: Vec<Event> = (0..60).map(|n| crate::rows::event_with_id(&format!("{:02}", (n * 37) % 60))).collect();
    insert(&store, &rows).await;
    let (lease, claimed) = claim(&store, 100).await;
    assert_eq!(claimed.iter().map(|row| row.event.id().to_string()).collect::<Vec<_>>(), ids_of(&rows));
    // Put off so that the last becomes available first.
    let settlements: Vec<Settlement> = rows
        .iter()
        .zip(0..)
        .map(|(event, n)| {
            Settlement::new(event.id().clone(), lease.clone(), Action::Defer { delay: MINUTE - Duration::from_secs(n) })
        })
        .collect();
    store.settle(&settlements).await.unwrap();
    fixture.advance(MINUTE).await;
    let mut expected = ids_of(&rows);
    expected.reverse();
    assert_eq!(claim_ids(&store, 100).await, expected);
}

/// What was claimed, or born leased, can be settled and renewed: no precision is lost on the way.
pub async fn case_31_lease_round_trip<F: Fixture>(fixture: F) {
    let store = fixture.store();
    insert(&store, &events(50)).await;
    let owner = "Ünïcode-'owner'-🦀".to_owned() + &"x".repeat(80);
    let claim = Claim { lease: Lease::new(&owner, u64::MAX), ..claim_of(50) };
    let claimed = store.claim(&claim).await.unwrap().rows;
    let born_lease = Lease::new(&owner, 0);
    let born = event("Born");
    insert_rows(&store, &[leased(&born, &born_lease)]).await;
    let mut leases: Vec<(EventId, Lease)> =
        claimed.iter().map(|row| (row.event.id().clone(), claim.lease.clone())).collect();
    leases.push((born.id().clone(), born_lease));
    assert_eq!(store.renew(&leases).await.unwrap(), [true; 51]);
    let done: Vec<Settlement> =
        leases.into_iter().map(|(id, lease)| Settlement::new(id, lease, Action::Done)).collect();
    assert_eq!(store.settle(&done).await.unwrap(), [Settled::Applied; 51]);
}

/// Whatever an id looks like, its row is claimed, renewed, settled and found by it, and by no other.
pub async fn case_31_ids_of_any_look<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let looks = [
        "a",
        "A",
        "a ",
        " a",
        "1",
        "01",
        "1.0",
        "a\"b",
        "a\\b",
        "a\\u0041",
        "a'b",
        "a\nb\t\u{1}",
        "null",
        "[]",
        "ä",
        "a\u{308}",
        "🦀",
    ];
    let rows: Vec<Event> = looks.iter().map(|id| crate::rows::event_with_id(id)).collect();
    insert(&store, &rows).await;
    let (lease, claimed) = claim(&store, 100).await;
    assert_eq!(claimed.iter().map(|row| row.event.id().as_str()).collect::<Vec<_>>(), looks);
    let leases: Vec<_> = rows.iter().map(|event| (event.id().clone(), lease.clone())).collect();
    assert_eq!(store.renew(&leases).await.unwrap(), [true; 17]);
    for (event, n) in rows.iter().zip(0..) {
        // One way or the other, one at a time, so that nobody settles for a neighbour.
        let action = [Action::Done, dead(), retry(MINUTE), Action::Defer { delay: MINUTE }][n % 4].clone();
        assert_eq!(settle(&store, event.id(), &lease, action).await, Settled::Applied, "{:?}", event.id());
        assert_eq!(state(&store, event.id()).await.lease, None, "{:?}", event.id());
    }
    let ids: Vec<EventId> = rows.iter().map(|event| event.id().clone()).collect();
    let redriven = posthaste_core::store::AdminStore::redrive(&store, &Redrive::ids(ids)).await.unwrap();
    assert_eq!(redriven, 4);
}

/// A renewal makes a lease last longer, if it is still held.
pub async fn case_33_renew<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let (kept, kept_lease) = one_leased(&store).await;
    let (left, left_lease) = one_leased(&store).await;
    let (done, done_lease) = one_leased(&store).await;
    settle(&store, &done, &done_lease, Action::Done).await;
    fixture.advance(LEASE - MINUTE).await;
    let leases = [
        (done.clone(), done_lease),
        (kept.clone(), kept_lease.clone()),
        (EventId::new("nobody").unwrap(), kept_lease),
        (left.clone(), lease()),
    ];
    assert_eq!(store.renew(&leases).await.unwrap(), [false, true, false, false]);
    assert_eq!(store.renew(&[]).await.unwrap(), [true; 0]);
    fixture.advance(MINUTE * 2).await;
    let (_, taken) = claim(&store, 10).await;
    assert_eq!(taken.iter().map(|row| row.event.id()).collect::<Vec<_>>(), [&left]);
    // Now that another has it, the old lease cannot be renewed.
    assert_eq!(store.renew(&[(left, left_lease)]).await.unwrap(), [false]);
    fixture.advance(LEASE).await;
    assert!(claim_ids(&store, 10).await.contains(&kept.to_string()), "a renewed lease runs out, too");
}

/// A released row is available at once, as it was.
pub async fn case_33_release<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let (id, lease) = one_leased(&store).await;
    settle(&store, &id, &lease, retry(Duration::ZERO)).await;
    let (lease, _) = claim(&store, 1).await;
    let before = state(&store, &id).await;
    assert_eq!(settle(&store, &id, &lease, Action::Release).await, Settled::Applied);
    let after = assert_at(&store, &id, Status::Retry, 1).await;
    assert_eq!((after.available_at, after.last_error), (before.available_at, before.last_error));
    assert_eq!(claim_ids(&store, 1).await, [id.to_string()]);
    // And so are all of them at the start of a process that is alone.
    assert_eq!(store.release_all().await.unwrap(), 1);
    assert_eq!(store.release_all().await.unwrap(), 0);
    assert_eq!(claim_ids(&store, 1).await, [id.to_string()]);
}
