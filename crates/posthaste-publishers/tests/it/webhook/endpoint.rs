//! Endpoints that are away, gone, busy, or where nothing may be sent.

use std::net::TcpListener;
use std::time::Duration;

use posthaste_core::testing::within;
use posthaste_core::{Event, MemoryStore, Options, Outbox, RetryPolicy};
use posthaste_publishers::PublishErrorKind::{Deferred, Outage, Retryable};
use posthaste_publishers::webhook::{Webhook, WebhookOptions};
use posthaste_publishers::{BreakerState, Message, Publisher, Results};
use tokio::time::{Instant, timeout_at};

use super::receiver::{Receiver, SECRET, all_done, message, until, write};
use super::{kind, local};
use crate::certificate::certificate;
use crate::port::free_port;

fn event(to: impl Into<String>) -> Event {
    Event::builder("E").aggregate("Order", 1).header("to", to).json_text("{}").build().unwrap()
}

#[tokio::test]
async fn an_endpoint_that_is_away_is_waited_for() {
    let port = free_port();
    let webhook = Webhook::new(local()).unwrap();
    let destination = webhook.url(&format!("http://127.0.0.1:{port}/status/204"));
    let breaker = destination.breaker().clone();
    let outbox = Outbox::builder(MemoryStore::new()).listen("Order", "*", destination).start().await.unwrap();
    let written = write(&outbox, (0..30).map(|_| event("x"))).await;
    until("the breaker opens", || breaker.state() == BreakerState::Open).await;
    assert!(webhook.check().await.unwrap_err().to_string().contains(&format!("127.0.0.1:{port} is away")));
    let receiver = Receiver::start_on(port);
    all_done(&outbox, 30).await;
    receiver.got(30).await;
    for id in &written {
        assert_eq!(outbox.admin().find(id).await.unwrap().unwrap().state.attempts, 0);
    }
    assert_eq!(breaker.state(), BreakerState::Closed);
    webhook.check().await.unwrap();
    outbox.shutdown().await;
}

/// Connections to it were kept, and lead nowhere when it is back.
#[tokio::test]
async fn one_that_works_goes_away_and_comes_back_gets_everything_and_no_attempt_is_used_up() {
    let receiver = Receiver::start();
    let webhook = Webhook::new(local()).unwrap();
    let destination = webhook.url(&receiver.url("/status/204"));
    let breaker = destination.breaker().clone();
    let outbox = Outbox::builder(MemoryStore::new()).listen("Order", "*", destination).start().await.unwrap();
    let port = receiver.port;
    let events = || (0..30).map(|place| Event::builder("E").aggregate("Order", place).json_text("{}").build().unwrap());
    let mut written = write(&outbox, events()).await;
    all_done(&outbox, 30).await;
    receiver.got(30).await;

    drop(receiver);
    // This thread was busy with that: now the runtime hears that the connections are closed.
    tokio::task::yield_now().await;
    written.extend(write(&outbox, events()).await);
    until("the breaker opens", || breaker.state() == BreakerState::Open).await;
    let receiver = Receiver::start_on(port);
    all_done(&outbox, 60).await;
    receiver.got(30).await;

    // This time nobody has asked for it while it was away.
    drop(receiver);
    let receiver = Receiver::start_on(port);
    tokio::task::yield_now().await;
    written.extend(write(&outbox, events()).await);
    all_done(&outbox, 90).await;
    receiver.got(30).await;
    assert_eq!(breaker.state(), BreakerState::Closed);
    for id in &written {
        assert_eq!(outbox.admin().find(id).await.unwrap().unwrap().state.attempts, 0);
    }
    outbox.shutdown().await;
}

#[tokio::test]
async fn one_that_is_away_does_not_keep_events_from_others() {
    let (receiver, port) = (Receiver::start(), free_port());
    let webhook = Webhook::new(local().allow_shared_secret(true)).unwrap();
    let outbox =
        Outbox::builder(MemoryStore::new()).listen("Order", "*", webhook.url("{headers.to}")).start().await.unwrap();
    let away = format!("http://127.0.0.1:{port}/status/204");
    let written = write(
        &outbox,
        (0..40).map(|place| match place % 2 {
            0 => event(&away),
            _ => event(receiver.url("/status/204")),
        }),
    );
    let written = written.await;
    all_done(&outbox, 20).await;
    receiver.got(20).await;
    let states: Vec<_> = webhook.breakers().iter().map(|breaker| breaker.state() == BreakerState::Closed).collect();
    assert_eq!(states.iter().filter(|closed| **closed).count(), 1, "{:?}", webhook.breakers());
    // One partner of many is no reason to take this process for ill.
    webhook.check().await.unwrap();
    let back = Receiver::start_on(port);
    all_done(&outbox, 40).await;
    back.got(20).await;
    for id in &written {
        assert_eq!(outbox.admin().find(id).await.unwrap().unwrap().state.attempts, 0);
    }
    outbox.shutdown().await;
}

#[tokio::test]
async fn an_endpoint_that_never_comes_back_uses_up_attempts_in_the_end() {
    let port = free_port();
    let webhook = Webhook::new(local().allow_shared_secret(true).patience(Duration::from_millis(500))).unwrap();
    let twice = RetryPolicy::fixed([Duration::from_millis(10)]);
    let outbox = Outbox::builder(MemoryStore::new())
        .listen("Order", "*", webhook.url("{headers.to}").retry(twice))
        .start()
        .await
        .unwrap();
    let written = write(&outbox, [event(format!("http://127.0.0.1:{port}/nowhere"))]).await;
    let dead = async {
        while outbox.admin().counts().await.unwrap().dead < 1 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within("it is given up", dead).await;
    let state = outbox.admin().find(&written[0]).await.unwrap().unwrap().state;
    assert_eq!(state.attempts, 2);
    assert!(state.last_error.as_ref().unwrap().contains("onnection refused"), "{:?}", state.last_error);
    outbox.shutdown().await;
}

#[tokio::test]
async fn one_that_is_available_to_nobody_is_away() {
    let receiver = Receiver::start();
    let webhook = Webhook::new(local()).unwrap();
    let in_a_row = |path: &str, events: usize| {
        let url = receiver.url(path);
        let one = |_| Message { key: Some("one".into()), ..message(&url) };
        webhook.publish((0..events).map(one).collect())
    };
    let kinds = |results: Vec<_>| results.iter().map(kind).collect::<Vec<_>>();
    assert_eq!(kinds(in_a_row("/status/503", 4).await), [Some(Retryable); 4]);
    assert_eq!(kinds(in_a_row("/status/204", 1).await), [None]);
    assert_eq!(kinds(in_a_row("/status/502", 4).await), [Some(Retryable); 4]);
    let results = in_a_row("/status/503?retry_after=70", 3).await;
    // Those behind are not sent, and it is left alone for as long as it asks for.
    receiver.got(10).await;
    for result in &results {
        let error = result.as_ref().unwrap_err();
        let pause = error.pause().unwrap();
        assert_eq!(error.kind(), Deferred, "{error}");
        assert!(pause > Duration::from_secs(50) && pause <= Duration::from_secs(70), "{pause:?}");
    }
    assert_eq!(webhook.breakers()[0].state(), BreakerState::Open);
}

#[tokio::test]
async fn who_takes_so_many_in_a_second_gets_all_of_them_and_no_attempt_is_used_up() {
    for fixed in [true, false] {
        let receiver = Receiver::start();
        let webhook = Webhook::new(local().allow_shared_secret(true)).unwrap();
        let url = receiver.url("/quota/40");
        // Whatever is refused on its own account is DEAD.
        let destination = webhook.url(if fixed { &url } else { "{headers.to}" }).retry(RetryPolicy::fixed([]));
        let outbox = Outbox::builder(MemoryStore::new()).listen("Order", "*", destination).start().await.unwrap();
        let order = |place: usize| {
            Event::builder("E").aggregate("Order", place).header("to", &url).json_text("{}").build().unwrap()
        };
        let written = write(&outbox, (0..200).map(order)).await;
        all_done(&outbox, 200).await;
        for id in &written {
            assert_eq!(outbox.admin().find(id).await.unwrap().unwrap().state.attempts, 0);
        }
        // What was under way when it said so, each second, and no more.
        let asked = receiver.requests().len();
        assert!(asked > 200, "there was no quota");
        let begun = receiver.requests()[0]["at"].as_f64().unwrap();
        let seconds = receiver.requests()[asked - 1]["at"].as_f64().unwrap() - begun;
        let most = 200.0 + (seconds + 2.0) * 16.0;
        assert!((asked as f64) < most, "{asked} requests in {seconds} s for 200 events");
        outbox.shutdown().await;
    }
}

#[tokio::test]
async fn one_that_asks_for_a_pause_gets_nothing_until_it_is_over() {
    for (answer, expected) in [("/status/429?retry_after=60", Deferred), ("/status/503?retry_after=60", Retryable)] {
        let receiver = Receiver::start();
        let webhook = Webhook::new(local()).unwrap();
        let in_a_row = [receiver.url(answer), receiver.url("/status/204"), receiver.url("/status/204")];
        let in_a_row = in_a_row.map(|url| Message { key: Some("one".into()), ..message(url) });
        let results = webhook.publish(in_a_row.to_vec()).await;
        let again = webhook.publish(vec![message(receiver.url("/status/204"))]).await;
        assert_eq!(kind(&results[0]), Some(expected));
        for error in results[1..].iter().chain(&again).map(|result| result.as_ref().unwrap_err()) {
            let pause = error.pause().unwrap();
            assert!(error.kind() == Deferred && error.is_unasked(), "{error:?}");
            assert!(pause > Duration::from_secs(40) && pause <= Duration::from_secs(60), "{pause:?}");
        }
        receiver.got(1).await;
    }
}

#[tokio::test]
async fn one_that_never_stops_asking_for_pauses_uses_up_attempts_in_the_end() {
    let receiver = Receiver::start();
    let webhook = Webhook::new(local().patience(Duration::ZERO)).unwrap();
    let results = webhook.publish(vec![message(receiver.url("/status/429"))]).await;
    assert_eq!(kind(&results[0]), Some(Retryable));
    receiver.got(1).await;
}

#[tokio::test]
async fn a_slow_one_does_not_keep_events_from_others() {
    let (slow, quick) = (Receiver::start(), Receiver::start());
    let webhook = Webhook::new(local().allow_shared_secret(true)).unwrap();
    let options = Options { workers: 2, ..Options::default() };
    let outbox = Outbox::builder(MemoryStore::new()).options(options);
    let outbox = outbox.listen("Order", "*", webhook.url("{headers.to}")).start().await.unwrap();
    let order = |place: usize| Event::builder("E").aggregate("Order", place).json_text("{}");
    // For both workers, and for much longer than they have.
    let to_slow = (0..200).map(|place| order(place).header("to", slow.url("/slow/3")).build().unwrap());
    write(&outbox, to_slow).await;
    all_done(&outbox, 1).await;
    let asked = slow.requests().len();
    assert!(asked <= 40, "a batch has waited for {asked} of them");
    for sent in 1..=5 {
        write(&outbox, [order(sent).header("to", quick.url("/status/204")).build().unwrap()]).await;
        quick.got(sent).await;
    }
    let meanwhile = slow.requests().len() - asked;
    assert!(meanwhile <= 40, "the others have waited for {meanwhile} of them");
    outbox.shutdown().await;
}

#[tokio::test]
async fn what_a_slow_one_has_no_time_for_is_put_off_where_others_wait() {
    let (slow, quick) = (Receiver::start(), Receiver::start());
    let webhook = Webhook::new(local()).unwrap();
    let batch = || {
        let slow = (0..20).map(|_| message(slow.url("/slow/3")));
        slow.chain((0..5).map(|_| message(quick.url("/status/204")))).collect::<Vec<_>>()
    };
    let results = webhook.publish(batch()).await;
    assert!(results[20..].iter().all(Result::is_ok), "{results:?}");
    assert_eq!(results[..20].iter().filter(|result| result.is_ok()).count(), 8, "{results:?}");
    assert_eq!(kind(&results[19]), Some(Deferred));
    // It is known to be slow now: two batches do not wait for it at once.
    let (one, other) = tokio::join!(webhook.publish(batch()), webhook.publish(batch()));
    let waited = [one, other].map(|results| {
        assert!(results[20..].iter().all(Result::is_ok), "{results:?}");
        results[..20].iter().filter(|result| result.is_ok()).count()
    });
    assert_eq!(waited.iter().sum::<usize>(), *waited.iter().max().unwrap(), "{waited:?}");
    slow.got(8 + waited.iter().sum::<usize>()).await;
}

/// Events for one key, so that they are sent one after the other, of which the first so many ask for another answer than 204.
fn asking(answer: &str, events: usize, of: usize) -> impl Iterator<Item = Event> {
    let (answer, order) = (answer.to_owned(), Event::builder("E").aggregate("Order", 1).json_text("{}"));
    (0..of).map(move |place| {
        let order = order.clone();
        if place < events { order.header("answer", &answer).build().unwrap() } else { order.build().unwrap() }
    })
}

#[tokio::test]
async fn events_that_it_cannot_bear_use_up_their_attempts_while_it_takes_others() {
    // Alone, and as many as make it seem away, which nobody is who takes others.
    for (answer, poison) in [("status/502", 1), ("status/503", 7), ("drop", 6)] {
        let receiver = Receiver::start();
        let webhook = Webhook::new(local()).unwrap();
        let destination = webhook.url(&receiver.url("/asked"));
        let (breaker, retry) = (destination.breaker().clone(), RetryPolicy::fixed([Duration::from_millis(50); 2]));
        let outbox =
            Outbox::builder(MemoryStore::new()).listen("Order", "*", destination.retry(retry)).start().await.unwrap();
        let written = write(&outbox, asking(answer, poison, 30)).await;
        let mut others = written[poison..].to_vec();
        let settled = async {
            while outbox.admin().counts().await.unwrap().dead < poison as u64 {
                others.extend(write(&outbox, asking("", 0, 1)).await);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        within("those are dead", settled).await;
        all_done(&outbox, others.len() as u64).await;
        assert_eq!(breaker.state(), BreakerState::Closed);
        for (ids, attempts) in [(&written[..poison], 3), (&others, 0)] {
            for id in ids {
                let state = outbox.admin().find(id).await.unwrap().unwrap().state;
                assert_eq!(state.attempts, attempts, "{answer}: {:?}", state.last_error);
            }
        }
        outbox.shutdown().await;
    }
}

#[tokio::test]
async fn one_that_hangs_is_away_and_uses_up_no_attempt() {
    for fixed in [true, false] {
        // When it is back it has to answer within this.
        let webhook = Webhook::new(local().allow_shared_secret(true).time_limit(Duration::from_millis(1200))).unwrap();
        let port = free_port();
        let silent = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let url = format!("http://127.0.0.1:{port}/status/204");
        let destination = webhook.url(if fixed { &url } else { "{headers.to}" }).retry(RetryPolicy::fixed([]));
        let outbox = Outbox::builder(MemoryStore::new()).listen("Order", "*", destination).start().await.unwrap();
        let order = |place: usize| {
            Event::builder("E").aggregate("Order", place).header("to", &url).json_text("{}").build().unwrap()
        };
        let written = write(&outbox, (0..20).map(order)).await;
        until("it is away", || webhook.breakers().iter().any(|breaker| breaker.state() == BreakerState::Open)).await;
        drop(silent);
        let _back = Receiver::start_on(port);
        all_done(&outbox, 20).await;
        for id in &written {
            assert_eq!(outbox.admin().find(id).await.unwrap().unwrap().state.attempts, 0);
        }
        outbox.shutdown().await;
    }
}

#[tokio::test]
async fn an_event_that_was_never_tried_uses_up_nothing_however_long_it_is_away() {
    let port = free_port();
    let webhook = Webhook::new(local().patience(Duration::ZERO)).unwrap();
    let to = format!("http://127.0.0.1:{port}/nowhere");
    let in_a_row = (0..5).map(|_| Message { key: Some("one".into()), ..message(&to) });
    let results = webhook.publish(in_a_row.collect()).await;
    let kinds: Vec<_> = results.iter().map(kind).collect();
    assert_eq!(kinds, [Some(Retryable), Some(Deferred), Some(Deferred), Some(Deferred), Some(Deferred)]);
}

#[tokio::test]
async fn what_is_known_when_the_time_is_over_is_kept_and_nothing_is_begun_too_late() {
    let (slow, quick) = (Receiver::start(), Receiver::start());
    let webhook = Webhook::new(local().time_limit(Duration::from_secs(1))).unwrap();
    let hangs = |_| Message { key: Some("one".into()), ..message(slow.url("/slow/60")) };
    let messages: Vec<_> = [message(quick.url("/status/204"))].into_iter().chain((0..6).map(hangs)).collect();
    let results = Results::new(messages.len(), Instant::now() + Duration::from_millis(4500));
    let in_time = timeout_at(results.until(), webhook.publish_into(messages, &results)).await;
    assert!(in_time.is_ok(), "the batch took longer than it may");
    let kinds: Vec<_> = results.into_noted().iter().map(|result| kind(result.as_ref().unwrap())).collect();
    assert_eq!(kinds[..2], [None, Some(Retryable)]);
    assert_eq!(kinds[4..], [Some(Deferred); 3], "{kinds:?}");
    let begun = kinds.iter().filter(|kind| **kind == Some(Retryable)).count();
    slow.got(begun).await;
}

#[tokio::test]
async fn one_that_is_gone_gets_nothing_until_it_is_enabled() {
    let receiver = Receiver::start();
    let webhook = Webhook::new(local().gone_pause(Duration::from_millis(200))).unwrap();
    let url = receiver.url("/then/410,204");
    let outbox = Outbox::builder(MemoryStore::new()).listen("Order", "*", webhook.url(&url)).start().await.unwrap();
    let first = write(&outbox, [event("x")]).await;
    until("it is disabled", || webhook.disabled() == [url.clone()]).await;
    let more = write(&outbox, (0..5).map(|_| event("x"))).await;
    assert!(webhook.check().await.unwrap_err().to_string().contains("410"));
    let waiting = webhook.publish(vec![message(&url), message(receiver.url("/status/204"))]).await;
    assert_eq!((kind(&waiting[0]), kind(&waiting[1])), (Some(Deferred), None));
    receiver.got(2).await;
    assert_eq!(outbox.admin().counts().await.unwrap().done, 0);

    assert!(webhook.enable(&url) && !webhook.enable(&url));
    all_done(&outbox, 6).await;
    receiver.got(8).await;
    for id in first.iter().chain(&more) {
        assert_eq!(outbox.admin().find(id).await.unwrap().unwrap().state.attempts, 0);
    }
    webhook.check().await.unwrap();
    outbox.shutdown().await;
}

#[tokio::test]
async fn nothing_is_sent_into_the_own_network() {
    let receiver = Receiver::start();
    let port = receiver.port;
    let careful = Webhook::new(WebhookOptions::new(SECRET).allow_http(true)).unwrap();
    for host in ["127.0.0.1", "localhost", "LOCALHOST", "127.1", "2130706433", "[::ffff:127.0.0.1]", "[::1]", "0.0.0.0"]
    {
        let result = careful.publish(vec![message(format!("http://{host}:{port}/status/204"))]).await.remove(0);
        let error = result.expect_err(host);
        assert_eq!(error.kind(), Retryable, "{host}: {error}");
        assert!(error.to_string().contains("not public"), "{host}: {error}");
    }
    assert!(receiver.requests().is_empty());
    let allowed = Webhook::new(local()).unwrap();
    for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]"] {
        assert!(allowed.publish(vec![message(format!("http://{host}:{port}/status/204"))]).await[0].is_ok(), "{host}");
    }
    receiver.got(3).await;
}

#[tokio::test]
async fn an_endpoint_gets_so_many_at_once_and_a_key_one_after_the_other() {
    let receiver = Receiver::start();
    let webhook = Webhook::new(local().concurrency(3)).unwrap();
    let free = (0..12).map(|_| message(receiver.url("/slow/0.05"))).collect();
    let again = (0..12).map(|_| message(receiver.url("/slow/0.05"))).collect();
    let (one, other) = tokio::join!(webhook.publish(free), webhook.publish(again));
    assert!(one.iter().chain(&other).all(Result::is_ok));
    let most = receiver.got(24).await.iter().map(|request| request["active"].as_u64().unwrap()).max();
    assert_eq!(most, Some(3));

    let receiver = Receiver::start();
    let keyed: Vec<_> = (0..12)
        .map(|place| Message { key: Some("one".into()), ..message(receiver.url(&format!("/slow/0.01/{place}"))) })
        .collect();
    assert!(webhook.publish(keyed).await.iter().all(Result::is_ok));
    for (place, request) in receiver.got(12).await.iter().enumerate() {
        assert_eq!(request["path"], format!("/slow/0.01/{place}"));
        assert_eq!(request["active"], 1);
    }
}

#[tokio::test]
async fn a_time_limit_may_be_as_long_as_one_likes() {
    let receiver = Receiver::start();
    let webhook = Webhook::new(local().time_limit(Duration::MAX)).unwrap();
    let _ = webhook.url(&receiver.url("/status/204"));
    assert!(webhook.publish(vec![message(receiver.url("/status/204"))]).await[0].is_ok());
}

#[tokio::test]
async fn batches_to_one_endpoint_take_turns() {
    let receiver = Receiver::start();
    let webhook = Webhook::new(local().concurrency(1)).unwrap();
    let batch = |of: &str| (0..20).map(|_| message(receiver.url(&format!("/slow/0.02/{of}")))).collect::<Vec<_>>();
    let (one, other) = tokio::join!(webhook.publish(batch("one")), webhook.publish(batch("other")));
    assert!(one.iter().chain(&other).all(Result::is_ok));
    let paths: Vec<_> = receiver.got(40).await.iter().map(|request| request["path"].clone()).collect();
    // Each of them is quicker than a turn, and all of a batch are not.
    let changes = paths.windows(2).filter(|next| next[0] != next[1]).count();
    assert!((2..39).contains(&changes), "{paths:?}");
}

#[tokio::test]
async fn closing_waits_for_requests_on_their_way() {
    let receiver = Receiver::start();
    let webhook = Webhook::new(local()).unwrap();
    let slow = vec![message(receiver.url("/slow/0.3"))];
    let (results, ()) = tokio::join!(webhook.publish(slow.clone()), async {
        receiver.got(1).await;
        webhook.close().await;
    });
    assert!(results[0].is_ok());
    assert_eq!(kind(&webhook.publish(slow).await[0]), Some(Outage));
}

#[tokio::test]
async fn tls_is_spoken_with_who_can_prove_it() {
    let directory = tempfile::tempdir().unwrap();
    let (certificate, key) = certificate(directory.path(), "receiver");
    let receiver = Receiver::start_tls(&certificate, &key);
    let options = WebhookOptions::new(SECRET).allow_private_addresses(true);
    let refused =
        Webhook::new(options.clone()).unwrap().publish(vec![message(receiver.url("/status/204"))]).await.remove(0);
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind(), Deferred);
    assert!(refused.to_string().contains("certificate"), "{refused}");
    let webhook = Webhook::new(options.ca_file(&certificate)).unwrap();
    assert!(webhook.publish(vec![message(receiver.url("/status/204"))]).await[0].is_ok());
    receiver.got(1).await;
}

#[tokio::test]
async fn a_url_to_which_nothing_is_ever_sent_is_refused_at_the_start() {
    let careful = Webhook::new(WebhookOptions::new(SECRET).derive_secrets(true)).unwrap();
    for (url, mistake) in [
        ("partner.example/hooks", "relative URL without a base"),
        ("https://", "empty host"),
        ("https:///{tenant_id}/hooks", "and then the host"),
        ("https://\\{tenant_id}/hooks", "and then the host"),
        ("https:{tenant_id}", "and then the host"),
        ("https://partner.example:port/", "invalid port number"),
        ("ftp://partner.example/", "not to ftp:"),
        ("http://partner.example/", "allow_http"),
        ("https://127.0.0.1/", "not public; allow private addresses"),
        ("https://[::1]:8443/{{x}}", "not public; allow private addresses"),
    ] {
        let error =
            Outbox::builder(MemoryStore::new()).listen("Order", "*", careful.url(url)).start().await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains("\"Order\"") && text.contains(mistake), "{url}: {text}");
    }
    // What is allowed, what the event decides, and names, which are for the resolver.
    let allowed = Webhook::new(WebhookOptions::new(SECRET).allow_http(true).allow_private_addresses(true)).unwrap();
    let outbox = Outbox::builder(MemoryStore::new())
        .listen("A", "*", allowed.url("http://127.0.0.1:1/"))
        .listen("B", "*", careful.url("{headers.callback}"))
        .listen("C", "*", careful.url("https://localhost/"))
        .start()
        .await
        .unwrap();
    outbox.shutdown().await;
}
