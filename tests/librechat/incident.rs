//! The incident that was the reason to write tare: twenty concurrent users run code that imports
//! numpy and pandas, again and again. No execution may leave a descriptor, thread, process, cgroup
//! or file behind.
//!
//! `TARE_INCIDENT_EXECUTIONS=1000` runs all of it; `cargo xtask soak --librechat` plots it.

use serde_json::json;
use tare_harness::random::number_in;
use tare_harness::{
    Answer, Signer, Tare, TemporaryDirectory, Vitals, assert_no_slope, eventually, in_boxes, jwks,
    skip, tare,
};

use crate::librechat::client::{Chat, file, text, with_packages};

/// How many there are; more by the environment.
const EXECUTIONS: u64 = 60;
const EXECUTIONS_VARIABLE: &str = "TARE_INCIDENT_EXECUTIONS";
/// The number of concurrent users.
const USERS: u64 = 20;
/// Importing both takes half a second of a processor, of which there may be one for all.
const LIMITS: &str = "[limits]\ntimeout = '5m'\n";
/// Waiting boxes would count as left.
const COLD: &str = "[pool.python]\nwarm = 0\n";

#[test]
fn the_incident_numpy_and_pandas_for_twenty_users_at_once_leave_nothing() {
    let Some(packages) = with_packages() else {
        skip!("numpy and pandas are not installed: ./check does that");
    };
    let tare = tare!();
    let signer = Signer::ed25519("ed", 1);
    let directory = TemporaryDirectory::new();
    let keys = directory.write("jwks.json", jwks(&[&signer]));
    let jwt = format!("[librechat.jwt]\nkeys = '{}'\n", keys.display());
    let chat = Chat::configured(&tare, "", &format!("{LIMITS}{COLD}{packages}{jwt}"));
    let user = |number: u64| User { chat: &chat, signer: &signer, name: format!("user-{number}") };
    // What is opened once, for the first file, is open.
    user(0).executes(0);
    let before = chat.server.vitals_at_rest();
    let kept_before = chat.stored();
    let executions = number_in(EXECUTIONS_VARIABLE).unwrap_or(EXECUTIONS);
    let rounds = executions.div_ceil(USERS);
    let look_after = |round: u64| {
        all_users(|number| user(number).executes(round));
        look(&tare, &chat, before, kept_before)
    };
    let looks: Vec<Vitals> = (1..=rounds).map(look_after).collect();
    assert_no_slope(&looks);
    let chat = chat.after(&tare, |server| drop(server.stop().ok()), "ttl = '1ms'");
    eventually("the first table has expired", || chat.stored() == 0);
    chat.stop(&tare);
    tare.call(["audit"]).ok();
}

fn all_users(does: impl Fn(u64) + Sync) {
    std::thread::scope(|threads| {
        for user in 0..USERS {
            let does = &does;
            threads.spawn(move || does(user));
        }
    });
}

/// Checks that no box, process, cgroup, descriptor, thread or file is left.
#[track_caller]
fn look(tare: &Tare, chat: &Chat, before: Vitals, kept_before: usize) -> Vitals {
    eventually("no box is left", || {
        let left = tare.footprint();
        left.records.is_empty() && left.cgroups.is_empty() && in_boxes(chat.server.pid()) == 0
    });
    let mut look = chat.server.vitals();
    eventually("descriptors and threads are back", || {
        look = chat.server.vitals();
        look.descriptors <= before.descriptors && look.threads <= before.threads
    });
    assert_eq!(chat.stored(), kept_before, "what was removed is gone");
    show(look);
    look
}

#[expect(clippy::print_stderr, reason = "a failed test shows it")]
fn show(look: Vitals) {
    eprintln!("after {USERS} more: {look:?}");
}

struct User<'a> {
    chat: &'a Chat,
    signer: &'a Signer,
    name: String,
}

impl User<'_> {
    /// Executes the model's code, and downloads and removes the returned table. The very first
    /// table is left to expire.
    fn executes(&self, round: u64) {
        let name = &self.name;
        let code = format!(
            "import numpy, pandas
frame = pandas.DataFrame({{'n': numpy.arange(1000), 'by': '{name} {round}'}})
frame.to_csv('table.csv')
print(frame.n.sum())"
        );
        let request = json!({ "lang": "py", "code": code, "user_id": name });
        let answer = self.ask("POST", "/v1/exec", &request.to_string()).json();
        assert_eq!(answer["stdout"], "499500\n", "{answer}");
        let table = file(&answer, "table.csv");
        let [session, id] = ["storage_session_id", "id"].map(|field| text(&table[field]));
        let path = format!("{session}/{id}?kind=user&id={name}");
        let content = self.ask("GET", &format!("/v1/download/{path}"), "");
        let last = format!("999,999,{name} {round}\n");
        assert!(content.text().ends_with(&last), "{}", content.text());
        if round > 0 {
            self.ask("DELETE", &format!("/v1/files/{path}"), "");
        }
    }

    #[track_caller]
    fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        let token = format!("Bearer {}", self.signer.token(&self.name));
        let headers = [("Authorization", token.as_str()), ("Content-Type", "application/json")];
        let server = &self.chat.server;
        let answer = server.ask(method, path, &headers, body.as_bytes());
        answer.was(200)
    }
}
