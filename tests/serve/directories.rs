//! Directories of the host in the boxes of clients: the operator's packages, root and volumes.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};
use tare_harness::{Server, TemporaryDirectory, fixture, skip, tare};

use crate::serve::configured;
use crate::serve::quotas::sha256;

/// A directory as an operator's packages: a module and a program.
fn packages() -> TemporaryDirectory {
    let packages = TemporaryDirectory::new();
    for name in ["python", "bin", "node_modules"] {
        fs::create_dir(packages.join(name)).expect("a fresh directory");
    }
    packages.write("python/shared_package.py", "NAME = 'shared'\n");
    packages.write("node_modules/shared-package.js", "module.exports = 'shared'\n");
    let program = packages.write("bin/shared-program", "#!/bin/sh\necho shared\n");
    fs::set_permissions(program, Permissions::from_mode(0o755)).expect("it is ours");
    packages
}

#[test]
fn packages_of_the_operator_are_in_every_run_box_and_exec() {
    let tare = tare!();
    let packages = packages();
    let config = format!("[boxes]\npackages = '{}'\n", packages.text());
    let server = Server::start_configured(&tare, &config);
    let code = "import shared_package, os
print(shared_package.NAME)
try: open(shared_package.__file__, 'w')
except OSError as error: print(os.strerror(error.errno))";
    let run = |request: Value| server.post("/v1/run", &request).was(200).json()["stdout"].clone();
    let request = json!({ "language": "python", "code": code });
    assert_eq!(run(request), "shared\nRead-only file system\n");
    assert_eq!(run(json!({ "command": ["shared-program"] })), "shared\n");
    let code = "console.log(require('shared-package'))";
    assert_eq!(run(json!({ "language": "node", "code": code })), "shared\n");
    let made = server.post("/v1/boxes", &json!({ "name": "web" })).was(201).json();
    let exec =
        json!({ "command": ["python3", "-c", "import shared_package as it; print(it.NAME)"] });
    let exec = server.post("/v1/boxes/web/exec", &exec).was(200).json();
    assert_eq!(exec["stdout"], "shared\n");
    // An exec of the command line sees them, too.
    tare.call(["exec", "web", "--", "shared-program"]).ok().printed("shared\n");
    tare.remove(made["id"].as_str().expect("an id"));
    server.stop().ok();
}

#[test]
fn a_root_of_the_operator_is_the_root_of_every_box() {
    let tare = tare!();
    let Some(root) = fixture::busybox_root() else {
        skip!("there is no static busybox on this host");
    };
    let server = Server::start_configured(&tare, &format!("[boxes]\nrootfs = '{}'\n", root.text()));
    server.get("/ready").was(200);
    let run = |request: Value| server.post("/v1/run", &request);
    let shown = run(json!({ "command": ["cat", "/marker"] })).was(200).json();
    assert_eq!(shown["stdout"], "from the source\n");
    // It has no Python, and the host's is not seen.
    let python = json!({ "language": "python", "code": "print(1)" });
    run(python).refused(400, "unsupported_language");
    // A root that is gone makes no box.
    let (here, away) = (root.path().to_owned(), root.path().with_extension("away"));
    fs::rename(&here, &away).expect("it is ours");
    server.get("/ready").refused(503, "not_ready");
    fs::rename(&away, &here).expect("it is ours");
    server.get("/ready").was(200);
    server.stop().ok();
}

#[test]
fn directories_that_no_box_could_use_are_refused_at_start_and_at_reload() {
    let tare = tare!();
    let (_directory, config) = configured("");
    let server = Server::start(&tare, &["--config", &config]);
    for setting in [
        "[boxes]\npackages = '/no/such'",
        "[boxes]\nrootfs = '/etc/passwd'",
        "[[volumes]]\nname = 'data'\npath = '/no/such'",
        "[[volumes]]\nname = 'data'\npath = '/proc'",
    ] {
        fs::write(&config, setting).expect("a file");
        let section = setting.lines().next().expect("a section");
        let refused = server.ask("POST", "/v1/reload", &[], b"").refused(400, "invalid").text();
        assert!(refused.contains(section), "{refused}");
        let refused = tare.call(["serve", "--listen", "127.0.0.1:0", "--config", &config]);
        assert_ne!(refused.code, 0);
        refused.said(&[section, " ("]);
    }
    server.post("/v1/run", &json!({ "command": ["true"] })).was(200);
    server.stop().ok();
}

#[test]
fn a_directory_of_the_operator_that_is_gone_is_named_in_the_log_and_not_to_clients() {
    let tare = tare!();
    let (data, shared) = (TemporaryDirectory::new(), TemporaryDirectory::new());
    let key = format!("[[keys]]\nname = 'ci'\nsha256 = '{}'\n", sha256("ci"));
    let server = Server::start_configured(&tare, &(volumes(data.path(), shared.path()) + &key));
    let away = shared.path().with_extension("away");
    fs::rename(shared.path(), &away).expect("it is ours");
    let volumes = json!([{ "name": "shared", "target": "/data" }]);
    for (route, body) in [
        ("/v1/run", json!({ "command": ["true"], "volumes": volumes })),
        ("/v1/boxes", json!({ "volumes": volumes })),
    ] {
        let headers = [("X-API-Key", "ci"), ("Content-Type", "application/json")];
        let answer = server.ask("POST", route, &headers, body.to_string().as_bytes());
        let answer = answer.refused(500, "internal").text();
        assert!(!answer.contains(shared.text()), "{answer}");
    }
    let body = json!({ "name": "web", "volumes": volumes }).to_string();
    let json = [("X-API-Key", "ci"), ("Content-Type", "application/json")];
    server.ask("POST", "/v1/boxes", &json, body.as_bytes()).refused(500, "internal");
    let explained = server.ask("GET", "/v1/boxes/web/explain", &json, b"").was(200).text();
    assert!(
        !explained.contains(shared.text()) && explained.contains("only to admins"),
        "{explained}"
    );
    let seen = tare.call(["explain", "ci:web"]).ok();
    assert!(seen.stdout_text().contains(shared.text()), "{seen}");
    fs::rename(&away, shared.path()).expect("it is ours");
    let log = server.stop().ok().stderr_text();
    assert!(log.contains(shared.text()), "{log}");
}

/// A configuration of volumes: `data` is read-only, `shared` is writable.
fn volumes(data: &Path, shared: &Path) -> String {
    let volume =
        |name, path: &Path| format!("[[volumes]]\nname = '{name}'\npath = '{}'\n", path.display());
    volume("data", data) + &volume("shared", shared) + "writable = true\n"
}

#[test]
fn a_client_uses_directories_of_the_host_by_their_names_only() {
    let tare = tare!();
    let (data, shared) = (TemporaryDirectory::new(), TemporaryDirectory::new());
    data.write("in.txt", "from the host");
    let server = Server::start_configured(&tare, &volumes(data.path(), shared.path()));
    let both = json!([
        { "name": "data", "target": "/data" }, { "name": "shared", "target": "/work/shared" },
    ]);
    let script =
        "cat /data/in.txt; echo no > /data/out 2>/dev/null || echo; cp /data/in.txt shared/$0";
    for (route, name) in [("/v1/run", "run"), ("/v1/boxes", "box")] {
        let request = json!({ "command": ["sh", "-c", script, name], "volumes": both });
        let answer = server.post(route, &request);
        if route == "/v1/run" {
            assert_eq!(answer.was(200).json()["stdout"], "from the host\n");
        } else {
            let id = answer.was(201).json()["id"].as_str().expect("an id").to_owned();
            server.get(&format!("/v1/boxes/{id}/wait")).was(200);
            tare.remove(&id);
        }
        let written = fs::read_to_string(shared.join(name)).expect("it was written");
        assert_eq!(written, "from the host");
    }
    assert_eq!(fs::read_dir(data.path()).expect("a directory").count(), 1);
    let one = |name: &str, target: &str| json!([{ "name": name, "target": target }]);
    for (wrong, code, said) in [
        (one("/etc", "/data"), "no_such_volume", "there are data, shared"),
        (one("dat", "/data"), "no_such_volume", "dat"),
        (one("data", "data"), "invalid", "volumes: "),
        (one("data", "/"), "invalid", "volumes: "),
        (one("data", "/proc/x"), "invalid", "/proc"),
        (json!([both[0], both[0]]), "invalid", "two volumes"),
        (json!([{ "name": "data", "target": "/x", "path": "/etc" }]), "invalid_json", "path"),
    ] {
        for route in ["/v1/run", "/v1/boxes"] {
            let request = json!({ "command": ["true"], "volumes": wrong });
            let refused = server.post(route, &request).refused(400, code).text();
            assert!(refused.contains(said), "{refused}");
        }
    }
    server.stop().ok();
}

#[test]
fn a_volume_is_for_the_keys_that_it_names() {
    let tare = tare!();
    let data = TemporaryDirectory::new();
    let key = |name: &str| format!("[[keys]]\nname = '{name}'\nsha256 = '{}'\n", sha256(name));
    let volumes = volumes(data.path(), data.path()) + "keys = ['ci']\n";
    let server = Server::start_configured(&tare, &(key("ci") + &key("desk") + &volumes));
    let ask = |key: &str, name: &str| {
        let headers = [("X-API-Key", key), ("Content-Type", "application/json")];
        let volumes = json!([{ "name": name, "target": "/data" }]);
        let body = json!({ "command": ["true"], "volumes": volumes }).to_string();
        server.ask("POST", "/v1/run", &headers, body.as_bytes())
    };
    ask("ci", "shared").was(200);
    ask("desk", "data").was(200);
    // As one that does not exist, and without its name.
    let refused = ask("desk", "shared").refused(400, "no_such_volume").text();
    assert!(
        refused.contains("there are data") && !refused.contains("there are data,"),
        "{refused}"
    );
    server.stop().ok();
}
