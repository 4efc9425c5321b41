//! `posthaste completions`: what a shell needs to complete commands and flags.

use std::io::Write;
use std::process::ExitCode;

use clap_complete::Shell;

use crate::exit::Failed;

/// Print the completions of commands and flags for a shell.
///
/// For bash: posthaste completions bash > /usr/share/bash-completion/completions/posthaste
///
/// For zsh, in a directory of $fpath: posthaste completions zsh > _posthaste
///
/// For fish: posthaste completions fish > ~/.config/fish/completions/posthaste.fish
#[derive(clap::Args)]
pub(crate) struct Args {
    /// For which shell.
    shell: Shell,
}

pub(crate) fn run(args: &Args, mut command: clap::Command) -> Result<ExitCode, Failed> {
    let name = command.get_name().to_owned();
    // First into memory: whoever reads no further is no reason to panic.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    let mut out = std::io::stdout().lock();
    out.write_all(&script)?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
