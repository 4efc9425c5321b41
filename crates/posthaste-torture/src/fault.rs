//! What the nemesis can break.

use crate::config::{Destination, Kind};

/// What the nemesis can break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Fault {
    /// A producer is killed at any moment.
    ProducerKill,
    /// A producer is killed at a named point between begin and the hot path.
    ProducerKillPoint,
    /// A relay is killed at any moment.
    RelayKill,
    /// A relay is killed at a named point between claim and settlement.
    RelayKillPoint,
    /// A relay is stopped until its leases have run out, and goes on then.
    RelayStop,
    /// A relay is asked to end, sometimes twice.
    RelayEnd,
    /// The sink is down, and comes back.
    SinkDown,
    /// The sink answers slowly, at times later than a listener waits.
    SinkSlow,
    /// The connections to the sink stay open, and nothing gets through.
    SinkHalfOpen,
    /// The sink refuses a part of every batch.
    SinkRefuses,
    /// The sink takes messages and hangs up before it answers.
    SinkHangsUp,
    /// The broker is killed, and comes back with its data.
    BrokerKill,
    /// The broker is stopped for a while, and goes on.
    BrokerPause,
    /// Every message to and from the broker takes its time.
    BrokerSlow,
    /// The connections to the broker stay open, and nothing gets through.
    BrokerHalfOpen,
    /// All connections to the broker are cut on the way.
    BrokerCut,
    /// The broker takes messages, and its acknowledgements never arrive.
    AcknowledgementsLost,
    /// Rows that are no events are put into the table by hand.
    MalformedRows,
    /// A business transaction stays open while others commit.
    LongTransaction,
    /// Somebody locks the table.
    TableLock,
    /// The database is shut down in order, and started again.
    DatabaseRestart,
    /// The database crashes, and is started again.
    DatabaseCrash,
    /// The database ends all connections.
    ConnectionsEnded,
    /// All connections to the database are cut on the way.
    ConnectionsCut,
    /// A commit is carried out, and its answer never arrives.
    CommitReplyLost,
    /// Every message to and from the database takes its time.
    DatabaseSlow,
    /// The connections to the database stay open, and nothing gets through until they are cut.
    DatabaseHalfOpen,
    /// Somebody else uses up all connections that the database allows.
    ConnectionsUsedUp,
    /// The disk of the database is full.
    DiskFull,
    /// The clock of a relay is an hour ahead.
    ClockAhead,
    /// The clock of a relay is an hour behind.
    ClockBehind,
}

impl Fault {
    /// Its name, as on the command line.
    pub fn name(self) -> String {
        clap::ValueEnum::to_possible_value(&self).map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Every fault.
    pub fn all() -> &'static [Self] {
        <Self as clap::ValueEnum>::value_variants()
    }

    /// Why it makes no sense with a destination, if it makes none.
    pub(crate) fn not_at(self, destination: Destination) -> Option<&'static str> {
        use Fault::{
            AcknowledgementsLost, BrokerCut, BrokerHalfOpen, BrokerKill, BrokerPause, BrokerSlow, SinkDown,
            SinkHalfOpen, SinkHangsUp, SinkRefuses, SinkSlow,
        };
        match self {
            SinkDown | SinkSlow | SinkHalfOpen | SinkRefuses | SinkHangsUp if destination.is_broker() => {
                Some("the destination is a broker and no sink")
            }
            BrokerKill | BrokerPause | BrokerSlow | BrokerHalfOpen | BrokerCut | AcknowledgementsLost
                if !destination.is_broker() =>
            {
                Some("the destination is no broker; see --destination")
            }
            _ => None,
        }
    }

    /// Why it makes no sense with a database, if it makes none.
    pub(crate) fn out_of_place(self, database: Kind) -> Option<&'static str> {
        use Fault::{
            ClockAhead, ClockBehind, CommitReplyLost, ConnectionsCut, ConnectionsEnded, ConnectionsUsedUp,
            DatabaseCrash, DatabaseHalfOpen, DatabaseRestart, DatabaseSlow,
        };
        if database != Kind::Sqlite {
            return None;
        }
        match self {
            DatabaseRestart | DatabaseCrash | ConnectionsEnded | ConnectionsCut | CommitReplyLost | DatabaseSlow
            | DatabaseHalfOpen | ConnectionsUsedUp => Some("SQLite has no server and no connections to one"),
            ClockAhead | ClockBehind => Some("processes that share a SQLite file share the clock of its machine"),
            _ => None,
        }
    }
}
