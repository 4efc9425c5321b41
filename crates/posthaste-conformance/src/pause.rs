//! Parts C and F: what operators pause, and what relays make of it.

use std::collections::BTreeSet;
use std::time::Duration;

use posthaste_core::listener::{AnyListener, Hold};
use posthaste_core::store::{AdminStore, Pause, Paused, Status};
use posthaste_core::{Options, Outbox};
use tokio::task::JoinSet;

use crate::fixture::Fixture;
use crate::rows::{counts, event, ids_of, insert, state};
use crate::tap::{Inbox, Tap};
use crate::wait::eventually;

fn route(name: &str) -> Paused {
    Paused::Route(name.to_owned())
}

fn destination(name: &str) -> Paused {
    Paused::Destination(name.to_owned())
}

async fn paused<S: AdminStore>(store: &S) -> BTreeSet<Paused> {
    store.pauses().await.unwrap().into_iter().map(|pause| pause.what).collect()
}

/// What is paused is kept, with its reason, and seen by every process until one of them resumes it.
pub async fn case_96_kept_until_resumed<F: Fixture>(fixture: F) {
    let (store, other) = (fixture.store(), fixture.node().await);
    assert_eq!(store.pauses().await.unwrap(), []);
    assert!(!store.resume(&route("orders")).await.unwrap());
    assert!(store.pause(&route("orders"), Some("maintenance, till 8 o'clock ü")).await.unwrap());
    let kept = other.pauses().await.unwrap();
    assert_eq!(kept.len(), 1);
    let Pause { what, reason, .. } = &kept[0];
    assert_eq!((what, reason.as_deref()), (&route("orders"), Some("maintenance, till 8 o'clock ü")));
    // Whoever was first has said it, and when.
    assert!(!other.pause(&route("orders"), Some("another")).await.unwrap());
    assert!(!store.pause(&route("orders"), None).await.unwrap());
    assert_eq!(store.pauses().await.unwrap(), kept);

    assert!(other.pause(&destination("broker"), None).await.unwrap());
    let kept = store.pauses().await.unwrap();
    assert_eq!(kept.iter().map(|pause| &pause.what).collect::<Vec<_>>(), [&route("orders"), &destination("broker")]);
    assert!(kept[0].since <= kept[1].since && kept[1].reason.is_none(), "{kept:?}");

    assert!(other.resume(&route("orders")).await.unwrap());
    assert!(!store.resume(&route("orders")).await.unwrap());
    assert_eq!(paused(&store).await, BTreeSet::from([destination("broker")]));
    // It is another pause, then.
    assert!(store.pause(&route("orders"), None).await.unwrap());
    let again = other.pauses().await.unwrap();
    assert!(again.iter().any(|pause| pause.what == route("orders") && pause.reason.is_none()), "{again:?}");
}

/// Routes and destinations are apart, and so are names of any look.
pub async fn case_96_names_of_any_look<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let longest = "ü".repeat(Paused::LONGEST_NAME);
    let names = ["orders", "Orders", "orders ", "órders", "o'rders\"; --", "%", "🐎", &longest];
    let all: BTreeSet<Paused> = names.iter().flat_map(|name| [route(name), destination(name)]).collect();
    for what in &all {
        assert!(store.pause(what, None).await.unwrap(), "{what:?}");
    }
    assert_eq!(paused(&store).await, all);
    let mut left = all.clone();
    for what in &all {
        assert!(store.resume(what).await.unwrap(), "{what:?}");
        left.remove(what);
        assert_eq!(paused(&store).await, left, "{what:?}");
    }
}

/// A relay with a route that is held by its own pause and by that of its destination, and one that is not held by either.
struct Relay<S: posthaste_core::store::Store> {
    outbox: Outbox<S>,
    holds: [Hold; 2],
    held: Inbox,
    free: Inbox,
}

impl<S: posthaste_core::store::Store + Clone> Relay<S> {
    /// Starts it, and has it look what is paused for as long as those tasks run.
    async fn start(store: S, looking: &mut JoinSet<()>) -> Self {
        let holds = [Hold::new(), Hold::new()];
        let ((tap, held), (free_tap, free)) = (Tap::new(), Tap::new());
        let options = Options { poll_interval: Duration::from_millis(5), ..Options::default() };
        let outbox = Outbox::many_nodes(store.clone())
            .options(options)
            .listen("*", "Held", AnyListener::from(tap).held_by(holds.clone()))
            .listen("*", "Free", free_tap)
            .start()
            .await
            .unwrap();
        let watched = holds.clone();
        looking.spawn(async move {
            loop {
                let paused = paused(&store).await;
                for (what, hold) in [route("held"), destination("there")].iter().zip(&watched) {
                    if paused.contains(what) {
                        hold.hold()
                    } else {
                        hold.release()
                    };
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        Self { outbox, holds, held, free }
    }

    fn is_held(&self) -> bool {
        self.holds.iter().any(Hold::is_held)
    }
}

/// A route or a destination that is paused by one process is held by all relays, while others go on. Its events use up no attempt, and
/// when another process resumes it each is delivered once.
pub async fn case_97_heeded_by_every_relay<F: Fixture>(fixture: F) {
    let operator = fixture.store();
    let mut looking = JoinSet::new();
    let mut relays = Vec::new();
    for _ in 0..2 {
        relays.push(Relay::start(fixture.node().await, &mut looking).await);
    }
    let mut done = 0;
    for what in [route("held"), destination("there")] {
        assert!(operator.pause(&what, None).await.unwrap());
        eventually("both heed it", || async { relays.iter().all(Relay::is_held) }).await;
        let (held, free): (Vec<_>, Vec<_>) = (0..8).map(|_| (event("Held"), event("Free"))).unzip();
        insert(&operator, &held).await;
        insert(&operator, &free).await;
        done += free.len();
        eventually("the others are delivered", || async { counts(&operator).await.done == done as u64 }).await;
        assert_eq!(relays.iter_mut().map(|relay| relay.free.rest().len()).sum::<usize>(), free.len());
        for relay in &mut relays {
            relay.held.assert_empty();
        }
        for held in &held {
            let state = state(&operator, held.id()).await;
            assert_eq!((state.status, state.attempts), (Status::New, 0));
        }

        assert!(fixture.node().await.resume(&what).await.unwrap());
        eventually("neither holds it", || async { !relays.iter().any(Relay::is_held) }).await;
        // They were put off meanwhile. The leases of those that are in hand right now have to outlast it, or both relays deliver them.
        fixture.advance(Duration::from_secs(60)).await;
        done += held.len();
        eventually("they are delivered", || async { counts(&operator).await.done == done as u64 }).await;
        let arrived = relays.iter_mut().flat_map(|relay| relay.held.rest());
        let mut arrived: Vec<_> = arrived.map(|delivery| delivery.id().to_string()).collect();
        let mut expected = ids_of(&held);
        arrived.sort_unstable();
        expected.sort_unstable();
        assert_eq!(arrived, expected, "each once");
    }
    for relay in relays {
        assert!(relay.outbox.shutdown().await.is_clean());
    }
    looking.shutdown().await;
}
