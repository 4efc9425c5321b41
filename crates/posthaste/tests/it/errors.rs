//! The errors that a user can meet, made on purpose by real calls and kept in `tests/golden/errors.txt`, so that a change of a
//! text is seen by whoever makes it, and all of them can be read in one go. To accept a change:
//!
//! ```sh
//! POSTHASTE_GOLDEN=overwrite cargo test -p posthaste --all-features --test it errors::
//! ```

mod ambient;
mod building;
mod decoding;
mod rows;
mod serving;
mod starting;
mod storing;

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt::Write;
use std::path::{Path, PathBuf};

const HEAD: &str = "\
The errors that a user can meet, and below each what it says, a line for it and one for each of its causes. Made by
tests/it/errors.rs, which also says how to accept a change. A text says what happened, to what, where the limit is, and what to
do.
";

#[tokio::test]
async fn every_error_says_what_it_said() {
    let mut book = Book::default();
    book.chapter("Building an event");
    building::write(&mut book);
    book.chapter("Reading a payload");
    decoding::write(&mut book);
    book.chapter("Options, listeners and the start");
    starting::write(&mut book).await;
    book.chapter("Stores");
    storing::write(&mut book).await;
    book.chapter("Servers");
    serving::write(&mut book).await;
    book.chapter("Transactions that a task has at hand");
    ambient::write(&mut book).await;
    book.chapter("What rows keep in last_error");
    rows::write(&mut book).await;

    let golden = here().join("tests/golden/errors.txt");
    if std::env::var_os("POSTHASTE_GOLDEN").is_some_and(|wish| wish == "overwrite") {
        std::fs::write(&golden, &book.text).unwrap();
    }
    let kept = std::fs::read_to_string(&golden).unwrap_or_default();
    if let Some((kept, said)) = first_difference(&kept, &book.text) {
        panic!("an error says something else\n  kept: {kept}\n  said: {said}\nPOSTHASTE_GOLDEN=overwrite accepts it");
    }
    book.misses_none(&[
        ("event", "event/error.rs", "pub enum Mistake"),
        ("decode", "event/error.rs", "pub(crate) enum Mismatch"),
        ("registry", "registry.rs", "pub enum Error"),
        ("start", "outbox/builder.rs", "pub enum StartError"),
        ("write", "outbox.rs", "pub enum WriteError"),
        ("none", "outbox/ambient.rs", "pub enum NoTransaction"),
        ("transaction", "outbox/ambient.rs", "pub enum TransactionError"),
        ("store", "store/error.rs", "pub enum Error"),
        ("commit", "store/error.rs", "pub enum CommitError"),
    ]);
}

fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf()
}

/// The first line in which two texts differ.
fn first_difference<'a>(kept: &'a str, said: &'a str) -> Option<(&'a str, &'a str)> {
    let (mut kept, mut said) = (kept.lines(), said.lines());
    loop {
        match (kept.next(), said.next()) {
            (None, None) => return None,
            (kept, said) if kept == said => {}
            (kept, said) => return Some((kept.unwrap_or("(nothing)"), said.unwrap_or("(nothing)"))),
        }
    }
}

/// All errors with what produced them.
struct Book {
    text: String,
    /// Which variants were seen, each after the name of its type here.
    seen: BTreeSet<String>,
    /// What differs from run to run, and what stands in its place.
    varying: Vec<(String, &'static str)>,
}

impl Default for Book {
    fn default() -> Self {
        Self { text: HEAD.to_owned(), seen: BTreeSet::new(), varying: numbers_of_systems() }
    }
}

/// Systems number their errors differently.
fn numbers_of_systems() -> Vec<(String, &'static str)> {
    [2, 61, 111].map(|number| (format!("(os error {number})"), "(os error …)")).into()
}

impl Book {
    fn chapter(&mut self, title: &str) {
        write!(self.text, "\n\n# {title}\n").unwrap();
    }

    /// Adds an error of one of the types whose variants are counted.
    fn add(&mut self, kind: &str, call: &str, error: &(impl Error + 'static)) {
        self.see(kind, &format!("{error:?}"));
        let causes = std::iter::successors(Some(error as &dyn Error), |error| (*error).source());
        let lines: Vec<String> = causes.map(|cause| without_line(&cause.to_string()).to_owned()).collect();
        self.add_text(call, &lines.join("\n  "));
    }

    /// Adds a text.
    fn add_text(&mut self, call: &str, said: &str) {
        let said = self.varying.iter().fold(said.to_owned(), |said, (varying, instead)| said.replace(varying, instead));
        write!(self.text, "\n## {call}\n{said}\n").unwrap();
    }

    /// Notes the variant, which is the first word of what `Debug` says.
    fn see(&mut self, kind: &str, debug: &str) {
        let end = debug.find(|c: char| !c.is_alphanumeric()).unwrap_or(debug.len());
        self.seen.insert(format!("{kind} {}", &debug[..end]));
    }

    /// Checks that every variant that there is in the code of the core was made here.
    fn misses_none(&self, types: &[(&str, &str, &str)]) {
        for (kind, file, declaration) in types {
            let code = std::fs::read_to_string(here().join("../posthaste-core/src").join(file)).unwrap();
            let variants = variants(&code, declaration);
            assert!(!variants.is_empty(), "{file} has no {declaration}");
            for variant in variants {
                assert!(
                    self.seen.contains(&format!("{kind} {variant}")),
                    "no call here gives {kind} {variant}: add one"
                );
            }
        }
    }
}

/// A text without the line of PostgreSQL's own source, which sqlx adds, and which every release of it changes.
fn without_line(said: &str) -> &str {
    match said.rsplit_once(" at line ") {
        Some((said, number)) if number.bytes().all(|digit| digit.is_ascii_digit()) => said,
        _ => said,
    }
}

/// The names of the variants of an enum.
fn variants<'a>(code: &'a str, declaration: &str) -> Vec<&'a str> {
    let body = code.split_once(&format!("{declaration} {{")).map_or("", |(_, rest)| rest);
    let body = body.split_once("\n}").map_or(body, |(body, _)| body);
    let names =
        body.lines().filter_map(|line| line.strip_prefix("    ").filter(|name| name.starts_with(char::is_uppercase)));
    names.map(|name| name.split(|c: char| !c.is_alphanumeric()).next().unwrap_or(name)).collect()
}
