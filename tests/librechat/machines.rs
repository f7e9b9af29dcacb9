//! `[librechat.boxes] driver = "vm"`: executions and sessions in virtual machines.

use std::{fs, thread};

use serde_json::json;
use tare_harness::{TemporaryDirectory, eventually};

use crate::librechat::client::{Chat, file, text};
use crate::librechat::programmatic::{driven, reply, start};
use crate::machines::machines;

#[test]
fn executions_sessions_packages_and_tools_work_in_machines() {
    let machines = machines!();
    let packages = TemporaryDirectory::new();
    fs::create_dir(packages.join("python")).expect("a fresh directory");
    packages.write("python/ours.py", "import platform\nrelease = platform.release()\n");
    let config = format!(
        "[vm]\naccel = 'tcg'\n[librechat.boxes]\ndriver = 'vm'\nmemory = '512m'\n\
         packages = '{}'\n",
        packages.text()
    );
    let chat = Chat::in_machines(&machines, &config);
    let host = fs::read_to_string("/proc/sys/kernel/osrelease").expect("a kernel");
    // Files in and out, and the operator's packages.
    let given = chat.given("in.csv", b"1,2\n");
    let code =
        "import ours\nprint(open('in.csv').read(), ours.release)\nopen('out.csv', 'w').write('3')";
    let answer =
        chat.exec(json!({ "lang": "py", "code": code, "files": [given], "timeout": 20_000 }));
    let stdout = text(&answer["stdout"]);
    assert!(stdout.starts_with("1,2\n") && !stdout.contains(host.trim()), "{answer}");
    assert_eq!(chat.download(file(&answer, "out.csv")).text(), "3");
    // A session is one machine.
    let in_session = |code: &str| {
        let hint = "v2:user:0123456789abcdef0123456789abcdef";
        chat.exec(json!({ "lang": "bash", "code": code, "runtime_session_hint": hint }))
    };
    let boots = || {
        let listed = chat.server.get("/v1/boxes").json();
        listed["boxes"].as_array().expect("boxes").iter().any(|one| one["booting"] == true)
    };
    let (first, early) = thread::scope(|scope| {
        let first = scope.spawn(|| in_session("uname -r > kernel; echo 1 > /tmp/state"));
        eventually("its machine boots", boots);
        // A call during the boot waits for the machine.
        (in_session("echo early"), first.join().expect("an answer"))
    });
    let statuses = [&first, &early].map(|answer| text(&answer["runtime_status"]));
    assert!(statuses.contains(&"new") && statuses.contains(&"reused"), "{first} {early}");
    let second = in_session("cat kernel /tmp/state");
    assert_eq!(second["runtime_status"], "reused", "{second}");
    assert!(text(&second["stdout"]).ends_with("\n1\n"), "{second}");
    assert!(!text(&second["stdout"]).contains(host.trim()), "{second}");
    // Code that calls a tool runs in two machines: one until the call, and one with its result.
    let (answer, rounds) = driven(&chat, start("python", "print(await add(a=1, b=2))"), reply);
    assert_eq!((rounds.len(), &answer["stdout"]), (1, &json!("3\n")), "{answer}");
    let listed = chat.server.get("/v1/boxes").json();
    let drivers = listed["boxes"].as_array().expect("boxes").iter().map(|one| &one["driver"]);
    assert_eq!(drivers.collect::<Vec<_>>(), [&json!("vm")]);
    // A session that is in a machine is replaced when sessions are to be native boxes.
    let config = fs::read_to_string(chat.configuration()).expect("a configuration");
    let native = config.replace("driver = 'vm'", "driver = 'native'");
    fs::write(chat.configuration(), native).expect("the test's file");
    chat.server.post("/v1/reload", &json!({})).was(204);
    let third = in_session("uname -r");
    assert_eq!((&third["runtime_status"], &third["stdout"]), (&json!("new"), &json!(host)));
    chat.stop(&machines.tare);
}
