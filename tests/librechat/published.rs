//! LibreChat's own client code, as published on npm, drives the server through its ToolNode and gets
//! the answers that it expects. Each test has one server and checks the claims of one subject with
//! every version; the claims are in `published/SUBJECT.cjs`.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use tare_harness::{
    Server, Signer, Tare, TemporaryDirectory, Vitals, box_processes, eventually, in_boxes, poll,
    skip, tare,
};

use crate::librechat::client::{Chat, with_packages};

/// The versions that are driven, oldest first, and the command that installs each.
const CLIENTS: [(&str, &str); 7] = [
    ("3.1.63", "./check"),
    ("3.2.21", "./check"),
    ("3.3.11", LONG),
    ("3.4.0", "./check"),
    ("3.6.15", LONG),
    ("3.8.5", LONG),
    ("3.9.2", "./check"),
];
const LONG: &str = "./check --long";
/// No process of a box takes longer to start or to end.
const PATIENCE: Duration = Duration::from_secs(30);
const INSTALLED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/librechat");
const DRIVER: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/librechat/published/drive.cjs");
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/librechat.md");
/// The head of the table in the page.
const TABLE: &str = "| client | tools | supports | driven by |\n|---|---|---|---|\n";
/// With this variable, the test writes the table anew.
const WRITE: &str = "TARE_WRITE_TESTED_CLIENTS";

/// The keys `a-key` and `small-key`.
const KEYS: &str = "[[keys]]\nname = 'chat'\nadmin = true\n\
    sha256 = '2a8a1240f50636655520ac8ed22aa29473b8517b4abfdbc3bc03bcad73fc8849'\n\
    [[keys]]\nname = 'small'\nruns_per_second = 0.01\n\
    sha256 = 'd8484842191ca22753c34aa50a10220331c45ca5e3cc419ee26c61a54630bd52'\n";
const LIMITS: &str = "[limits]\ntimeout = '2s'\noutput_bytes = '64k'\nruns = 2\nruns_waiting = 0\n\
    [librechat]\nsession_wait = '1s'\nsession_queue = 2\n\
    [librechat.boxes]\nmemory = '96m'\n";

#[test]
fn every_tool_of_published_clients_runs_code() {
    drive("tools", "", "");
}

#[test]
fn published_clients_carry_files_from_call_to_call() {
    drive("files", "", "[librechat]\nprofiles = ['default']\n");
}

#[test]
fn code_of_published_clients_calls_tools() {
    drive("programmatic", "", "");
}

#[test]
fn published_clients_keep_sessions() {
    drive("sessions", "", "");
}

#[test]
fn published_clients_understand_every_limit() {
    drive("limits", "owner_bytes = '4m'\n", &format!("{LIMITS}{KEYS}"));
}

#[test]
fn users_of_published_clients_are_kept_apart() {
    let keys = TemporaryDirectory::new();
    drive("users", "", &with_tokens(&keys));
}

#[test]
fn figures_of_published_clients_are_saved() {
    let Some(packages) = with_packages() else {
        skip!("matplotlib is not installed: ./check does that");
    };
    drive("figures", "", &packages);
}

#[test]
fn published_clients_continue_after_a_restart() {
    drive("restarts", "", "");
}

/// 300 calls in `./check`; ten minutes in `./check --long`.
#[test]
fn twenty_users_of_published_clients_lose_nothing_and_leave_nothing() {
    let keys = TemporaryDirectory::new();
    // A slow machine needs more than the usual 15 seconds for the calls of one turn.
    let patient = "[librechat]\nsession_wait = '2m'\n";
    drive("load", "", &format!("{patient}{}", with_tokens(&keys)));
}

/// The section for tokens that `published/tokens.cjs` signs.
fn with_tokens(directory: &TemporaryDirectory) -> String {
    let key = directory.write("published.pub", Signer::ed25519("published", 7).pem());
    format!("[[librechat.jwt.keys]]\nkid = 'published'\nfile = '{}'\n", key.display())
}

fn is_long() -> bool {
    std::env::var_os("TARE_LONG").is_some()
}

/// The directories of the installed versions. Reports each missing version as a skip.
fn installed(subject: &str) -> Vec<PathBuf> {
    let wanted = CLIENTS.iter().filter(|(_, command)| *command != LONG || is_long());
    let found = wanted.filter_map(|(version, command)| {
        let directory = Path::new(INSTALLED).join(version);
        let is_there = directory.join("dist").exists();
        if !is_there {
            let why = format!("@librechat/agents {version} is not installed: {command} does that");
            skip::announce(&format!("librechat::published, {subject}"), &why);
        }
        is_there.then_some(directory)
    });
    found.collect()
}

/// Checks the claims of a subject against a server with more in `[files]`, and more sections.
#[track_caller]
fn drive(subject: &str, files: &str, sections: &str) {
    let clients = installed(subject);
    if clients.is_empty() {
        return;
    }
    let tare = tare!();
    let chat = Chat::configured(&tare, files, sections);
    let config = format!("{files}{sections}");
    let mut parent = Parent { tare: &tare, chat: Some(chat), config, before: None };
    let is_good = parent.serve(subject, &clients);
    parent.chat.expect("a server").stop(&tare);
    assert!(is_good, "a claim about {subject} fails");
}

/// Does what the driver cannot do itself.
struct Parent<'a> {
    tare: &'a Tare,
    chat: Option<Chat>,
    config: String,
    /// The costs of the server before the load.
    before: Option<Vitals>,
}

impl Parent<'_> {
    /// Runs the driver to its end; returns whether all claims hold.
    #[expect(clippy::print_stderr, reason = "a failed test shows it")]
    fn serve(&mut self, subject: &str, clients: &[PathBuf]) -> bool {
        let mut driver = Command::new("node")
            .args([DRIVER, subject, &self.url()])
            .args(clients)
            .env("TARE_LOAD_SECONDS", if is_long() { "600" } else { "0" })
            .env_remove("PROXY")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("node is installed");
        let mut replies = driver.stdin.take().expect("it is piped");
        let lines = BufReader::new(driver.stdout.take().expect("it is piped")).lines();
        for line in lines.map_while(Result::ok) {
            match self.reply(&line) {
                Some(reply) => writeln!(replies, "{reply}").expect("the driver reads"),
                None => eprintln!("{line}"),
            }
        }
        driver.wait().expect("it was started").success()
    }

    /// Does what a line of the driver asks for. Any other line is a result.
    fn reply(&mut self, line: &str) -> Option<String> {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["until", count, name] => {
                if !until(count.parse().expect("a number"), name) {
                    return Some("late".to_owned());
                }
            }
            ["stop"] => self.server().signal(Signal::TERM),
            ["kill"] => self.server().signal(Signal::KILL),
            ["start"] => self.start(),
            ["baseline"] => self.before = Some(self.at_rest()),
            ["settled"] => self.settled(),
            _ => return None,
        }
        Some(self.url())
    }

    fn server(&self) -> &Server {
        &self.chat.as_ref().expect("a server").server
    }

    fn url(&self) -> String {
        format!("http://{}", self.server().address())
    }

    /// Starts another server when the one before has ended.
    fn start(&mut self) {
        let before = self.chat.take().expect("a server");
        let after = before.after(self.tare, |server| drop(server.stop()), &self.config);
        self.chat = Some(after);
    }

    /// What the server costs without any box.
    fn at_rest(&self) -> Vitals {
        self.tare.call(["rm", "-f", "--all"]).ok();
        self.server().vitals_at_rest()
    }

    /// Checks that neither a process nor a descriptor or thread is left.
    fn settled(&self) {
        let before = self.before.expect("the driver asked for a baseline");
        self.tare.call(["rm", "-f", "--all"]).ok();
        eventually("descriptors, threads and processes are back", || {
            let now = self.server().vitals();
            now.descriptors <= before.descriptors
                && now.threads <= before.threads
                && in_boxes(self.server().pid()) == 0
        });
    }
}

/// Waits until this many processes of boxes have this name; false if that takes too long.
fn until(count: usize, name: &str) -> bool {
    poll(PATIENCE, || {
        let alive = box_processes().into_iter().filter(|process| !process.is_zombie);
        alive.filter(|process| process.name == name).count() == count
    })
}

/// The table in the page comes from the packages themselves.
#[test]
fn the_page_lists_the_tested_clients() {
    let clients = installed("table");
    let printed = Command::new("node").args([DRIVER, "table"]).args(&clients).output();
    let printed = String::from_utf8(printed.expect("node is installed").stdout).expect("text");
    let command = |row: &str| CLIENTS.iter().find(|(version, _)| is_of(row, version));
    let rows = printed.lines().filter_map(|row| Some(format!("{row} `{}` |", command(row)?.1)));
    let rows: Vec<String> = rows.collect();
    let page = fs::read_to_string(PAGE).expect("a page");
    let (before, table) = page.split_once(TABLE).expect("a table");
    let (table, after) = table.split_once("\n\n").expect("the end of the table");
    if std::env::var_os(WRITE).is_some() {
        assert_eq!(rows.len(), CLIENTS.len(), "TARE_LONG=1 and ./check --long give all clients");
        let page = format!("{before}{TABLE}{}\n\n{after}", rows.join("\n"));
        return fs::write(PAGE, page).expect("the page can be written");
    }
    let shown: Vec<&str> = table.lines().collect();
    assert_eq!(shown.len(), CLIENTS.len(), "{table}");
    let ordered = shown.iter().zip(CLIENTS).all(|(row, (version, _))| is_of(row, version));
    assert!(ordered, "{table}");
    for row in rows {
        assert!(shown.contains(&row.as_str()), "{row}\nis not in\n{table}\n(see {WRITE})");
    }
}

fn is_of(row: &str, version: &str) -> bool {
    row.starts_with(&format!("| {version} |"))
}
