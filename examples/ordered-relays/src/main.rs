//! Order through crashes: two relays deliver what happens to many accounts, and are killed at random, again and again. At the end
//! a checker reads what was delivered, and sees whether the order was kept.
//!
//! ```sh
//! export DATABASE_URL=postgres://shop@localhost/shop   # or mysql://…, or sqlite:accounts.db, which it is if nothing is said
//! example-ordered-relays 20                            # for so many seconds
//! ```
//!
//! Each relay is a process of its own, `example-ordered-relays relay`, and appends a line to `deliveries.txt` for each event before
//! it acknowledges it. The exit status is 0 if the order was kept and nothing was lost.

mod bank;
mod check;
mod relay;

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use posthaste::store::AdminStore;
use posthaste::{MySqlStore, Outbox, PgStore, Scheme, SqliteStore, detect};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use bank::{ACCOUNTS, Bank};

/// Where relays note what they deliver.
const DELIVERIES: &str = "deliveries.txt";

/// How long the rest may take when nobody is killed any more.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = std::env::var("DATABASE_URL").unwrap_or_else(|_| "sqlite:accounts.db".to_owned());
    let argument = std::env::args().nth(1).unwrap_or_else(|| "20".to_owned());
    match detect(&url)? {
        Scheme::Postgres => run(PgStore::connect(&url).await?, &argument).await,
        Scheme::Sqlite => run(SqliteStore::connect(&url).await?, &argument).await,
        Scheme::MySql => run(MySqlStore::connect(&url).await?, &argument).await,
        other => anyhow::bail!("DATABASE_URL is for {other:?}; this example is for PostgreSQL, MySQL and SQLite"),
    }
}

async fn run<B: Bank>(bank: B, argument: &str) -> anyhow::Result<()> {
    if argument == "relay" {
        return relay::run(bank, Path::new(DELIVERIES)).await;
    }
    let seconds = argument.parse().context("give the number of seconds, or \"relay\"")?;
    ensure!(!Path::new(DELIVERIES).exists(), "{DELIVERIES} is there already; begin in an empty directory");
    bank.set_up().await?;

    let (writing, written) = (write(&bank, Duration::from_secs(seconds)), async {
        let mut relays = [start()?, start()?];
        let kills = kill_at_random(&mut relays, Duration::from_secs(seconds)).await?;
        anyhow::Ok((relays, kills))
    });
    let (committed, killed) = tokio::try_join!(writing, written)?;
    let (relays, kills) = killed;

    let pending = timeout(PATIENCE, until_delivered(&bank)).await;
    ensure!(pending.is_ok(), "there is something left after {PATIENCE:?}");
    drop(relays);

    let deliveries = std::fs::read_to_string(DELIVERIES)?;
    let found = check::check(&deliveries, &bank.numbers().await?)?;
    ensure!(found.events == committed, "{committed} events were committed, and {} delivered", found.events);
    println!(
        "{} events of {ACCOUNTS} accounts, {kills} relays killed: each account in order, nothing lost, {} repeated",
        found.events, found.repeats
    );
    Ok(())
}

/// Changes accounts, several at once, and says how many events were committed.
async fn write<B: Bank>(bank: &B, length: Duration) -> anyhow::Result<u64> {
    let outbox = Outbox::writer_only(bank.clone()).start().await?;
    let until = Instant::now() + length;
    let writer = || async {
        let mut committed = 0;
        while Instant::now() < until {
            let account = fastrand::i64(0..ACCOUNTS);
            let mut tx = outbox.begin().await?;
            // Locks the account until the commit, so that whoever else changes it waits, and its numbers are those of the events.
            let number = B::change(&mut tx, account).await?;
            tx.write(bank::Changed { account, number }).await?;
            tx.commit().await?;
            committed += 1;
            sleep(Duration::from_millis(fastrand::u64(..8))).await;
        }
        anyhow::Ok(committed)
    };
    let (a, b, c, d) = tokio::try_join!(writer(), writer(), writer(), writer())?;
    outbox.shutdown().await;
    Ok(a + b + c + d)
}

/// Starts a relay, which ends with this process at the latest.
fn start() -> anyhow::Result<Child> {
    let program = std::env::current_exe()?;
    Ok(Command::new(program).arg("relay").stdin(Stdio::piped()).kill_on_drop(true).spawn()?)
}

/// Kills one or the other in the middle of what it does, and starts another in its place. Says how many were killed.
async fn kill_at_random(relays: &mut [Child; 2], length: Duration) -> anyhow::Result<u32> {
    let until = Instant::now() + length;
    let mut kills = 0;
    loop {
        let pause = Duration::from_millis(fastrand::u64(200..2500));
        if Instant::now() + pause >= until {
            tokio::time::sleep_until(until).await;
            return Ok(kills);
        }
        sleep(pause).await;
        let relay = &mut relays[fastrand::usize(..2)];
        ensure!(relay.try_wait()?.is_none(), "a relay has ended by itself");
        // SIGKILL: it has no time to give anything back.
        relay.kill().await?;
        *relay = start()?;
        kills += 1;
    }
}

async fn until_delivered(bank: &impl AdminStore) -> anyhow::Result<()> {
    while bank.counts().await?.pending() > 0 {
        sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}
