//! The workloads, written once. A peer says how it writes and how it works; the rest is the same for all.

mod handled;
mod workload;

use std::sync::Arc;

use anyhow::bail;
use clap::{Parser, ValueEnum};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

pub use handled::Handled;

/// The table that the business transactions write to.
pub const ORDERS: &str =
    "CREATE TABLE orders (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer TEXT, total NUMERIC)";

/// A business row.
pub const ORDER: &str = "INSERT INTO orders (customer, total) VALUES ($1, 19.90)";

/// Who ordered.
pub const CUSTOMER: &str = "customer";

/// Transactions at a time.
pub const WRITERS: u32 = 8;

/// An outbox or job queue, connected to one database.
#[expect(async_fn_in_trait, reason = "only what writes runs on tasks of its own")]
pub trait Peer: Sized + Send + Sync + 'static {
    type Transaction: Send;

    /// Connects with pools of its own.
    async fn connect(url: &str) -> anyhow::Result<Self>;

    /// Creates the peer's tables and [`ORDERS`] in an empty database.
    async fn migrate(&self) -> anyhow::Result<()>;

    fn begin(&self) -> impl Future<Output = anyhow::Result<Self::Transaction>> + Send;

    /// Writes a business row.
    fn order(&self, tx: &mut Self::Transaction) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Enqueues the events, by the bulk call if there is more than one.
    fn enqueue(
        &self,
        tx: &mut Self::Transaction,
        events: Vec<Payload>,
    ) -> impl Future<Output = anyhow::Result<()>> + Send;

    fn commit(&self, tx: Self::Transaction) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Hands events to [`Handled::event`] until it is told to stop.
    async fn work(&self, handled: Arc<Handled>, stop: CancellationToken) -> anyhow::Result<()>;

    /// How many of the events are not done in the database.
    async fn unfinished(&self, events: usize) -> anyhow::Result<i64>;
}

/// What is written with each event: about 200 bytes of JSON.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Payload {
    pub index: usize,
    order: String,
    customer: String,
    total: String,
}

impl Payload {
    #[must_use]
    pub fn new(index: usize) -> Self {
        Self { index, order: "o".repeat(75), customer: "c".repeat(75), total: "19.90".into() }
    }
}

#[derive(Parser)]
struct Args {
    /// An empty database, made for this one call
    #[arg(long)]
    url: String,
    #[arg(long)]
    workload: Workload,
    /// How long W, W100 and L last
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// How many events D finds waiting
    #[arg(long, default_value_t = 20_000)]
    events: usize,
    /// Events per second of L
    #[arg(long, default_value_t = 100)]
    rate: u32,
}

#[derive(Clone, Copy, ValueEnum)]
#[value(rename_all = "UPPER")]
enum Workload {
    W,
    W100,
    D,
    L,
}

/// Runs the workload that the command line names, and prints its result as the last line.
pub fn main<P: Peer>() -> anyhow::Result<()> {
    let args = Args::parse();
    if args.seconds == 0 || args.events == 0 || args.rate == 0 {
        bail!("--seconds, --events and --rate must be at least 1");
    }
    let runtime = tokio::runtime::Runtime::new()?;
    let result = runtime.block_on(async {
        let peer = Arc::new(P::connect(&args.url).await?);
        peer.migrate().await?;
        match args.workload {
            Workload::W => workload::write_one(&peer, args.seconds).await,
            Workload::W100 => workload::write_many(&peer, args.seconds).await,
            Workload::D => workload::drain(&*peer, args.events, &args.url).await,
            Workload::L => {
                let writer = Arc::new(P::connect(&args.url).await?);
                workload::latency(&*peer, &writer, args.rate, args.seconds).await
            }
        }
    })?;
    println!("{result}");
    // Whatever a peer has left running in the background is of no more interest.
    runtime.shutdown_background();
    Ok(())
}
