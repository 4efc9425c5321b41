//! What measures every delivery.

use std::cell::RefCell;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use posthaste_core::instrument::{Instrument, Running};
use posthaste_core::listener::{Listener, batch, blocking};
use posthaste_core::store::Action;
use posthaste_core::{Delivery, Failure, MemoryStore, Options, Outbox, Outcome, RetryPolicy, interceptor};
use tokio::time::sleep;

use crate::{until, write};

thread_local! {
    /// Who is entered on this thread, the outermost first.
    static ENTERED: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

fn entered() -> String {
    ENTERED.with_borrow(|entered| entered.join(" "))
}

/// Notes what it hears.
#[derive(Clone, Default)]
struct Probe {
    name: &'static str,
    notes: Arc<Mutex<Vec<String>>>,
}

struct Noted {
    probe: Probe,
    events: String,
}

impl Probe {
    fn called(&self, name: &'static str) -> Self {
        Self { name, ..self.clone() }
    }

    fn note(&self, text: String) {
        self.notes.lock().unwrap().push(text);
    }

    fn notes(&self) -> Vec<String> {
        self.notes.lock().unwrap().clone()
    }
}

impl Instrument for Probe {
    fn begin(&self, events: &[Delivery]) -> Option<Arc<dyn Running>> {
        if events[0].event_type() == "Unnoted" {
            return None;
        }
        let types: Vec<String> =
            events.iter().map(|event| format!("{}#{}", event.event_type(), event.attempt())).collect();
        Some(Arc::new(Noted { probe: self.clone(), events: types.join("+") }))
    }
}

impl Running for Noted {
    fn enter(&self, run: &mut dyn FnMut()) {
        ENTERED.with_borrow_mut(|entered| entered.push(format!("{}{}", self.probe.name, self.events)));
        run();
        ENTERED.with_borrow_mut(Vec::pop);
    }

    fn end(&self, actions: &[Action]) {
        let words: Vec<String> = actions
            .iter()
            .map(|action| match action {
                Action::Done => "done".to_owned(),
                Action::Retry { error, .. } => format!("retry: {error}"),
                Action::Dead { error, .. } => format!("dead: {error}"),
                other => format!("{other:?}"),
            })
            .collect();
        self.probe.note(format!("{}{} {}", self.probe.name, self.events, words.join(", ")));
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        self.probe.note(format!("{}{} gone", self.probe.name, self.events));
    }
}

fn one_worker() -> Options {
    Options { workers: 1, ..Options::default() }
}

#[tokio::test(start_paused = true)]
async fn is_entered_whenever_the_listener_runs_and_left_whenever_it_waits() {
    let (store, probe) = (MemoryStore::new(), Probe::default());
    let listener = {
        let probe = probe.clone();
        move |event: Delivery| {
            let probe = probe.clone();
            async move {
                probe.note(format!("before: {}", entered()));
                // Two deliveries on one thread, each of which waits while the other runs.
                sleep(Duration::from_secs(if event.event_type() == "Slow" { 3 } else { 1 })).await;
                probe.note(format!("after: {}", entered()));
            }
        }
    };
    let hook = {
        let probe = probe.clone();
        interceptor::before(move |_| {
            probe.note(format!("interceptor: {}", entered()));
            Ok(())
        })
    };
    let builder = Outbox::builder(store.clone()).instrument(probe.clone()).interceptor(hook).listen_all(listener);
    let outbox = builder.options(Options { workers: 2, ..Options::default() }).start().await.unwrap();
    write(&outbox, "Slow").await;
    sleep(Duration::from_millis(10)).await;
    write(&outbox, "Quick").await;
    until(&store, "both are done", |counts| counts.done == 2).await;
    assert_eq!(
        probe.notes(),
        [
            "interceptor: Slow#1",
            "before: Slow#1",
            "interceptor: Quick#1",
            "before: Quick#1",
            "after: Quick#1",
            "Quick#1 done",
            "Quick#1 gone",
            "after: Slow#1",
            "Slow#1 done",
            "Slow#1 gone",
        ]
    );
    assert_eq!(entered(), "");
    outbox.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn hears_what_becomes_of_each_attempt() {
    let (store, probe) = (MemoryStore::new(), Probe::default());
    let listener = |event: Delivery| async move {
        match (event.event_type(), event.attempt()) {
            ("Fails", _) => Err(Failure::retryable("no")),
            ("Panics", 1) => panic!("oh"),
            ("Hangs", 1) => std::future::pending().await,
            ("Gives up", _) => Ok(Outcome::Dead("never".into())),
            _ => Ok(Outcome::Done),
        }
    };
    let twice = RetryPolicy::fixed([Duration::from_secs(1)]);
    let listener = listener.with_retry(twice).with_time_limit(Duration::from_secs(5));
    let builder = Outbox::builder(store.clone()).instrument(probe.clone()).options(one_worker());
    let outbox = builder.listen("*", "*", listener).start().await.unwrap();
    for event_type in ["Fails", "Panics", "Hangs", "Gives up", "Unnoted"] {
        write(&outbox, event_type).await;
        until(&store, "it is over", |counts| counts.pending() == 0).await;
    }
    let notes: Vec<String> = probe.notes().into_iter().filter(|note| !note.ends_with("gone")).collect();
    assert_eq!(
        notes,
        [
            "Fails#1 retry: no",
            "Fails#2 dead: no",
            "Panics#1 retry: the listener panicked: oh",
            "Panics#2 done",
            "Hangs#1 retry: the listener took longer than its time limit of 5s; give it more with with_time_limit, or all \
             listeners with the option listener_time_limit",
            "Hangs#2 done",
            "Gives up#1 dead: never",
        ]
    );
    outbox.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn hears_of_what_nobody_listens_for() {
    let (store, probe) = (MemoryStore::new(), Probe::default());
    let builder = Outbox::builder(store.clone()).instrument(probe.clone());
    let outbox = builder.listen("Order", "*", |_: Delivery| async {}).start().await.unwrap();
    write(&outbox, "Lost").await;
    until(&store, "it is dead", |counts| counts.dead == 1).await;
    assert!(probe.notes()[0].starts_with("Lost#1 dead: no listener"), "{:?}", probe.notes());
    outbox.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_one_delivery() {
    let (store, probe) = (MemoryStore::new(), Probe::default());
    for event_type in ["First", "Second"] {
        write(&Outbox::writer_only(store.clone()).start().await.unwrap(), event_type).await;
    }
    let listener = batch(|events: Vec<Delivery>| async move {
        assert_eq!(entered(), "First#1+Second#1");
        events
            .iter()
            .map(|event| match event.event_type() {
                "First" => Ok(Outcome::Done),
                _ => Err(Failure::permanent("no")),
            })
            .collect()
    });
    let builder = Outbox::builder(store.clone()).instrument(probe.clone()).options(one_worker());
    let outbox = builder.listen_all(listener).start().await.unwrap();
    until(&store, "both are over", |counts| counts.pending() == 0).await;
    assert_eq!(probe.notes()[0], "First#1+Second#1 done, dead: no");
    outbox.shutdown().await;
}

#[tokio::test]
async fn a_blocking_listener_runs_inside_on_its_own_thread() {
    let (store, probe) = (MemoryStore::new(), Probe::default());
    let listener = {
        let probe = probe.clone();
        blocking(move |_: &Delivery| probe.note(format!("blocking: {}", entered())))
    };
    let builder = Outbox::builder(store.clone()).instrument(probe.clone());
    let outbox = builder.listen_all(listener).start().await.unwrap();
    write(&outbox, "Any").await;
    outbox.shutdown().await;
    assert_eq!(probe.notes()[..2], ["blocking: Any#1", "Any#1 done"]);
}

#[tokio::test(start_paused = true)]
async fn what_was_added_first_is_outermost() {
    let (store, probe) = (MemoryStore::new(), Probe::default());
    let listener = {
        let probe = probe.clone();
        move |_: Delivery| {
            probe.note(entered());
            async {}
        }
    };
    let builder = Outbox::builder(store.clone()).instrument(probe.called("a ")).instrument(probe.called("b "));
    let outbox = builder.listen_all(listener).start().await.unwrap();
    write(&outbox, "Any").await;
    until(&store, "it is done", |counts| counts.done == 1).await;
    assert_eq!(probe.notes()[..3], ["a Any#1 b Any#1", "b Any#1 done", "a Any#1 done"]);
    outbox.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_cut_short_has_no_end() {
    let (store, probe) = (MemoryStore::new(), Probe::default());
    let builder = Outbox::builder(store.clone()).instrument(probe.clone());
    let outbox = builder.listen_all(|_: Delivery| std::future::pending::<()>()).start().await.unwrap();
    write(&outbox, "Hangs").await;
    outbox.shutdown().await;
    assert_eq!(probe.notes(), ["Hangs#1 gone"]);
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_an_instrument_changes_nothing() {
    /// Panics at one of its steps.
    #[derive(Clone, Copy, PartialEq)]
    enum Broken {
        Begin,
        Before,
        After,
        End,
        /// Does not panic, but does not go on either.
        Idle,
    }

    impl Instrument for Broken {
        fn begin(&self, _: &[Delivery]) -> Option<Arc<dyn Running>> {
            assert!(*self != Self::Begin, "begin is broken");
            Some(Arc::new(*self))
        }
    }

    impl Running for Broken {
        fn enter(&self, run: &mut dyn FnMut()) {
            assert!(*self != Self::Before, "enter is broken");
            if *self != Self::Idle {
                run();
            }
            assert!(*self != Self::After, "leave is broken");
        }

        fn end(&self, _: &[Action]) {
            assert!(*self != Self::End, "end is broken");
        }
    }

    for broken in [Broken::Begin, Broken::Before, Broken::After, Broken::End, Broken::Idle] {
        let (store, probe) = (MemoryStore::new(), Probe::default());
        let listener = |event: Delivery| async move {
            sleep(Duration::from_secs(1)).await;
            if event.attempt() == 1 { Err("no") } else { Ok(()) }
        };
        let builder = Outbox::builder(store.clone()).instrument(broken).instrument(probe.clone());
        let outbox = builder.listen_all(listener).start().await.unwrap();
        write(&outbox, "Any").await;
        until(&store, "it is done", |counts| counts.done == 1).await;
        let notes: Vec<String> = probe.notes().into_iter().filter(|note| !note.ends_with("gone")).collect();
        assert_eq!(notes, ["Any#1 retry: no", "Any#2 done"]);
        assert!(outbox.shutdown().await.is_clean());
    }
}
