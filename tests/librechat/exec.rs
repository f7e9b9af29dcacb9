//! `POST /v1/exec`: the result of a program, in exactly the fields that clients know.

use std::io::Read;

use serde_json::{Value, json};
use tare_harness::skip::{has_program, is_root};
use tare_harness::{Answer, Server, eventually, skip, tare, unprivileged};

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
    assert_eq!(tare.boxes_of_calls(), [""; 0]);
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
    let ended = json!("Ended by SIGSEGV");
    assert_eq!(verdict(&killed), [json!(null), json!("SIGSEGV"), json!(null), ended]);
    let stderr = text(&killed["stderr"]);
    let reason = "\n[sandbox] Ended by SIGSEGV. The command was ended by signal 11 (SIGSEGV), not sent by tare";
    assert!(stderr.starts_with(reason), "{stderr}");
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
        let sandbox = format!("\n[sandbox] {message}. Killed by ");
        assert!(text(&answer["stderr"]).contains(&sandbox), "{code}: {answer}");
        assert_eq!(tare.boxes_of_calls(), [""; 0]);
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
    // The first of the two that cannot be read, in the order of the directory.
    let truncated = &answer["artifact_truncation"];
    assert_eq!(truncated["reasons"], json!({ "unreadable": 1 }), "{answer}");
    assert_eq!(
        (&truncated["skipped_count"], &truncated["code"]),
        (&json!(1), &json!("artifact_truncated"))
    );
    let named = text(&truncated["skipped"][0]);
    assert!(["locked.txt", "closed"].contains(&named), "{truncated}");
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
fn a_clone_returns_the_files_that_it_leaves_and_names_those_that_it_deletes() {
    if !has_program("python3") || !is_root() {
        skip!("clones need python3 and root");
    }
    let tare = tare!();
    let chat = Chat::start(&tare);
    let removed = chat.given("removed.txt", b"gone");
    let in_clone = |code: &str, files: &[&Value]| {
        let code = format!("import os\n{code}\nprint(os.getpid())");
        let mut answer = Value::Null;
        eventually("a clone runs it", || {
            answer = chat.exec(json!({ "lang": "py", "code": code, "files": files }));
            // The first process that a keeper has is the clone.
            answer["stdout"] == "2\n"
        });
        answer
    };
    let nothing = in_clone("", &[]);
    assert_eq!((&nothing["files"], &nothing["deleted_files"]), (&json!([]), &Value::Null));
    let deleted = in_clone("os.remove('removed.txt')", &[&removed]);
    assert_eq!(deleted["deleted_files"], json!(["removed.txt"]), "{deleted}");
    let below = in_clone("os.mkdir('d'); open('d/new.txt', 'w').write('new')", &[]);
    assert_eq!(chat.download(file(&below, "d/new.txt")).text(), "new");
    chat.stop(&tare);
}

#[test]
fn an_input_in_an_unreadable_directory_is_not_reported_as_deleted() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let hidden = chat.given("in/data.csv", b"a");
    let removed = chat.given("removed.txt", b"gone");
    let code = "rm removed.txt; chmod 0 in; echo new > new.txt";
    let answer = chat.exec(json!({ "lang": "bash", "code": code, "files": [hidden, removed] }));
    assert!(answer["deleted_files"].is_null(), "{answer}");
    assert_eq!(file(&answer, "in/data.csv")["id"], hidden["id"]);
    assert!(file(&answer, "new.txt")["inherited"].is_null(), "{answer}");
    chat.stop(&tare);
}

/// Each output has a copy of the id.
#[test]
fn a_user_id_beyond_its_limit_is_refused() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    for (route, lang) in [("/v1/exec", "py"), ("/v1/exec/programmatic", "python")] {
        let request =
            |bytes: usize| json!({ "lang": lang, "code": "1", "user_id": "u".repeat(bytes) });
        let refused = chat.server.post(route, &request(257)).was(400);
        assert!(refused.text().contains("a user id has at most 256 bytes"), "{}", refused.text());
        chat.server.post(route, &request(256)).was(200);
    }
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
fn a_named_request_can_be_cancelled_while_it_runs() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let body = json!({ "lang": "bash", "code": "sleep 1000" }).to_string();
    let id = "a-request-of-a-client";
    let headers = [("Content-Type", "application/json"), ("X-LibreChat-Code-Request-ID", id)];
    let mut waiting = chat.server.send("POST", "/v1/exec", &headers, body.as_bytes());
    eventually("it runs", || !tare.footprint().records.is_empty());
    let cancel = |id: &str| {
        let answer = chat.server.post("/v1/exec/cancel", &json!({ "request_id": id }));
        (answer.status, answer.json()["status"].clone())
    };
    assert_eq!(cancel(id), (202, json!("cancellation_requested")));
    let mut bytes = Vec::new();
    waiting.read_to_end(&mut bytes).expect("an answer");
    let answer = Answer::parse(&bytes);
    assert_eq!(answer.was(409).json()["error"], "execution_cancelled");
    eventually("nothing is left", || {
        let left = tare.footprint();
        left.records.is_empty() && left.processes.len() == 1
    });
    let other = [
        ("Content-Type", "application/json"),
        ("X-LibreChat-Code-Request-ID", "another_request_id"),
    ];
    let quick = json!({ "lang": "bash", "code": "true" }).to_string();
    chat.server.ask("POST", "/v1/exec", &other, quick.as_bytes()).was(200);
    assert_eq!(cancel("another_request_id"), (200, json!("already_completed")));
    for wrong in ["short", "sixteen characters"] {
        assert_eq!(cancel(wrong).0, 400, "{wrong}");
    }
    chat.server.post("/v1/exec/cancel", &json!({})).was(400);
    chat.stop(&tare);
}

#[test]
fn outputs_beyond_a_limit_are_listed_with_the_reason_and_the_others_returned() {
    let tare = tare!();
    let files = "file_bytes = '1k'";
    let chat = Chat::configured(&tare, files, "[librechat.boxes]\noutput_files = 2\n");
    let code = "import os
open('large', 'wb').write(bytes(2000))
deep = '/'.join('123456789') + '/10'
os.makedirs(deep); open(deep + '/file', 'w')
for name in [b'caf\\xe9.txt', b'.hid\\xe9', b'kept.txt']: open(name, 'w')";
    let answer = chat.python(code);
    assert_eq!(answer["files"].as_array().map(Vec::len), Some(1), "{answer}");
    file(&answer, "kept.txt");
    let told = &answer["artifact_truncation"];
    let reasons = json!({ "depth": 1, "size": 1, "path": 1 });
    assert_eq!((&told["code"], &told["reasons"]), (&json!("artifact_truncated"), &reasons));
    assert_eq!(told["skipped_count"], 3, "{told}");
    let skipped = told["skipped"].as_array().expect("names");
    assert!(skipped.contains(&json!("caf\u{fffd}.txt")), "{told}");
    assert_eq!(answer["artifact_delivery"], Value::Null, "{answer}");
    let many = chat.python("for n in range(40): open(str(n), 'w')");
    let told = &many["artifact_truncation"];
    assert_eq!(told["skipped"].as_array().map(Vec::len), Some(20));
    assert_eq!(
        (&told["reasons"], &told["skipped_count"]),
        (&json!({ "max_files": 38 }), &json!(38))
    );
    chat.stop(&tare);
}

/// The client tells the model how many files are lost.
#[test]
fn outputs_that_the_store_has_no_room_for_are_reported_as_not_delivered() {
    let tare = tare!();
    let chat = Chat::configured(&tare, "owner_bytes = '10'", "");
    let answer =
        chat.exec(json!({ "lang": "bash", "code": "echo 1 > a; seq 100 > b; seq 100 > c" }));
    let expected = json!({
        "code": "artifact_delivery_failed", "status": "partial",
        "attempted": 3, "delivered": 1, "failed": 2,
    });
    assert_eq!(answer["artifact_delivery"], expected, "{answer}");
    assert_eq!(answer["artifact_truncation"], Value::Null);
    let answer = chat.exec(json!({ "lang": "bash", "code": "seq 100 > b" }));
    assert_eq!(answer["artifact_delivery"]["status"], "failed", "{answer}");
    chat.stop(&tare);
}

/// A conversation sends all files that it has so far.
#[test]
fn inputs_are_limited_by_their_size_and_not_by_their_number() {
    let tare = tare!();
    let chat =
        Chat::configured(&tare, "request_files = 2\n", "[librechat.boxes]\nscratch = '4m'\n");
    let one = chat.given("a", b"x");
    let many: Vec<Value> = (0..300)
        .map(|number| {
            let mut file = one.clone();
            file["name"] = json!(format!("{number}.txt"));
            file
        })
        .collect();
    let count = json!({ "lang": "bash", "code": "ls | wc -l", "files": many });
    let answer = chat.exec(count);
    assert_eq!(answer["stdout"], "300\n");
    let large = chat.given("large", &vec![0; 3 << 20]);
    let mut twice = large.clone();
    twice["name"] = json!("again");
    let request = json!({ "lang": "bash", "code": "true", "files": [large, twice] });
    let refused = chat.server.post("/v1/exec", &request).was(413).json();
    assert_eq!(refused["code"], "inputs_too_large", "{refused}");
    chat.stop(&tare);
}

/// Code of a user who picked an attached machine must not run here.
#[test]
fn code_for_an_attached_machine_is_refused_before_it_runs() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let exec = json!({ "lang": "bash", "code": "touch ran.txt" });
    let tools = json!({ "lang": "bash", "code": "touch ran.txt", "tools": [] });
    let json_type = ("Content-Type", "application/json");
    let worker = ("X-LibreChat-Code-Worker-ID", "w1");
    let workspace = ("X-LibreChat-Code-Workspace-ID", "s1");
    for (path, body) in [("/v1/exec", &exec), ("/v1/exec/programmatic", &tools)] {
        for header in [worker, workspace] {
            let body = body.to_string();
            let answer = chat.server.ask("POST", path, &[json_type, header], body.as_bytes());
            assert_eq!(answer.was(409).json()["error"], "bridge_worker_mismatch", "{path}");
        }
        let mut instance = body.clone();
        instance["workspace_instance_id"] = json!("0".repeat(64));
        let refused = chat.server.post(path, &instance).was(409).json();
        assert_eq!(refused["error"], "bridge_worker_mismatch", "{path}");
    }
    assert_eq!(chat.stored(), 0, "nothing ran");
    for path in ["bridge/pairings", "bridge/workers/w/status", "workspace-tools/execute"] {
        let missing = chat.server.post(&format!("/v1/{path}"), &json!({})).was(404).json();
        assert!(missing["error"].is_string(), "{missing}");
    }
    chat.stop(&tare);
}

#[test]
fn languages_have_the_names_that_clients_use_in_any_case() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    for name in ["PY", "Python", "bash", "SH"] {
        let code = if name.to_lowercase().starts_with('p') { "print(1)" } else { "echo 1" };
        assert_eq!(chat.exec(json!({ "lang": name, "code": code }))["stdout"], "1\n", "{name}");
    }
    if has_program("node") {
        for name in ["js", "JavaScript", "bun", "bun-js", "nodejs", "node-js", "node-javascript"] {
            let request = json!({ "lang": name, "code": "console.log(1)" });
            assert_eq!(chat.exec(request)["stdout"], "1\n", "{name}");
        }
    }
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

#[test]
fn executions_with_files_and_packages_run_in_clones_and_those_in_a_session_do_not() {
    if !is_root() {
        skip!("clones need root");
    }
    let tare = tare!();
    let packages = tare_harness::TemporaryDirectory::new();
    std::fs::create_dir(packages.join("python")).expect("a fresh directory");
    packages.write("python/shared_package.py", "NAME = 'shared'\n");
    let config = format!("[librechat.boxes]\npackages = '{}'\n", packages.text());
    let chat = Chat::configured(&tare, "", &config);
    let claims = || {
        let metrics = chat.server.get("/metrics").was(200).text();
        let name = "tare_pool_claims_total{pool=\"python\",kind=\"clone\"} ";
        let line = metrics.lines().find_map(|line| line.strip_prefix(name));
        line.expect("it is counted").parse::<u32>().expect("a number")
    };
    let module = chat.given("helper.py", b"def f(): return 'mine'\n");
    let code = "import helper, shared_package\nprint(helper.f(), shared_package.NAME)\n\
                open('out.txt', 'w').write('x')";
    let request = json!({ "lang": "py", "code": code, "files": [module] });
    eventually("clones run it", || {
        let answer = chat.exec(request.clone());
        assert_eq!(answer["stdout"], "mine shared\n", "{answer}");
        let names: Vec<&str> = answer["files"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|it| text(&it["name"]))
            .collect();
        assert!(names.contains(&"out.txt"), "{answer}");
        claims() >= 2
    });
    let before = claims();
    for _call in 0..3 {
        let in_session =
            json!({ "lang": "py", "code": "print(1)", "runtime_session_hint": "v2:user:a" });
        assert_eq!(chat.exec(in_session)["stdout"], "1\n");
    }
    assert_eq!(claims(), before, "the box of a session is made once");
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
