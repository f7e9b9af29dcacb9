//! `POST /v1/exec`: the result of a program, in exactly the fields that clients know.

use std::io::Read;

use serde_json::{Value, json};
use tare_harness::{Answer, Server, eventually, tare, unprivileged};

use crate::librechat::client::{Chat, Form, file, is_id, peak_bytes, text};

/// The result fields of an answer, in the order of the contract.
fn verdict(answer: &Value) -> [Value; 4] {
    ["code", "signal", "status", "message"].map(|field| answer[field].clone())
}

#[test]
fn a_program_runs_beside_its_files_and_leaves_nothing() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let answer = chat.python("import os; print(os.getcwd(), os.listdir('.'))");
    let golden = json!({
        "session_id": answer["session_id"],
        "stdout": "/mnt/data []\n",
        "stderr": "",
        "files": [],
        "code": 0,
        "signal": null,
        "message": null,
        "status": null,
        "wall_time": answer["wall_time"],
    });
    assert_eq!(answer, golden);
    assert!(tare.footprint().records.is_empty());
    let arguments = json!({
        "lang": "bash", "code": "echo $#: $2", "args": ["a", "b c"], "session_id": "ignored",
        "unknown": { "field": 1 }, "files": null, "user_id": null,
    });
    assert_eq!(chat.exec(arguments)["stdout"], "2: b c\n");
    chat.stop(&tare);
}

#[test]
fn a_failed_program_is_a_normal_answer_with_exit_code_and_output() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let answer = chat.python("open('half.txt', 'w').write('x')\nraise ValueError('no')");
    assert_eq!(verdict(&answer), [json!(1), json!(null), json!(null), json!(null)]);
    assert!(text(&answer["stderr"]).contains("ValueError: no"), "{answer}");
    // Clients tell the model that a failed execution leaves no files.
    assert_eq!(answer["files"], json!([]));
    let killed = chat.exec(json!({ "lang": "bash", "code": "kill -SEGV $$" }));
    assert_eq!(verdict(&killed), [json!(null), json!("SIGSEGV"), json!(null), json!(null)]);
    chat.stop(&tare);
}

#[test]
fn timeout_memory_and_output_limits_end_a_program_with_the_reason_on_stderr() {
    let tare = tare!();
    let limits = "[limits]\ntimeout_max = '2s'\ntimeout = '1s'\noutput_bytes = '64k'\n\
                  [librechat.boxes]\nmemory = '64m'\n";
    let chat = Chat::configured(&tare, "", limits);
    let reasons = [
        ("sleep 100", "TO", "Time limit exceeded"),
        ("yes", "OL", "stdout length exceeded"),
        ("head -c 1g /dev/zero | tail", "SG", "Out of memory"),
    ];
    for (code, status, message) in reasons {
        // More time than there is gets what there is.
        let request =
            json!({ "lang": "bash", "code": format!("exec {code}"), "timeout": 1e9 as u64 });
        let request = match status {
            "SG" => json!({ "lang": "py", "code": "bytearray(1 << 30)" }),
            _ => request,
        };
        let answer = chat.exec(request);
        assert_eq!(
            verdict(&answer),
            [json!(null), json!("SIGKILL"), json!(status), json!(message)],
            "{code}"
        );
        let sandbox = format!("\n[sandbox] {message}\n");
        assert!(text(&answer["stderr"]).ends_with(&sandbox), "{code}");
        assert!(tare.footprint().records.is_empty());
    }
    let noisy = json!({ "lang": "bash", "code": "head -c 100k /dev/zero | tr '\\0' x >&2" });
    let answer = chat.exec(noisy);
    let message = "stderr truncated at 65536 bytes";
    assert_eq!(verdict(&answer), [json!(0), json!(null), json!(null), json!(message)]);
    chat.stop(&tare);
}

#[test]
fn written_files_are_returned_with_name_and_type() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let code = "import os
os.makedirs('plots/deep'); os.makedirs('__pycache__'); os.makedirs('.cache')
for name in ['a.csv', 'plots/deep/b.png', 'report.pdf', 'table.xlsx', 'odd.xyz', '__pycache__/m.pyc', '.cache/x', '.hidden']:
    open(name, 'w').write(name)
os.symlink('/etc/passwd', 'link.txt'); os.mkfifo('pipe.txt')
open('locked.txt', 'w').close(); os.chmod('locked.txt', 0); os.makedirs('closed/in'); os.chmod('closed', 0)";
    let answer = chat.python(code);
    let types = [
        ("a.csv", "text/csv"),
        ("plots/deep/b.png", "image/png"),
        ("report.pdf", "application/pdf"),
        ("table.xlsx", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
        ("odd.xyz", "application/octet-stream"),
    ];
    assert_eq!(answer["files"].as_array().map(Vec::len), Some(types.len()), "{answer}");
    for (name, media_type) in types {
        let file = file(&answer, name);
        assert_eq!(file["path"], format!("/mnt/data/{name}"));
        assert_eq!(file["storage_session_id"], answer["session_id"]);
        assert!(is_id(text(&file["id"])), "{file}");
        assert_eq!((&file["inherited"], &file["modified_from"]), (&json!(null), &json!(null)));
        let got = chat.download(file);
        assert_eq!(got.text(), name);
        let said = got.header("content-type").unwrap_or_default();
        assert!(said.starts_with(media_type), "{name}: {said}");
    }
    let metrics = chat.server.get("/metrics").text();
    let bytes: usize = types.iter().map(|(name, _)| name.len()).sum();
    assert!(metrics.contains(&format!("\ntare_files_bytes {bytes}\n")), "{metrics}");
    chat.stop(&tare);
}

#[test]
fn changed_and_unchanged_inputs_are_distinguished() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let data = chat.given("in/data.csv", b"a,b\n1,2\n");
    let kept = chat.given("kept.txt", b"kept");
    let rewritten = chat.given("rewritten.txt", b"same");
    let removed = chat.given("removed.txt", b"gone");
    let code = "import os
print(open('/mnt/data/in/data.csv').read(), end='')
open('in/data.csv', 'a').write('3,4\\n')
open('rewritten.txt', 'w').write('same')
os.remove('removed.txt')
import zipfile; zipfile.ZipFile('all.zip', 'w').write('kept.txt')";
    let request = json!({ "lang": "py", "code": code, "files": [data, kept, rewritten, removed] });
    let answer = chat.exec(request);
    assert_eq!(answer["stdout"], "a,b\n1,2\n", "{answer}");
    let changed = file(&answer, "in/data.csv");
    let origin = json!({ "id": data["id"], "storage_session_id": data["storage_session_id"] });
    assert_eq!(changed["modified_from"], origin);
    assert_ne!(changed["id"], data["id"]);
    assert_eq!(chat.download(changed).text(), "a,b\n1,2\n3,4\n");
    for (name, given) in [("kept.txt", &kept), ("rewritten.txt", &rewritten)] {
        let same = file(&answer, name);
        assert_eq!((&same["inherited"], &same["id"]), (&json!(true), &given["id"]), "{answer}");
    }
    assert_eq!(answer["deleted_files"], json!(["removed.txt"]));
    assert!(file(&answer, "all.zip")["inherited"].is_null());
    // The first clients name the session differently, and get what they name.
    let first =
        json!({ "id": changed["id"], "session_id": changed["session_id"], "name": "x.csv" });
    let again = chat.exec(json!({ "lang": "bash", "code": "cat x.csv", "files": [first] }));
    assert_eq!(again["stdout"], "a,b\n1,2\n3,4\n");
    chat.stop(&tare);
}

#[test]
fn a_read_only_input_is_unchanged() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let fields = [("kind", "skill"), ("id", "s"), ("version", "2"), ("read_only", "true")];
    let form = fields.iter().fold(Form::default(), |form, (name, value)| form.field(name, value));
    let sent = chat.upload(form.file("skill.md", b"how")).was(200).json();
    let reference = json!({
        "id": sent["files"][0]["fileId"], "name": "skill.md", "kind": "skill", "resource_id": "s",
        "version": 2, "storage_session_id": sent["storage_session_id"],
    });
    let code = "echo other > skill.md";
    let answer = chat.exec(json!({ "lang": "bash", "code": code, "files": [reference] }));
    let same = file(&answer, "skill.md");
    assert_eq!((&same["inherited"], &same["id"]), (&json!(true), &reference["id"]));
    chat.stop(&tare);
}

#[test]
fn invalid_executions_are_refused_with_librechats_errors() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let refused = |request: Value, status: u16| {
        let answer = chat.server.post("/v1/exec", &request).was(status).json();
        text(&answer["error"]).to_owned()
    };
    let error = refused(json!({ "lang": "cobol", "code": "" }), 400);
    assert!(
        error.starts_with("Unsupported language: cobol") && error.contains("python"),
        "{error}"
    );
    refused(json!({ "lang": "py" }), 400);
    refused(json!({ "code": "1" }), 400);
    refused(json!({ "lang": "py", "code": "1", "args": ["a\u{0}b"] }), 400);
    let mine = chat.given("a.txt", b"x");
    let with = |change: &dyn Fn(&mut Value)| {
        let mut file = mine.clone();
        change(&mut file);
        json!({ "lang": "bash", "code": "true", "files": [file] })
    };
    for name in ["../a", "/etc/passwd", "a/../../b", "a\nb", "", &"x/".repeat(11)] {
        refused(with(&|file| file["name"] = json!(name)), 400);
    }
    refused(with(&|file| file["id"] = json!("../../../etc/passwd")), 400);
    refused(with(&|file| file["kind"] = json!("planet")), 400);
    let gone = with(&|file| file["id"] = json!("A".repeat(21)));
    assert_eq!(refused(gone, 422), "session_input_unavailable");
    refused(with(&|file| file["kind"] = json!("agent")), 403);
    let other_user = json!({ "lang": "bash", "code": "true", "files": [mine], "user_id": "u1" });
    chat.exec(other_user);
    assert!(tare.footprint().records.is_empty());
    chat.stop(&tare);
}

#[test]
fn a_named_user_does_not_get_files_of_another_named_user() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let of = |user: &str, files: Value| json!({ "lang": "bash", "code": "touch out.txt", "user_id": user, "files": files });
    let made = chat.exec(of("alice", json!([])));
    let made = file(&made, "out.txt");
    let reference = json!([{
        "id": made["id"], "storage_session_id": made["storage_session_id"], "name": "out.txt",
        "kind": "user", "resource_id": made["id"],
    }]);
    chat.exec(of("alice", reference.clone()));
    chat.server.post("/v1/exec", &of("bob", reference)).was(403);
    chat.stop(&tare);
}

#[test]
fn a_client_that_hangs_up_ends_its_program() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let body = json!({ "lang": "bash", "code": "sleep 1000" }).to_string();
    let json_type = [("Content-Type", "application/json")];
    let waiting = chat.server.send("POST", "/v1/exec", &json_type, body.as_bytes());
    eventually("it runs", || !tare.footprint().records.is_empty());
    drop(waiting);
    eventually("nothing is left", || {
        let left = tare.footprint();
        left.records.is_empty() && left.processes.len() == 1
    });
    chat.stop(&tare);
}

#[test]
fn a_named_request_can_be_cancelled_by_its_sender_only() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let body = json!({ "lang": "bash", "code": "sleep 1000" }).to_string();
    let headers = [("Content-Type", "application/json"), ("X-LibreChat-Code-Request-ID", "r1")];
    let mut waiting = chat.server.send("POST", "/v1/exec", &headers, body.as_bytes());
    eventually("it runs", || !tare.footprint().records.is_empty());
    let cancel = |name: &str| {
        let request = json!({ "request_id": name });
        chat.server.post("/v1/exec/cancel", &request).was(200).json()["cancelled"].clone()
    };
    assert_eq!(cancel("r2"), false);
    assert_eq!(cancel("r1"), true);
    let mut bytes = Vec::new();
    waiting.read_to_end(&mut bytes).expect("an answer");
    let answer = Answer::parse(&bytes);
    assert_eq!(answer.was(409).json()["error"], "execution_cancelled");
    eventually("nothing is left", || {
        let left = tare.footprint();
        left.records.is_empty() && left.processes.len() == 1
    });
    assert_eq!(cancel("r1"), false);
    chat.stop(&tare);
}

#[test]
fn outputs_beyond_the_limit_are_listed_and_the_others_returned() {
    let tare = tare!();
    let chat = Chat::configured(&tare, "", "[librechat.boxes]\noutput_files = 2\n");
    let answer = chat.exec(json!({ "lang": "bash", "code": "touch a b c d" }));
    assert_eq!(answer["files"].as_array().map(Vec::len), Some(2), "{answer}");
    let told = &answer["artifact_truncation"];
    assert_eq!((&told["reasons"], &told["skipped_count"]), (&json!(["too_many_files"]), &json!(2)));
    chat.stop(&tare);
}

#[test]
fn an_output_whose_name_is_not_utf_8_is_listed_as_skipped() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let code = "for name in [b'caf\\xe9.txt', b'.hid\\xe9', b'kept.txt']: open(name, 'w')";
    let answer = chat.python(code);
    assert_eq!(answer["files"].as_array().map(Vec::len), Some(1));
    file(&answer, "kept.txt");
    let expected = json!({
        "code": "artifact_truncated", "reasons": ["invalid_name"],
        "skipped": ["caf\u{fffd}.txt"], "skipped_count": 1,
    });
    assert_eq!(answer["artifact_truncation"], expected);
    chat.stop(&tare);
}

/// The memory and the processes of a box cannot be limited as a whole there.
#[test]
fn without_root_code_runs_and_the_log_says_which_default_limits_do_not_hold() {
    let tare = unprivileged!();
    let server = Server::start(&tare, &[]);
    let exec = |more: Value| {
        let mut request = json!({ "lang": "bash", "code": "echo $((1 + 1))" });
        request
            .as_object_mut()
            .expect("an object")
            .extend(more.as_object().cloned().unwrap_or_default());
        server.post("/v1/exec", &request).was(200).json()
    };
    for more in [json!({}), json!({ "runtime_session_hint": "v2:user:a" }), json!({})] {
        assert_eq!(exec(more)["stdout"], "2\n");
    }
    let log = server.log();
    let notes =
        log.lines().filter(|line| line.contains("box_note") && line.contains("no writable cgroup"));
    assert_eq!(notes.count(), 1, "once for all boxes: {log}");
    server.stop().ok();
    tare.call(["rm", "-f", "--all"]).ok();
}

#[test]
fn packages_of_the_host_are_in_every_box_and_read_only() {
    let tare = tare!();
    let packages = tare_harness::TemporaryDirectory::new();
    std::fs::create_dir(packages.join("python")).expect("a fresh directory");
    packages.write("python/shared_package.py", "NAME = 'shared'\n");
    let config = format!("[librechat.boxes]\npackages = '{}'\n", packages.text());
    let chat = Chat::configured(&tare, "", &config);
    let code = "import shared_package, os
print(shared_package.NAME)
try: open(shared_package.__file__, 'w')
except OSError as error: print(os.strerror(error.errno))";
    assert_eq!(chat.python(code)["stdout"], "shared\nRead-only file system\n");
    // One user's module is found beside his code's files.
    let module = chat.given("helper.py", b"def f(): return 'mine'\n");
    let request =
        json!({ "lang": "py", "code": "import helper; print(helper.f())", "files": [module] });
    assert_eq!(chat.exec(request)["stdout"], "mine\n");
    chat.stop(&tare);
}

/// Descriptors that the server needs for a box are closed with the box.
#[test]
fn many_executions_leave_the_number_of_descriptors_unchanged() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let input = chat.given("in.txt", b"x");
    let once = || {
        let code = "cp in.txt out.txt";
        chat.exec(json!({ "lang": "bash", "code": code, "files": [input.clone()] }))
    };
    once();
    let before = chat.server.vitals().descriptors;
    for _each in 0..30 {
        once();
    }
    eventually("descriptors are closed", || chat.server.vitals().descriptors <= before);
    let mut stream = chat.server.connect();
    stream.set_nonblocking(true).expect("a socket");
    assert!(stream.read(&mut [0]).is_err());
    chat.stop(&tare);
}

/// The server remembers a limited number of bytes about skipped files, because a path can be as
/// long as directories are deep.
#[test]
fn the_server_needs_little_memory_for_long_names_in_deep_directories() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let code = "import os
for level in range(1000): os.mkdir('x' * 250); os.chdir('x' * 250)
for number in range(500): open(str(number), 'w')";
    let answer = chat.python(code);
    let told = &answer["artifact_truncation"];
    // A copy that takes longer than the server waits is reported as not delivered.
    let is_cut = answer["artifact_delivery"]["status"] == "failed";
    assert!(is_cut || told["skipped_count"] == 500, "{told}");
    assert!(told.to_string().len() < 10_000);
    let most = peak_bytes(chat.server.pid());
    assert!(most < 100 << 20, "{most}");
    chat.stop(&tare);
}

/// The answer contains the output of the program, whatever the program did to its files.
#[test]
fn a_program_that_locks_its_directory_still_gets_an_answer() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let answer = chat.python("import os; os.chmod('/mnt/data', 0); print('heard')");
    assert_eq!(answer["stdout"], "heard\n");
    assert_eq!(answer["artifact_delivery"]["status"], "failed", "{answer}");
    chat.stop(&tare);
}
