//! SQL as named slots: what a database needs to say, filled with the name of the table once per store.

use sqlx::{AssertSqlSafe, SqlSafeStr, SqlStr};

use crate::table::TableName;

/// What differs from one database to the next: how it quotes, and its statements as templates.
pub(crate) struct Dialect {
    /// Around an identifier.
    pub(crate) quote: char,
    /// What stands before and after bound microseconds since 1970 to make them a moment.
    pub(crate) moment: (&'static str, &'static str),
    /// The condition that one text contains another, letter for letter: what stands before and after the bound text.
    pub(crate) error_contains: (&'static str, &'static str),
    /// The statements.
    pub(crate) slots: Slots<&'static str>,
}

impl Dialect {
    /// A template with the name of the table put in.
    ///
    /// `{table}` is the whole name, quoted; `{name}` the name without schema, unquoted, for names made from it;
    /// `{schema}` the quoted schema with its dot, or nothing.
    pub(crate) fn fill(&self, template: &str, table: &TableName) -> String {
        let quote = self.quote;
        let schema = table.schema().map_or_else(String::new, |schema| format!("{quote}{schema}{quote}."));
        template
            .replace("{table}", &format!("{schema}{quote}{}{quote}", table.name()))
            .replace("{schema}", &schema)
            .replace("{name}", table.name())
    }

    /// A template, made into a statement.
    pub(crate) fn statement(&self, template: &str, table: &TableName) -> SqlStr {
        // Templates are constants, and a `TableName` holds nothing but letters, digits and underscores.
        let sql: std::sync::Arc<str> = self.fill(template, table).into();
        AssertSqlSafe(sql).into_sql_str()
    }

    /// Every statement for that table.
    pub(crate) fn statements(&self, table: &TableName) -> Slots<SqlStr> {
        self.slots.map(|template| self.statement(template, table))
    }
}

macro_rules! slots {
    ($($(#[$doc:meta])* $slot:ident),* $(,)?) => {
        /// One `T` for each thing that a store says to its database.
        #[allow(dead_code, reason = "not every database needs every one of them")]
        pub(crate) struct Slots<T> {
            $($(#[$doc])* pub(crate) $slot: T,)*
        }

        impl<T: Copy> Slots<T> {
            fn map<U>(&self, make: impl Fn(T) -> U) -> Slots<U> {
                Slots { $($slot: make(self.$slot),)* }
            }
        }
    };
}

slots! {
    /// Everything of an insert before its rows.
    insert,
    /// Which of the ids in a JSON array are taken.
    taken,
    /// Leases rows and returns them.
    claim,
    /// When the next row that waits becomes available.
    next_available,
    /// Makes rows DONE whose numbers are known, all under one lease.
    settle_done_by_seq,
    /// Makes rows DONE whose numbers have no gap, all under one lease.
    settle_done_run,
    /// Makes rows DONE.
    settle_done,
    /// Deletes, instead of making them DONE, rows whose numbers are known, all under one lease.
    delete_done_by_seq,
    /// Deletes, instead of making them DONE, rows whose numbers have no gap, all under one lease.
    delete_done_run,
    /// Deletes rows instead of making them DONE.
    delete_done,
    /// Every other settlement.
    settle_other,
    /// The ids whose leases stand in pending rows.
    held,
    /// Extends leases.
    renew,
    /// Takes off all leases.
    release_all,
    /// Rows by status.
    counts,
    /// The columns of a record, up to `WHERE`.
    records,
    /// The numbers of DEAD rows, by the index that has what is DEAD. Conditions follow.
    dead,
    /// The same of rows whose numbers are known, by these numbers, which follow.
    dead_numbered,
    /// Makes DEAD rows NEW, up to which.
    redrive,
    /// Deletes DEAD rows, up to which.
    discard,
    /// Deletes rows, up to the query for them.
    purge,
    /// The start of a query for rows to purge.
    purgeable,
    /// Up to which number rows are looked at that are purged by their age alone.
    oldest,
    /// What is paused: kind, name, reason and since when, in microseconds since 1970.
    pauses,
    /// Pauses something, unless it is paused.
    pause,
    /// Ends a pause.
    resume,
    /// Creates the table of applied migrations.
    create_history,
    /// The newest applied migration.
    applied,
    /// Records an applied migration.
    record_applied,
}
