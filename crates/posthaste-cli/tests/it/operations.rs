//! What a relay answers about itself: `/healthz`, `/readyz` and `/metrics`, asked by a client of our own.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use sqlx::{Connection, PgConnection};

use crate::place::{Late, Place, Running, free_port, silent, until};
use crate::relay::{postgres, socket};

/// Asks, and gives the status and the body.
pub(crate) fn ask(address: SocketAddr, path: &str, headers: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// Where a relay says that it listens.
pub(crate) fn address(relay: &mut Running) -> SocketAddr {
    relay.says("answering /healthz, /readyz and /metrics");
    let said = relay.said();
    let rest = said.split_once("address=").unwrap_or_else(|| panic!("{said}")).1;
    rest.split_whitespace().next().unwrap().parse().unwrap_or_else(|_| panic!("{said}"))
}

/// Every sample by its name and labels.
pub(crate) fn metrics(address: SocketAddr) -> BTreeMap<String, f64> {
    let (status, text) = ask(address, "/metrics", "");
    assert_eq!(status, 200, "{text}");
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(name, value)| (name.to_owned(), value.parse().unwrap()))
        .collect()
}

fn terminated(relay: Running) -> String {
    relay.terminate();
    let (status, _, said) = relay.end();
    assert_eq!(status, Some(0), "{said}");
    said
}

#[test]
fn a_relay_says_how_it_is_and_what_it_did() {
    let here = Place::with(
        "[http]\nlisten = \"127.0.0.1:0\"\nsample_interval = \"100ms\"\n\
         [relay]\npoll_interval = \"50ms\"\nretry_base = \"1h\"\nretry_max = \"1h\"\n\
         [destination.good]\ntype = \"file\"\npath = \"good.ndjson\"\n\
         [destination.bad]\ntype = \"webhook\"\nto = \"http://127.0.0.1:1/{headers.where}\"\nunsigned = true\nallow_http = true\nallow_private_addresses = true\n\
         [[route]]\nname = \"orders\"\nmatch = { event_type = \"Order*\" }\nto = \"good\"\n\
         [[route]]\nname = \"hooks\"\nmatch = { event_type = \"Hook*\" }\nto = \"bad\"\n",
    );
    let mut relay = here.start(&["relay"]);
    let address = address(&mut relay);
    relay.says("delivering");
    for kind in ["OrderPlaced", "OrderPaid", "HookSent", "Stray"] {
        here.ok(&["events", "write", "--type", kind, "{}"]);
    }
    assert_eq!(ask(address, "/healthz", ""), (200, "ok\n".to_owned()));
    until("it is ready", || ask(address, "/readyz", "") == (200, "ready\n".to_owned()));
    assert_eq!(ask(address, "/", "").0, 404);
    let value = |name: &str| metrics(address).get(name).copied();
    until("all are counted", || {
        value("posthaste_rows{status=\"DONE\"}") == Some(2.0) && value("posthaste_rows{status=\"DEAD\"}") == Some(2.0)
    });
    let samples = metrics(address);
    for (name, expected) in [
        ("posthaste_route_events_total{outcome=\"delivered\",route=\"orders\"}", 2.0),
        ("posthaste_route_events_total{outcome=\"dead\",route=\"orders\"}", 0.0),
        // It lacks the header that its address is made of.
        ("posthaste_route_events_total{outcome=\"dead\",route=\"hooks\"}", 1.0),
        ("posthaste_route_events_total{outcome=\"dead\",route=\"(none)\"}", 1.0),
        ("posthaste_destination_events_total{destination=\"good\",outcome=\"acknowledged\"}", 2.0),
        ("posthaste_destination_events_total{destination=\"bad\",outcome=\"acknowledged\"}", 0.0),
        ("posthaste_breaker_state{destination=\"good\"}", 0.0),
        ("posthaste_delivered_total", 2.0),
        ("posthaste_dead_total", 2.0),
        ("posthaste_settle_failed_total", 0.0),
        ("posthaste_latency_seconds_count{path=\"cold\"}", 4.0),
        ("posthaste_latency_seconds_bucket{path=\"cold\",le=\"+Inf\"}", 4.0),
        ("posthaste_oldest_pending_seconds", 0.0),
        ("posthaste_database_up", 1.0),
        ("posthaste_ready", 1.0),
        ("posthaste_draining", 0.0),
        ("posthaste_paused{kind=\"destination\",name=\"good\"}", 0.0),
        (concat!("posthaste_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"}"), 1.0),
    ] {
        assert_eq!(samples.get(name), Some(&expected), "{name} in {samples:#?}");
    }
    assert!(samples["posthaste_route_duration_seconds_count{route=\"orders\"}"] >= 1.0);
    assert!(samples["posthaste_destination_duration_seconds_sum{destination=\"good\"}"] > 0.0);
    assert!(samples["process_start_time_seconds"] > 1.7e9 && samples["posthaste_sampled_timestamp_seconds"] > 1.7e9);
    here.ok(&["events", "write", "--type", "OrderLate", "--after", "1h", "{}"]);
    until("what waits is seen", || value("posthaste_oldest_pending_seconds").is_some_and(|waits| waits > 0.0));
    terminated(relay);
}

#[test]
fn a_destination_that_is_away_is_seen() {
    let here = Place::with(&format!(
        "[relay]\npoll_interval = \"50ms\"\n\
         [destination.hooks]\ntype = \"webhook\"\nto = \"http://127.0.0.1:{}/\"\nunsigned = true\nallow_http = true\nallow_private_addresses = true\n",
        free_port()
    ));
    here.ok(&["migrate", "up"]);
    let mut relay = here.start(&["relay"]);
    let address = address(&mut relay);
    here.ok(&["events", "write", "--type", "OrderPlaced", "{}"]);
    until("its breaker is open", || {
        let samples = metrics(address);
        // A webhook has a breaker for each address, which is in its name.
        let opened = |(name, opened): (&String, &f64)| {
            name.starts_with("posthaste_breaker_opened_total{destination=\"hooks http://127.0.0.1:") && *opened > 0.0
        };
        samples.iter().any(opened)
            && samples["posthaste_destination_events_total{destination=\"hooks\",outcome=\"deferred\"}"] > 0.0
    });
    assert_eq!(metrics(address)["posthaste_failed_total"], 0.0, "an outage is no attempt");
    terminated(relay);
}

#[tokio::test]
async fn whoever_waits_or_ends_is_not_ready_and_says_why() {
    let url = postgres().await;
    let late = Late::to(&socket(&url));
    let away = url.replace(&socket(&url), &late.address.to_string());
    let there = Place::new().variable("POSTHASTE_DATABASE_URL", &url);
    there.ok(&["migrate", "up"]);
    let here = Place::with(&format!(
        "[relay]\nshutdown_deadline = \"20s\"\npoll_interval = \"50ms\"\n[destination.x]\ntype = \"webhook\"\nto = \"http://{}/\"\nunsigned = true\nallow_http = true\nallow_private_addresses = true\n",
        silent()
    ))
    .variable("POSTHASTE_DATABASE_URL", &away);
    let mut relay = here.start(&["relay"]);
    let address = address(&mut relay);
    relay.says("cannot be reached; waiting for it");
    assert_eq!(ask(address, "/healthz", "").0, 200);
    let (status, reason) = ask(address, "/readyz", "");
    assert!(status == 503 && reason.starts_with("starting: "), "{status} {reason}");
    assert_eq!(metrics(address)["posthaste_ready"], 0.0);
    late.arrive();
    until("it is ready", || ask(address, "/readyz", "").0 == 200);

    // The table goes: a relay that lives, but has nothing to deliver from.
    let mut connection = PgConnection::connect(&url).await.unwrap();
    sqlx::raw_sql("ALTER TABLE posthaste_migration RENAME TO gone").execute(&mut connection).await.unwrap();
    until("it says that the schema is not right", || {
        let (status, reason) = ask(address, "/readyz", "");
        status == 503 && reason.contains("posthaste migrate up")
    });
    sqlx::raw_sql("ALTER TABLE gone RENAME TO posthaste_migration").execute(&mut connection).await.unwrap();
    until("it is ready again", || ask(address, "/readyz", "").0 == 200);

    // With something in hand that takes its time, it ends slowly.
    there.ok(&["events", "write", "--type", "OrderPlaced", "{}"]);
    until("it is in hand", || {
        metrics(address)["posthaste_in_flight"] > 0.0 || metrics(address)["posthaste_cold_enqueued_total"] > 0.0
    });
    relay.terminate();
    relay.says("ending");
    let (status, reason) = ask(address, "/readyz", "");
    assert!(status == 503 && reason.starts_with("draining: "), "{status} {reason}");
    assert_eq!(metrics(address)["posthaste_draining"], 1.0);
    relay.terminate();
    let (_, _, said) = relay.end();
    assert!(said.contains("ending at once"), "{said}");
}

#[test]
fn a_port_that_is_taken_is_an_error_of_its_own() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let here = Place::new().variable("POSTHASTE_HTTP_LISTEN", &address);
    let error = here.fails(7, &["relay"]);
    assert!(error.contains(&address) && error.contains("maybe another relay") && error.contains("port 0"), "{error}");
    // One that drains and ends does not listen, and one that is told not to does not either.
    here.ok(&["relay", "--once"]);
    let here = Place::new().variable("POSTHASTE_HTTP_LISTEN", "off");
    let mut relay = here.start(&["relay"]);
    relay.says("delivering");
    let said = terminated(relay);
    assert!(!said.contains("answering"), "{said}");
}

#[test]
fn other_machines_need_a_token() {
    const TOKEN: &str = "correct horse battery staple";
    for listen in ["0.0.0.0:0", "[::]:0", "192.0.2.1:9797"] {
        let here = Place::with(&format!("[http]\nlisten = \"{listen}\"\n"));
        for command in [&["relay"][..], &["config", "check"]] {
            let error = here.fails(3, command);
            assert!(
                error.contains("posthaste.toml:2:10: http.listen: ") && error.contains("there is no token"),
                "{error}"
            );
        }
    }
    for (settings, wrong) in [
        ("listen = \"nowhere\"", "http.listen: \"nowhere\" is no address with a port"),
        ("listen = \"127.0.0.1\"", "no address with a port"),
        ("token = \"correct horse battery staple\"", "http.token: a secret does not stand here"),
        ("token = \"env:SHORT\"", "http.token: the token is too short"),
        ("token = \"env:NO_SUCH_VARIABLE\"", "http.token: the variable NO_SUCH_VARIABLE is not set"),
        ("port = 80", "http.port"),
        ("sample_interval = \"1ms\"", "http.sample_interval: must be at least 100ms"),
    ] {
        let here = Place::with(&format!("[http]\n{settings}\n")).variable("SHORT", "short");
        let error = here.fails(3, &["relay"]);
        assert!(error.contains(wrong) && !error.contains("and 1 more"), "{settings}: {error}");
    }

    let here = Place::with("[http]\nlisten = \"0.0.0.0:0\"\ntoken = \"file:token\"\n");
    here.write("token", &format!("{TOKEN}\n"));
    let printed = here.ok(&["config", "print"]);
    assert!(printed.contains("http.token = \"file:token\"") && !printed.contains(TOKEN), "{printed}");
    let mut relay = here.start(&["relay"]);
    let port = address(&mut relay).port();
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    for path in ["/healthz", "/readyz", "/metrics", "/"] {
        for headers in [
            String::new(),
            "Authorization: Bearer wrong\r\n".to_owned(),
            format!("Authorization: Bearer {TOKEN}!\r\n"),
            format!("Authorization: Basic {TOKEN}\r\n"),
            "Authorization: Bearer\r\n".to_owned(),
        ] {
            assert_eq!(ask(address, path, &headers).0, 401, "{path} {headers}");
        }
    }
    let token = format!("authorization: bearer {TOKEN}\r\n");
    assert_eq!(ask(address, "/healthz", &token).0, 200);
    assert!(ask(address, "/metrics", &token).1.contains("posthaste_build_info"));
    let said = terminated(relay);
    assert!(!said.contains(TOKEN), "{said}");
}

#[test]
fn many_who_ask_and_say_nothing_do_not_keep_others_out_for_long() {
    let here = Place::new();
    let mut relay = here.start(&["relay"]);
    let address = address(&mut relay);
    // More than may ask at once, none of whom asks anything; and more who have asked, and do not read the answer.
    let _idle: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
    let _slow: Vec<TcpStream> = (0..40)
        .map(|_| {
            let mut stream = TcpStream::connect(address).unwrap();
            // Of what it says it never says the end.
            write!(stream, "POST /metrics HTTP/1.1\r\nHost: {address}\r\nContent-Length: 9\r\n\r\n").unwrap();
            stream
        })
        .collect();
    // Whoever looks after it does not wait for long, and would take it for dead. They are cut off by themselves after 5 s.
    let asked = Instant::now();
    assert_eq!(ask(address, "/healthz", "").0, 200);
    assert!(asked.elapsed() < Duration::from_secs(4), "{:?}", asked.elapsed());
    terminated(relay);
}

#[test]
fn what_waits_is_seen_also_where_nothing_is_claimed() {
    let here = Place::with(
        "[http]\nlisten = \"127.0.0.1:0\"\nsample_interval = \"100ms\"\n[relay]\npoll_interval = \"50ms\"\n",
    );
    here.ok(&["migrate", "up"]);
    here.ok(&["pause", "destination", "stdout"]);
    let mut relay = here.start(&["relay"]);
    let address = address(&mut relay);
    relay.says("delivering");
    here.ok(&["events", "write", "--type", "OrderPlaced", "{}"]);
    // The alert asks for this one: of what is not claimed the other says nothing.
    until("it is seen for how long it waits", || {
        metrics(address).get("posthaste_oldest_pending_seconds").is_some_and(|waits| *waits > 1.0)
    });
    assert_eq!(metrics(address).get("posthaste_oldest_lag_seconds").copied().unwrap_or_default(), 0.0);
    terminated(relay);
}
