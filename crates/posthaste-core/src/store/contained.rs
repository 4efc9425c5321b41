//! A store whose panics end no task of ours.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;

use super::{BoxFuture, Claim, Claimed, Error, Lease, RelayStore, Settled, Settlement};
use crate::event::EventId;
use crate::hook::panic_text;

/// A store whose panics are errors like any other.
pub(crate) struct Contained(pub(crate) Arc<dyn RelayStore>);

/// The call, whose panic is an error.
pub(crate) fn contained<'a, T>(
    call: impl Future<Output = Result<T, Error>> + Send + 'a,
) -> BoxFuture<'a, Result<T, Error>> {
    let call = AssertUnwindSafe(call).catch_unwind();
    Box::pin(call.map(|answer| {
        answer
            .unwrap_or_else(|panic| Err(Error::Refused(format!("the store panicked: {}", panic_text(&*panic)).into())))
    }))
}

impl RelayStore for Contained {
    fn claim<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Claimed, Error>> {
        contained(async move { self.0.claim(claim).await })
    }

    fn settle<'a>(&'a self, settlements: &'a [Settlement]) -> BoxFuture<'a, Result<Vec<Settled>, Error>> {
        contained(async move { self.0.settle(settlements).await })
    }

    fn renew<'a>(&'a self, leases: &'a [(EventId, Lease)]) -> BoxFuture<'a, Result<Vec<bool>, Error>> {
        contained(async move { self.0.renew(leases).await })
    }

    fn release_all(&self) -> BoxFuture<'_, Result<u64, Error>> {
        contained(async move { self.0.release_all().await })
    }
}
