//! `cargo xtask cases`: the conformance cases against the tests that exist.

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::matrix::Matrix;
use crate::{suite, trees};

/// The stores that must pass the suite. A store's tests are in a module of its name.
///
/// `partitioned` is the store on PostgreSQL with a table in partitions.
const STORES: &[&str] = &["memory", "sqlite", "postgres", "partitioned", "mariadb"];

pub(crate) fn run() -> Result<ExitCode> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask is a directory of the repository")?;
    let cases = read(root, "cases.txt", suite::parse_cases)?;
    let exemptions = read(root, "exemptions.txt", suite::parse_exemptions)?;
    let tests = suite::parse_tests(&list_tests(root)?);

    let matrix = Matrix::new(STORES, cases, exemptions, &tests);
    print!("{matrix}");
    let problems = matrix.problems();
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

/// The names of all integration tests of the workspace, one per line, but for those of adapters, which are called after the
/// cases that concern them, and have no matrix.
///
/// Selecting the suite's package alone would build the shared dependencies again with fewer
/// features than the rest of the tests use. Names of the form `case_NN_` are the suite's.
fn list_tests(root: &Path) -> Result<String> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["test", "--locked", "--workspace", "--all-features"])
        .args(["--test", "it", "--no-run", "--message-format", "json"])
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .context("starting cargo to build the tests")?;
    ensure!(built.status.success(), "cargo could not build the tests");
    let mut names = String::new();
    for line in String::from_utf8(built.stdout)?.lines() {
        let message: Value = serde_json::from_str(line).context("what cargo says is JSON")?;
        let package = message["package_id"].as_str().unwrap_or_default();
        let Some(program) = message["executable"].as_str() else { continue };
        let is_test = message["profile"]["test"] == true;
        if !is_test || trees::adapter_packages().any(|adapter| package.contains(&format!("/{adapter}#"))) {
            continue;
        }
        let listed = Command::new(program)
            .args(["--list", "--format", "terse"])
            .output()
            .with_context(|| format!("listing the tests of {program}"))?;
        ensure!(listed.status.success(), "{program} could not list its tests");
        names.push_str(&String::from_utf8(listed.stdout).context("test names are UTF-8")?);
    }
    Ok(names)
}
