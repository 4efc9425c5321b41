//! `posthaste relay`: takes events from a table and delivers them.

mod condition;
mod connected;
mod endpoint;
mod holds;
mod meter;
mod obstacle;
mod once;
#[cfg(feature = "otlp")]
mod otlp;
mod recorder;
mod router;
mod sampler;
mod start;

use std::future::Future;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use posthaste::metrics::FacadeMetrics;
use posthaste::store::Store;
use posthaste::{Closed, Outbox, OutboxBuilder, Registry};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::database::{Database, with_store};
use crate::exit::{Failed, Status};
use crate::settings::{self, Flags, Given, Listen, LogFormat, Settings};
use crate::{log, rows};

pub(crate) use connected::Connected;
pub(crate) use holds::{Holds, kind};
pub(crate) use router::{mistakes, registry};

use condition::{Condition, Step};
use endpoint::Endpoint;
use meter::RouteMeter;
use obstacle::Obstacles;
use once::Once;
use recorder::Recorder;
use router::Meters;

/// Deliver the events of a table to brokers, webhooks, files or standard output.
///
/// What goes where is said in posthaste.toml (see posthaste init). Without one, events of the file posthaste.db in this
/// directory are printed as lines of JSON. Any number of relays may share a table.
///
/// A database or a destination that is away is waited for. SIGTERM, SIGHUP and Ctrl-C end it in order: nothing more is claimed, what is
/// in hand is delivered, and what the deadline cuts off is given back. A second signal gives it back at once.
///
/// Exit status: 0 if it ended in order, 1 if something is left to its leases, 2 if it could not run, 3 if the settings are wrong,
/// 4 if the database refuses, 5 if the table is not ready, 6 if a destination refuses, 7 if nobody can listen at http.listen, 8 if
/// --once has left events that are due, because they are paused or their destination is away.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    flags: Flags,

    /// Deliver what is due, and end. What is put off for more than a second is left, and so is what is paused.
    #[arg(long)]
    once: bool,

    /// With --once: how long to wait for destinations that are away, before their events are left, and for a database that is away,
    /// before it is given up.
    #[arg(long, value_name = "LENGTH", default_value = "30s", requires = "once", value_parser = rows::length)]
    wait: Duration,

    /// How the log looks that goes to standard error.
    #[arg(long, value_enum, value_name = "FORMAT")]
    log_format: Option<LogFormat>,

    /// How many deliveries run at once.
    #[arg(long, value_name = "N")]
    workers: Option<String>,

    /// Deliver the events of one aggregate in order: true for all, or the aggregate types, with commas between.
    #[arg(long, value_name = "TYPES")]
    ordered: Option<String>,

    /// What an event that cannot be delivered does to its aggregate, in order: park, block or skip.
    #[arg(long, value_name = "POLICY")]
    on_dead: Option<String>,
}

pub(crate) async fn run(args: Args) -> Result<ExitCode, Failed> {
    let format = args.log_format.map(|format| match format {
        LogFormat::Text => "text".to_owned(),
        LogFormat::Json => "json".to_owned(),
    });
    let more = [
        format.map(|format| ("--log-format", ["log", "format"], format)),
        args.workers.map(|workers| ("--workers", ["relay", "workers"], workers)),
        args.ordered.map(|ordered| ("--ordered", ["relay", "ordered"], ordered)),
        args.on_dead.map(|policy| ("--on-dead", ["relay", "on_dead"], policy)),
    ];
    let more: Vec<_> = more.into_iter().flatten().collect();
    // Whoever reads the log by a program gets nothing else, also if the settings are wrong.
    log::is_in(args.log_format.or_else(LogFormat::of_environment).unwrap_or_default());
    let given = Given::read(&args.flags, &more)?;
    log::is_in(given.log_format());
    let settings = given.settings_to_connect()?;
    log::begin(settings.log.format, Some(settings.log.filter.as_deref().unwrap_or("warn,posthaste=info")));
    let mut signals = Signals::new()?;
    // Whoever drains and ends is not there for long enough to be asked.
    let watched = if args.once { None } else { Watched::begin(&settings).await? };
    let holds = Arc::new(Holds::new(&settings));
    let limit = args.once.then_some(args.wait);
    let Started { registry, database, connected, waited } = tokio::select! {
        started = start(&settings, &holds, watched.as_ref(), limit) => started?,
        signal = signals.next() => {
            info!(signal, "ended before anything was claimed");
            return Ok(ExitCode::SUCCESS);
        }
    };
    // Ends with the relay.
    let mut beside = JoinSet::new();
    let (heeding, asked) = (Arc::clone(&holds), database.clone());
    beside.spawn(async move { heeding.watch(&asked).await });
    if let Some(watched) = &watched {
        let condition = Arc::clone(&watched.condition);
        let (interval, is_sent) = (settings.http.sample_interval, settings.telemetry.otlp.is_some());
        beside.spawn(sampler::sample(database.clone(), condition, interval, is_sent));
    }
    let ended = if args.once {
        let obstacles = Obstacles { settings: &settings, holds: &holds, connected: &connected };
        let once = Once { obstacles, wait: args.wait.saturating_sub(waited), patience: args.wait, database: &database };
        match settings.order.ordered {
            Some(_) => {
                with_store!(&database, store => once.drain_in_order(store.clone(), registry, &mut signals).await?)
            }
            None => with_store!(&database, store => once.drain(Arc::new(store.clone()), registry, &mut signals).await?),
        }
    } else {
        let closed = with_store!(&database, store => deliver(store.clone(), registry, &settings, watched.as_ref(), &mut signals).await?);
        Ended { closed, ..Ended::default() }
    };
    // Nothing looks at a database that is closed.
    beside.shutdown().await;
    // What became of the events is known now, however long the other ends take to say goodbye.
    ended.tell();
    close(connected, database, watched, &mut signals).await;
    ended.into_status()
}

/// How long all connections may take to close, together.
const CLOSING: Duration = Duration::from_secs(5);

/// Closes everything at once, within a limit; a signal cuts it short. All that was to be settled is.
async fn close(connected: Vec<Connected>, database: Database, watched: Option<Watched>, signals: &mut Signals) {
    let mut closing = JoinSet::new();
    for destination in connected {
        closing.spawn(async move { destination.close().await });
    }
    closing.spawn(async move { database.close().await });
    if let Some(watched) = watched {
        closing.spawn(watched.end());
    }
    let all = async { while closing.join_next().await.is_some() {} };
    tokio::select! {
        closed = timeout(CLOSING, all) => {
            if closed.is_err() {
                warn!("not everything could be closed within {CLOSING:?}; the other ends will notice");
            }
        }
        signal = signals.next() => warn!(signal, "ending at once, before everything is closed"),
    }
}

/// How a relay ended.
#[derive(Default)]
struct Ended {
    closed: Closed,
    /// Whether `--once` has left events that are due.
    is_left: bool,
    /// Whether a claim got no answer: what it takes waits until its lease runs out.
    is_claiming: bool,
    /// Why it could not go on.
    failed: Option<Failed>,
}

impl Ended {
    fn tell(&self) {
        let Closed { released, abandoned, .. } = self.closed;
        if self.is_claiming {
            warn!("a claim is still under way; what it takes is delivered by others when its lease runs out");
        }
        if self.closed.is_clean() && !self.is_claiming {
            info!(released, "ended, with everything in hand delivered");
        } else {
            warn!(
                released,
                abandoned,
                "ended: what was released is delivered by others at once, what was abandoned when its leases run out"
            );
        }
    }

    fn into_status(self) -> Result<ExitCode, Failed> {
        match self.failed {
            Some(failed) => Err(failed),
            None if self.closed.abandoned > 0 || self.is_claiming => Ok(Status::No.into()),
            None if self.is_left => Ok(Status::Left.into()),
            None => Ok(ExitCode::SUCCESS),
        }
    }
}

/// What watches a relay, and answers whoever asks how it is.
struct Watched {
    condition: Arc<Condition>,
    meters: Meters,
    /// Dropped at the end.
    _endpoint: Option<Endpoint>,
    #[cfg(feature = "otlp")]
    otlp: Option<otlp::Otlp>,
}

impl Watched {
    /// From before anything is waited for, so that it can be asked what is waited for. Nothing if nobody may ask.
    async fn begin(settings: &Settings) -> Result<Option<Self>, Failed> {
        if settings.http.listen == Listen(None) && settings.telemetry.otlp.is_none() {
            return Ok(None);
        }
        let recorder = Recorder::install();
        sampler::tell_of_start();
        let (condition, meters) = (Condition::new(), Meters::new(settings));
        #[cfg(feature = "otlp")]
        let otlp = otlp::Otlp::begin(settings, Arc::clone(&recorder));
        let endpoint = match settings.http.listen {
            Listen(None) => None,
            Listen(Some(address)) => {
                Some(Endpoint::open(&settings.http, address, Arc::clone(&condition), recorder).await?)
            }
        };
        Ok(Some(Self {
            condition,
            meters,
            _endpoint: endpoint,
            #[cfg(feature = "otlp")]
            otlp,
        }))
    }

    /// Ends it, with the last word sent.
    async fn end(self) {
        #[cfg(feature = "otlp")]
        if let Some(otlp) = self.otlp {
            otlp.end().await;
        }
    }
}

/// Everything that a relay needs to deliver.
struct Started {
    registry: Registry,
    database: Database,
    connected: Vec<Connected>,
    /// How long destinations were waited for.
    waited: Duration,
}

/// Checks everything, and waits for whatever is away, up to the limit if there is one.
async fn start(
    settings: &Settings,
    holds: &Holds,
    watched: Option<&Watched>,
    limit: Option<Duration>,
) -> Result<Started, Failed> {
    let connected = Connected::all(&settings.destinations).await?;
    let registry = registry(settings, &connected, holds, watched.map(|watched| &watched.meters))?;
    let database = start::database(&settings.database, settings.order.ordered.is_some(), limit).await?;
    if let Some(watched) = watched {
        watched.condition.has(&database);
    }
    let waited = start::destinations(&settings.destinations, &connected, limit).await?;
    // Before anything is claimed.
    start::holds(holds, &database, limit).await?;
    if settings.prints_what_a_server_has() {
        warn!(
            "no destination is configured: the events of this database are printed to standard output, and are DONE by that; if they \
             belong elsewhere, end this relay and write a [destination.NAME] into posthaste.toml (posthaste init makes an example), \
             or name the file that has one with --config; [destination.stdout] with type = \"stdout\" says that it is meant so"
        );
    }
    info!(
        database = settings::shown(&settings.database.url),
        table = settings.database.table,
        routes = settings.routes.len(),
        destinations = connected.len(),
        ordered = settings.order.shown(),
        "delivering"
    );
    Ok(Started { registry, database, connected, waited })
}

/// Delivers until a signal comes.
async fn deliver<S: Store>(
    store: S,
    registry: Registry,
    settings: &Settings,
    watched: Option<&Watched>,
    signals: &mut Signals,
) -> Result<Closed, Failed> {
    let build = || {
        let mut outbox = outbox(store.clone(), registry.clone(), settings);
        if let Some(watched) = watched {
            outbox = outbox.metrics(FacadeMetrics).instrument(RouteMeter::new(&settings.routes));
            #[cfg(feature = "otlp")]
            if let Some(otlp) = &watched.otlp {
                outbox = outbox.instrument(otlp.trace());
            }
            #[cfg(not(feature = "otlp"))]
            let _ = watched;
        }
        outbox
    };
    let Some(outbox) = start::outbox(build, None, signals).await? else { return Ok(Closed::default()) };
    let condition = watched.map(|watched| &watched.condition);
    if let Some(condition) = condition {
        condition.is(Step::Delivering);
    }
    let signal = signals.next().await;
    if let Some(condition) = condition {
        condition.is(Step::Draining);
    }
    info!(signal, in_hand = outbox.in_flight(), deadline = ?settings.relay.shutdown_deadline, "ending");
    Ok(until_second(signals, outbox.shutdown(), || outbox.shutdown_now()).await)
}

/// An outbox that is to deliver by these settings.
fn outbox<S: Store>(store: S, registry: Registry, settings: &Settings) -> OutboxBuilder<S> {
    let outbox = Outbox::many_nodes(store).registry(registry).options(settings.relay.clone());
    match settings.order.ordered.clone() {
        Some(ordered) => outbox.ordered(ordered).on_dead(settings.order.on_dead.into()),
        None => outbox,
    }
}

/// Ends in order, and at once at the second signal.
async fn until_second<F: Future<Output = Closed>>(
    signals: &mut Signals,
    in_order: impl Future<Output = Closed>,
    at_once: impl FnOnce() -> F,
) -> Closed {
    let second = tokio::select! {
        closed = in_order => return closed,
        signal = signals.next() => signal,
    };
    warn!(signal = second, "ending at once");
    at_once().await
}

/// What asks a relay to end.
struct Signals {
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    hangup: tokio::signal::unix::Signal,
}

impl Signals {
    #[cfg(unix)]
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    #[cfg(unix)]
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.hangup.recv() => "SIGHUP",
        }
    }

    #[cfg(not(unix))]
    fn new() -> std::io::Result<Self> {
        Ok(Self {})
    }

    #[cfg(not(unix))]
    async fn next(&mut self) -> &'static str {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        "Ctrl-C"
    }
}
