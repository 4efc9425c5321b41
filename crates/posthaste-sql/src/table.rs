//! The name of the table, which is the only thing in our SQL that a user chooses.

use std::fmt;

use posthaste_core::store::Error;

/// Leaves room for the suffixes of index names within the 63 characters of the strictest database.
const LONGEST_NAME: usize = 48;

const ALLOWED: &str = "a table name has 1 to 48 of the characters A-Z, a-z, 0-9 and _, does not begin with a digit \
                       or sqlite_, and may follow a schema of the same form and a dot";

/// The name of a table, with or without a schema, that is safe to stand in SQL.
///
/// ```
/// use posthaste_sql::TableName;
///
/// assert_eq!(TableName::parse("outbox.order_events")?.schema(), Some("outbox"));
/// assert!(TableName::parse("orders; DROP TABLE orders").is_err());
/// # Ok::<(), posthaste_core::store::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TableName {
    schema: Option<Box<str>>,
    name: Box<str>,
}

impl TableName {
    /// The name used unless another is chosen.
    pub const DEFAULT: &'static str = "outbox_event";

    /// Takes `table` or `schema.table`.
    ///
    /// # Errors
    /// [`Error::Config`], saying what is allowed, for anything but plain identifiers.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let (schema, name) = match text.split_once('.') {
            Some((schema, name)) => (Some(schema), name),
            None => (None, text),
        };
        if !schema.is_none_or(is_identifier) || !is_identifier(name) {
            return Err(Error::Config { field: "table", value: shown(text), reason: ALLOWED.to_owned() });
        }
        Ok(Self { schema: schema.map(Box::from), name: Box::from(name) })
    }

    /// The schema, if one was given.
    pub fn schema(&self) -> Option<&str> {
        self.schema.as_deref()
    }

    /// The name without the schema.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name of the function or procedure that writes into it, without the schema, which is the same: `posthaste_write`, unless
    /// the table has a name of its own. Then there may be several in a schema, and it is called `NAME_write`; that of a table
    /// `posthaste`, which would be the same as of the first, `write_posthaste`.
    pub fn write_routine(&self) -> String {
        match self.name() {
            Self::DEFAULT => "posthaste_write".to_owned(),
            // MySQL does not tell capitals apart.
            name if name.eq_ignore_ascii_case("posthaste") => format!("write_{name}"),
            name => format!("{name}_write"),
        }
    }
}

impl Default for TableName {
    fn default() -> Self {
        Self { schema: None, name: Box::from(Self::DEFAULT) }
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(schema) = &self.schema {
            write!(f, "{schema}.")?;
        }
        f.write_str(&self.name)
    }
}

fn is_identifier(text: &str) -> bool {
    text.len() <= LONGEST_NAME
        && text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && !text.get(..7).is_some_and(|start| start.eq_ignore_ascii_case("sqlite_"))
}

/// What was given, cut so that a message stays readable.
fn shown(text: &str) -> String {
    const ENOUGH: usize = 80;
    match text.char_indices().nth(ENOUGH) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn plain_names_pass_with_and_without_a_schema() {
        for name in ["outbox_event", "_x", "Orders2", "audit.outbox_event", "a.b", &"t".repeat(48)] {
            assert_eq!(TableName::parse(name).unwrap().to_string(), name);
        }
    }

    #[test]
    fn every_table_has_a_routine_of_its_own() {
        let names = ["outbox_event", "posthaste", "orders", "posthaste_orders"];
        let routines: std::collections::BTreeSet<String> =
            names.iter().map(|name| TableName::parse(name).unwrap().write_routine().to_lowercase()).collect();
        assert_eq!(routines.len(), names.len(), "{routines:?}");
        assert!(routines.contains("posthaste_write") && routines.contains("orders_write"), "{routines:?}");
        assert_eq!(TableName::parse("Posthaste").unwrap().write_routine(), "write_Posthaste");
    }

    #[test]
    fn hostile_names_are_refused_with_what_is_allowed() {
        let long = "t".repeat(49);
        let hostile = [
            "",
            ".",
            "a.",
            ".b",
            "a.b.c",
            "1st",
            "x; DROP TABLE y",
            "a\"b",
            "a'b",
            "a`b",
            "a b",
            "a--",
            "täble",
            "a\0b",
            "sqlite_master",
            "SQLite_x",
            "main.sqlite_x",
            &long,
        ];
        for name in hostile {
            let error = TableName::parse(name).unwrap_err();
            assert!(matches!(error, Error::Config { field: "table", .. }), "{name:?}");
            assert!(error.to_string().contains("A-Z, a-z, 0-9 and _"), "{error}");
        }
        assert!(TableName::parse(&"x".repeat(10_000)).unwrap_err().to_string().len() < 400);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_name_is_plain_or_refused(text in prop_oneof!["[a-zA-Z0-9_.]{0,60}", "\\PC{0,100}", any::<String>()]) {
            let part = |part: &str| {
                let plain = part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
                let digit = part.bytes().next().is_none_or(|b| b.is_ascii_digit());
                plain && !digit && part.len() <= LONGEST_NAME && !part.to_ascii_lowercase().starts_with("sqlite_")
            };
            let plain = text.split('.').count() <= 2 && text.split('.').all(part);
            match TableName::parse(&text) {
                Ok(name) => {
                    prop_assert!(plain, "{:?}", text);
                    prop_assert_eq!(name.to_string(), text);
                }
                Err(error) => {
                    prop_assert!(!plain, "{:?}", text);
                    prop_assert!(error.to_string().starts_with("table "), "{}", error);
                }
            }
        }
    }
}
