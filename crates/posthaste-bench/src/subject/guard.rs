//! Whose tables are in a database that was given.
//!
//! A run drops the tables that it uses before each measurement. So it only begins where nothing else is, and leaves a table behind by
//! which the next one knows that the rest is its own.

use anyhow::bail;

/// The table by which a database is known to be ours.
pub(super) const MARKER: &str = "posthaste_bench";

/// Makes it, with a line for whoever wonders.
pub(super) const CREATE_MARKER: &str = "CREATE TABLE posthaste_bench AS \
    SELECT 'Tables of this database are dropped and made anew by `posthaste bench`.' AS about";

/// All that a run makes, and drops.
const OURS: &[&str] = &[
    MARKER,
    "orders",
    "outbox_event",
    "outbox_event_key",
    "outbox_event_lane",
    "outbox_event_pause",
    "outbox_event_relay",
    "posthaste_migration",
];

/// Fails if one of the tables is not ours. `home` is the schema in which ours are.
pub(super) fn check(tables: &[(String, String)], home: &str) -> anyhow::Result<()> {
    let is_known = |(schema, table): &(String, String)| schema == home && OURS.contains(&&**table);
    let is_marked = tables.iter().any(|(schema, table)| schema == home && table == MARKER);
    if let Some((schema, table)) = tables.iter().find(|table| !(is_marked && is_known(table))) {
        bail!(
            "the database has the table `{schema}.{table}`, which may be yours: a run drops and fills tables, and so wants a \
             database in which there is nothing. Make one (CREATE DATABASE bench) and give its URL; or drop the table, if nobody \
             needs it"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables(names: &[&str]) -> Vec<(String, String)> {
        let tables = names.iter().map(|name| name.split_once('.').unwrap_or(("public", name)));
        tables.map(|(schema, name)| (schema.to_owned(), name.to_owned())).collect()
    }

    #[test]
    fn only_what_is_marked_and_known_is_ours() {
        for ours in [&[][..], &["posthaste_bench", "orders", "outbox_event"], &["posthaste_bench"]] {
            check(&tables(ours), "public").unwrap();
        }
        for (others, named) in [
            (&["orders"][..], "public.orders"),
            (&["outbox_event", "posthaste_migration"], "public.outbox_event"),
            (&["posthaste_bench", "orders", "customers"], "public.customers"),
            (&["posthaste_bench", "shop.orders"], "shop.orders"),
            (&["shop.posthaste_bench", "orders"], "shop.posthaste_bench"),
        ] {
            let error = check(&tables(others), "public").unwrap_err().to_string();
            assert!(error.contains(named) && error.contains("CREATE DATABASE"), "{error}");
        }
    }
}
