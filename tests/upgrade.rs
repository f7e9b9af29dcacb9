//! Live boxes of the oldest tare that writes this version of the record, in the hands of the
//! tare under test. `./check --long` builds the old one (`tests/build-earlier`).

use serde_json::Value;
use tare_harness::{Output, Tare, tare};

/// `tare ARGS` of the earlier binary, on the state root of the test.
#[track_caller]
fn earlier(tare: &Tare, args: &str) -> Output {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/earlier");
    tare.shell(&format!("exec {directory}/tare {args}")).ok()
}

#[test]
fn boxes_of_the_earlier_tare_are_listed_used_stopped_and_removed() {
    let tare = tare!();
    earlier(&tare, "run -d --name web --lease 1h -- sh -c 'echo ready; exec sleep 1000'");
    earlier(&tare, "run -d --name frozen -- sleep 1000");
    earlier(&tare, "pause frozen");
    earlier(&tare, "run -d --name done -- sh -c 'exit 3'");
    earlier(&tare, "wait done").printed("3\n");
    earlier(&tare, "run -d --name leased --lease 100ms --keep -- sleep 1000");

    let listed = |name: &str| {
        let boxes = tare.list();
        boxes.into_iter().find(|one| one["name"] == name).unwrap_or(Value::Null)
    };
    assert_eq!(listed("web")["state"], "running");
    assert_eq!(listed("frozen")["state"], "paused");
    assert_eq!(listed("done")["exit_code"], 3);
    tare.call(["audit"]).ok();

    tare.call(["logs", "web"]).ok().printed("ready\n");
    tare.exec("web", ["sh", "-c", "echo text > /work/file"]).ok();
    tare.call(["cp", "web:/work/file", "-"]).ok();
    tare.call(["inspect", "web"]).ok();
    tare.call(["stats", "web"]).ok();
    tare.call(["update", "--lease", "2h", "web"]).ok();
    tare.call(["rename", "web", "site"]).ok();
    tare.call(["explain", "site"]).ok();
    tare.call(["resume", "frozen"]).ok();
    tare.exec("frozen", ["true"]).ok();

    tare.call(["stop", "site"]).ok();
    assert_eq!(listed("site")["state"], "exited");
    tare.call(["rm", "-f", "--all"]).ok();
    tare.call(["audit"]).ok();
}
