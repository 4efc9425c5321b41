//! Versions of the table. Migrations are only ever added.

use posthaste_core::store::Error;

use crate::dialect::Dialect;
use crate::table::TableName;

/// One step from a version of the table to the next.
pub(crate) struct Migration {
    pub(crate) name: &'static str,
    pub(crate) sql: &'static str,
}

/// The migrations that a table at `applied` still lacks, with their versions, which count from one.
///
/// # Errors
/// When the table is of a version that this build does not know.
pub(crate) fn pending<'a>(
    migrations: &'a [Migration],
    applied: i64,
    table: &TableName,
) -> Result<impl Iterator<Item = (i64, &'a Migration)> + use<'a>, Error> {
    let newest = i64::try_from(migrations.len()).unwrap_or(i64::MAX);
    if applied > newest {
        return Err(Error::Schema {
            table: table.to_string(),
            reason: format!(
                "it is at version {applied}, made by a newer release, and this one knows versions up to {newest}; \
                 upgrade this program"
            ),
        });
    }
    Ok((1..).zip(migrations).filter(move |(version, _)| *version > applied))
}

/// What the migrations after `applied` would do, for a person to read or run.
pub(crate) fn script<'a>(
    dialect: &Dialect,
    table: &TableName,
    pending: impl Iterator<Item = (i64, &'a Migration)>,
) -> String {
    let mut script = String::new();
    for (version, migration) in pending {
        script += &format!("-- {table}, version {version}: {}\n", migration.name);
        script += dialect.fill(migration.sql, table).trim();
        script += "\n\n";
    }
    script
}
