//! A store whose panics end no task of ours, and which keeps none waiting for ever.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use super::{
    BoxFuture, Claim, Claimed, ClosedKey, Error, Key, Lane, LaneLease, LaneRows, LaneSettlement, LaneStore, Lease,
    ReadLanes, RelayOfLanes, RelayStore, Renewed, Settled, Settlement,
};
use crate::event::{Event, EventId};
use crate::hook::panic_text;

/// A store whose panics are errors like any other, as is an answer that does not come in time.
///
/// A connection whose other end has vanished may never say so. Whoever waits for it holds up everything behind it, while
/// the leases of what is held up are renewed.
pub(crate) struct Contained {
    store: Arc<dyn RelayStore>,
    limit: Duration,
}

impl Contained {
    /// Calls that take longer than the limit are given up. They may have been carried out.
    pub(crate) fn new(store: Arc<dyn RelayStore>, limit: Duration) -> Self {
        Self { store, limit }
    }

    fn within_limit<'a, T: 'a>(
        &self,
        call: impl Future<Output = Result<T, Error>> + Send + 'a,
    ) -> BoxFuture<'a, Result<T, Error>> {
        within(self.limit, call)
    }
}

/// The call, which is given up after so long, and whose panic is an error.
fn within<'a, T: 'a>(
    limit: Duration,
    call: impl Future<Output = Result<T, Error>> + Send + 'a,
) -> BoxFuture<'a, Result<T, Error>> {
    contained(async move {
        let answer = tokio::time::timeout(limit, call).await;
        answer.unwrap_or_else(|_| Err(Error::Unavailable(late(limit).into())))
    })
}

fn late(limit: Duration) -> String {
    format!("no answer within {limit:?}; see whether the server hangs, or the way to it")
}

/// The call, whose panic is an error.
pub(crate) fn contained<'a, T>(
    call: impl Future<Output = Result<T, Error>> + Send + 'a,
) -> BoxFuture<'a, Result<T, Error>> {
    let call = AssertUnwindSafe(call).catch_unwind();
    Box::pin(call.map(|answer| answer.unwrap_or_else(|panic| Err(Error::Panicked(panic_text(&*panic).to_owned())))))
}

impl RelayStore for Contained {
    fn claim<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Claimed, Error>> {
        self.within_limit(async move { self.store.claim(claim).await })
    }

    fn settle<'a>(&'a self, settlements: &'a [Settlement]) -> BoxFuture<'a, Result<Vec<Settled>, Error>> {
        self.within_limit(async move { self.store.settle(settlements).await })
    }

    fn renew<'a>(&'a self, leases: &'a [(EventId, Lease)]) -> BoxFuture<'a, Result<Vec<bool>, Error>> {
        self.within_limit(async move { self.store.renew(leases).await })
    }

    fn release_all(&self) -> BoxFuture<'_, Result<u64, Error>> {
        self.within_limit(async move { self.store.release_all().await })
    }
}

/// The same for a store of lanes: a call that takes longer than a lease is of no use any more, and one that keeps leases has to be
/// tried again in time.
pub(crate) struct ContainedLanes {
    store: Arc<dyn LaneStore>,
    lease: Duration,
}

impl ContainedLanes {
    pub(crate) fn new(store: Arc<dyn LaneStore>, lease: Duration) -> Self {
        Self { store, lease }
    }
}

impl LaneStore for ContainedLanes {
    fn count_lanes(&self) -> BoxFuture<'_, Result<u16, Error>> {
        within(self.lease, async move { self.store.count_lanes().await })
    }

    fn lane_of(&self, event: &Event) -> Option<Lane> {
        self.store.lane_of(event)
    }

    fn lease_lanes<'a>(
        &'a self,
        owner: &'a str,
        wanted: usize,
        length: Duration,
    ) -> BoxFuture<'a, Result<Vec<LaneLease>, Error>> {
        within(self.lease / 3, async move { self.store.lease_lanes(owner, wanted, length).await })
    }

    fn renew_lanes<'a>(
        &'a self,
        owner: &'a str,
        leases: &'a [LaneLease],
        length: Duration,
    ) -> BoxFuture<'a, Result<Renewed, Error>> {
        within(self.lease / 3, async move { self.store.renew_lanes(owner, leases, length).await })
    }

    fn agree<'a>(
        &'a self,
        owner: &'a str,
        settings: &'a str,
        length: Duration,
    ) -> BoxFuture<'a, Result<Vec<RelayOfLanes>, Error>> {
        within(self.lease / 3, async move { self.store.agree(owner, settings, length).await })
    }

    fn relays(&self) -> BoxFuture<'_, Result<Vec<RelayOfLanes>, Error>> {
        within(self.lease, async move { self.store.relays().await })
    }

    fn give_back_lanes<'a>(&'a self, owner: &'a str, leases: &'a [LaneLease]) -> BoxFuture<'a, Result<(), Error>> {
        within(self.lease / 3, async move { self.store.give_back_lanes(owner, leases).await })
    }

    fn read_lanes<'a>(&'a self, read: &'a ReadLanes) -> BoxFuture<'a, Result<LaneRows, Error>> {
        within(self.lease, async move { self.store.read_lanes(read).await })
    }

    fn settle_in_lanes<'a>(
        &'a self,
        owner: &'a str,
        settlements: &'a [LaneSettlement],
    ) -> BoxFuture<'a, Result<Vec<Settled>, Error>> {
        within(self.lease, async move { self.store.settle_in_lanes(owner, settlements).await })
    }

    fn settles_at_once(&self) -> usize {
        self.store.settles_at_once()
    }

    fn closes_keys(&self) -> bool {
        self.store.closes_keys()
    }

    fn reopened_keys<'a>(
        &'a self,
        owner: &'a str,
        leases: &'a [LaneLease],
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<ClosedKey>, Error>> {
        within(self.lease, async move { self.store.reopened_keys(owner, leases, limit).await })
    }

    fn forget_keys<'a>(&'a self, owner: &'a str, keys: &'a [(LaneLease, Key)]) -> BoxFuture<'a, Result<(), Error>> {
        within(self.lease, async move { self.store.forget_keys(owner, keys).await })
    }
}
