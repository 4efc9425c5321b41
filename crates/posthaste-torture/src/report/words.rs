//! Numbers, lines and verdicts, in words.

use crate::check::{Conclusion, Fault, Outcome, Rule, Totals, Verdict};
use crate::history::{Message, What};

/// A count, as in `1,234,567`.
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A count with its noun, as in `1 event` and `2 events`.
pub(super) fn counted(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(number), if number == 1 { "" } else { "s" })
}

/// A moment as seconds since another, as in `+1.500 s`.
pub(super) fn since(at: i64, start: i64) -> String {
    format!("{:+.3} s", (at - start) as f64 / 1e6)
}

/// How many break a rule, as far as anybody knows.
pub(super) fn found(verdict: &Verdict) -> String {
    match verdict.outcome {
        Outcome::NotPromised => "-".to_owned(),
        Outcome::NotJudged if verdict.count == 0 => "?".to_owned(),
        _ => count(verdict.count),
    }
}

/// What the number of a verdict is about.
pub(super) fn meaning(verdict: &Verdict, totals: &Totals) -> String {
    let counts = verdict.rule.counts();
    match verdict.outcome {
        Outcome::NotPromised => "not promised by this run".to_owned(),
        Outcome::NotJudged => format!("{counts}: cannot be told"),
        _ if verdict.rule == Rule::Duplicates => format!("{counts}, {} explained", count(totals.allowed)),
        _ => counts.to_owned(),
    }
}

pub(super) fn conclusion(conclusion: Conclusion) -> (&'static str, &'static str) {
    match conclusion {
        Conclusion::Valid => ("VALID", "every promise was kept"),
        Conclusion::Invalid => ("INVALID", "a promise was broken"),
        Conclusion::Unknown => ("UNKNOWN", "nothing was proved wrong, but not everything was proved"),
    }
}

/// What there is to say of a fault, if anything.
pub(super) fn fault_note(fault: &Fault) -> &'static str {
    match fault {
        Fault { intended: true, times: 0, effects: 0, .. } => "never happened",
        Fault { intended: true, effects: 0, .. } => "did nothing",
        Fault { intended: false, .. } => "not required",
        Fault { .. } => "",
    }
}

/// An entry in words.
pub(super) fn describe(what: &What) -> String {
    match what {
        What::Run(run) => format!("run with seed {}", run.seed),
        What::Started { pid } => format!("started as process {pid}"),
        What::Exited { signal: Some(signal), .. } => format!("ended by signal {signal}"),
        What::Exited { status: Some(status), .. } => format!("exited with {status}"),
        What::Exited { .. } => "ended".to_owned(),
        What::DidNotEnd => "did not end when it was asked to".to_owned(),
        What::Acked { .. } => "commit acknowledged".to_owned(),
        What::Failed { error, .. } => format!("commit failed: {error}"),
        What::Unknown { error, .. } => format!("commit unknown: {error}"),
        What::Resolved { committed: true, .. } => "looked up: found".to_owned(),
        What::Resolved { committed: false, .. } => "looked up: not found".to_owned(),
        What::Received(message) => format!("received {}", content(message)),
        What::Taken { .. } => "acknowledged by the broker".to_owned(),
        What::Refused { .. } => "refused".to_owned(),
        What::Claimed { lease, ids, .. } => format!("{} claimed under lease {lease}", counted(ids.len() as u64, "row")),
        What::AnswerLost { ids } => format!("answer lost for {}", counted(ids.len() as u64, "message")),
        What::Silent => "delivered nothing".to_owned(),
        What::Settled { lease, action, applied: true, .. } => format!("settled {action} under {lease}"),
        What::Settled { lease, action, .. } => format!("was refused {action} under {lease}"),
        What::Broken { fault, detail } => format!("broke {fault}: {detail}"),
        What::Mended { fault, effects } => format!("mended {fault}, {}", counted(*effects, "effect")),
        What::Decided { decision, .. } => format!("decided to {decision} it"),
        What::Malformed { .. } => "put in by hand, malformed".to_owned(),
        What::Healed { patience_ms } => format!("healed, patience of {} ms", count(*patience_ms)),
        What::Drained { pending } => format!("drained, {} pending", count(*pending)),
        What::Ledger(message) => format!("business row {}", content(message)),
        What::Row { status, attempts, error, .. } => row(status, *attempts, error.as_deref()),
        What::Changed { status, lease, held_ms, .. } => changed(status, lease, *held_ms),
        What::End => "end".to_owned(),
    }
}

fn content(message: &Message) -> String {
    let Message { event_type, key, number, hash, poison, .. } = message;
    format!("{event_type} {key}/{number} hash {hash:016x}{}", if *poison { ", poison" } else { "" })
}

fn row(status: &str, attempts: u32, error: Option<&str>) -> String {
    let error = error.map(|error| format!(": {error}")).unwrap_or_default();
    format!("row {} after {}{error}", status.to_uppercase(), counted(attempts.into(), "failure"))
}

fn changed([before, after]: &[String; 2], [held, next]: &[Option<String>; 2], held_ms: Option<i64>) -> String {
    let since = held_ms.map(|millis| format!(" for {millis} ms")).unwrap_or_default();
    let (held, next) = (held.as_deref().unwrap_or("no lease"), next.as_deref().unwrap_or("no lease"));
    format!("row went from {} under {held}{since} to {} under {next}", before.to_uppercase(), after.to_uppercase())
}
