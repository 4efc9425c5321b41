//! A broker that is away, silent, or takes nothing.

use std::collections::HashSet;
use std::time::Duration;

use posthaste_core::testing::within;
use posthaste_core::{Event, EventId, MemoryStore, Options, Outbox};
use posthaste_publishers::rabbitmq::{QueueOptions, Rabbit, RabbitOptions};
use posthaste_publishers::{BreakerState, PublishError, PublishErrorKind, Publisher, Results};
use posthaste_torture::proxy::Proxy;
use tokio::time::{Instant, timeout_at};

use super::server::{Private, Server, all_done, ids, message, server, unique, write};

async fn outbox(rabbit: &Rabbit, queue: &str) -> Outbox<MemoryStore> {
    Outbox::builder(MemoryStore::new()).listen("Order", "*", rabbit.queue(queue)).start().await.unwrap()
}

fn events(count: usize) -> impl Iterator<Item = Event> {
    (0..count).map(|place| Event::builder("OrderPlaced").aggregate("Order", place).json_text("{}").build().unwrap())
}

/// Every event is in the queue at least once, and no attempt was used up.
async fn all_arrived(outbox: &Outbox<MemoryStore>, server: &Server, queue: &str, written: &[EventId]) {
    let arrived: HashSet<_> = ids(&server.take(queue)).into_iter().collect();
    let lost = written.iter().filter(|id| !arrived.contains(id.as_str())).count();
    assert_eq!(lost, 0, "events of {} are DONE and not there", written.len());
    for id in written {
        let row = outbox.admin().find(id).await.unwrap().unwrap();
        assert_eq!((row.state.attempts, row.state.last_error), (0, None));
    }
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(what, waiting).await;
}

/// The options for a broker behind a proxy.
fn behind(proxy: &Proxy, queue: &str) -> RabbitOptions {
    RabbitOptions::new(format!("amqp://guest:guest@{}/%2f", proxy.addr()))
        .declare_queue(QueueOptions::new(queue))
        .confirm_timeout(Duration::from_secs(2))
        .connect_timeout(Duration::from_secs(4))
}

#[tokio::test]
async fn who_cannot_connect_is_told_so_or_waits() {
    let (server, name) = (server(), unique());
    let proxy = Proxy::start(server.address()).await.unwrap();
    proxy.refuse(true);
    let nobody = RabbitOptions::new("amqp://127.0.0.1:1");
    let refused = Rabbit::connect(nobody).await.unwrap_err();
    assert_eq!(refused.kind(), PublishErrorKind::Outage);
    assert!(refused.to_string().contains("Connection refused"), "{refused}");
    assert!(Rabbit::connect(behind(&proxy, &name)).await.is_err());

    let rabbit = Rabbit::connect(behind(&proxy, &name).lazy(true)).await.unwrap();
    let outbox = outbox(&rabbit, &name).await;
    let written = write(&outbox, events(20)).await;
    until("the breaker opens", || rabbit.breaker().state() == BreakerState::Open).await;
    assert_eq!(rabbit.check().await.unwrap_err().kind(), PublishErrorKind::Outage);
    proxy.refuse(false);
    all_done(&outbox, 20).await;
    assert_eq!(rabbit.breaker().state(), BreakerState::Closed);
    all_arrived(&outbox, &server, &name, &written).await;
    outbox.shutdown().await;
}

#[tokio::test]
async fn a_connection_that_is_cut_again_and_again_loses_nothing() {
    let (server, name) = (server(), unique());
    let proxy = Proxy::start(server.address()).await.unwrap();
    let rabbit = Rabbit::connect(behind(&proxy, &name)).await.unwrap();
    let outbox = outbox(&rabbit, &name).await;
    let mut written = Vec::new();
    for _ in 0..5 {
        written.extend(write(&outbox, events(400)).await);
        let seen = proxy.stats().bytes_up;
        until("something is on its way", || proxy.stats().bytes_up > seen).await;
        assert_eq!(proxy.cut(), 1);
    }
    all_done(&outbox, 2000).await;
    all_arrived(&outbox, &server, &name, &written).await;
    outbox.shutdown().await;
}

#[tokio::test]
async fn without_an_acknowledgement_nothing_is_done() {
    let (server, name) = (server(), unique());
    let proxy = Proxy::start(server.address()).await.unwrap();
    let rabbit = Rabbit::connect(behind(&proxy, &name)).await.unwrap();
    // The broker has them, and nobody can know.
    let sent: Vec<_> = (0..50).map(|_| message("", &name)).collect();
    proxy.lose_reply_to(sent[49].id.as_str().as_bytes(), 1);
    let results = rabbit.publish(sent.clone()).await;
    assert_eq!(proxy.stats().replies_lost, 1);
    assert_eq!(results[49].as_ref().unwrap_err().kind(), PublishErrorKind::Outage);
    assert_eq!(server.take(&name).len(), 50);

    // Nothing is heard at all.
    proxy.black_hole(true);
    let results = within("the time limit is over", rabbit.publish(sent.clone())).await;
    assert!(
        results.iter().all(|result| result.as_ref().unwrap_err().kind() == PublishErrorKind::Outage),
        "{results:?}"
    );
    let check = within("the check is over", rabbit.check()).await;
    assert!(check.unwrap_err().to_string().contains("did not answer within"));
    proxy.black_hole(false);
    assert!(rabbit.publish(sent).await.iter().all(Result::is_ok));
    assert_eq!(server.take(&name).len(), 50);
}

#[tokio::test]
async fn a_broker_that_is_stopped_and_started_gets_everything() {
    let private = Private::start();
    let (server, name) = (&private.server, unique());
    let options = RabbitOptions::new(&server.url).declare_queue(QueueOptions::new(&name));
    let rabbit = Rabbit::connect(options).await.unwrap();
    let outbox = outbox(&rabbit, &name).await;
    let mut written = write(&outbox, events(200)).await;
    all_done(&outbox, 200).await;
    private.stop();
    written.extend(write(&outbox, events(200)).await);
    until("the breaker opens", || rabbit.breaker().state() == BreakerState::Open).await;
    assert_eq!(outbox.admin().counts().await.unwrap().done, 200);
    private.start_again();
    all_done(&outbox, 400).await;
    // Also what was acknowledged before: it was on disk.
    all_arrived(&outbox, server, &name, &written).await;
    outbox.shutdown().await;
}

#[tokio::test]
async fn a_broker_without_memory_is_waited_for() {
    let private = Private::start();
    let (server, name) = (&private.server, unique());
    let options = RabbitOptions::new(&server.url).declare_queue(QueueOptions::new(&name));
    let rabbit = Rabbit::connect(options).await.unwrap();
    private.ctl(&["set_vm_memory_high_watermark", "absolute", "1"]);
    let outbox = outbox(&rabbit, &name).await;
    let written = write(&outbox, events(300)).await;
    until("the breaker opens", || rabbit.breaker().state() == BreakerState::Open).await;
    let check = rabbit.check().await.unwrap_err();
    assert_eq!(check.kind(), PublishErrorKind::Outage);
    assert!(check.to_string().contains("connection blocked"), "{check}");
    assert_eq!(outbox.admin().counts().await.unwrap().done, 0);
    private.ctl(&["set_vm_memory_high_watermark", "absolute", "4GB"]);
    all_done(&outbox, 300).await;
    all_arrived(&outbox, server, &name, &written).await;
    outbox.shutdown().await;
}

/// Makes a queue say nothing any more, while the broker goes on.
fn silence(private: &Private, queue: &str) {
    private.ctl(&[
        "eval",
        &format!(
            "{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<\"/\">>, queue, <<\"{queue}\">>)), \
             Queue = amqqueue:get_pid(Q), \
             spawn(fun() -> erlang:suspend_process(Queue), timer:sleep(infinity) end)."
        ),
    ]);
}

#[tokio::test]
async fn a_queue_that_says_nothing_holds_up_its_own_messages_alone() {
    let private = Private::start();
    let (server, silent, speaking) = (&private.server, unique(), unique());
    let options = RabbitOptions::new(&server.url)
        .declare_queue(QueueOptions::new(&silent))
        .declare_queue(QueueOptions::new(&speaking))
        .confirm_timeout(Duration::from_secs(2));
    let rabbit = Rabbit::connect(options).await.unwrap();
    silence(&private, &silent);
    let batch: Vec<_> = (0..30).map(|place| message("", if place == 3 { &silent } else { &speaking })).collect();
    let results = within("the time limit is over", rabbit.publish(batch)).await;
    for (place, result) in results.iter().enumerate() {
        let expected = (place == 3).then_some(PublishErrorKind::Deferred);
        assert_eq!(result.as_ref().err().map(PublishError::kind), expected, "{place}: {results:?}");
    }
    assert_eq!(server.take(&speaking).len(), 29, "each once");

    // Alone as well, and then nobody waits for it again and again. After a second it is tried, which a busy machine may have lost.
    let mut quick = 0;
    for _ in 0..6 {
        let begun_at = std::time::Instant::now();
        let results = rabbit.publish(vec![message("", &silent)]).await;
        assert_eq!(results[0].as_ref().unwrap_err().kind(), PublishErrorKind::Deferred, "{results:?}");
        quick += usize::from(begun_at.elapsed() < Duration::from_millis(1500));
        if quick == 2 {
            break;
        }
    }
    assert_eq!(quick, 2, "each waited for it");

    // After a pause ten try it, and the others wait for how that goes.
    let tried = async {
        loop {
            let batch = (0..30).map(|_| message("", &silent)).collect();
            let results = rabbit.publish(batch).await;
            let asked = results.iter().filter(|result| !result.as_ref().unwrap_err().is_unasked()).count();
            if asked > 0 {
                return asked;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    assert_eq!(within("it is tried", tried).await, 10);

    let outbox = Outbox::builder(MemoryStore::new())
        .listen("Silent", "*", rabbit.queue(&silent))
        .listen("Order", "*", rabbit.queue(&speaking))
        .start()
        .await
        .unwrap();
    write(&outbox, [Event::builder("E").aggregate("Silent", 1).json_text("{}").build().unwrap()]).await;
    for round in 1..=3 {
        write(&outbox, events(50)).await;
        all_done(&outbox, 50 * round).await;
        assert_eq!(rabbit.breaker().state(), BreakerState::Closed);
    }
    assert_eq!(server.take(&speaking).len(), 150, "each once");
    outbox.shutdown().await;
}

#[tokio::test]
async fn of_a_batch_that_is_out_of_time_what_was_confirmed_is_noted() {
    let private = Private::start();
    let (server, silent, speaking) = (&private.server, unique(), unique());
    let options = RabbitOptions::new(&server.url)
        .declare_queue(QueueOptions::new(&silent))
        .declare_queue(QueueOptions::new(&speaking))
        .confirm_timeout(Duration::from_secs(60));
    // Each knows of nobody who is silent, and a queue that is cannot be declared.
    let first = Rabbit::connect(options.clone()).await.unwrap();
    let second = Rabbit::connect(options).await.unwrap();
    silence(&private, &silent);
    let noted = async |rabbit: &Rabbit, queues: &[&str]| -> Vec<_> {
        let batch = queues.iter().map(|queue| message("", queue)).collect();
        let results = Results::new(queues.len(), Instant::now() + Duration::from_secs(3));
        // Whether it is over before that depends on how quickly the broker says that it is there.
        let _in_time = timeout_at(results.until(), rabbit.publish_into(batch, &results)).await;
        let kind = |result: Result<(), PublishError>| result.map_err(|error| error.kind());
        results.into_noted().into_iter().map(|result| result.map(kind)).collect()
    };
    let (there, away) = (speaking.as_str(), silent.as_str());
    let known = noted(&first, &[there, there, there, away, there, there]).await;
    for (place, known) in known.iter().enumerate() {
        match place {
            3 => assert!(matches!(known, None | Some(Err(PublishErrorKind::Deferred))), "{known:?}"),
            _ => assert_eq!(*known, Some(Ok(())), "{place}"),
        }
    }
    assert_eq!(server.take(&speaking).len(), 5, "each once");

    // What came back is not taken for delivered, whosever acknowledgement it hangs on.
    let known = noted(&second, &["nowhere", there, "nowhere", away, "nowhere"]).await;
    for place in [0, 2, 3, 4] {
        assert_ne!(known[place], Some(Ok(())), "{place}: {known:?}");
    }
}

#[tokio::test]
async fn a_broker_that_is_silent_for_longer_than_a_listener_may_take_uses_up_no_attempt() {
    let (server, name) = (server(), unique());
    let proxy = Proxy::start(server.address()).await.unwrap();
    let rabbit = Rabbit::connect(behind(&proxy, &name)).await.unwrap();
    let outbox = Outbox::builder(MemoryStore::new())
        .listen("Order", "*", rabbit.queue(&name))
        .options(Options { listener_time_limit: Duration::from_millis(500), ..Options::default() })
        .start()
        .await
        .unwrap();
    proxy.black_hole(true);
    let written = write(&outbox, events(20)).await;
    until("the breaker opens", || rabbit.breaker().state() == BreakerState::Open).await;
    proxy.black_hole(false);
    all_done(&outbox, 20).await;
    all_arrived(&outbox, &server, &name, &written).await;
    outbox.shutdown().await;
}
