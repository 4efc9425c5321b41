//! `cargo xtask cases`: the conformance cases against the tests that exist.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::matrix::Matrix;
use crate::suite::Test;
use crate::{suite, trees};

/// The stores that must pass the suite. A store's tests are in a module of its name.
///
/// `partitioned` is the store on PostgreSQL with a table in partitions.
const STORES: &[&str] = &["memory", "sqlite", "postgres", "partitioned", "mariadb"];

/// The cases that every adapter shows for itself: those of the writer and its transactions.
const WRITING: RangeInclusive<u16> = 9..=19;

/// Cases that the tests of an adapter leave out, and why. A line for a case that has a test is an error.
const ADAPTER_EXEMPTIONS: &[AdapterExemption] = &[AdapterExemption {
    adapter: "posthaste-opentelemetry",
    cases: WRITING,
    reason: "begins no transaction and inserts nothing: it is a hook of an outbox on any store",
}];

struct AdapterExemption {
    adapter: &'static str,
    cases: RangeInclusive<u16>,
    reason: &'static str,
}

pub(crate) fn run() -> Result<ExitCode> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask is a directory of the repository")?;
    let cases = read(root, "cases.txt", suite::parse_cases)?;
    let exemptions = read(root, "exemptions.txt", suite::parse_exemptions)?;
    let Listed { suite, adapters } = list_tests(root)?;

    let matrix = Matrix::new(STORES, cases, exemptions, &suite);
    print!("{matrix}");
    println!();
    let mut problems = matrix.problems();
    for adapter in trees::adapter_packages() {
        let tests = adapters.get(adapter).map_or(&[][..], Vec::as_slice);
        let (summary, found) = check_adapter(adapter, tests, ADAPTER_EXEMPTIONS);
        println!("{summary}");
        problems.extend(found);
    }
    if problems.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("\nproblems ({}):", problems.len());
    for problem in problems {
        eprintln!("  {problem}");
    }
    Ok(ExitCode::FAILURE)
}

fn read<T>(root: &Path, name: &str, parse: impl Fn(&str) -> Result<T>) -> Result<T> {
    let path = root.join("crates/posthaste-conformance").join(name);
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    parse(&text).with_context(|| format!("in {}", path.display()))
}

/// What an adapter's tests show of [`WRITING`], in a line, and what must be mended.
fn check_adapter(adapter: &str, tests: &[Test], exemptions: &[AdapterExemption]) -> (String, Vec<String>) {
    let (mut tested, mut exempt, mut reasons, mut problems) = (0, 0, Vec::new(), Vec::new());
    for case in WRITING {
        let is_tested = tests.iter().any(|test| test.case == case);
        let exemption = exemptions.iter().find(|line| line.adapter == adapter && line.cases.contains(&case));
        match (is_tested, exemption) {
            (true, None) => tested += 1,
            (true, Some(_)) => {
                problems.push(format!("exemption of case {case} for {adapter}: it is stale, a test exists"));
            }
            (false, Some(line)) => {
                exempt += 1;
                reasons.push(line.reason);
            }
            (false, None) => problems.push(format!("case {case}: no test and no exemption for {adapter}")),
        }
    }
    reasons.dedup();
    let (first, last) = WRITING.into_inner();
    let mut summary = format!("{adapter:24}  cases {first} to {last}: {tested} tested, {exempt} exempt");
    for reason in reasons {
        summary = format!("{summary} ({reason})");
    }
    (summary, problems)
}

/// The integration tests of the workspace that are named after a case.
struct Listed {
    suite: Vec<Test>,
    /// Those of each adapter's package. They have no matrix.
    adapters: BTreeMap<&'static str, Vec<Test>>,
}

/// Lists the integration tests of the workspace.
///
/// Selecting the suite's package alone would build the shared dependencies again with fewer
/// features than the rest of the tests use. Names of the form `case_NN_` are the suite's.
fn list_tests(root: &Path) -> Result<Listed> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut cargo = Command::new(cargo);
    // What cargo has told this program of itself would look like a change to the build
    // scripts that ask for it, ring's for one, and all that stands on them be built again.
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")) {
            cargo.env_remove(name);
        }
    }
    let built = cargo
        .args(["test", "--locked", "--workspace", "--all-features"])
        .args(["--test", "it", "--no-run", "--message-format", "json"])
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .context("starting cargo to build the tests")?;
    ensure!(built.status.success(), "cargo could not build the tests");
    let mut tests = Listed { suite: Vec::new(), adapters: BTreeMap::new() };
    for line in String::from_utf8(built.stdout)?.lines() {
        let message: Value = serde_json::from_str(line).context("what cargo says is JSON")?;
        let package = message["package_id"].as_str().unwrap_or_default();
        let Some(program) = message["executable"].as_str() else { continue };
        if message["profile"]["test"] != true {
            continue;
        }
        let listed = Command::new(program)
            .args(["--list", "--format", "terse"])
            .output()
            .with_context(|| format!("listing the tests of {program}"))?;
        ensure!(listed.status.success(), "{program} could not list its tests");
        let names = String::from_utf8(listed.stdout).context("test names are UTF-8")?;
        let adapter = trees::adapter_packages().find(|adapter| package.contains(&format!("/{adapter}#")));
        let list = match adapter {
            Some(adapter) => tests.adapters.entry(adapter).or_default(),
            None => &mut tests.suite,
        };
        list.extend(suite::parse_tests(&names));
    }
    Ok(tests)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cases(numbers: impl IntoIterator<Item = u16>) -> Vec<Test> {
        let names = numbers.into_iter().map(|number| format!("postgres::case_{number:02}_x: test\n"));
        suite::parse_tests(&names.collect::<String>())
    }

    fn exempt(cases: RangeInclusive<u16>) -> [AdapterExemption; 1] {
        [AdapterExemption { adapter: "one", cases, reason: "cannot" }]
    }

    #[test]
    fn an_adapter_tests_every_case_of_writing() {
        let (summary, problems) = check_adapter("one", &cases(1..=30), &[]);
        assert_eq!(problems, [""; 0]);
        assert_eq!(summary, "one                       cases 9 to 19: 11 tested, 0 exempt");
        let (_, problems) = check_adapter("one", &cases((1..=30).filter(|case| *case != 13)), &[]);
        assert_eq!(problems, ["case 13: no test and no exemption for one"]);
    }

    #[test]
    fn an_adapter_without_tests_has_every_hole() {
        assert_eq!(check_adapter("one", &[], &[]).1.len(), 11);
        // What another one is exempt from does not count.
        assert_eq!(check_adapter("two", &[], &exempt(WRITING)).1.len(), 11);
        let (summary, problems) = check_adapter("one", &[], &exempt(WRITING));
        assert_eq!(problems, [""; 0]);
        assert_eq!(summary, "one                       cases 9 to 19: 0 tested, 11 exempt (cannot)");
    }

    #[test]
    fn an_exemption_of_an_adapter_goes_stale() {
        let (_, problems) = check_adapter("one", &cases(9..=18), &exempt(18..=19));
        assert_eq!(problems, ["exemption of case 18 for one: it is stale, a test exists"]);
    }

    #[test]
    fn exemptions_name_adapters() {
        for line in ADAPTER_EXEMPTIONS {
            assert!(trees::adapter_packages().any(|adapter| adapter == line.adapter), "{}", line.adapter);
        }
    }
}
