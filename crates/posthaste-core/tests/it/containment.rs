//! What panics, hangs or goes away must not take the outbox with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use posthaste_core::event::EventId;
use posthaste_core::poller::Source;
use posthaste_core::store::{
    AdminStore, BoxFuture, Claim, Claimed, Error, Lease, RelayStore, Settled, Settlement, Status,
};
use posthaste_core::{
    Closed, Delivery, Dispatcher, Failure, Interceptor, Listener, MemoryStore, Metrics, Options, Outbox, Poller,
    Registry, RetryPolicy,
};

use crate::{until, write};

#[tokio::test(start_paused = true)]
async fn metrics_that_panic_stop_nothing() {
    struct Broken;

    impl Metrics for Broken {
        fn delivered(&self, _: u64) {
            panic!("metrics are broken");
        }
        fn settle_batch(&self, _: usize) {
            panic!("metrics are broken");
        }
        fn latency(&self, _: posthaste_core::listener::Path, _: Duration) {
            panic!("metrics are broken");
        }
    }

    let store = MemoryStore::new();
    let builder = Outbox::builder(store.clone()).metrics(Broken).listen_all(|_: Delivery| async {});
    let outbox = builder.start().await.unwrap();
    for _ in 0..20 {
        write(&outbox, "Any").await;
    }
    until(&store, "all are done", |counts| counts.done == 20).await;
    assert_eq!(outbox.shutdown().await, Closed::default());
}

#[tokio::test(start_paused = true)]
async fn a_retry_policy_that_panics_is_as_good_as_none() {
    let store = MemoryStore::new();
    let listener =
        (|_: Delivery| async { Err::<(), _>("no") }).with_retry(RetryPolicy::custom(|_| panic!("no policy")));
    let outbox = Outbox::builder(store.clone()).listen_all(listener).start().await.unwrap();
    write(&outbox, "Any").await;
    until(&store, "it is dead after all attempts", |counts| counts.dead == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_panics_is_tried_again() {
    struct Shaky(MemoryStore, AtomicBool);

    impl RelayStore for Shaky {
        fn claim<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Claimed, Error>> {
            self.0.claim(claim)
        }
        fn settle<'a>(&'a self, settlements: &'a [Settlement]) -> BoxFuture<'a, Result<Vec<Settled>, Error>> {
            assert!(self.1.swap(true, Ordering::SeqCst), "the first settlement panics");
            self.0.settle(settlements)
        }
        fn renew<'a>(&'a self, leases: &'a [(EventId, Lease)]) -> BoxFuture<'a, Result<Vec<bool>, Error>> {
            self.0.renew(leases)
        }
        fn release_all(&self) -> BoxFuture<'_, Result<u64, Error>> {
            self.0.release_all()
        }
    }

    let store = MemoryStore::new();
    write(&Outbox::writer_only(store.clone()).start().await.unwrap(), "Any").await;
    let shaky: Arc<dyn RelayStore> = Arc::new(Shaky(store.clone(), AtomicBool::new(false)));
    let mut registry = Registry::new();
    registry.register_all(|_: Delivery| async {}).unwrap();
    let dispatcher = Dispatcher::builder(Arc::clone(&shaky), registry).start().unwrap();
    let poller = Poller::builder(shaky, Arc::clone(&dispatcher) as Arc<_>).build().unwrap();
    poller.start();
    until(&store, "it is done", |counts| counts.done == 1).await;
    assert!(dispatcher.close().await.is_clean());
}

#[tokio::test(start_paused = true)]
async fn an_interceptor_that_hangs_is_cut_off() {
    struct Stuck;

    impl Interceptor for Stuck {
        async fn before(&self, event: &Delivery) -> Result<(), Failure> {
            if event.attempt() == 1 {
                std::future::pending::<()>().await;
            }
            Ok(())
        }
    }

    let store = MemoryStore::new();
    let builder = Outbox::builder(store.clone()).interceptor(Stuck).listen_all(|_: Delivery| async {});
    let outbox = builder.start().await.unwrap();
    write(&outbox, "Any").await;
    until(&store, "the second attempt is done", |counts| counts.done == 1).await;
}

#[tokio::test(start_paused = true)]
async fn an_interceptor_that_panics_before_it_returns_a_future_is_one_failed_attempt() {
    struct Eager;

    impl Interceptor for Eager {
        fn before(&self, event: &Delivery) -> impl Future<Output = Result<(), Failure>> + Send {
            assert!(event.attempt() > 1, "the first attempt panics");
            async { Ok(()) }
        }
    }

    let store = MemoryStore::new();
    let builder = Outbox::builder(store.clone()).interceptor(Eager).listen_all(|_: Delivery| async {});
    let outbox = builder.start().await.unwrap();
    write(&outbox, "Any").await;
    until(&store, "the second attempt is done", |counts| counts.done == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_that_nobody_waits_for_goes_on_and_releases() {
    let store = MemoryStore::new();
    let builder = Outbox::builder(store.clone()).listen_all(|_: Delivery| std::future::pending::<()>());
    let outbox = builder.start().await.unwrap();
    write(&outbox, "Hangs").await;
    while outbox.in_flight() == 0 {
        tokio::task::yield_now().await;
    }
    assert!(tokio::time::timeout(Duration::from_millis(10), outbox.shutdown()).await.is_err());
    let record = || async { store.list(&Default::default(), &Default::default()).await.unwrap().remove(0) };
    while record().await.state.lease.is_some() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(record().await.state.status, Status::New);
    assert_eq!(outbox.shutdown().await, Closed { released: 1, abandoned: 0 });
}

#[tokio::test(start_paused = true)]
async fn an_event_that_hangs_longer_than_its_ttl_is_started_again() {
    let store = MemoryStore::new();
    let calls = Arc::new(AtomicUsize::new(0));
    let listener = {
        let calls = Arc::clone(&calls);
        move |_: Delivery| {
            let first = calls.fetch_add(1, Ordering::SeqCst) == 0;
            async move {
                if first {
                    std::future::pending::<()>().await;
                }
            }
        }
    };
    let options = Options {
        lease: Duration::from_secs(30),
        in_flight_ttl: Some(Duration::from_secs(60)),
        listener_time_limit: Duration::from_secs(24 * 3600),
        ..Options::default()
    };
    let outbox = Outbox::builder(store.clone()).options(options).listen_all(listener).start().await.unwrap();
    write(&outbox, "Any").await;
    until(&store, "it is done by the second call", |counts| counts.done == 1).await;
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn a_choice_that_panics_has_chosen_nobody_and_one_that_does_not_goes_before_names() {
    let (chosen, named) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counting = |count: &Arc<AtomicUsize>| {
        let count = Arc::clone(count);
        move |_: Delivery| {
            count.fetch_add(1, Ordering::Relaxed);
            async {}
        }
    };
    let mut registry = Registry::new();
    let choose = |event: &posthaste_core::Event| match event.event_type() {
        "Panics" => panic!("no choice"),
        "Beyond" => Some(7),
        "Chosen" => Some(0),
        _ => None,
    };
    registry.register_by([counting(&chosen)], choose).unwrap();
    assert!(!registry.is_empty());
    registry.register_all(counting(&named)).unwrap();
    let store = MemoryStore::new();
    let outbox = Outbox::builder(store.clone()).registry(registry).start().await.unwrap();
    for event_type in ["Panics", "Beyond", "Chosen", "Other"] {
        write(&outbox, event_type).await;
    }
    until(&store, "all are done", |counts| counts.done == 4).await;
    assert_eq!((chosen.load(Ordering::Relaxed), named.load(Ordering::Relaxed)), (1, 3));

    let mistake = posthaste_core::listener::AnyListener::mistaken(std::io::Error::other("no such topic"));
    let error = Registry::new().register_by([mistake], |_| Some(0)).unwrap_err().to_string();
    assert_eq!(error, "listener 1 of those to choose from is not right: no such topic");
}
