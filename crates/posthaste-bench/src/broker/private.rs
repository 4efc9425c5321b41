//! Brokers that are started for the run.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, ensure};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::Kind;

/// Starts a broker, says where and what it is, and ends it when nobody holds the other end of its input any more: also when
/// this process was killed.
const KEEPER: &str = r#"
script=$1 name=$2 directory=$3
shift 3
if ! variables=$("$script" start "$directory/broker" "$@"); then
    rm -rf "$directory"
    exit 1
fi
eval "$variables"
url=POSTHASTE_TEST_${name^^}_URL about=POSTHASTE_TEST_${name^^}_BROKER
printf '%s\n' "${!url}" "${!about:-}"
cat >/dev/null
"$script" stop "$directory/broker" >&2
rm -rf "$directory"
"#;

/// A broker of this run alone.
pub(crate) struct Private {
    keeper: Child,
    url: String,
    about: Option<String>,
}

impl Private {
    /// Starts it by its script in `scripts/brokers`.
    pub(crate) async fn start(kind: Kind) -> anyhow::Result<Self> {
        let (name, started) = (kind.name(), kind.script());
        let script = script(name, started)?;
        // On a disk it would be SQLite that is measured, which this broker has write each request by itself.
        let arguments: &[&str] = if kind == Kind::Kafka { &["--memory"] } else { &[] };
        say!("starting {name}");
        let mut keeper = Command::new("bash")
            .args(["-c", KEEPER, "bash"])
            .arg(script)
            .arg(started)
            // The keeper deletes it, who needs it for the end.
            .arg(tempfile::tempdir()?.keep())
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C is for this process; the keeper notices when it is gone.
            .process_group(0)
            .spawn()
            .context("bash")?;
        let mut said = BufReader::new(keeper.stdout.take().context("no output of the keeper")?).lines();
        let mut line = async || said.next_line().await.map(|line| line.filter(|line| !line.is_empty()));
        let failed = || format!("scripts/brokers/{started} start failed; give --broker {name}=URL to use one of yours");
        let (url, about) = (line().await?.with_context(failed)?, line().await?);
        Ok(Self { keeper, url, about })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// What its script says of it, if anything.
    pub(crate) fn about(&self) -> Option<&str> {
        self.about.as_deref()
    }

    /// Ends it. Whoever drops it instead does not wait for that.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        drop(self.keeper.stdin.take());
        let status = self.keeper.wait().await?;
        ensure!(status.success(), "the broker at {} was not ended: {status}", self.url);
        Ok(())
    }
}

fn script(name: &str, started: &str) -> anyhow::Result<PathBuf> {
    let script = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/brokers")).join(started);
    ensure!(
        script.exists(),
        "the repository that has scripts/brokers is not where this program was built; give --broker {name}=URL"
    );
    Ok(script)
}
