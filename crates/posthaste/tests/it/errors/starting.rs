//! What keeps an outbox from starting.

use std::time::Duration;

use posthaste::event::{Kind, TypedEvent, Upcasts};
use posthaste::listener::AnyListener;
use posthaste::options::Error;
use posthaste::outbox::StartError;
use posthaste::store::RelayOfLanes;
use posthaste::{Delivery, MemoryStore, OnDead, Options, Ordered, Outbox, OutboxBuilder, Registry, SqliteStore};
use serde::{Deserialize, Serialize};

use super::Book;
use super::decoding::Placed;

pub(super) async fn write(book: &mut Book) {
    options(book);
    environment(book);
    registrations(book);
    starts(book).await;
}

fn options(book: &mut Book) {
    let sensible = Options::default;
    let year = Duration::from_secs(366 * 24 * 3600);
    let wrong = [
        ("workers: 0", Options { workers: 0, ..sensible() }),
        ("hot_queue: 2,000,000", Options { hot_queue: 2_000_000, ..sensible() }),
        ("lease: 0", Options { lease: Duration::ZERO, ..sensible() }),
        ("listener_time_limit: 366 days", Options { listener_time_limit: year, ..sensible() }),
        ("retry_attempts: 0", Options { retry_attempts: 0, ..sensible() }),
        ("retry_max: 1ms", Options { retry_max: Duration::from_millis(1), ..sensible() }),
        ("settle_linger: 200s", Options { settle_linger: Duration::from_secs(200), ..sensible() }),
        ("retention_done: for ever", Options { retention_done: Some(Duration::MAX), ..sensible() }),
        ("retention_any: 1s", Options { retention_any: Some(Duration::from_secs(1)), ..sensible() }),
        ("owner of 91 characters", Options { owner: Some("n".repeat(91)), ..sensible() }),
    ];
    for (call, options) in wrong {
        book.add("options", &format!("Options::check, {call}"), &options.check().unwrap_err());
    }
}

fn environment(book: &mut Book) {
    for (name, value) in [
        ("POSTHASTE_WORKERS", "eight"),
        ("POSTHASTE_LEASE", "soon"),
        ("POSTHASTE_LEASE", "-5s"),
        ("POSTHASTE_DATABASE_URL", "postgres://user:secret@host/shop"),
    ] {
        let said: Result<Options, Error> = Options::default().with_env("POSTHASTE_", [(name.into(), value.into())]);
        book.add("options", &format!("Options::with_env, {name}={value}"), &said.unwrap_err());
    }
}

async fn nobody(_: Delivery) {}

#[derive(Serialize, Deserialize)]
struct Here {}

impl TypedEvent for Here {
    const KINDS: &'static [Kind] = &[Kind::new("Here", 1)];

    fn upcasts() -> Upcasts<Self> {
        Upcasts::new().upcast(|_: There| Self {})
    }
}

#[derive(Serialize, Deserialize)]
struct There {}

impl TypedEvent for There {
    const KINDS: &'static [Kind] = &[Kind::new("There", 1)];

    fn upcasts() -> Upcasts<Self> {
        Upcasts::new().upcast(|_: Here| Self {})
    }
}

fn registrations(book: &mut Book) {
    let mut registry = Registry::new();
    registry.register("Order", "OrderPlaced", nobody).unwrap();
    registry.register_all(nobody).unwrap();
    let mut add = |call, error| book.add("registry", call, &error);
    add("Registry::register, a second listener", registry.register("Order", "OrderPlaced", nobody).unwrap_err());
    add("Registry::register_all, a second listener", registry.register_all(nobody).unwrap_err());
    add("Registry::on, a typed event that is taken", registry.on::<Placed>(|_, _| async {}).unwrap_err());
    add("Registry::on, types that are made of each other", registry.on::<Here>(|_, _| async {}).unwrap_err());
    add("Registry::register, no aggregate type", registry.register("", "OrderPlaced", nobody).unwrap_err());
    let mistaken = AnyListener::mistaken(std::io::Error::other("its topic is empty"));
    add("Registry::register, a listener of wrong settings", registry.register("Order", "*", mistaken).unwrap_err());
    let mistaken = [AnyListener::mistaken(std::io::Error::other("its topic is empty"))];
    let chosen = registry.register_by(mistaken, |_| Some(0)).unwrap_err();
    add("Registry::register_by, a listener of wrong settings", chosen);
    add("Registry::register_global, no event type", registry.register_global("", nobody).unwrap_err());
}

async fn starts(book: &mut Book) {
    async fn start(outbox: OutboxBuilder<MemoryStore>) -> StartError {
        outbox.start().await.unwrap_err()
    }
    let outbox = || Outbox::builder(MemoryStore::new());
    let wrong = Options { workers: 0, ..Options::default() };
    book.add("start", "OutboxBuilder::start, a wrong option", &start(outbox().options(wrong)).await);
    let twice = outbox().listen_all(nobody).listen_all(nobody);
    book.add("start", "OutboxBuilder::start, a second listener", &start(twice).await);
    book.add("start", "OutboxBuilder::start, no listener", &start(outbox()).await);
    let never_migrated = SqliteStore::connect("sqlite::memory:").await.unwrap();
    let alone = Outbox::single_node(never_migrated).listen_all(nobody).start().await;
    book.add("start", "OutboxBuilder::start, a table that was never migrated", &alone.unwrap_err());
    let unprepared = SqliteStore::connect("sqlite::memory:").await.unwrap();
    unprepared.migrate().await.unwrap();
    let ordered = Outbox::builder(unprepared).ordered(Ordered::all()).listen_all(nobody).start().await;
    book.add("start", "OutboxBuilder::ordered, a table that was never prepared for it", &ordered.unwrap_err());
    let policy = outbox().on_dead(OnDead::Skip).listen_all(nobody);
    book.add("start", "OutboxBuilder::on_dead, without order", &start(policy).await);
    let other = RelayOfLanes { owner: "shop-1".to_owned(), settings: r#"["Order"]"#.to_owned() };
    for mine in ["all", "nothing"] {
        let error = StartError::OtherSettings { mine: mine.to_owned(), others: vec![other.clone()] };
        book.add(
            "start",
            &format!("OutboxBuilder::start, beside one that has other events in order, with {mine}"),
            &error,
        );
    }
    // Every store here can.
    book.add("start", "OutboxBuilder::ordered, a store that cannot", &StartError::NoLanes);
    book.add("start", "OutboxBuilder::ordered, a store that cannot park", &StartError::NoParking);
}
