//! A process that only delivers.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::Outbox;
use posthaste_core::listener::{BatchListener, Delivery, Outcome, Path};
use posthaste_core::store::{Action, Cursor, Filter, Page, Settlement};
use tokio::time::sleep;

use super::deliver::Sender;
use super::{asked_to_end, close, start};
use crate::config::{Config, Sabotage};
use crate::database::Database;
use crate::history::Recorder;

pub(super) async fn run<D: Database>(config: Config, store: D, recorder: Arc<Recorder>) -> anyhow::Result<ExitCode> {
    let mut ended = asked_to_end()?;
    if config.sabotage == Some(Sabotage::CursorById) {
        tokio::select! {
            () = follow_the_numbers(&config, &store, &recorder) => {}
            _ = ended.recv() => {}
        }
        return Ok(ExitCode::SUCCESS);
    }
    let (outbox, way) = start(&config, &store, &recorder, Outbox::many_nodes).await?;
    ended.recv().await;
    Ok(close(&outbox, &way, &mut ended).await)
}

/// The sabotaged relay: reads on from the greatest number that it has seen.
async fn follow_the_numbers<D: Database>(config: &Config, store: &D, recorder: &Arc<Recorder>) {
    let sender = Sender::new(config, recorder);
    let mut page = Page::default();
    let mut again = Vec::new();
    loop {
        let records = store.list(&Filter::default(), &page).await.unwrap_or_default();
        page.after = records.last().map(Cursor::from).or(page.after);
        let mut deliveries: Vec<_> = std::mem::take(&mut again);
        deliveries.extend(
            records
                .into_iter()
                .filter_map(|record| Some(Delivery::new(record.event.ok()?, record.state.attempts, Path::Cold))),
        );
        let verdicts = sender.on_events(&deliveries).await;
        let lease = posthaste_core::store::Lease::new("nobody", 1);
        let done = deliveries.iter().zip(&verdicts).filter(|(_, verdict)| matches!(verdict, Ok(Outcome::Done)));
        let done: Vec<_> =
            done.map(|(delivery, _)| Settlement::new(delivery.id().clone(), lease.clone(), Action::Done)).collect();
        // What was refused is tried again: the mistake is in what is never read.
        let refused = deliveries.iter().zip(&verdicts).filter(|(_, verdict)| !matches!(verdict, Ok(Outcome::Done)));
        again = refused.map(|(delivery, _)| delivery.clone()).collect();
        if let Err(error) = store.settle_unfenced(&done).await {
            tracing::info!(%error, "not settled");
        }
        if done.is_empty() {
            sleep(Duration::from_millis(50)).await;
        }
    }
}
