//! Boxes whose machine boots: each command ends them at once, or waits for them. The monitor of these
//! tests never answers, or answers when the test wants it.

use std::fs;
use std::io::Read;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;
use tare_control::{Refusal, Report, encode};
use tare_harness::{Running, Server, eventually};

use crate::hostile::{Peer, command};
use crate::hostile_machines::{KEEPER_KIB_MAX, Liars, liars, peak_kib};
use crate::serve::configured;

/// A boot takes as long as this at most. A command that does not wait for it takes far less.
const AT_ONCE: Duration = Duration::from_secs(9);

impl Liars {
    /// `tare run -d`, while its machine boots.
    fn booting(&self, lie: &str, args: &[&str]) -> Running {
        let running = self.run(lie, &[&["-d", "--name", "slow"], args].concat());
        self.see_boot();
        running
    }

    fn see_boot(&self) {
        let boots = || self.tare.list().iter().any(|listed| listed["booting"] == true);
        eventually("a machine boots", boots);
    }

    #[track_caller]
    fn has_nothing(&self) {
        self.tare.call(["ls", "-aq"]).ok().printed("");
        self.tare.call(["audit"]).ok();
    }
}

#[test]
fn a_detached_box_whose_machine_boots_ends_at_once_when_a_command_ends_it() {
    let liars = liars!("55s");
    for (args, word, cause) in [
        (&["rm", "-f", "slow"][..], "removed by 'tare rm -f'", "killed"),
        (&["stop", "slow"], "stopped by 'tare stop'", "stopped"),
        (&["kill", "slow"], "killed by 'tare kill'", "killed"),
    ] {
        let creator = liars.booting("forever()", &["--", "true"]);
        for refused in [&["pause", "slow"][..], &["update", "--pids", "9", "slow"]] {
            liars.tare.call(refused).exited(1).said(&["box slow: its machine boots"]);
        }
        let began = Instant::now();
        liars.tare.call(args).ok();
        assert!(began.elapsed() < AT_ONCE, "{args:?}: {:?}", began.elapsed());
        let output = creator.wait().exited(125).said(&[word, "before its command started"]);
        assert_eq!(output.stderr_text().lines().count(), 1, "{output}");
        liars.has_nothing();
        let history = liars.tare.json(["explain", "--json", "slow"]);
        assert_eq!(history["cause"], cause, "{history}");
        let receipt = liars.tare.json(["receipt", "--json", "slow"]);
        assert_eq!(receipt["complete"], true, "{receipt}");
    }
    liars.tare.reap_orphans();
}

#[test]
fn a_detached_box_whose_machine_boots_is_removed_at_once_over_http() {
    let liars = liars!("55s");
    let (_directory, config) = configured("log = 'json'\n[vm]\naccel = 'tcg'\n");
    let serve = ["serve", "--listen", "127.0.0.1:0", "--config", &config];
    let server = Server::start_command(&liars.tare, liars.command("forever()", &serve));
    let remove = || {
        let began = Instant::now();
        server.delete("/v1/boxes/slow?force=true").was(204);
        assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
    };
    let why = "was removed by DELETE /v1/boxes/slow";
    let creator = liars.booting("forever()", &["--", "true"]);
    remove();
    creator.wait().exited(125).said(&[why]);
    liars.has_nothing();
    let body = json!({ "driver": "vm", "name": "slow" });
    let answer = std::thread::scope(|scope| {
        let creator = scope.spawn(|| server.post("/v1/boxes", &body));
        liars.see_boot();
        remove();
        creator.join().expect("an answer")
    });
    assert!(answer.was(409).text().contains(why));
    liars.has_nothing();
    server.stop().ok();
    liars.tare.reap_orphans();
}

#[test]
fn a_log_that_leaves_a_machine_too_little_memory_to_boot_is_refused() {
    let liars = liars!("2s");
    let limits = ["-d", "--memory", "256m", "--output-limit", "64m", "--", "true"];
    liars.run("forever()", &limits).wait().exited(125).said(&["too small", "288 MiB"]);
}

/// Waits longer than a keeper may take to answer, and then starts the first exec.
const LATE: &str = "time.sleep(12); start()
exec = next(stream for kind, stream, _ in received if kind == DATA and stream > STDERR)
report(exec, STARTED); report(exec, *ended(0)); forever()";

#[test]
fn an_exec_waits_while_the_machine_of_an_attached_box_boots() {
    let liars = liars!("55s");
    let creator = liars.run(LATE, &["-i", "--name", "slow", "--", "cat"]);
    liars.see_boot();
    // A keeper that is asked too early does not answer for 10 s.
    liars.tare.call(["exec", "slow", "--", "true"]).ok();
    creator.signal(Signal::KILL);
    creator.wait();
    liars.tare.reap_orphans();
}

/// Its first client starts, and then the machine is gone.
const FRAGILE: &str = "start()
exec = next(stream for kind, stream, _ in received if kind == DATA and stream > STDERR)
report(exec, STARTED); sys.exit()";

#[test]
fn every_client_of_a_lost_machine_says_so_in_one_line() {
    let liars = liars!("55s");
    let id = liars.detached(FRAGILE, &["--name", "web"]);
    let record = liars.tare.record(&id);
    let waits = |args: &[&str], file: &str| {
        let client = liars.tare.spawn_call(args);
        eventually("it waits", || {
            let files = fs::read_dir(format!("/proc/{}/fd", client.pid())).into_iter().flatten();
            let mut opened = files.flatten().filter_map(|it| fs::read_link(it.path()).ok());
            opened.any(|it| it == record.join(file))
        });
        client
    };
    let wait = waits(&["wait", "web"], "journal");
    let logs = waits(&["logs", "-f", "web"], "log.0");
    let attach = waits(&["attach", "web"], "log.0");
    let copy = liars.tare.call(["cp", "web:/work/file", "-"]).exited(1);
    let lost = "machine ended before its command";
    copy.said(&["cannot use the files", lost]);
    wait.wait().ok().printed("137\n").said(&[lost, "tare explain"]);
    logs.wait().ok().said(&[lost, "tare explain"]);
    attach.wait().exited(137).said(&[lost, "tare explain"]);
    liars.tare.remove(&id);
    liars.tare.reap_orphans();
}

/// A client that waits for no boot, and asks the keeper at once.
#[test]
fn clients_that_wait_for_a_machine_keep_its_keeper_small() {
    const LARGE: usize = 3 << 20;
    let liars = liars!("55s");
    let creator = liars.run("forever()", &["-i", "--name", "slow", "--", "cat"]);
    liars.see_boot();
    let id = liars.tare.list()[0]["id"].as_str().expect("an id").to_owned();
    let peer = Peer::of(&liars.tare.record(&id).join("control"));
    eventually("its keeper listens", || {
        liars.tare.call(["inspect", &id]).ok().stdout_text().contains("\"pid\"")
    });
    let exec = command(&["echo", &"x".repeat(LARGE)]);
    let asked: Vec<_> = (0..12).map(|_| peer.exec(exec.clone())).collect();
    let busy = encode(&Report::Refused(Refusal::Busy), 64).expect("it is small");
    // Two of them fit into the memory for all.
    for mut refused in &asked[2..] {
        refused.set_read_timeout(Some(Duration::from_secs(60))).expect("a time");
        let mut answer = vec![0; busy.len()];
        refused.read_exact(&mut answer).expect("an answer");
        assert_eq!(answer, busy);
    }
    let peak = peak_kib(liars.tare.keeper(&id).pid);
    assert!(peak < KEEPER_KIB_MAX, "{peak} KiB");
    creator.signal(Signal::KILL);
    creator.wait();
    liars.tare.reap_orphans();
}
