//! Whether what was delivered was delivered in order.

use std::collections::BTreeMap;

use anyhow::{Context, ensure};

/// What the checker has seen.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Events that were delivered, each counted once.
    pub(crate) events: u64,
    /// How many times one was delivered again, after a kill.
    pub(crate) repeats: u64,
}

/// Reads lines of an account and a number. The first deliveries of an account must be 1, 2, 3 and so on, up to how many times it was
/// changed: a greater one than the next was delivered before the one before it, and one that never comes is lost. One that came
/// before is a repeat, which is allowed: its relay was killed before the table heard of it.
pub(crate) fn check(deliveries: &str, changed: &BTreeMap<i64, i64>) -> anyhow::Result<Found> {
    let mut last: BTreeMap<i64, i64> = BTreeMap::new();
    let mut found = Found { events: 0, repeats: 0 };
    for (place, line) in (1..).zip(deliveries.lines()) {
        let (account, number) = line.split_once(' ').with_context(|| format!("line {place} is {line:?}"))?;
        let (account, number): (i64, i64) = (account.parse()?, number.parse()?);
        let last = last.entry(account).or_insert(0);
        if number <= *last {
            found.repeats += 1;
            continue;
        }
        ensure!(
            number == *last + 1,
            "line {place}: change {number} of account {account} came before change {}",
            *last + 1
        );
        *last = number;
        found.events += 1;
    }
    for (account, changes) in changed {
        let delivered = last.get(account).copied().unwrap_or(0);
        ensure!(delivered == *changes, "account {account}: {delivered} of {changes} changes were delivered");
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_sees_what_is_out_of_order_and_what_is_lost() {
        let changed = BTreeMap::from([(1, 3), (2, 1), (3, 0)]);
        let said = |deliveries| check(deliveries, &changed).map_err(|error| error.to_string());
        assert_eq!(said("1 1\n2 1\n1 2\n1 3\n"), Ok(Found { events: 4, repeats: 0 }));
        assert_eq!(said("1 1\n1 2\n2 1\n1 1\n1 3\n1 2\n"), Ok(Found { events: 4, repeats: 2 }));
        assert_eq!(said("1 1\n2 1\n1 3\n1 2\n").unwrap_err(), "line 3: change 3 of account 1 came before change 2");
        assert_eq!(said("1 1\n1 2\n1 3\n").unwrap_err(), "account 2: 0 of 1 changes were delivered");
        assert_eq!(said("1 1\n2 1\n1 2\n").unwrap_err(), "account 1: 2 of 3 changes were delivered");
    }
}
