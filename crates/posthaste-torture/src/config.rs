//! What a process of a run is told, and what all of them share.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use posthaste_core::{OnDead, Options};
use serde::{Deserialize, Serialize};

use crate::history::Recorder;

/// How long a lease lasts: short, since much waits for leases to run out.
pub(crate) const LEASE: Duration = Duration::from_secs(4);

/// The longest delay between two attempts.
pub(crate) const LONGEST_BACKOFF: Duration = Duration::from_secs(1);

/// The longest time that a breaker leaves a broker alone that was away, and some.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(40);

/// The most events that wait in each queue of a process, and that one statement settles.
const QUEUE: usize = 200;

/// How long a batch may take. The publishers give up earlier, and know why.
const SINK_LIMIT: Duration = Duration::from_secs(2);
const BROKER_LIMIT: Duration = Duration::from_secs(20);

/// A database to torture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// SQLite, in a file that all processes share.
    Sqlite,
    /// A private PostgreSQL server.
    Postgres,
    /// A private MariaDB server.
    Mariadb,
}

impl Kind {
    /// Its name, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
            Self::Mariadb => "mariadb",
        }
    }
}

/// Where events are delivered to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Destination {
    /// A process of the run.
    Sink,
    /// A private broker that speaks Kafka's protocol (tansu, which keeps its data in SQLite).
    Kafka,
    /// A private NATS server with JetStream, on files.
    Nats,
    /// A private RabbitMQ, with a durable queue.
    Rabbitmq,
}

impl Destination {
    /// Its name, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sink => "sink",
            Self::Kafka => "kafka",
            Self::Nats => "nats",
            Self::Rabbitmq => "rabbitmq",
        }
    }

    /// Whether it is a broker, and not a process of the run.
    pub(crate) fn is_broker(self) -> bool {
        self != Self::Sink
    }

    /// The longest payload, in bytes: the longest that fits into a row, or about what brokers take unless they are told to
    /// take more.
    pub(crate) fn longest_payload(self) -> usize {
        if self.is_broker() { 900_000 } else { 1 << 20 }
    }
}

/// What producers write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Workload {
    /// Mostly small events, some of many pages, a few of 1 MiB; a hundred keys.
    Mixed,
    /// Small events only.
    Small,
    /// One event in ten is of 1 MiB.
    Large,
    /// Small events of three keys, so that transactions wait for each other and deadlock.
    Contended,
}

/// What becomes of a key in order whose event is refused for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// The event is DEAD, and those behind it go on.
    Skip,
    /// It is tried for ever, until the operator of the run gives it up.
    Block,
    /// It is DEAD, and those behind it wait until the operator of the run skips it; sometimes he has it tried again before.
    Park,
}

impl Policy {
    /// Its name, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::Block => "block",
            Self::Park => "park",
        }
    }
}

impl From<Policy> for OnDead {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::Skip => Self::Skip,
            Policy::Block => Self::Block,
            Policy::Park => Self::Park,
        }
    }
}

/// Mistakes that others have made, built in to see whether the checker finds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Sabotage {
    /// The row is DONE first, and sent afterwards.
    MarkBeforePublish,
    /// Rows are claimed whoever has leased them.
    ClaimDespiteLeases,
    /// Outcomes are written whoever holds the lease.
    SettleWithoutFence,
    /// A message counts as delivered when it was sent, whatever the answer is.
    IgnoreAcknowledgement,
    /// Rows are read on from the greatest number seen, and what commits late below it is never looked at.
    CursorById,
    /// With order: what is read of a lane comes in the wrong order.
    ReadBackwards,
    /// With order, to a broker: a batch is sent in two parts at once, and the publisher is not told that there is an order.
    PublishAtOnce,
}

impl Sabotage {
    /// Whether it can be made in a run with order, or without.
    pub(crate) fn is_for(self, ordered: bool) -> bool {
        match self {
            Self::MarkBeforePublish | Self::IgnoreAcknowledgement => true,
            Self::ClaimDespiteLeases | Self::SettleWithoutFence | Self::CursorById => !ordered,
            Self::ReadBackwards | Self::PublishAtOnce => ordered,
        }
    }

    /// Whether it can be made on the way there.
    pub(crate) fn is_on_the_way_to(self, destination: Destination) -> bool {
        match self {
            Self::CursorById => !destination.is_broker(),
            // Elsewhere a batch has one event of each key, so that there is no order to be lost.
            Self::PublishAtOnce => matches!(destination, Destination::Kafka | Destination::Nats),
            Self::MarkBeforePublish
            | Self::ClaimDespiteLeases
            | Self::SettleWithoutFence
            | Self::IgnoreAcknowledgement
            | Self::ReadBackwards => true,
        }
    }
}

/// What a process of a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Role {
    Producer,
    Relay,
    Sink,
}

/// What a process of a run is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Config {
    pub(crate) role: Role,
    pub(crate) name: String,
    /// Where the histories are.
    pub(crate) directory: PathBuf,
    pub(crate) database: Kind,
    /// The database, through the proxy if there is one.
    pub(crate) url: String,
    pub(crate) destination: Destination,
    /// Where the destination is reached, through the proxy; for the sink itself, where it listens.
    pub(crate) destination_at: SocketAddr,
    pub(crate) seed: u64,
    /// How often it was started before.
    pub(crate) life: u32,
    pub(crate) workload: Workload,
    /// The size of the pool, where it is not the usual one.
    pub(crate) connections: Option<u32>,
    /// Whether a producer delivers what it wrote by itself, right after the commit.
    pub(crate) hot: bool,
    /// How many transactions of a producer are under way at once.
    pub(crate) writers: usize,
    /// How many transactions a producer begins in a second.
    pub(crate) rate: f64,
    /// How many seconds the clock of this process is ahead of the machine's.
    pub(crate) clock_ahead: i64,
    /// Whether events of one key are delivered in order.
    pub(crate) ordered: bool,
    pub(crate) on_dead: Policy,
    pub(crate) sabotage: Option<Sabotage>,
}

impl Config {
    pub(crate) fn options(&self) -> Options {
        Options {
            owner: Some(self.name.clone()),
            hot_queue: QUEUE,
            cold_queue: QUEUE,
            settle_batch: QUEUE,
            listener_time_limit: if self.destination.is_broker() { BROKER_LIMIT } else { SINK_LIMIT },
            poll_interval: Duration::from_millis(500),
            lease: LEASE,
            lane_lease: LEASE,
            retry_base: Duration::from_millis(50),
            retry_max: LONGEST_BACKOFF,
            ..Options::default()
        }
    }

    /// What is random in this life of the process.
    pub(crate) fn rng(&self) -> fastrand::Rng {
        fastrand::Rng::with_seed(self.seed ^ u64::from(self.life).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// The part of the history that this process writes.
    pub(crate) fn recorder(&self) -> std::io::Result<Recorder> {
        // One file per life: what a kill cut short is the end of its file.
        let path = self.directory.join(format!("{}.{}.ndjson", self.name, self.life));
        Ok(Recorder::open(&path, &self.name)?.with_clock_ahead(self.clock_ahead))
    }
}
