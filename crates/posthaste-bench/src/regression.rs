//! What does not depend on the machine: how many statements and round trips a thousand events take, and how much of the log.
//!
//! The bounds are a little above what was counted. Whoever crosses one has made a path longer, and either did not mean to or
//! changes the bound and says why.

use std::time::Duration;

use posthaste_core::{Options, Ordered, Outbox, WriteHook};
use posthaste_sql::PgStore;
use posthaste_torture::proxy::Proxy;
use posthaste_torture::server::{Kind, Server, ServerOptions};
use tokio::sync::{Mutex, MutexGuard};

use crate::server::Served;
use crate::statements::Statements;
use crate::subject::mariadb::MariaDb;
use crate::subject::postgres::Postgres;
use crate::subject::sqlite::Sqlite;
use crate::subject::{Filling, Subject, check_done, event, fill, payload};
use crate::workload::Counter;
use crate::workload::drain::{Relays, check_drained};

/// Events on each path.
const EVENTS: usize = 1000;

/// Events in a transaction of the hot path.
const PER_TRANSACTION: usize = 100;

/// Aggregates of a backlog.
const KEYS: usize = 100;

/// Transactions with one event each.
const TRANSACTIONS: u64 = 100;

/// What a thousand events took.
#[derive(Debug)]
struct Counted {
    statements: u64,
    round_trips: u64,
    log_bytes: u64,
}

/// The most that a thousand events may take.
struct Bounds {
    statements: u64,
    round_trips: u64,
    log_bytes: u64,
}

impl Bounds {
    /// What is beyond them, in words.
    fn crossed(&self, counted: &Counted) -> Vec<String> {
        let counts = [
            ("statements", counted.statements, self.statements),
            ("round trips", counted.round_trips, self.round_trips),
            ("bytes of the log", counted.log_bytes, self.log_bytes),
        ];
        let crossed = counts.into_iter().filter(|(_, count, bound)| count > bound);
        crossed.map(|(what, count, bound)| format!("{count} {what} for {EVENTS} events, at most {bound}")).collect()
    }

    #[track_caller]
    fn hold(&self, counted: &Counted) {
        println!("{counted:?}");
        assert_eq!(self.crossed(counted), Vec::<String>::new(), "{counted:?}");
    }
}

/// Statements of all tests of a process are counted together, so they take turns.
async fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::const_new(());
    ALONE.lock().await
}

/// Ten transactions with a hundred events each, delivered on the hot path.
async fn hot<S: Subject>(subject: &S, proxy: Option<&Proxy>, options: Options) -> Counted {
    let store = subject.fresh().await.unwrap();
    counted(subject, proxy, async {
        let (counter, listener) = Counter::listener(EVENTS);
        let outbox = Outbox::builder(store.clone()).options(options).listen_all(listener).start().await.unwrap();
        let payload = payload(200);
        for number in 0..EVENTS / PER_TRANSACTION {
            let mut tx = outbox.begin().await.unwrap();
            tx.write_all((0..PER_TRANSACTION).map(|_| event(number, &payload))).await.unwrap();
            tx.commit().await.unwrap();
        }
        counter.wait().await.unwrap();
        outbox.shutdown().await;
        check_done(&store, EVENTS).await.unwrap();
    })
    .await
}

/// Transactions with a business row and an event each, in either order. Only who takes part in writing, as the hot path does, has to
/// know whether the event is still there at the end.
async fn lent<S: Subject>(subject: &S, proxy: &Proxy, order: Order, takes_part: bool) -> Counted {
    let store = subject.fresh().await.unwrap();
    let mut builder = Outbox::writer_only(store.clone());
    if takes_part {
        builder = builder.hook(Silent);
    }
    let outbox = builder.start().await.unwrap();
    let write = async || {
        let mut tx = outbox.begin().await.unwrap();
        if order == Order::EventLast {
            S::order(&mut tx).await.unwrap();
        }
        tx.write(event(1, &payload(200))).await.unwrap();
        if order == Order::EventFirst {
            S::order(&mut tx).await.unwrap();
        }
        tx.commit().await.unwrap();
    };
    // Statements are prepared.
    write().await;
    let counted = counted(subject, Some(proxy), async {
        for _ in 0..TRANSACTIONS {
            write().await;
        }
    })
    .await;
    outbox.shutdown().await;
    counted
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    EventFirst,
    EventLast,
}

struct Silent;

impl WriteHook for Silent {}

/// Who writes the event last pays nothing for the look at it, and who writes it first no round trip.
async fn looks_take_no_round_trips<S: Subject>(subject: &S, proxy: &Proxy) {
    // What a pool, or a signal to relays, does by itself may come at any time, and an answer may come in two pieces. A look with a
    // round trip of its own would be one more for every transaction.
    const SOME: u64 = TRANSACTIONS / 2;
    for order in [Order::EventLast, Order::EventFirst] {
        let without = lent(subject, proxy, order, false).await;
        let with = lent(subject, proxy, order, true).await;
        println!("{order:?}: {without:?} without, {with:?} with a look");
        let statements = with.statements.saturating_sub(without.statements);
        assert!(with.round_trips <= without.round_trips + SOME, "{order:?}: {without:?}, {with:?}");
        assert!(with.round_trips >= TRANSACTIONS * 4, "{order:?}: {with:?}");
        let expected = if order == Order::EventFirst { TRANSACTIONS } else { 0 };
        assert!(statements.abs_diff(expected) <= SOME, "{order:?}: {statements} more statements");
    }
}

/// A thousand transactions with a business row and an event each, one after the other, which nobody delivers.
/// What wakes relays after a commit goes by the clock, and is left out.
async fn single<S: Subject>(subject: &S, proxy: Option<&Proxy>, silent: fn(S::Store) -> S::Store) -> Counted {
    let store = silent(subject.fresh().await.unwrap());
    let outbox = Outbox::writer_only(store).start().await.unwrap();
    let payload = payload(200);
    let write = async |number| {
        let mut tx = outbox.begin().await.unwrap();
        S::order(&mut tx).await.unwrap();
        tx.write(event(number, &payload)).await.unwrap();
        tx.commit().await.unwrap();
    };
    // Statements are prepared.
    write(0).await;
    let counted = counted(subject, proxy, async {
        for number in 1..=EVENTS {
            write(number).await;
        }
    })
    .await;
    outbox.shutdown().await;
    counted
}

/// A backlog of a thousand events.
async fn cold<S: Subject>(subject: &S, proxy: Option<&Proxy>, options: Options) -> Counted {
    backlog(subject, proxy, Relays::default(), options).await
}

/// The same, in order or deleting what is done.
async fn backlog<S: Subject>(subject: &S, proxy: Option<&Proxy>, relays: Relays, options: Options) -> Counted {
    let store = subject.fresh().await.unwrap();
    if relays.ordered {
        S::prepare_lanes(&store).await.unwrap();
    }
    let filling = Filling { events: EVENTS, keys: KEYS, ..Filling::default() };
    fill::<S>(&store, filling).await.unwrap();
    let counted = counted(subject, proxy, async {
        let (counter, listener) = Counter::listener(EVENTS);
        let store = if relays.deleting { S::deleting(store.clone()) } else { store.clone() };
        let mut outbox = Outbox::builder(store).options(options).listen_all(listener);
        if relays.ordered {
            outbox = outbox.ordered(Ordered::all());
        }
        let outbox = outbox.start().await.unwrap();
        counter.wait().await.unwrap();
        outbox.shutdown().await;
    })
    .await;
    check_drained(&store, filling, relays.deleting).await.unwrap();
    counted
}

fn in_order() -> Relays {
    Relays { ordered: true, ..Relays::default() }
}

fn deleting() -> Relays {
    Relays { deleting: true, ..Relays::default() }
}

async fn counted<S: Subject>(subject: &S, proxy: Option<&Proxy>, work: impl Future<Output = ()>) -> Counted {
    let turns = || proxy.map_or(0, |proxy| proxy.stats().turns);
    let log = async || subject.usage().await.unwrap().wal_bytes.unwrap_or(0);
    let log_before = log().await;
    let (turns_before, statements) = (turns(), Statements::count().expect("nothing else listens to the log"));
    work.await;
    let (statements, round_trips) = (statements.so_far(), turns() - turns_before);
    Counted { statements, round_trips, log_bytes: log().await - log_before }
}

/// A server, and a way to it on which round trips are counted.
async fn served(kind: Kind) -> (Server, Proxy, Served) {
    let options = ServerOptions::default().setting("max_connections", "50");
    let server = Server::start(kind, &options).await.unwrap();
    let proxy = Proxy::start(server.addr()).await.unwrap();
    let served = Served::at(&server.url_at(proxy.addr()));
    (server, proxy, served)
}

/// Every path of a database.
struct Paths {
    /// A thousand transactions.
    single: Bounds,
    hot: Bounds,
    cold: Bounds,
    in_order: Bounds,
    deleting: Bounds,
}

impl Paths {
    async fn hold<S: Subject>(&self, subject: &S, proxy: Option<&Proxy>, silent: fn(S::Store) -> S::Store) {
        let default = Options::default;
        self.single.hold(&single(subject, proxy, silent).await);
        self.hot.hold(&hot(subject, proxy, default()).await);
        self.cold.hold(&cold(subject, proxy, default()).await);
        self.in_order.hold(&backlog(subject, proxy, in_order(), default()).await);
        self.deleting.hold(&backlog(subject, proxy, deleting(), default()).await);
    }

    /// The check itself: settlements one by one, instead of in batches, are noticed on every path.
    async fn notice_single_settlements<S: Subject>(&self, subject: &S, proxy: Option<&Proxy>) {
        let options = || Options { settle_batch: 1, settle_linger: Duration::ZERO, ..Options::default() };
        for (path, bounds, counted) in [
            ("hot", &self.hot, hot(subject, proxy, options()).await),
            ("cold", &self.cold, cold(subject, proxy, options()).await),
            ("in order", &self.in_order, backlog(subject, proxy, in_order(), options()).await),
            ("deleting", &self.deleting, backlog(subject, proxy, deleting(), options()).await),
        ] {
            assert!(counted.statements > EVENTS as u64, "{path}: {counted:?}");
            // Statements, and round trips where there is a way on which to count them.
            assert!(bounds.crossed(&counted).len() > usize::from(proxy.is_some()), "{path}: {counted:?}");
        }
    }
}

const SQLITE: Paths = {
    const COLD: Bounds = Bounds { statements: 40, round_trips: 0, log_bytes: 0 };
    Paths {
        single: Bounds { statements: 1000, ..COLD },
        // A hundred rows are three inserts, of sizes that stay prepared.
        hot: Bounds { statements: 70, ..COLD },
        cold: COLD,
        in_order: Bounds { statements: 60, ..COLD },
        deleting: COLD,
    }
};

const POSTGRES: Paths = Paths {
    // BEGIN, the business row, the event and COMMIT.
    single: Bounds { statements: 1000, round_trips: 4200, log_bytes: 1_200_000 },
    hot: Bounds { statements: 40, round_trips: 180, log_bytes: 1_600_000 },
    cold: Bounds { statements: 30, round_trips: 100, log_bytes: 1_900_000 },
    in_order: Bounds { statements: 60, round_trips: 200, log_bytes: 1_300_000 },
    deleting: Bounds { statements: 30, round_trips: 100, log_bytes: 1_300_000 },
};

// Its log is written in blocks, by whoever comes first: nothing to count on.
const MARIADB: Paths = Paths {
    single: Bounds { statements: 1000, round_trips: 4200, log_bytes: u64::MAX },
    hot: Bounds { statements: 80, round_trips: 300, log_bytes: u64::MAX },
    cold: Bounds { statements: 40, round_trips: 150, log_bytes: u64::MAX },
    in_order: Bounds { statements: 80, round_trips: 300, log_bytes: u64::MAX },
    deleting: Bounds { statements: 40, round_trips: 150, log_bytes: u64::MAX },
};

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_takes_few_statements() {
    let (_alone, subject) = (alone().await, Sqlite::new().unwrap());
    SQLITE.hold(&subject, None, |store| store).await;
    SQLITE.notice_single_settlements(&subject, None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_takes_few_statements_round_trips_and_bytes() {
    let _alone = alone().await;
    let (_server, proxy, served) = served(Kind::Postgres).await;
    let subject = Postgres::new(served).await.unwrap();
    POSTGRES.hold(&subject, Some(&proxy), PgStore::without_wake_ups).await;
    POSTGRES.notice_single_settlements(&subject, Some(&proxy)).await;
    looks_take_no_round_trips(&subject, &proxy).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mariadb_takes_few_statements_and_round_trips() {
    let _alone = alone().await;
    let (_server, proxy, served) = served(Kind::MariaDb).await;
    let subject = MariaDb::new(served).await.unwrap();
    MARIADB.hold(&subject, Some(&proxy), |store| store).await;
    MARIADB.notice_single_settlements(&subject, Some(&proxy)).await;
    looks_take_no_round_trips(&subject, &proxy).await;
}
