//! `posthaste demo`: a small order service that goes through everything that can go wrong, and checks what came of it.

// In reading order: what is to happen, who it happens to, how it is shown, and what is made of it.
mod database;
mod plan;

mod mailer;
mod service;

mod figures;
mod scenario;

mod units;
mod view;

mod report;
mod verdict;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use clap::value_parser;

use database::Database;
use figures::Figures;
use plan::Plan;
use report::Report;
use scenario::Scenario;
use service::Service;
use verdict::Verdict;
use view::{View, say};

/// Show what an outbox is for: an order service on SQLite that is tripped up on purpose, and loses nothing.
///
/// Every order is stored in one transaction with its event. One in twenty is rolled back, one delivery in fifty fails,
/// one event is poison, and half-way the dispatcher is killed with events in hand. At the end the tables are compared
/// with what the listener received.
///
/// Exit status: 0 if every promise was kept, 1 if one was broken, 2 if the demo could not run, 130 after Ctrl-C.
///
/// A kept database can be used again: the verdict is then about the new run, and what an interrupted run left behind is
/// delivered as well.
#[derive(clap::Args)]
// Negative numbers are taken as values, so that their refusal names the flag.
pub(crate) struct Args {
    /// How many orders to place, 1 to 1000000.
    #[arg(long, value_name = "N", default_value_t = 5000)]
    #[arg(allow_negative_numbers = true, value_parser = value_parser!(u64).range(1..=1_000_000))]
    events: u64,

    /// How many orders to place per second, up to 1000000; 0 for as fast as the database takes them.
    #[arg(long, value_name = "R", default_value_t = 2000)]
    #[arg(allow_negative_numbers = true, value_parser = value_parser!(u32).range(0..=1_000_000))]
    rate: u32,

    /// How many listeners run at once, 1 to 256.
    #[arg(long, value_name = "N", default_value_t = 4)]
    #[arg(allow_negative_numbers = true, value_parser = value_parser!(u16).range(1..=256))]
    workers: u16,

    /// Where to keep the database; used again if it is there. Default: a temporary one, removed at the end, which is
    /// faster because it need not survive a power cut.
    #[arg(long, value_name = "PATH")]
    database: Option<PathBuf>,

    /// Decides what fails and what is rolled back. Default: a random one, which is shown.
    #[arg(long, value_name = "S", allow_negative_numbers = true)]
    seed: Option<u64>,
}

/// Nobody means a demo to take longer than this.
const LONGEST: Duration = Duration::from_secs(3600);

/// The exit status after Ctrl-C, as shells expect it.
const INTERRUPTED: u8 = 130;

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    args.check()?;
    let database = Database::open(args.database.as_deref()).await?;
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    let first = service::next_order(database.store()).await?;
    let plan = Arc::new(Plan::new(seed, first, args.events, args.rate));
    let figures = Arc::new(Figures::new());
    let view = View::new(Arc::clone(&figures), args.events);
    view.title(&plan, args.workers);

    let service = Arc::new(Service::new());
    let mut scenario =
        Scenario::new(&plan, database.store().clone(), &figures, &view, &service, usize::from(args.workers));
    let played = tokio::select! {
        history = scenario.play() => Some(history),
        never = view.keep_current(&service, &plan) => match never {},
        () = interrupted() => None,
    };
    view.clear();
    let Some(history) = played else {
        stop(&mut scenario).await;
        database.close().await;
        return Ok(ExitCode::from(INTERRUPTED));
    };
    let history = history?;
    let verdict = Verdict::of(&history);
    Report { plan: &plan, figures: &figures, history: &history, verdict: &verdict, database: &database }.print();
    database.close().await;
    Ok(if verdict.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Args {
    fn check(&self) -> anyhow::Result<()> {
        if self.rate > 0 {
            let seconds = self.events / u64::from(self.rate);
            ensure!(
                seconds <= LONGEST.as_secs(),
                "--events {} at --rate {} would take {} minutes, and the demo may take {}; \
                 lower --events, raise --rate, or use --rate 0 for as fast as possible",
                self.events,
                self.rate,
                seconds / 60,
                LONGEST.as_secs() / 60,
            );
        }
        Ok(())
    }
}

/// Ends in order after the first Ctrl-C, and at once at the second.
async fn stop(scenario: &mut Scenario) {
    say("Interrupted: finishing what is in hand. Ctrl-C again to leave at once.");
    tokio::select! {
        () = scenario.stop() => say("Stopped. What was still pending would be delivered at the next start."),
        () = interrupted() => say("Left at once. What was in hand would be delivered at the next start."),
    }
}

/// Waits for Ctrl-C; for ever, where the system has none.
async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}
