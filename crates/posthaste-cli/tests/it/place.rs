//! A directory of its own for a test, in which commands are run.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::{stderr, stdout};

/// Longer than anything takes that is going to happen.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Place {
    directory: TempDir,
    variables: Vec<(String, String)>,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), variables: Vec::new() }
    }

    /// One with these settings.
    pub(crate) fn with(settings: &str) -> Self {
        let place = Self::new();
        place.write("posthaste.toml", settings);
        place
    }

    pub(crate) fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste"));
        command.args(arguments).current_dir(self.directory.path()).env_remove("RUST_LOG").stdin(Stdio::null());
        for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"] {
            command.env_remove(name);
        }
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("POSTHASTE_")) {
            command.env_remove(name);
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs a command to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the command can be started")
    }

    /// The same with a variable that need not be text.
    pub(crate) fn run_with(&self, name: &str, value: &OsStr, arguments: &[&str]) -> Output {
        self.command(arguments).env(name, value).output().expect("the command can be started")
    }

    /// Runs a command of which nobody reads what it prints.
    pub(crate) fn unread(&self, arguments: &[&str]) -> Output {
        let (_, out) = std::io::pipe().unwrap();
        // The reading end is closed before there is anything to read.
        self.command(arguments).stdout(out).output().expect("the command can be started")
    }

    /// The same of what it says on standard error, too.
    pub(crate) fn unheard(&self, arguments: &[&str]) -> Option<i32> {
        let ((_, out), (_, error)) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
        self.command(arguments).stdout(out).stderr(error).status().expect("the command can be started").code()
    }

    /// Runs a command with one end of a terminal as its standard output (1) or standard error (2): what it prints, and what it says.
    pub(crate) fn on_terminal(&self, stream: u8, arguments: &[&str]) -> (String, String) {
        let ended = self.with_terminal(&stream.to_string(), (&[], ""), arguments);
        assert_eq!(ended.status, 0, "{arguments:?}: {ended:?}");
        (ended.printed, ended.said)
    }

    /// Runs a command for somebody at a terminal, who types this when he is asked; `^D` and `^C` are keys.
    pub(crate) fn answering(&self, answer: &str, arguments: &[&str]) -> Ended {
        self.answering_after(&[], answer, arguments)
    }

    /// The same for somebody who thinks about it for as long as another command takes, which has to end well.
    pub(crate) fn answering_after(&self, meanwhile: &[&str], answer: &str, arguments: &[&str]) -> Ended {
        let ended = self.with_terminal("02", (meanwhile, answer), arguments);
        assert!(ended.asked, "{arguments:?}: nothing was asked: {ended:?}");
        ended
    }

    /// Runs a command with a terminal as these of its streams.
    fn with_terminal(&self, streams: &str, (meanwhile, answer): (&[&str], &str), arguments: &[&str]) -> Ended {
        const TERMINAL: &str = include_str!("terminal.py");
        let ours = self.command(arguments);
        let mut python = Command::new("python3");
        python.args(["-c", TERMINAL, streams, answer]).arg(ours.get_program()).args(ours.get_args());
        python.current_dir(self.directory.path()).env("TERM", "xterm-256color").stdin(Stdio::null());
        for (name, value) in ours.get_envs() {
            match value {
                Some(value) => python.env(name, value),
                None => python.env_remove(name),
            };
        }
        if !meanwhile.is_empty() {
            let command = [&[env!("CARGO_BIN_EXE_posthaste")], meanwhile].concat();
            python.env("MEANWHILE", serde_json::to_string(&command).unwrap());
        }
        let output = crate::tool("python3", &mut python);
        assert!(output.status.success(), "{arguments:?}: {}{}", stdout(&output), stderr(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The same place on a machine whose clock is so many seconds ahead, or behind.
    pub(crate) fn with_clock(self, off: i64) -> Self {
        let directories = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
        let mut files = directories.map(|directory| directory.path().join("faketime/libfaketime.so.1"));
        let library = files.find(|file| file.exists()).expect(
            "libfaketime is not installed: run scripts/test as root, which installs it, or install Debian's package of that name",
        );
        self.variable("LD_PRELOAD", library.to_str().unwrap())
            .variable("FAKETIME", &format!("{off:+}s"))
            // What measures lengths of time is right on a machine whose clock is wrong.
            .variable("FAKETIME_DONT_FAKE_MONOTONIC", "1")
    }

    /// Runs a command that has to end well, and gives what it prints.
    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}{}", stdout(&output), stderr(&output));
        stdout(&output).to_owned()
    }

    /// The same of one that gets this on its standard input.
    pub(crate) fn fed(&self, input: &[u8], arguments: &[&str]) -> String {
        std::fs::write(self.path("input"), input).unwrap();
        let input = std::fs::File::open(self.path("input")).unwrap();
        let output = self.command(arguments).stdin(input).output().expect("the command can be started");
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}{}", stdout(&output), stderr(&output));
        stdout(&output).to_owned()
    }

    /// The same of one that prints a JSON document.
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.ok(arguments)).unwrap()
    }

    /// Runs a command that has to end with this status, and gives what it says.
    pub(crate) fn fails(&self, status: i32, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {}{}", stdout(&output), stderr(&output));
        stderr(&output).to_owned()
    }

    /// Starts a command that goes on.
    pub(crate) fn start(&self, arguments: &[&str]) -> Running {
        let mut command = self.command(arguments);
        let is_said = self.variables.iter().any(|(name, _)| name == "POSTHASTE_HTTP_LISTEN");
        if !is_said && !self.read("posthaste.toml").contains("[http]") {
            // Tests run at the same time, and would all listen at the same port.
            command.env("POSTHASTE_HTTP_LISTEN", "127.0.0.1:0");
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it can be started");
        let said = Arc::new(Mutex::new(String::new()));
        let (pipe, heard) = (child.stderr.take().unwrap(), Arc::clone(&said));
        let listening = std::thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                *heard.lock().unwrap() += &(line + "\n");
            }
        });
        Running { child, said, listening }
    }

    /// Waits until something holds.
    pub(crate) fn until(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        until(what, || holds(self));
    }
}

pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < PATIENCE, "it never came that {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What became of a command at a terminal.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct Ended {
    pub(crate) printed: String,
    pub(crate) said: String,
    /// Less than zero if it was ended by a signal.
    pub(crate) status: i32,
    asked: bool,
}

/// A command that goes on, and ends with the test at the latest.
pub(crate) struct Running {
    child: Child,
    said: Arc<Mutex<String>>,
    listening: JoinHandle<()>,
}

impl Running {
    pub(crate) fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Waits until it has said this on standard error.
    pub(crate) fn says(&mut self, words: &str) {
        let started = Instant::now();
        while !self.said().contains(words) {
            if self.child.try_wait().unwrap().is_some() {
                self.hear_the_rest();
                assert!(self.said().contains(words), "ended without {words:?}: {}", self.said());
            }
            assert!(started.elapsed() < PATIENCE, "no {words:?} in:\n{}", self.said());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The thread that listens may be behind one that has ended.
    fn hear_the_rest(&self) {
        let started = Instant::now();
        while !self.listening.is_finished() && started.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether this is the name of an owner of leases that it has made: its number, with a random part.
    pub(crate) fn is_called(&self, owner: &str) -> bool {
        owner.split_once('-').is_some_and(|(number, _)| number == self.child.id().to_string())
    }

    pub(crate) fn terminate(&self) {
        self.signal("-TERM");
    }

    pub(crate) fn signal(&self, signal: &str) {
        let killed = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(killed.success());
    }

    /// Waits for its end: the status, what it printed, and what it said.
    pub(crate) fn end(mut self) -> (Option<i32>, String, String) {
        let started = Instant::now();
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None if started.elapsed() > PATIENCE => panic!("it does not end: {}", self.said()),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        let mut printed = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
        self.hear_the_rest();
        (status.code(), printed, self.said())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port where nobody listens. It is below those that the system gives to connections, so it stays free.
pub(crate) fn free_port() -> u16 {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    loop {
        let place = std::process::id().wrapping_mul(97).wrapping_add(ASKED.fetch_add(1, Ordering::Relaxed));
        let port = 20_000 + u16::try_from(place % 12_000).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// An address where nobody is yet, and from some moment on somebody else.
pub(crate) struct Late {
    pub(crate) address: SocketAddr,
    to: String,
}

impl Late {
    pub(crate) fn to(server: &str) -> Self {
        Self { address: SocketAddr::from(([127, 0, 0, 1], free_port())), to: server.to_owned() }
    }

    /// From now on connections lead to the server.
    pub(crate) fn arrive(&self) {
        let (listener, to) = (TcpListener::bind(self.address).unwrap(), self.to.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let server = TcpStream::connect(&to).unwrap();
                for (mut from, mut to) in [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)]
                {
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.flush();
                        let _ = to.shutdown(std::net::Shutdown::Both);
                    });
                }
            }
        });
    }
}

/// A server that takes connections and never answers.
pub(crate) fn silent() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut held = Vec::new();
        for client in listener.incoming().map_while(Result::ok) {
            held.push(client);
        }
    });
    address
}
