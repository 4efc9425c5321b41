//! The matrix of cases and stores, and what is wrong with it.

use std::collections::BTreeMap;
use std::fmt;

use crate::suite::{Case, Exemption, TITLE_WIDTH, Test};

/// The module of the tests that concern no store. They cover [`STORELESS_PART`] for all stores.
pub(crate) const EVENT: &str = "event";
const STORELESS_PART: char = 'A';

const WIDTH: usize = 100;

/// The longest name of a store.
const STORE_WIDTH: usize = 11;

pub(crate) struct Matrix {
    stores: &'static [&'static str],
    cases: Vec<Case>,
    exemptions: Vec<Exemption>,
    /// How many tests a case has in a module.
    counts: BTreeMap<(u16, String), usize>,
    /// Tests of a case or of a module that nobody listed.
    strays: Vec<String>,
}

/// What the matrix says about one case for one store.
#[derive(Debug, PartialEq, Eq)]
enum Cell<'a> {
    Tested(usize),
    /// Covered by the tests that concern no store.
    Event,
    Exempt(&'a Exemption),
    Hole,
}

impl Matrix {
    pub(crate) fn new(
        stores: &'static [&'static str],
        cases: Vec<Case>,
        exemptions: Vec<Exemption>,
        tests: &[Test],
    ) -> Self {
        let mut counts = BTreeMap::new();
        let mut strays = Vec::new();
        for test in tests {
            let module = test.module.as_str();
            if !cases.iter().any(|case| case.number == test.case) {
                strays.push(format!("test {}: there is no such case", test.name));
            } else if module != EVENT && !stores.contains(&module) {
                strays.push(format!("test {}: `{module}` is no store", test.name));
            } else {
                *counts.entry((test.case, module.to_owned())).or_default() += 1;
            }
        }
        Self { stores, cases, exemptions, counts, strays }
    }

    /// Everything that must be mended: holes, stale or unknown exemptions, unknown tests.
    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for case in &self.cases {
            for store in self.stores {
                if self.cell(case, store) == Cell::Hole {
                    problems
                        .push(format!("case {} ({}): no test and no exemption for {store}", case.number, case.title));
                }
            }
        }
        for exemption in &self.exemptions {
            let Exemption { case, store, .. } = exemption;
            let listed = self.cases.iter().find(|listed| listed.number == *case);
            let wrong = match listed {
                None => "there is no such case",
                Some(_) if !self.stores.contains(&store.as_str()) => "there is no such store",
                Some(case) if self.cell(case, store) != Cell::Exempt(exemption) => "it is stale, a test exists",
                Some(_) => continue,
            };
            problems.push(format!("exemption of case {case} for {store}: {wrong}"));
        }
        problems.extend_from_slice(&self.strays);
        problems
    }

    fn cell(&self, case: &Case, store: &str) -> Cell<'_> {
        match self.count(case, store) {
            0 if case.part == STORELESS_PART && self.count(case, EVENT) > 0 => Cell::Event,
            0 => self
                .exemptions
                .iter()
                .find(|exemption| exemption.case == case.number && exemption.store == store)
                .map_or(Cell::Hole, Cell::Exempt),
            count => Cell::Tested(count),
        }
    }

    fn count(&self, case: &Case, module: &str) -> usize {
        let key = (case.number, module.to_owned());
        self.counts.get(&key).copied().unwrap_or(0)
    }

    fn fmt_table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:4}  {:TITLE_WIDTH$}", "case", "")?;
        for column in [EVENT].iter().chain(self.stores) {
            write!(f, "  {column}")?;
        }
        writeln!(f)?;
        for case in &self.cases {
            let Case { number, part, title } = case;
            write!(f, "{part} {number:2}  {title:TITLE_WIDTH$}")?;
            let event = match self.count(case, EVENT) {
                0 => String::new(),
                count => count.to_string(),
            };
            write!(f, "  {event:>0$}", EVENT.len())?;
            for store in self.stores {
                let cell = self.cell(case, store).to_string();
                write!(f, "  {cell:>0$}", store.len())?;
            }
            writeln!(f)?;
        }
        Ok(())
    }

    fn fmt_exemptions(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.exemptions.is_empty() {
            writeln!(f, "\nexempt:")?;
        }
        for exemption in &self.exemptions {
            let label = format!("  {:2}  {:STORE_WIDTH$}  ", exemption.case, exemption.store);
            for (index, line) in wrap(&exemption.reason, WIDTH - label.len()).enumerate() {
                let label = if index == 0 { &label } else { "" };
                writeln!(f, "{label:0$}{line}", 8 + STORE_WIDTH)?;
            }
        }
        Ok(())
    }

    fn fmt_totals(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f)?;
        for store in self.stores {
            let (mut tested, mut exempt, mut holes) = (0, 0, 0);
            for case in &self.cases {
                match self.cell(case, store) {
                    Cell::Tested(_) | Cell::Event => tested += 1,
                    Cell::Exempt(_) => exempt += 1,
                    Cell::Hole => holes += 1,
                }
            }
            let cases = self.cases.len();
            writeln!(f, "{store:STORE_WIDTH$}  {cases} cases: {tested} tested, {exempt} exempt, {holes} holes")?;
        }
        Ok(())
    }
}

impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_table(f)?;
        self.fmt_exemptions(f)?;
        self.fmt_totals(f)
    }
}

impl fmt::Display for Cell<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tested(count) => write!(f, "{count}"),
            Self::Event => f.write_str(EVENT),
            Self::Exempt(_) => f.write_str("exempt"),
            Self::Hole => f.write_str("HOLE"),
        }
    }
}

/// Breaks a text between words into lines of at most `width` characters.
fn wrap(text: &str, width: usize) -> impl Iterator<Item = String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::{parse_cases, parse_exemptions, parse_tests};

    const CASES: &str = "1 | A | defaults\n2 | B | rollback\n3 | C | names";

    fn matrix(exemptions: &str, tests: &[&str]) -> Matrix {
        let list: String = tests.iter().map(|name| format!("{name}: test\n")).collect();
        Matrix::new(
            &["memory", "sqlite"],
            parse_cases(CASES).unwrap(),
            parse_exemptions(exemptions).unwrap(),
            &parse_tests(&list),
        )
    }

    const COVERED: &[&str] = &[
        "event::case_01_defaults",
        "memory::case_02_rollback",
        "sqlite::case_02_rollback",
        "sqlite::case_02_drop",
        "sqlite::case_03_names",
    ];

    #[test]
    fn tests_and_exemptions_leave_no_hole() {
        let matrix = matrix("3 | memory | has no table to name", COVERED);
        assert_eq!(matrix.problems(), [""; 0]);
        let expected = "\
case                                    event  memory  sqlite
A  1  defaults                              1   event   event
B  2  rollback                                      1       2
C  3  names                                    exempt       1

exempt:
   3  memory       has no table to name

memory       3 cases: 2 tested, 1 exempt, 0 holes
sqlite       3 cases: 3 tested, 0 exempt, 0 holes
";
        assert_eq!(matrix.to_string(), expected);
    }

    #[test]
    fn a_case_with_neither_is_a_hole() {
        let matrix = matrix("", COVERED);
        assert_eq!(matrix.problems(), ["case 3 (names): no test and no exemption for memory"]);
        assert!(matrix.to_string().contains("HOLE"));
    }

    #[test]
    fn event_tests_cover_part_a_only() {
        let matrix = matrix("", &["event::case_01_a", "event::case_02_b"]);
        let holes = matrix.problems();
        assert_eq!(holes.len(), 4, "{holes:?}");
        assert!(holes[0].starts_with("case 2"));
    }

    #[test]
    fn exemptions_that_exempt_nothing_are_problems() {
        let exemptions = "1 | memory | covered by event\n\
                          2 | sqlite | has a test\n\
                          3 | memory | fine\n\
                          3 | oracle | unknown store\n\
                          9 | memory | unknown case";
        assert_eq!(
            matrix(exemptions, COVERED).problems(),
            [
                "exemption of case 1 for memory: it is stale, a test exists",
                "exemption of case 2 for sqlite: it is stale, a test exists",
                "exemption of case 3 for oracle: there is no such store",
                "exemption of case 9 for memory: there is no such case",
            ]
        );
    }

    #[test]
    fn tests_that_belong_nowhere_are_problems() {
        let mut tests = COVERED.to_vec();
        tests.extend(["memory::case_77_new", "oracle::case_02_rollback"]);
        assert_eq!(
            matrix("3 | memory | fine", &tests).problems(),
            ["test memory::case_77_new: there is no such case", "test oracle::case_02_rollback: `oracle` is no store",]
        );
    }

    #[test]
    fn five_stores_fit_the_width() {
        let cases = format!("1 | A | {}", "x".repeat(TITLE_WIDTH));
        let reason = "a reason that goes on ".repeat(9);
        let matrix = Matrix::new(
            &["memory", "sqlite", "postgres", "partitioned", "mariadb"],
            parse_cases(&cases).unwrap(),
            parse_exemptions(&format!("1 | postgres | {reason}")).unwrap(),
            &[],
        );
        for line in matrix.to_string().lines() {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
    }
}
