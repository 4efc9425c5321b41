//! Part G: relays that own lanes come, go, die, and disagree.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use posthaste_core::listener::Delivery;
use posthaste_core::outbox::StartError;
use posthaste_core::store::WriteStore;
use posthaste_core::{Options, Ordered, Outbox};

use crate::course::{Course, LANE_LEASE, number_of, numbered, options, ordered, told, until_done};
use crate::fixture::Lanes;
use crate::meter::Meter;
use crate::rows::{counts, insert};
use crate::tap::Tap;
use crate::wait::{Gate, eventually, within};

/// A relay dies in the middle of a run. Another one begins with the first event that is not done, when the leases are over.
pub async fn case_88_takeover<F: Lanes>(fixture: F) {
    let course = Course::default();
    let events: Vec<_> = (0..10).map(|number| numbered("taken over", number)).collect();
    insert(&fixture.store(), &events).await;
    let (hangs, reached) = (Gate::new(), Gate::new());
    let (dying, meter) = {
        let (course, hangs, reached) = (course.clone(), hangs.clone(), reached.clone());
        let listener = move |event: Delivery| {
            let (course, hangs, reached) = (course.clone(), hangs.clone(), reached.clone());
            async move {
                course.begins(&event);
                if number_of(&event) == 4 {
                    reached.open();
                    hangs.pass().await;
                }
                course.acknowledges(&event);
            }
        };
        ordered(fixture.node().await, options(), |builder| builder.listen_all(listener)).await
    };
    within("it is in the middle", reached.pass()).await;
    meter.until("those before are settled", |tally| tally.delivered == 4).await;
    drop(dying);
    let (heir, meter) = ordered(fixture.node().await, options(), |builder| builder.listen_all(course.listener())).await;
    meter.until("the rest is delivered", |tally| tally.delivered == 6).await;
    heir.shutdown().await;
    course.assert_in_order();
    assert_eq!(course.begun("taken over"), [1, 1, 1, 1, 2, 1, 1, 1, 1, 1], "only what was under way is repeated");
}

/// Relays come one after the other and go again, while events are written: lanes move, and nothing is repeated.
pub async fn case_89_rolling_start<F: Lanes>(fixture: F) {
    const ORDERS: u32 = 50;
    let course = Course::default();
    let mut relays = Vec::new();
    let mut written = 0;
    let mut write_more = async |outbox: &Outbox<F::Store>| {
        for _ in 0..4 {
            let mut tx = outbox.begin().await.unwrap();
            tx.write_all((0..ORDERS).map(|order| numbered(order, written))).await.unwrap();
            tx.commit().await.unwrap();
            written += 1;
        }
        written
    };
    for number in 0..3 {
        let options = Options { owner: Some(format!("relay-{number}")), ..options() };
        let relay = ordered(fixture.node().await, options, |builder| builder.listen_all(course.listener())).await;
        relays.push(relay);
        let before: Vec<u64> = relays.iter().map(|(_, meter)| meter.tally().delivered).collect();
        // Until the one that came last has its part: it is seen by the others, and they give lanes up.
        eventually("all of them deliver", async || {
            write_more(&relays[0].0).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
            let part = |((_, meter), before): (&(_, Meter), &u64)| meter.tally().delivered > *before;
            F::LANES < 3 || relays.iter().zip(&before).all(part)
        })
        .await;
    }
    for _ in 0..2 {
        let (outbox, _) = relays.remove(0);
        write_more(&outbox).await;
        assert!(outbox.shutdown().await.is_clean());
    }
    let written = write_more(&relays[0].0).await;
    let all = ORDERS as usize * written as usize;
    until_done(&fixture.store(), all as u64).await;
    relays[0].0.shutdown().await;
    course.assert_in_order();
    course.assert_each_once(all);
}

/// A shutdown waits for what is with listeners, settles it, gives the lanes back at once, and begins nothing more.
pub async fn case_91_shutdown<F: Lanes>(fixture: F) {
    let course = Course::default();
    let events: Vec<_> = (0..10).flat_map(|number| (0..5).map(move |order| numbered(order, number))).collect();
    insert(&fixture.store(), &events).await;
    let (gate, reached) = (Gate::new(), Gate::new());
    // Leases so long that nobody could wait for them.
    let patient = || Options { lane_lease: Duration::from_secs(600), ..options() };
    let (leaving, _) = {
        let (course, gate, reached) = (course.clone(), gate.clone(), reached.clone());
        let listener = move |event: Delivery| {
            let (course, gate, reached) = (course.clone(), gate.clone(), reached.clone());
            async move {
                course.begins(&event);
                reached.open();
                gate.pass().await;
                course.acknowledges(&event);
            }
        };
        ordered(fixture.node().await, Options { workers: 3, ..patient() }, |builder| builder.listen_all(listener)).await
    };
    within("it is at it", reached.pass()).await;
    let shutdown = {
        let leaving = leaving.clone();
        tokio::spawn(async move { leaving.shutdown().await })
    };
    tokio::time::sleep(Duration::from_millis(20)).await;
    gate.open();
    let closed = within("it ends", shutdown).await.unwrap();
    assert!(closed.is_clean(), "{closed:?}");
    assert_eq!(leaving.in_flight(), 0);
    let begun = course.acknowledged();
    assert!((1..=3).contains(&begun), "{begun} were acknowledged");
    assert_eq!(counts(&fixture.store()).await.done, begun as u64);

    let (heir, _) = ordered(fixture.node().await, patient(), |builder| builder.listen_all(course.listener())).await;
    until_done(&fixture.store(), 50).await;
    heir.shutdown().await;
    course.assert_in_order();
    course.assert_each_once(50);
}

/// A shutdown whose deadline comes first cuts listeners short, and others deliver the same events at once.
pub async fn case_91_deadline<F: Lanes>(mut fixture: F) {
    let short =
        Options { shutdown_deadline: Duration::from_millis(50), lane_lease: Duration::from_secs(600), ..options() };
    for tries_left in (0..5).rev() {
        insert(&fixture.store(), &[numbered("cut", 0), numbered("cut", 1)]).await;
        let (tap, mut inbox) = Tap::new();
        let (leaving, _) =
            ordered(fixture.node().await, short.clone(), |builder| builder.listen_all(tap.behind(&Gate::new()))).await;
        inbox.next().await;
        let closed = within("it ends", leaving.shutdown()).await;
        // The database gets half a second to take the lanes back, and on a busy machine may need longer: then with another table.
        if closed.abandoned > 0 && tries_left > 0 {
            fixture = F::with_lanes().await;
            continue;
        }
        assert_eq!((closed.released, closed.abandoned), (1, 0));
        break;
    }
    let (tap, mut inbox) = Tap::new();
    let (heir, meter) = ordered(fixture.node().await, short, |builder| builder.listen_all(tap)).await;
    meter.until("both are delivered", |tally| tally.delivered == 2).await;
    assert_eq!(told(&inbox.rest(), "cut"), [0, 1]);
    heir.shutdown().await;
}

/// What the others deliver in order, if a start was refused for it.
fn refused_for<S: WriteStore>(started: Result<Outbox<S>, StartError>) -> Vec<String> {
    match started.map(drop) {
        Err(StartError::OtherSettings { others, .. }) => others.into_iter().map(|other| other.settings).collect(),
        other => panic!("{other:?}"),
    }
}

/// Relays of one table deliver the same in order, or do not start; nor does one that knows of no order.
pub async fn case_95_refused<F: Lanes>(fixture: F) {
    // Whoever is there stays there, however busy the machine is.
    let patient = || Options { lane_lease: LANE_LEASE * 10, ..options() };
    let builder = async || Outbox::builder(fixture.node().await).options(patient()).listen_all(|_: Delivery| async {});
    let orders = || Ordered::types(["Order"]);
    let (first, _) = ordered(fixture.node().await, patient(), |builder| {
        builder.ordered(orders()).listen_all(|_: Delivery| async {})
    })
    .await;
    for other in [Ordered::all(), Ordered::None, Ordered::types(["Order", "Invoice"])] {
        assert_eq!(refused_for(builder().await.ordered(other).start().await), [r#"["Order"]"#]);
    }
    assert_eq!(refused_for(builder().await.start().await), [r#"["Order"]"#]);
    let second = builder().await.ordered(orders()).start().await.unwrap();
    first.shutdown().await;
    assert_eq!(refused_for(builder().await.start().await), [r#"["Order"]"#]);
    second.shutdown().await;
    // Nobody is there any more.
    builder().await.start().await.unwrap().shutdown().await;
    let other = builder().await.ordered(Ordered::all()).start().await.unwrap();
    assert_eq!(refused_for(builder().await.ordered(orders()).start().await), ["all"]);
    other.shutdown().await;
}

/// A relay that was away while one with other settings began delivers nothing when it is back, until that one is gone.
pub async fn case_95_noticed<F: Lanes>(fixture: F) {
    let (counts_of, store) = (Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]), fixture.store());
    let listener = |relay: usize| {
        let counts_of = Arc::clone(&counts_of);
        move |_: Delivery| {
            counts_of[relay].fetch_add(1, Ordering::Relaxed);
            async {}
        }
    };
    let delivered = |relay: usize| counts_of[relay].load(Ordering::Relaxed);
    let (first, _) = ordered(fixture.node().await, options(), |builder| builder.listen_all(listener(0))).await;
    let second = loop {
        // As if the first could not renew anything for so long.
        fixture.advance(LANE_LEASE * 2).await;
        let builder = Outbox::builder(fixture.node().await).options(options()).ordered(Ordered::types(["Order"]));
        match builder.listen_all(listener(1)).start().await {
            Ok(second) => break second,
            Err(StartError::OtherSettings { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    };
    // It hears of it when it renews its leases next, and until then may go on.
    tokio::time::sleep(LANE_LEASE).await;
    insert(&store, &(0..20).map(|order| numbered(order, 0)).collect::<Vec<_>>()).await;
    until_done(&store, 20).await;
    assert_eq!((delivered(0), delivered(1)), (0, 20));
    second.shutdown().await;
    insert(&store, &(0..20).map(|order| numbered(order, 1)).collect::<Vec<_>>()).await;
    until_done(&store, 40).await;
    assert_eq!((delivered(0), delivered(1)), (20, 20));
    first.shutdown().await;
}
