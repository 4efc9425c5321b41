//! A store whose panics end no task of ours, and which keeps none waiting for ever.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use super::{BoxFuture, Claim, Claimed, Error, Lease, RelayStore, Settled, Settlement};
use crate::event::EventId;
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
        let limit = self.limit;
        contained(async move {
            let answer = tokio::time::timeout(limit, call).await;
            answer.unwrap_or_else(|_| Err(Error::Unavailable(late(limit).into())))
        })
    }
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
