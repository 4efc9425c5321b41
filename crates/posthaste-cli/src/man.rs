//! `posthaste man`: the manual pages.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap_mangen::Man;

use crate::exit::Failed;

/// Print the manual page, or write those of all commands.
///
/// To read it: posthaste man | man -l -
///
/// To install all of them: posthaste man --directory /usr/local/share/man/man1
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write a page for each command into this directory instead, such as posthaste-migrate-up.1.
    #[arg(long)]
    directory: Option<PathBuf>,
}

pub(crate) fn run(args: &Args, command: clap::Command) -> Result<ExitCode, Failed> {
    // There is no page on `help`.
    let mut command = command.disable_help_subcommand(true);
    // Gives each command its name as a whole.
    command.build();
    match &args.directory {
        Some(directory) => write_all(&command, directory)?,
        None => std::io::stdout().write_all(&page(&command)?)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn write_all(command: &clap::Command, directory: &Path) -> anyhow::Result<()> {
    let file = directory.join(format!("{}.1", name(command)));
    std::fs::write(&file, page(command)?).with_context(|| format!("{} cannot be written", file.display()))?;
    let shown = |command: &&clap::Command| !command.is_hide_set();
    command.get_subcommands().filter(shown).try_for_each(|command| write_all(command, directory))
}

fn page(command: &clap::Command) -> std::io::Result<Vec<u8>> {
    let mut page = Vec::new();
    let source = format!("posthaste {}", env!("CARGO_PKG_VERSION"));
    Man::new(command.clone()).title(name(command)).source(source).manual("Posthaste").render(&mut page)?;
    Ok(page)
}

/// What its page is called: `posthaste-migrate-up`.
fn name(command: &clap::Command) -> &str {
    command.get_display_name().unwrap_or(command.get_name())
}
