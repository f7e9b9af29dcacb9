//! `POST /v1/exec/programmatic`: code that calls the client's tools, in several rounds.

use serde_json::{Value, json};
use tare_harness::{eventually, tare};

use crate::librechat::client::{Chat, file, peak_bytes, text};

const PATH: &str = "/v1/exec/programmatic";

/// Drives it as a client does; what it ended with, and what was asked for in each round.
pub fn driven(chat: &Chat, start: Value, reply: impl Fn(&Value) -> Value) -> (Value, Vec<usize>) {
    continued(chat, chat.server.post(PATH, &start).was(200).json(), reply)
}

/// Drives an execution whose first answer is this.
fn continued(
    chat: &Chat,
    mut answer: Value,
    reply: impl Fn(&Value) -> Value,
) -> (Value, Vec<usize>) {
    let mut rounds = Vec::new();
    while answer["status"] == "tool_call_required" {
        let calls = answer["tool_calls"].as_array().expect("calls");
        rounds.push(calls.len());
        // Waiting for results is not an end that a user must know about.
        let stderr = answer["partial_stderr"].as_str().expect("text");
        assert!(!stderr.contains("[sandbox]"), "{answer}");
        let results: Vec<Value> = calls
            .iter()
            .map(|call| {
                let mut result = reply(call);
                result["call_id"] = call["id"].clone();
                result
            })
            .collect();
        let next = json!({
            "continuation_token": answer["continuation_token"], "tool_results": results,
        });
        answer = chat.server.post(PATH, &next).was(200).json();
    }
    (answer, rounds)
}

pub fn start(lang: &str, code: &str) -> Value {
    let tools = json!([{ "name": "add", "description": "adds" }, { "name": "get-weather" }]);
    json!({ "lang": lang, "code": code, "tools": tools, "timeout": 15_000 })
}

/// As a client with these tools would reply.
pub fn reply(call: &Value) -> Value {
    let input = &call["input"];
    match call["name"].as_str() {
        Some("add") => {
            json!({ "result": input["a"].as_i64().zip(input["b"].as_i64()).map(|(a, b)| a + b) })
        }
        Some("get-weather") if input["city"] == "nowhere" => {
            json!({ "result": null, "is_error": true, "error_message": "no such city" })
        }
        Some("get-weather") => json!({ "result": { "city": input["city"], "degrees": 20 } }),
        _ => panic!("{call}"),
    }
}

#[test]
fn python_calls_tools_in_sequence_and_concurrently() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let code = "first = await add(a=1, b=2)
second = await add(a=first, b=10)
here, there = await asyncio.gather(get_weather(city='A'), get_weather(city='B'))
same = [await add(a=0, b=0) for _ in range(2)]
try: await get_weather(city='nowhere')
except Exception as error: print('caught', error)
print(second, here['city'], there['degrees'], same)
open('/mnt/data/out.csv', 'w').write('x')";
    let (answer, rounds) = driven(&chat, start("python", code), reply);
    assert_eq!(rounds, [1, 1, 2, 1, 1, 1]);
    assert_eq!(answer["status"], "completed", "{answer}");
    assert_eq!(answer["stdout"], "caught no such city\n13 A 20 [0, 0]\n");
    assert_eq!(answer["tool_calls_made"], 7);
    assert_eq!(chat.download(file(&answer, "out.csv")).text(), "x");
    assert_eq!(tare.boxes_of_calls(), [""; 0]);
    chat.stop(&tare);
}

#[test]
fn bash_calls_tools_in_sequence_and_concurrently() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let code = r#"
first=$(add '{"a":1,"b":2}')
echo "first $first"
{ get_weather '{"city":"A"}' > a.json; } &
{ get_weather '{"city":"B"}' > b.json; } &
wait
cat a.json b.json
get_weather '{"city":"nowhere"}' || echo failed
"#;
    let (answer, _rounds) = driven(&chat, start("bash", code), reply);
    let stdout =
        "first 3\n{\"city\":\"A\",\"degrees\":20}\n{\"city\":\"B\",\"degrees\":20}\nfailed\n";
    assert_eq!(
        (&answer["status"], &answer["stdout"]),
        (&json!("completed"), &json!(stdout)),
        "{answer}"
    );
    assert_eq!(answer["stderr"], "no such city\n");
    chat.stop(&tare);
}

#[test]
fn code_without_calls_completes_and_a_failed_program_is_an_error() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let (answer, rounds) = driven(&chat, start("python", "print(1)\nreturn"), reply);
    assert_eq!((&answer["stdout"], rounds.len()), (&json!("1\n"), 0), "{answer}");
    let no_tools = json!({ "code": ": &\nwait \"$!\"\necho 1", "tools": [], "language": "bash", "lang": "js" });
    let (answer, _rounds) = driven(&chat, no_tools, reply);
    assert_eq!((&answer["status"], &answer["stdout"]), (&json!("completed"), &json!("1\n")));
    let failed = |request: Value, error: &str| {
        let (answer, _rounds) = driven(&chat, request, reply);
        assert_eq!((&answer["status"], &answer["error"]), (&json!("error"), &json!(error)));
        answer
    };
    let raises = start("python", "x = await add(a=1, b=1)\nraise KeyError(x)");
    let answer = failed(raises, "Sandbox exited with code 1");
    let stderr = text(&answer["stderr"]);
    assert!(stderr.contains("line 2") && stderr.contains("KeyError: 2"), "{stderr}");
    failed(start("bash", "exit 3"), "Sandbox exited with code 3");
    let killed = failed(start("bash", "kill -SEGV $$"), "Sandbox exited with code unknown");
    assert_eq!(killed["message"], "Ended by SIGSEGV", "{killed}");
    let slow = json!({ "code": "import time; time.sleep(1000)", "tools": [{ "name": "f" }], "timeout": 500 });
    failed(slow, "Time limit exceeded");
    chat.server.post(PATH, &json!({ "code": "1", "tools": [], "timeout": 0 })).was(400);
    chat.stop(&tare);
}

#[test]
fn python_has_the_names_and_the_arguments_that_models_use() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let code =
        "print(await add(1, 2), await add(1, a=3), await add(5, 5, None), os.getcwd(), sys.argv)
x: Optional[List[Dict[str, Union[int, Any]]]] = json.loads('[]')
try: await get_weather('nowhere')
except ToolExecutionError as error: print(error)
try: await add(1)
except TypeError as error: print(error)";
    // The order of the properties counts, and this JSON library would sort them.
    let text = json!({
        "lang": "python", "code": code,
        "tools": [
            { "name": "add", "parameters": "P" },
            { "name": "get-weather", "parameters": { "properties": { "city": {} } } },
        ],
    });
    let ordered = r#"{"properties":{"note":{},"b":{},"a":{}},"required":["b","a"]}"#;
    let body = text.to_string().replace("\"P\"", ordered);
    let json_type = [("Content-Type", "application/json")];
    let first = chat.server.ask("POST", PATH, &json_type, body.as_bytes()).was(200).json();
    assert_eq!(first["tool_calls"][0]["input"], json!({ "b": 1, "a": 2 }), "{first}");
    let (answer, _rounds) = continued(&chat, first, reply);
    let stdout = "3 4 10 /mnt/data ['main.py']\nno such city\nadd() needs the argument 'a'\n";
    assert_eq!(answer["stdout"], stdout, "{answer}");
    chat.stop(&tare);
}

#[test]
fn code_that_calls_tools_reports_its_files_as_other_code_does() {
    let tare = tare!();
    let chat =
        Chat::configured(&tare, "owner_bytes = '100'", "[librechat.boxes]\noutput_files = 3\n");
    let given = chat.given("gone.txt", b"x");
    let code = "rm gone.txt; mkdir -p 1/2/3/4/5/6/7/8/9/10; touch a b; touch 1/2/3/4/5/6/7/8/9/10/deep; seq 100 > large";
    let mut request = start("bash", code);
    request["files"] = json!([given]);
    request["user_id"] = json!("u1");
    let (answer, _rounds) = driven(&chat, request, reply);
    assert_eq!(answer["status"], "completed", "{answer}");
    assert_eq!(answer["deleted_files"], json!(["gone.txt"]));
    let delivery = &answer["artifact_delivery"];
    assert_eq!(
        (&delivery["status"], &delivery["attempted"], &delivery["failed"]),
        (&json!("partial"), &json!(3), &json!(1)),
        "{answer}"
    );
    assert_eq!(answer["artifact_truncation"]["reasons"], json!({ "depth": 1 }));
    chat.stop(&tare);
}

#[test]
fn a_cancel_before_its_request_prevents_it() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let id = "0123456789abcdef";
    let cancel = chat.server.post(&format!("{PATH}/cancel"), &json!({ "request_id": id }));
    assert_eq!(cancel.was(202).json()["status"], "cancellation_requested");
    let headers = [("Content-Type", "application/json"), ("X-LibreChat-Code-Request-ID", id)];
    let body = start("bash", "touch ran.txt").to_string();
    let answer = chat.server.ask("POST", PATH, &headers, body.as_bytes()).was(200).json();
    let error = "Programmatic execution request cancelled";
    assert_eq!(answer, json!({ "status": "error", "error": error }));
    assert_eq!(chat.stored(), 0, "nothing ran");
    chat.stop(&tare);
}

#[test]
fn an_execution_continues_once_and_only_with_the_requested_results() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let post = |request: &Value| chat.server.post(PATH, request);
    let waiting = post(&start("python", "print(await add(a=1, b=2))")).was(200).json();
    let (token, call) = (&waiting["continuation_token"], &waiting["tool_calls"][0]);
    assert_eq!((&call["name"], &call["input"]), (&json!("add"), &json!({ "a": 1, "b": 2 })));
    let metrics = chat.server.get("/metrics").text();
    assert!(metrics.contains("\ntare_executions_waiting 1\n"), "{metrics}");
    let go_on = |results: Value| json!({ "continuation_token": token, "tool_results": results });
    post(&go_on(json!([]))).was(400);
    let reply = |id: &Value| json!({ "call_id": id, "result": 3 });
    for wrong in
        [json!([reply(&json!("another"))]), json!([reply(&call["id"]), reply(&call["id"])])]
    {
        post(&go_on(wrong)).was(400);
    }
    let unknown = post(
        &json!({ "continuation_token": "A".repeat(21), "tool_results": [{ "call_id": "x" }] }),
    );
    assert_eq!(unknown.was(404).json()["error"], "Execution not found or expired");
    let done = post(&go_on(json!([{ "call_id": call["id"], "result": 3 }]))).was(200).json();
    assert_eq!(done["stdout"], "3\n");
    post(&go_on(json!([{ "call_id": call["id"], "result": 3 }]))).was(404);
    post(&json!({ "code": "1", "tools": [{ "name": "f" }], "lang": "js" })).was(400);
    chat.stop(&tare);
}

#[test]
fn a_continuation_refused_under_load_succeeds_when_sent_again() {
    let tare = tare!();
    let chat = Chat::configured(&tare, "", "[limits]\nruns = 1\nruns_waiting = 0\n");
    let code = "same = [await add(a=1, b=2) for _ in range(2)]\nprint(same)";
    let waiting = chat.server.post(PATH, &start("python", code)).was(200);
    let go_on = |answer: &Value, result: u32| {
        let replies = json!([{ "call_id": answer["tool_calls"][0]["id"], "result": result }]);
        json!({ "continuation_token": answer["continuation_token"], "tool_results": replies })
    };
    let first = go_on(&waiting.json(), 3);
    let slow = json!({ "lang": "bash", "code": "sleep 1000" }).to_string();
    let json_type = [("Content-Type", "application/json")];
    let other = chat.server.send("POST", "/v1/exec", &json_type, slow.as_bytes());
    eventually("it runs", || {
        let metrics = chat.server.get("/metrics").text();
        metrics.contains("\ntare_runs_running 1\n")
    });
    for _again in 0..2 {
        let refused = chat.server.post(PATH, &first).was(503);
        assert!(refused.header("retry-after").is_some());
    }
    drop(other);
    let mut second = Value::Null;
    eventually("there is room", || {
        let answer = chat.server.post(PATH, &first);
        second = answer.json();
        answer.status != 503
    });
    let done = chat.server.post(PATH, &go_on(&second, 4)).was(200).json();
    assert_eq!(
        (&done["stdout"], &done["tool_calls_made"]),
        (&json!("[3, 4]\n"), &json!(2)),
        "{done}"
    );
    chat.stop(&tare);
}

/// The server does not trust what code writes to the file of its calls.
#[test]
fn forged_tool_calls_have_no_effect() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let failed = |code: &str| {
        let answer = chat.server.post(PATH, &start("python", code)).was(200).json();
        assert_eq!(answer["status"], "error", "{answer}");
        (text(&answer["error"]).to_owned(), text(&answer["stderr"]).to_owned())
    };
    let forged = |text: &str| failed(&format!("open('/tmp/code/calls/0', 'w').write({text})"));
    let unknown = forged("'{\"key\": \"k\", \"name\": \"rm\", \"input\": {}}'").0;
    assert_eq!(unknown, "Sandbox requested an unregistered tool: rm");
    let many = failed("for n in range(300): open(f'/tmp/code/calls/{n}', 'w').write('{}')");
    for (error, stderr) in [forged("'garbage'"), forged("'x' * (2 << 20)"), many] {
        assert_eq!(error, "Execution failed or timed out");
        assert!(stderr.starts_with("\n[sandbox] the code "), "{stderr}");
    }
    let link = "import os; os.symlink('/etc/passwd', '/tmp/code/calls/0')";
    let answer = chat.server.post(PATH, &start("python", link)).was(200).json();
    assert_eq!(answer["status"], "completed");
    chat.stop(&tare);
}

/// The server reads a limited number of the bytes that a program writes.
#[test]
fn the_server_needs_little_memory_for_large_forged_tool_calls() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let forge = |count: usize, call: &str| {
        let code =
            format!("for n in range({count}): open(f'/tmp/code/calls/{{n}}', 'w').write({call})");
        chat.server.post(PATH, &start("python", &code))
    };
    let large = forge(100, r#"'{"key": "' + 'k' * 900_000 + '", "name": "add", "input": 1}'"#);
    assert_eq!(large.was(200).json()["status"], "error");
    // Taken apart it would have 128 MiB.
    let digits = r#"'{"key": "k", "name": "add", "input": [' + '0,' * 500_000 + '0]}'"#;
    forge(8, digits).was(200);
    let most = peak_bytes(chat.server.pid());
    assert!(most < 100 << 20, "{most}");
    chat.stop(&tare);
}

/// The code chooses the keys of its calls, and the server keeps them for the client.
#[test]
fn tool_call_keys_are_limited_in_total_size() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let code = "import json, random
for n in range(7):
    key = ''.join(random.choices('ab', k=900_000))
    open(f'/tmp/code/calls/{n}', 'w').write(json.dumps({'key': key, 'name': 'add', 'input': 1}))";
    let mut answer = chat.server.post(PATH, &start("python", code)).was(200).json();
    for expected in [200, 200, 200, 200, 200, 413] {
        let calls = answer["tool_calls"].as_array().expect("calls");
        let result = |call: &Value| json!({ "call_id": call["id"], "result": 1 });
        let next = json!({
            "continuation_token": answer["continuation_token"],
            "tool_results": calls.iter().map(result).collect::<Vec<_>>(),
        });
        answer = chat.server.post(PATH, &next).was(expected).json();
    }
    chat.stop(&tare);
}
