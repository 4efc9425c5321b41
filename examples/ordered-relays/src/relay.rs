//! A relay: delivers in order, and notes what it delivers.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use posthaste::{Options, Ordered, Outbox};

use crate::bank::{Bank, Changed};

pub(crate) async fn run<B: Bank>(bank: B, deliveries: &Path) -> anyhow::Result<()> {
    let file = Arc::new(File::options().create(true).append(true).open(deliveries)?);
    // Short, since much waits here for the leases of the killed to run out.
    let options = Options { lane_lease: Duration::from_secs(2), ..Options::default() };
    let _outbox = Outbox::many_nodes(bank)
        .ordered(Ordered::types(["Account"]))
        .options(options)
        .on::<Changed>(move |_, Changed { account, number }| {
            let file = Arc::clone(&file);
            async move {
                // One write, which is there as a whole or not at all, whenever this process is killed.
                (&*file).write_all(format!("{account} {number}\n").as_bytes())
            }
        })
        .start()
        .await?;
    // Whoever has started this process holds the other end, and closes it by ending.
    tokio::task::spawn_blocking(|| std::io::stdin().read(&mut [0])).await??;
    Ok(())
}
