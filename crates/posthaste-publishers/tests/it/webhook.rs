//! Webhooks, received by Python's own server.

mod connection;
mod endpoint;
mod receiver;

use std::collections::HashSet;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use posthaste_core::{Event, EventId, MemoryStore, Outbox, RetryPolicy, Status};
use posthaste_publishers::PublishErrorKind::{self, Deferred, Permanent, Retryable};
use posthaste_publishers::webhook::{Webhook, WebhookOptions};
use posthaste_publishers::{Headers, Message, PublishError, Publisher};
use serde_json::Value;

use crate::formats::{self, CARRIER, Carrier, Seen};

use receiver::{Receiver, SECRET, all_done, body, message, write};

const NEXT_SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

/// Options for a receiver on this machine.
fn local() -> WebhookOptions {
    WebhookOptions::new(SECRET).allow_http(true).allow_private_addresses(true)
}

fn kind(result: &Result<(), PublishError>) -> Option<PublishErrorKind> {
    result.as_ref().err().map(PublishError::kind)
}

fn headers(request: &Value) -> HeaderMap {
    let header = |(name, value): (&String, &Value)| {
        let value = HeaderValue::from_bytes(value.as_str().unwrap().as_bytes()).unwrap();
        (name.parse::<HeaderName>().unwrap(), value)
    };
    request["headers"].as_object().unwrap().iter().map(header).collect()
}

#[tokio::test]
async fn a_request_is_complete_and_signed_with_every_secret() {
    let receiver = Receiver::start();
    let webhook = Webhook::new(local().secret(NEXT_SECRET)).unwrap();
    let outbox = Outbox::builder(MemoryStore::new())
        .listen("Order", "*", webhook.url(&receiver.url("/status/200/{event_type}/{aggregate_id}")))
        .start()
        .await
        .unwrap();
    let event = Event::builder("OrderPlaced").aggregate("Order", 42).header("region", "ü").header("host", "elsewhere");
    let ids = write(&outbox, [event.json_text("{ \"a\": 1}").build().unwrap()]).await;
    all_done(&outbox, 1).await;
    outbox.shutdown().await;

    let request = receiver.got(1).await.remove(0);
    assert_eq!(request["path"], "/status/200/OrderPlaced/42");
    assert_eq!(body(&request), b"{ \"a\": 1}");
    let headers = headers(&request);
    for secret in [SECRET, NEXT_SECRET] {
        standardwebhooks::Webhook::new(secret).unwrap().verify(&body(&request), &headers).unwrap();
    }
    let stranger = standardwebhooks::Webhook::new("whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA").unwrap();
    assert!(stranger.verify(&body(&request), &headers).is_err());
    let said = &request["headers"];
    assert_eq!(said["webhook-id"], ids[0].as_str());
    assert_eq!(said["content-type"], "application/json");
    assert_eq!((&said["event-type"], &said["aggregate-id"]), (&"OrderPlaced".into(), &"42".into()));
    assert_eq!(said["host"], format!("127.0.0.1:{}", receiver.port));
    assert_eq!(said["region"], "%C3%BC");
    assert!(said["user-agent"].as_str().unwrap().starts_with("posthaste/"));
}

#[tokio::test]
async fn every_format_is_read_back() {
    let receiver = Receiver::start();
    let webhook = Webhook::new(local()).unwrap();
    let carrier = Carrier { prefix: "ce-", ascii: true, lower_case: true, ..CARRIER };
    let seen = |request: Value| {
        assert_eq!(request["genuine"], true);
        let mut headers = formats::headers(&request["headers"]);
        // What HTTP and the rules for webhooks have for themselves.
        for name in ["accept", "content-length", "host", "user-agent"] {
            headers.remove(name);
        }
        headers.retain(|name, _| !name.starts_with("webhook-"));
        let (to, content_type) = (request["path"].as_str().unwrap().to_owned(), headers.remove("content-type"));
        Seen { to, key: None, content_type, headers, body: body(&request) }
    };
    let url = receiver.url("/status/204/{event_type}");
    let read = async |how_many| receiver.got(how_many).await.into_iter().map(seen).collect();
    formats::are_read_back(carrier, "/status/204/OrderPlaced", || webhook.url(&url), read).await;
}

#[tokio::test]
async fn bytes_are_signed_as_they_are_and_nothing_is_signed_without_a_secret() {
    let receiver = Receiver::start();
    let bytes =
        Message { body: Bytes::from_static(&[0, 159, 146, 150, 255]).into(), ..message(receiver.url("/status/204")) };
    let webhook = Webhook::new(local()).unwrap();
    assert!(webhook.publish(vec![bytes.clone()]).await[0].is_ok());
    let unsigned = Webhook::new(WebhookOptions::unsigned().allow_http(true).allow_private_addresses(true)).unwrap();
    assert!(unsigned.publish(vec![bytes]).await[0].is_ok());
    let requests = receiver.got(2).await;
    assert_eq!(body(&requests[0]), [0, 159, 146, 150, 255]);
    assert_eq!((&requests[0]["genuine"], &requests[1]["genuine"]), (&true.into(), &false.into()));
    assert!(requests[1]["headers"].get("webhook-signature").is_none());
}

#[tokio::test]
async fn an_attempt_has_its_own_time_and_an_event_its_own_id() {
    let receiver = Receiver::start();
    let webhook = Webhook::new(local()).unwrap();
    let retry = RetryPolicy::fixed([Duration::from_millis(1100)]);
    let outbox = Outbox::builder(MemoryStore::new())
        .listen("Order", "*", webhook.url(&receiver.url("/then/500,204")).retry(retry))
        .start()
        .await
        .unwrap();
    write(&outbox, [Event::builder("E").aggregate("Order", 1).json_text("{}").build().unwrap()]).await;
    all_done(&outbox, 1).await;
    outbox.shutdown().await;
    let requests = receiver.got(2).await;
    let said = |name: &str| requests.iter().map(|request| request["headers"][name].clone()).collect::<Vec<_>>();
    let (ids, times, signatures) = (said("webhook-id"), said("webhook-timestamp"), said("webhook-signature"));
    assert_eq!(ids[0], ids[1]);
    assert_ne!(times[0], times[1]);
    assert_ne!(signatures[0], signatures[1]);
    assert!(requests.iter().all(|request| request["genuine"] == true));
}

#[tokio::test]
async fn only_2xx_is_success() {
    let receiver = Receiver::start();
    let webhook = Webhook::new(local()).unwrap();
    let expected = [
        (200, None),
        (201, None),
        (202, None),
        (204, None),
        (301, Some(Retryable)),
        (302, Some(Retryable)),
        (308, Some(Retryable)),
        (400, Some(Permanent)),
        (401, Some(Permanent)),
        (404, Some(Permanent)),
        (408, Some(Retryable)),
        (413, Some(Permanent)),
        (422, Some(Permanent)),
        (425, Some(Retryable)),
        (500, Some(Retryable)),
        (502, Some(Retryable)),
        (503, Some(Retryable)),
        (504, Some(Retryable)),
        // Behind this one nothing is sent for a while.
        (429, Some(Deferred)),
    ];
    let elsewhere = receiver.url("/status/200/elsewhere");
    let url = |code: &i32| message(receiver.url(&format!("/status/{code}?location={elsewhere}")));
    let one_after_the_other = |(code, _): &(i32, _)| Message { key: Some("one".into()), ..url(code) };
    let results = webhook.publish(expected.iter().map(one_after_the_other).collect()).await;
    for ((code, wanted), result) in expected.iter().zip(&results) {
        assert_eq!(kind(result), *wanted, "{code}: {result:?}");
        if let Err(error) = result {
            assert!(error.to_string().contains(&format!("answered {code}")), "{error}");
            assert!(error.to_string().ends_with(&format!(": this is {code}")), "{error}");
        }
    }
    let asked: HashSet<_> =
        receiver.got(expected.len()).await.into_iter().map(|request| request["path"].to_string()).collect();
    assert!(!asked.iter().any(|path| path.contains("elsewhere")), "a redirect was followed");
}

#[tokio::test]
async fn a_pause_that_is_asked_for_is_granted() {
    let receiver = Receiver::start();
    let webhook = Webhook::new(local()).unwrap();
    let date = (jiff::Timestamp::now() + jiff::SignedDuration::from_secs(100)).strftime("%a, %d %b %Y %H:%M:%S GMT");
    let date = date.to_string().replace(' ', "%20");
    let results = webhook
        .publish(vec![
            message(receiver.url("/status/429?retry_after=120")),
            message(receiver.url(&format!("/status/503?retry_after={date}"))),
            message(receiver.url("/status/503")),
        ])
        .await;
    let pauses: Vec<_> = results.iter().map(|result| result.as_ref().unwrap_err().pause()).collect();
    assert_eq!(pauses[2], None);
    let until_rested = pauses[0].unwrap();
    assert!(until_rested > Duration::from_secs(100) && until_rested <= Duration::from_secs(120), "{until_rested:?}");
    let until_date = pauses[1].unwrap();
    assert!(until_date > Duration::from_secs(80) && until_date <= Duration::from_secs(100), "{until_date:?}");
}

#[tokio::test]
async fn who_is_too_slow_or_says_too_much_is_not_waited_for() {
    let receiver = Receiver::start();
    let webhook = Webhook::new(local().time_limit(Duration::from_secs(2))).unwrap();
    let begun = Instant::now();
    let results = webhook
        .publish(vec![
            message(receiver.url("/slow/60")),
            message(receiver.url("/drop")),
            message(receiver.url("/big")),
            message(receiver.url("/slow/0")),
            message(receiver.url("/stall/200")),
            message(receiver.url("/stall/500")),
        ])
        .await;
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    let kinds: Vec<_> = results.iter().map(kind).collect();
    // Who has taken it need not say so to the end.
    assert_eq!(kinds, [Some(Retryable), Some(Retryable), Some(Retryable), None, None, Some(Retryable)]);
    let said = results[2].as_ref().unwrap_err().to_string();
    assert!(said.contains("500") && said.contains("no no no") && said.len() < 400, "{said}");
    let said = results[5].as_ref().unwrap_err().to_string();
    assert!(said.contains("500") && said.contains("to begin with"), "{said}");
    receiver.got(6).await;
}

#[tokio::test]
async fn what_cannot_be_a_request_is_dead() {
    let receiver = Receiver::start();
    let webhook = Webhook::new(local()).unwrap();
    let ok = receiver.url("/status/204");
    let header = |name: &'static str, value: &str| Headers::from([(name, value)]);
    let strict = Webhook::new(WebhookOptions::new(SECRET).allow_private_addresses(true)).unwrap();
    assert_eq!(kind(&strict.publish(vec![message(&ok)]).await[0]), Some(Permanent));
    let results = webhook
        .publish(vec![
            message("not a url"),
            message("ftp://example.com/"),
            Message { headers: header("two words", "x"), ..message(&ok) },
            Message { headers: header("lines", "x\r\nhost: other"), ..message(&ok) },
            Message { id: EventId::new("order.1").unwrap(), ..message(&ok) },
            Message { headers: header("Content-Length", "0"), ..message(&ok) },
        ])
        .await;
    assert!(results[..5].iter().all(|result| kind(result) == Some(Permanent)), "{results:?}");
    assert!(results[5].is_ok());
    assert_eq!(body(&receiver.got(1).await[0]), b"hello");
}

#[tokio::test]
async fn an_id_that_is_not_ascii_is_sent_and_signed_in_ascii() {
    let receiver = Receiver::start();
    let webhook = Webhook::new(local()).unwrap();
    let sent = Message { id: EventId::new("größe-1").unwrap(), ..message(receiver.url("/status/204")) };
    assert!(webhook.publish(vec![sent]).await[0].is_ok());
    let request = receiver.got(1).await.remove(0);
    assert_eq!(request["headers"]["webhook-id"], "gr%C3%B6%C3%9Fe-1");
    assert_eq!(request["genuine"], true);
}

#[tokio::test]
async fn an_endpoint_has_the_secret_that_is_made_or_given_for_it() {
    let (receiver, other) = (Receiver::start(), Receiver::start());
    let (to, to_other) = (receiver.url("/status/204"), other.url("/status/204"));
    let derived = Webhook::new(local().derive_secrets(true)).unwrap();
    let theirs = |url: &str| derived.secrets_of(url).unwrap().remove(0);
    assert_ne!(theirs(&to), theirs(&to_other));
    assert!(derived.publish(vec![message(&to), message(&to_other)]).await.iter().all(Result::is_ok));
    for (receiver, url, stranger) in [(&receiver, &to, &to_other), (&other, &to_other, &to)] {
        let request = receiver.got(1).await.remove(0);
        let (body, headers) = (body(&request), headers(&request));
        let check = |secret: &str| standardwebhooks::Webhook::new(secret).unwrap().verify(&body, &headers);
        check(&theirs(url)).unwrap();
        assert!(check(&theirs(stranger)).is_err() && check(SECRET).is_err());
    }

    let open = WebhookOptions::unsigned().allow_http(true).allow_private_addresses(true);
    let given = Webhook::new(open.secret_for(receiver.url(""), NEXT_SECRET)).unwrap();
    let results = given.publish(vec![message(&to), message(&to_other)]).await;
    assert_eq!((kind(&results[0]), kind(&results[1])), (None, Some(Retryable)));
    assert!(results[1].as_ref().unwrap_err().to_string().contains("secrets_for"), "{results:?}");
    let request = receiver.got(2).await.remove(1);
    standardwebhooks::Webhook::new(NEXT_SECRET).unwrap().verify(&body(&request), &headers(&request)).unwrap();
    other.got(1).await;
}

#[tokio::test]
async fn one_secret_for_all_that_events_choose_is_refused_unless_it_is_meant() {
    let start = async |options: WebhookOptions, template: &str| {
        let webhook = Webhook::new(options).unwrap();
        Outbox::builder(MemoryStore::new()).listen("Order", "*", webhook.url(template)).start().await
    };
    let chosen =
        ["{headers.callback}", "{headers.callback}/x", "https://{tenant_id}.hooks.example/", "https://{topic}"];
    for template in chosen {
        let error = start(WebhookOptions::new(SECRET), template).await.unwrap_err().to_string();
        for way_out in ["derive_secrets", "secrets_for", "allow_shared_secret"] {
            assert!(error.contains("\"Order\"") && error.contains(way_out), "{template}: {error}");
        }
        for options in [
            WebhookOptions::new(SECRET).derive_secrets(true),
            WebhookOptions::new(SECRET).allow_shared_secret(true),
            WebhookOptions::unsigned().secret_for("https://acme.hooks.example", SECRET),
            WebhookOptions::unsigned(),
        ] {
            start(options, template).await.unwrap().shutdown().await;
        }
    }
    let one = ["https://hooks.example/{tenant_id}", "https://hooks.example?of={tenant_id}", "https://hooks.example"];
    for template in one {
        start(WebhookOptions::new(SECRET), template).await.unwrap().shutdown().await;
    }
    let another = WebhookOptions::unsigned().secret_for("https://partner.example", SECRET);
    let error = start(another, "https://hooks.example").await.unwrap_err().to_string();
    assert!(error.contains("no secret for this endpoint"), "{error}");
}

#[test]
fn options_are_read_from_a_file_and_checked() {
    let text = format!("secrets = ['{SECRET}', '{NEXT_SECRET}']\ntime_limit = '3s'\nconcurrency = 2");
    let options: WebhookOptions = toml::from_str(&text).unwrap();
    let shown = format!("{options:?}");
    assert!(shown.contains("3s") && !shown.contains("MfKQ9"), "{shown}");
    assert!(toml::from_str::<WebhookOptions>("secrets = []\nsecert = 1").unwrap_err().to_string().contains("secert"));
    for (text, mistake) in [
        ("", "no secret to be signed with"),
        ("secrets = []", "no secret to be signed with"),
        (&*format!("secrets = ['{SECRET}']\nunsigned = true"), "leave one of them out"),
        (&*format!("unsigned = true\n[secrets_for]\n'https://a.example' = ['{SECRET}']"), "leave one of them out"),
        (&*format!("derive_secrets = true\n[secrets_for]\n'https://a.example' = ['{SECRET}']"), "there is none"),
        ("[secrets_for]\n'https://a.example' = []", "no secret for \"https://a.example\""),
        (&*format!("[secrets_for]\n'https://a.example/x' = ['{SECRET}']"), "no origin"),
        (
            &*format!("[secrets_for]\n'https://a.example' = ['{SECRET}']\n'https://a.example:443' = ['{SECRET}']"),
            "twice",
        ),
    ] {
        let error = Webhook::new(toml::from_str(text).unwrap()).unwrap_err();
        assert!(error.to_string().contains(mistake), "{error}");
    }
    assert!(Webhook::new(toml::from_str("unsigned = true").unwrap()).is_ok());
    let own = format!("[secrets_for]\n'https://a.example' = ['{SECRET}', '{NEXT_SECRET}']");
    let own = Webhook::new(toml::from_str(&own).unwrap()).unwrap();
    assert_eq!(own.secrets_of("https://a.example:443/x").unwrap(), [SECRET, NEXT_SECRET]);
    let short = Webhook::new(WebhookOptions::new("whsec_c2hvcnQ=")).unwrap_err();
    assert!(short.to_string().contains("has 5 bytes"), "{short}");
    let missing = Webhook::new(WebhookOptions::new(SECRET).ca_file("/nowhere/ca.pem")).unwrap_err();
    assert!(missing.to_string().contains("/nowhere/ca.pem"), "{missing}");
}

#[tokio::test]
async fn an_event_does_not_choose_where_on_a_server_it_goes() {
    let receiver = Receiver::start();
    let webhook = Webhook::new(local()).unwrap();
    let outbox = Outbox::builder(MemoryStore::new())
        .listen("Order", "*", webhook.url(&receiver.url("/status/200/{aggregate_id}?of={tenant_id}")))
        .start()
        .await
        .unwrap();
    let event = |id: &str| Event::builder("E").aggregate("Order", id).tenant_id("a&b").json_text("{}").build().unwrap();
    let ids = write(&outbox, ["../500", "a?x=1#y", "..", "größe"].map(event)).await;
    all_done(&outbox, 3).await;
    let mut paths: Vec<_> = receiver.got(3).await.iter().map(|request| request["path"].clone()).collect();
    paths.sort_by_key(ToString::to_string);
    assert_eq!(paths, ["/status/200/..%2F500", "/status/200/a%3Fx%3D1%23y", "/status/200/gr%C3%B6%C3%9Fe"]);
    let up = outbox.admin().find(&ids[2]).await.unwrap().unwrap().state;
    assert_eq!((up.status, up.attempts), (Status::Dead, 0));
    assert!(up.last_error.unwrap().contains("aggregate_id of the event does not fit"));
    outbox.shutdown().await;
}

#[tokio::test]
async fn what_can_be_no_url_is_said_at_the_start() {
    let webhook = Webhook::new(WebhookOptions::new(SECRET).derive_secrets(true)).unwrap();
    for (template, mistake) in [
        ("partner.example/hooks", "relative URL without a base"),
        ("ftp://partner.example/{event_type}", "not to ftp:"),
        ("https:/{tenant_id}", "comes ://"),
        ("https://", "empty host"),
        ("https://partner example/{event_type}/secret", "not a URL"),
        ("http://partner.example/secret", "allow_http"),
        ("https://10.0.0.1/{event_type}/secret", "not public"),
    ] {
        let outbox = Outbox::builder(MemoryStore::new()).listen("Order", "*", webhook.url(template));
        let error = outbox.start().await.unwrap_err().to_string();
        assert!(error.contains(mistake) && !error.contains("secret"), "{template}: {error}");
    }
    let outbox = Outbox::builder(MemoryStore::new()).listen("Order", "*", webhook.url("{headers.callback}")).listen(
        "Cart",
        "*",
        webhook.url("HTTPS://{tenant_id}.partner.example/{event_type}"),
    );
    outbox.start().await.unwrap().shutdown().await;
}

#[tokio::test]
async fn keys_of_an_event_are_not_sent_unless_that_is_allowed() {
    let receiver = Receiver::start();
    let said = |name: &'static str| (name, "secret");
    let url = receiver.url("/status/204").replace("://", "://user:password@");
    let bold = Message { headers: [said("Authorization"), said("cookie"), said("x-other")].into(), ..message(url) };
    for (options, own) in [(local(), "Basic dXNlcjpwYXNzd29yZA=="), (local().allow_credentials(true), "secret")] {
        let before = receiver.requests().len();
        assert!(Webhook::new(options).unwrap().publish(vec![bold.clone()]).await[0].is_ok());
        let headers = receiver.got(before + 1).await.pop().unwrap()["headers"].clone();
        assert_eq!((&headers["authorization"], &headers["x-other"]), (&own.into(), &"secret".into()));
        assert_eq!(headers.get("cookie").is_some(), own == "secret");
    }
}
