//! What the suite consists of: its cases, its exemptions and its tests, read from text.

use anyhow::{Context, Result, bail, ensure};

/// The widest title that leaves room for the columns of five stores in 100 characters.
pub(crate) const TITLE_WIDTH: usize = 32;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) number: u16,
    pub(crate) part: char,
    pub(crate) title: String,
}

/// A case that a store does not run, and why.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Exemption {
    pub(crate) case: u16,
    pub(crate) store: String,
    pub(crate) reason: String,
}

/// A test function of the suite.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Test {
    pub(crate) case: u16,
    /// The outermost module: a store, or [`EVENT`](crate::matrix::EVENT).
    pub(crate) module: String,
    pub(crate) name: String,
}

/// Reads lines of `number | part | title`. Numbers count up from 1, so that none is lost.
pub(crate) fn parse_cases(text: &str) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for (line, [number, part, title]) in rows(text)? {
        let number = parse_number(line, number)?;
        let expected = cases.len() + 1;
        ensure!(usize::from(number) == expected, "line {line}: case {number} stands where case {expected} belongs");
        let mut letters = part.chars();
        let (Some(part @ 'A'..='Z'), None) = (letters.next(), letters.next()) else {
            bail!("line {line}: the part is one capital letter, not `{part}`");
        };
        ensure!(title.chars().count() <= TITLE_WIDTH, "line {line}: the title is longer than {TITLE_WIDTH} characters");
        cases.push(Case { number, part, title: title.to_owned() });
    }
    Ok(cases)
}

/// Reads lines of `number | store | reason`.
pub(crate) fn parse_exemptions(text: &str) -> Result<Vec<Exemption>> {
    let mut exemptions: Vec<Exemption> = Vec::new();
    for (line, [number, store, reason]) in rows(text)? {
        let case = parse_number(line, number)?;
        ensure!(
            !exemptions.iter().any(|e| e.case == case && e.store == store),
            "line {line}: case {case} is exempt for {store} already"
        );
        exemptions.push(Exemption { case, store: store.to_owned(), reason: reason.to_owned() });
    }
    Ok(exemptions)
}

/// Picks the suite's tests, `module::…::case_NN_…: test`, from the terse list of a test binary.
pub(crate) fn parse_tests(list: &str) -> Vec<Test> {
    list.lines().filter_map(|line| parse_test(line.trim().strip_suffix(": test")?)).collect()
}

fn parse_test(name: &str) -> Option<Test> {
    let (modules, function) = name.rsplit_once("::")?;
    let (number, _) = function.strip_prefix("case_")?.split_once('_')?;
    Some(Test { case: number.parse().ok()?, module: modules.split("::").next()?.to_owned(), name: name.to_owned() })
}

/// The lines of three fields, with their numbers; empty lines and `#` comments are left out.
fn rows(text: &str) -> Result<Vec<(usize, [&str; 3])>> {
    text.lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line.trim()))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .map(|(number, line)| {
            let fields: Vec<&str> = line.splitn(3, '|').map(str::trim).collect();
            match fields[..] {
                [a, b, c] if !a.is_empty() && !b.is_empty() && !c.is_empty() => Ok((number, [a, b, c])),
                _ => bail!("line {number}: three fields are separated by `|`, none is empty"),
            }
        })
        .collect()
}

fn parse_number(line: usize, field: &str) -> Result<u16> {
    field.parse().with_context(|| format!("line {line}: `{field}` is not the number of a case"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_cases_between_comments() {
        let cases = parse_cases("# part A\n\n 1 | A | defaults\n2 | B | a | b\n").unwrap();
        assert_eq!(
            cases,
            [
                Case { number: 1, part: 'A', title: "defaults".into() },
                Case { number: 2, part: 'B', title: "a | b".into() },
            ]
        );
    }

    #[test]
    fn refuses_malformed_cases_with_their_line() {
        for (text, expected) in [
            ("1 | A", "line 1: three fields"),
            ("\n1 | A | ", "line 2: three fields"),
            ("one | A | title", "line 1: `one`"),
            ("1 | AB | title", "line 1: the part"),
            ("1 | a | title", "line 1: the part"),
            ("1 | A | x\n3 | A | y", "line 2: case 3 stands where case 2"),
            ("1 | A | x\n1 | A | y", "line 2: case 1 stands where case 2"),
        ] {
            let error = parse_cases(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text:?} gave {error:?}");
        }
        let long = format!("1 | A | {}", "é".repeat(TITLE_WIDTH + 1));
        assert!(parse_cases(&long).is_err());
        let fits = format!("1 | A | {}", "é".repeat(TITLE_WIDTH));
        assert!(parse_cases(&fits).is_ok());
    }

    #[test]
    fn reads_exemptions_and_refuses_doubles() {
        let exemptions = parse_exemptions("37 | memory | has no table\n").unwrap();
        assert_eq!(exemptions, [Exemption { case: 37, store: "memory".into(), reason: "has no table".into() }]);
        assert!(parse_exemptions("37 | memory |").is_err());
        assert!(parse_exemptions("1 | memory | x\n1 | sqlite | x").is_ok());
        let error = parse_exemptions("1 | memory | x\n1 | memory | y").unwrap_err();
        assert_eq!(error.to_string(), "line 2: case 1 is exempt for memory already");
    }

    #[test]
    fn picks_the_suite_from_a_list_of_tests() {
        let list = "memory::case_20_insert_round_trips: test\n\
                    sqlite::claim::case_020_nested: test\n\
                    event::case_01_defaults: test\n\
                    case_03_without_module: test\n\
                    memory::case_x_without_number: test\n\
                    memory::opens: test\n\
                    memory::case_21_speed: benchmark\n";
        let tests: Vec<_> = parse_tests(list).into_iter().map(|test| (test.case, test.module, test.name)).collect();
        let expected = [
            (20, "memory", "memory::case_20_insert_round_trips"),
            (20, "sqlite", "sqlite::claim::case_020_nested"),
            (1, "event", "event::case_01_defaults"),
        ];
        assert_eq!(tests, expected.map(|(case, module, name)| (case, module.to_owned(), name.to_owned())));
    }

    #[test]
    fn the_lists_of_the_suite_are_well_formed() {
        let cases = include_str!("../../crates/posthaste-conformance/cases.txt");
        assert!(parse_cases(cases).unwrap().len() >= 64);
        let exemptions = include_str!("../../crates/posthaste-conformance/exemptions.txt");
        parse_exemptions(exemptions).unwrap();
    }
}
