//! Lines of JSON, on standard output and in files, also where nothing more can be written.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use posthaste_core::testing::{self, within};
use posthaste_core::{Event, EventBuilder, EventId, Timestamp};
use posthaste_publishers::{
    BreakerState, CloudEvents, Headers, Message, Ndjson, NdjsonOptions, PublishError, PublishErrorKind, Publisher,
};
use serde_json::Value;
use tempfile::TempDir;

use crate::formats::{self, CARRIER, Carrier, Once, Seen, Trace, from_base64};

fn message(id: &str, content_type: &'static str, body: &[u8]) -> Message {
    Message {
        id: EventId::new(id).unwrap(),
        to: "lines".into(),
        key: Some("42".into()),
        content_type: content_type.into(),
        headers: [("event-id", id), ("say \"hi\"", "Grüße\n€")].into(),
        body: body.to_vec().into(),
    }
}

fn json(id: &str) -> Message {
    message(id, "application/json", br#"{"total": 1990}"#)
}

fn place() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lines.ndjson");
    (directory, path)
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

/// The ids of all lines, each of which is one JSON document.
fn ids(text: &str) -> Vec<String> {
    assert!(text.is_empty() || text.ends_with('\n'), "the last line has no end: {text:?}");
    let id = |line: &str| {
        serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"))["id"].clone()
    };
    text.lines().map(|line| id(line).as_str().unwrap().to_owned()).collect()
}

fn all_arrived(results: &[Result<(), PublishError>]) -> bool {
    results.iter().all(Result::is_ok)
}

#[tokio::test]
async fn a_line_has_all_of_a_message() {
    let (_directory, path) = place();
    let file = Ndjson::file(&path).await.unwrap();
    let mut bare = message("4", "application/json", b"{not json");
    (bare.key, bare.headers) = (None, Headers::default());
    let structured = b"{\"specversion\":\"1.0\",\r\n\"data\":{}}";
    let mut structured = message("5", "application/cloudevents+json; charset=utf-8", structured);
    structured.headers = [("traceparent", "00-1-2-01")].into();
    let sent = file.publish(vec![
        message("1", "application/json; charset=utf-8", b"{ \"a\":1.0,\r\n \"b\":\"x\\ny\" }"),
        message("2", "text/plain", b"\"text\""),
        message("3", "application/octet-stream", &[0x00, 0xFF, 0x0A]),
        bare,
        structured,
        message("6", "application/json", b"\"\xFF\""),
    ]);
    assert!(all_arrived(&sent.await));
    let head = |id: &str, kind: &str| {
        let headers = format!(r#"{{"event-id":"{id}","say \"hi\"":"Grüße\n€"}}"#);
        format!(r#"{{"id":"{id}","key":"42","content_type":"{kind}","headers":{headers},"#)
    };
    let lines = [
        head("1", "application/json; charset=utf-8") + r#""body":{ "a":1.0,   "b":"x\ny" }}"#,
        head("2", "text/plain") + r#""body_base64":"InRleHQi"}"#,
        head("3", "application/octet-stream") + r#""body_base64":"AP8K"}"#,
        r#"{"id":"4","content_type":"application/json","headers":{},"body_base64":"e25vdCBqc29u"}"#.to_owned(),
        "{\"specversion\":\"1.0\",  \"data\":{}}".to_owned(),
        head("6", "application/json") + r#""body_base64":"Iv8i"}"#,
    ];
    assert_eq!(read(&path), lines.map(|line| line + "\n").concat());
}

fn order(id: u32) -> EventBuilder {
    let event = Event::builder("OrderPlaced").id(format!("order-{id}")).aggregate("Order", id);
    event.occurred_at(Timestamp::from_micros(1_770_000_000_000_000)).json_text(format!("{{\"id\": {id}}}"))
}

#[tokio::test]
async fn events_of_an_outbox_become_lines_in_their_envelope() {
    let (_directory, path) = place();
    let synced = Ndjson::connect(NdjsonOptions::file(&path).sync(true)).await.unwrap();
    let outbox = testing::outbox()
        .listen("Order", "*", synced.lines())
        .listen("Cart", "*", synced.lines().envelope(CloudEvents::new("/shop").structured()))
        .start_test()
        .await;
    let mut tx = outbox.begin().await.unwrap();
    tx.write(order(1)).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(outbox.drain_now().await.done, 1);
    let mut tx = outbox.begin().await.unwrap();
    tx.write(order(2).aggregate_type("Cart")).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(outbox.drain_now().await.done, 2);
    let plain = r#"{"id":"order-1","key":"1","content_type":"application/json","headers":{"event-id":"order-1","event-type":"OrderPlaced","aggregate-type":"Order","aggregate-id":"1","occurred-at":"2026-02-02T02:40:00Z"},"body":{"id": 1}}"#;
    let structured = r#"{"specversion":"1.0","id":"order-2","source":"/shop","type":"OrderPlaced","subject":"2","time":"2026-02-02T02:40:00Z","datacontenttype":"application/json","aggregatetype":"Cart","data":{"id": 2}}"#;
    assert_eq!(read(&path), format!("{plain}\n{structured}\n"));
    // What an event is called does not change its envelope.
    let mut tx = outbox.begin().await.unwrap();
    tx.write(order(3).content_type("application/cloudevents+json; charset=utf-8")).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(outbox.drain_now().await.done, 3);
    let last = read(&path).lines().last().unwrap().to_owned();
    assert!(last.starts_with(r#"{"id":"order-3","key":"3","#) && last.ends_with(r#""body":{"id": 3}}"#), "{last}");
    synced.close().await;
}

/// A line, of which the headers are looked at as they are written.
#[derive(serde::Deserialize)]
struct Headed {
    headers: Once,
}

#[tokio::test]
async fn every_format_is_read_back() {
    let (_directory, path) = place();
    let file = Ndjson::file(&path).await.unwrap();
    let carrier = Carrier { keyed: true, trace: Trace::BesideUnlessStructured, ..CARRIER };
    let seen = |line: &str| {
        let object: Value = serde_json::from_str(line).unwrap();
        let text = |name: &str| object[name].as_str().map(str::to_owned);
        let to = "lines".to_owned();
        if object.get("specversion").is_some() {
            // A structured event is the whole line, and its subject is the key.
            let (key, content_type) = (text("subject"), "application/cloudevents+json; charset=utf-8".to_owned());
            let body = line.as_bytes().to_vec();
            return Seen { to, key, content_type: Some(content_type), headers: BTreeMap::new(), body };
        }
        let body = match object.get("body_base64") {
            Some(base64) => from_base64(base64),
            // As it is in the line, not as it would be written again.
            None => line.split_once("\"body\":").unwrap().1.strip_suffix('}').unwrap().as_bytes().to_vec(),
        };
        let (key, content_type) = (text("key"), text("content_type"));
        let Headed { headers: Once(headers) } = serde_json::from_str(line).unwrap();
        Seen { to, key, content_type, headers, body }
    };
    let lines = async |_| read(&path).lines().map(seen).collect();
    formats::are_read_back(carrier, "lines", || file.lines(), lines).await;
}

#[tokio::test]
async fn lines_are_appended_and_a_torn_one_is_ended_first() {
    let (_directory, path) = place();
    std::fs::write(&path, "{\"id\":\"old\"}\n{\"id\":\"to").unwrap();
    let file = Ndjson::file(&path).await.unwrap();
    assert!(all_arrived(&file.publish(vec![json("1")]).await));
    assert!(all_arrived(&file.publish(vec![json("2"), json("3")]).await));
    let text = read(&path);
    let rest = text.strip_prefix("{\"id\":\"old\"}\n{\"id\":\"to\n").unwrap();
    assert_eq!(ids(rest), ["1", "2", "3"]);
}

#[tokio::test]
async fn several_writers_of_one_file_take_turns() {
    let (_directory, path) = place();
    let mut writers = Vec::new();
    for writer in 0..4 {
        let file = Ndjson::file(&path).await.unwrap();
        writers.push(tokio::spawn(async move {
            for batch in 0..25 {
                let messages = (0..8).map(|at| json(&format!("{writer}-{batch}-{at}"))).collect();
                assert!(all_arrived(&file.publish(messages).await));
            }
        }));
    }
    for writer in writers {
        writer.await.unwrap();
    }
    let ids = ids(&read(&path));
    assert_eq!(ids.len(), 800);
    for batch in ids.chunks(8) {
        let start = batch[0].strip_suffix("-0").unwrap();
        assert!((0..8).all(|at| batch[at] == format!("{start}-{at}")), "{batch:?}");
    }
}

#[tokio::test]
async fn a_file_that_was_moved_or_deleted_is_made_again() {
    let (directory, path) = place();
    let file = Ndjson::connect(NdjsonOptions::file(&path).sync(true)).await.unwrap();
    file.publish(vec![json("1")]).await;
    let rotated = directory.path().join("lines.1");
    std::fs::rename(&path, &rotated).unwrap();
    assert!(all_arrived(&file.publish(vec![json("2")]).await));
    assert_eq!((ids(&read(&rotated)), ids(&read(&path))), (vec!["1".to_owned()], vec!["2".to_owned()]));
    std::fs::remove_file(&path).unwrap();
    assert!(file.check().await.is_ok());
    assert!(all_arrived(&file.publish(vec![json("3")]).await));
    assert_eq!(ids(&read(&path)), ["3"]);

    drop(rotated);
    std::fs::remove_dir_all(directory.path()).unwrap();
    assert_eq!(file.check().await.unwrap_err().kind(), PublishErrorKind::Outage);
    let error = file.publish(vec![json("4")]).await.remove(0).unwrap_err();
    assert_eq!(error.kind(), PublishErrorKind::Outage);
    assert!(error.to_string().contains("lines.ndjson cannot be written to: "), "{error}");
}

#[tokio::test]
async fn a_place_where_there_can_be_no_file_is_said_at_once() {
    let (directory, _) = place();
    for path in [directory.path().to_owned(), directory.path().join("no/such/lines")] {
        let error = Ndjson::file(&path).await.unwrap_err();
        assert!(error.to_string().starts_with(&format!("{} cannot be opened: ", path.display())), "{error}");
    }
}

#[tokio::test]
async fn options_are_read_from_a_file() {
    let options: NdjsonOptions = toml::from_str("path = 'events.ndjson'\nsync = true").unwrap();
    assert_eq!(options, NdjsonOptions::file("events.ndjson").sync(true));
    assert_eq!(toml::from_str::<NdjsonOptions>("").unwrap(), NdjsonOptions::stdout());
    assert!(toml::from_str::<NdjsonOptions>("fsync = true").is_err());
}

#[tokio::test]
async fn a_device_that_is_full_is_an_outage() {
    let full = Ndjson::file("/dev/full").await.unwrap();
    for result in full.publish(vec![json("1"), json("2")]).await {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), PublishErrorKind::Outage);
        assert!(error.to_string().contains("No space left on device"), "{error}");
    }
    let outbox = testing::outbox().listen_all(full.lines()).start_test().await;
    let mut tx = outbox.begin().await.unwrap();
    tx.write(order(1)).await.unwrap();
    tx.commit().await.unwrap();
    let opened = async {
        while full.breaker().state() != BreakerState::Open {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within("the breaker opens", opened).await;
    outbox.shutdown().await;
    let record = outbox.admin().find(&EventId::new("order-1").unwrap()).await.unwrap().unwrap();
    assert_eq!(record.state.attempts, 0);
}

/// A disk of one's own, which is soon full. Needs to be root, as in the tests of continuous integration.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn mount() -> Option<Self> {
        if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let mount =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]).arg(directory.path()).output();
        let mount = mount.unwrap();
        assert!(mount.status.success(), "{}", String::from_utf8_lossy(&mount.stderr));
        Some(Self(directory))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[tokio::test]
async fn on_a_full_disk_only_whole_lines_are_left_and_acknowledged() {
    let Some(disk) = SmallDisk::mount() else {
        eprintln!("only root can mount a small disk; the other tests of torn lines need none");
        return;
    };
    let path = disk.0.path().join("lines.ndjson");
    let ballast = disk.0.path().join("ballast");
    std::fs::write(&ballast, vec![0; 32 << 10]).unwrap();
    for sync in [false, true] {
        let file = Ndjson::connect(NdjsonOptions::file(&path).sync(sync)).await.unwrap();
        let messages = || (0..300).map(|id| json(&id.to_string())).collect::<Vec<_>>();
        let results = file.publish(messages()).await;
        let arrived = results.iter().take_while(|result| result.is_ok()).count();
        assert!(arrived > 50 && arrived < 300, "{arrived} arrived");
        for result in &results[arrived..] {
            assert_eq!(result.as_ref().unwrap_err().kind(), PublishErrorKind::Outage);
        }
        assert_eq!(ids(&read(&path)), (0..arrived).map(|id| id.to_string()).collect::<Vec<_>>());

        // It is still full.
        assert!(file.publish(messages().split_off(arrived)).await.iter().all(Result::is_err));
        assert_eq!(ids(&read(&path)).len(), arrived);

        std::fs::write(&ballast, "").unwrap();
        assert!(all_arrived(&file.publish(messages().split_off(arrived).split_off(1)).await[..20]));
        let after = ids(&read(&path));
        assert_eq!(
            (after[arrived - 1].as_str(), after[arrived].parse::<usize>().unwrap()),
            ((arrived - 1).to_string().as_str(), arrived + 1)
        );
        // Its room is taken until nobody has it open.
        drop(file);
        std::fs::remove_file(&path).unwrap();
        let closed = async {
            while std::fs::write(&ballast, vec![0; 32 << 10]).is_err() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        within("it is closed", closed).await;
    }
}

/// What the program below does: writes to its standard output, as often as a line is in its input, and tells in a file what
/// came of it.
const REPORT: &str = "POSTHASTE_TEST_NDJSON_REPORT";

#[tokio::test]
#[ignore = "part of the tests below, which start it"]
async fn writes_to_its_standard_output() {
    let report = PathBuf::from(std::env::var_os(REPORT).expect("started by a test"));
    let stdout = Ndjson::stdout();
    let mut told = String::new();
    for (at, line) in std::io::stdin().lines().enumerate() {
        let sent = stdout.publish(vec![json(&format!("{at}-{}", line.unwrap())), json(&format!("{at}-second"))]).await;
        for result in sent {
            match result {
                Ok(()) => told.push_str("arrived\n"),
                Err(error) => told.push_str(&format!("{:?}: {error}\n", error.kind())),
            }
        }
        std::fs::write(&report, &told).unwrap();
    }
}

fn program(report: &Path) -> std::process::Child {
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", "ndjson::writes_to_its_standard_output", "--ignored", "--nocapture", "--test-threads=1"]);
    program.env(REPORT, report).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

fn say(program: &mut std::process::Child, text: &str) {
    use std::io::Write;
    let stdin = program.stdin.as_mut().unwrap();
    stdin.write_all(text.as_bytes()).unwrap();
    stdin.flush().unwrap();
}

#[test]
fn standard_output_has_lines_and_nothing_is_kept_back() {
    let (_directory, report) = place();
    let mut program = program(&report);
    let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
    for at in 0..3 {
        say(&mut program, "first\n");
        let mut id = || {
            let line = lines.by_ref().map(Result::unwrap).find(|line| line.contains('{')).unwrap();
            // The harness has begun the first line.
            serde_json::from_str::<Value>(&line[line.find('{').unwrap()..]).unwrap()["id"].as_str().unwrap().to_owned()
        };
        assert_eq!((id(), id()), (format!("{at}-first"), format!("{at}-second")));
    }
    drop(program.stdin.take());
    lines.for_each(drop);
    assert!(program.wait().unwrap().success());
    assert_eq!(read(&report), "arrived\n".repeat(6));
}

#[test]
fn standard_output_that_nobody_reads_any_more_is_an_outage() {
    let (_directory, report) = place();
    let mut program = program(&report);
    let mut stdout = BufReader::new(program.stdout.take().unwrap());
    say(&mut program, "first\n");
    let mut line = String::new();
    while !line.contains('{') {
        stdout.read_line(&mut line).unwrap();
    }
    stdout.read_line(&mut line).unwrap();
    drop(stdout);
    say(&mut program, "second\n");
    drop(program.stdin.take());
    // Its test harness has nobody to tell of its success either.
    program.wait().unwrap();
    let told = read(&report);
    let told: Vec<_> = told.lines().collect();
    assert_eq!(told[..2], ["arrived", "arrived"]);
    assert_eq!(told.len(), 4, "{told:?}");
    for outage in &told[2..] {
        assert_eq!(*outage, "Outage: stdout cannot be written to: Broken pipe (os error 32)");
    }
}

#[tokio::test]
async fn a_named_pipe_whose_reader_is_gone_is_an_outage_and_lines_are_whole_for_the_next() {
    let (_directory, path) = place();
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    let opened = tokio::spawn(Ndjson::file(path.clone()));
    let reader = path.clone();
    let first = tokio::task::spawn_blocking(move || File::open(reader).unwrap());
    let mut first = first.await.unwrap();
    let pipe = opened.await.unwrap().unwrap();
    assert!(all_arrived(&pipe.publish(vec![json("1")]).await));
    let mut text = vec![0; 4096];
    let read = first.read(&mut text).unwrap();
    assert_eq!(ids(std::str::from_utf8(&text[..read]).unwrap()), ["1"]);

    // Large enough that the pipe takes a part only, and its reader leaves in between.
    let large = message("2", "application/octet-stream", &vec![b'x'; 300 << 10]);
    let sending = tokio::spawn({
        let pipe = pipe.clone();
        async move { pipe.publish(vec![large, json("3")]).await }
    });
    let left = tokio::task::spawn_blocking(move || first.read_exact(&mut [0; 1000]).unwrap());
    left.await.unwrap();
    for result in sending.await.unwrap() {
        assert_eq!(result.unwrap_err().kind(), PublishErrorKind::Outage);
    }

    // What the pipe had taken of the line is still in it.
    let second = File::open(&path).unwrap();
    let lines =
        tokio::task::spawn_blocking(move || BufReader::new(second).lines().take(2).collect::<Result<Vec<_>, _>>());
    assert!(all_arrived(&pipe.publish(vec![json("3")]).await));
    let lines = within("two lines are there", lines).await.unwrap().unwrap();
    assert!(serde_json::from_str::<Value>(&lines[0]).is_err(), "{}", lines[0]);
    assert_eq!(ids(&format!("{}\n", lines[1])), ["3"]);
}

fn pipe_at(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// A reader that reads nothing until it is told to.
async fn opened_by_a_reader(path: &Path) -> (Ndjson, File) {
    let opened = tokio::spawn(Ndjson::file(path.to_owned()));
    let path = path.to_owned();
    let reader = tokio::task::spawn_blocking(move || File::open(path).unwrap()).await.unwrap();
    (opened.await.unwrap().unwrap(), reader)
}

#[tokio::test]
async fn a_reader_that_reads_nothing_is_an_outage_until_it_reads() {
    let (_directory, path) = place();
    pipe_at(&path);
    let (pipe, reader) = opened_by_a_reader(&path).await;
    let outbox = testing::outbox().listen_all(pipe.lines()).start_test().await;
    let mut tx = outbox.begin().await.unwrap();
    // More than a pipe holds.
    let large = Event::builder("Large").id("large").json_text(format!("\"{}\"", "x".repeat(300 << 10)));
    tx.write(large).await.unwrap();
    tx.commit().await.unwrap();
    let opened = async {
        while pipe.breaker().state() != BreakerState::Open {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within("the breaker opens", opened).await;
    let id = EventId::new("large").unwrap();
    assert_eq!(outbox.admin().find(&id).await.unwrap().unwrap().state.attempts, 0);
    let (checked, ()) = tokio::join!(pipe.check(), pipe.close());
    assert_eq!(checked.unwrap_err().kind(), PublishErrorKind::Outage);

    let reading = std::thread::spawn(move || {
        let mut lines = BufReader::new(reader).lines();
        // What was held up, and what was sent again.
        [lines.next().unwrap().unwrap(), lines.next().unwrap().unwrap()]
    });
    let done = async {
        while outbox.admin().counts().await.unwrap().done < 1 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within("it is done", done).await;
    let lines = reading.join().unwrap();
    assert_eq!(ids(&format!("{}\n{}\n", lines[0], lines[1])), ["large", "large"]);
    assert_eq!(outbox.admin().find(&id).await.unwrap().unwrap().state.attempts, 0);
    outbox.shutdown().await;
}

#[tokio::test]
async fn what_never_gets_its_turn_is_an_outage() {
    let (directory, path) = place();
    let fifo = directory.path().join("fifo");
    pipe_at(&fifo);
    let file = Ndjson::file(&path).await.unwrap();
    let held = File::open(&path).unwrap();
    held.lock().unwrap();
    let (written, opened) = tokio::join!(file.publish(vec![json("1")]), Ndjson::file(&fifo));
    let error = written.into_iter().next().unwrap().unwrap_err();
    assert_eq!(error.kind(), PublishErrorKind::Outage);
    assert!(error.to_string().contains("another process holds the lock of the file"), "{error}");
    let error = opened.unwrap_err();
    assert!(error.to_string().ends_with("fifo cannot be opened: nobody opens it at its other end"), "{error}");
    drop(held);
    assert!(all_arrived(&file.publish(vec![json("2")]).await));
    assert_eq!(ids(&read(&path)), ["2"]);
}
