//! Everyday tools: processes, memory, disks, archives, text, shells.

use tare_harness::fixture::busybox_root;
use tare_harness::skip::has_program;
use tare_harness::{skip, tare};

use super::shell;

/// A box sees only its own processes.
#[test]
fn ps_and_top_list_the_processes_of_the_box() {
    let tare = tare!();
    if !has_program("ps") || !has_program("top") {
        skip!("this host has no procps");
    }
    shell(&tare, &[], "ps -e -o user= -o comm=")
        .ok()
        .printed("box      sh\nbox      ps\n")
        .said_nothing();
    // Through a file: the other side of a pipe may be a process of the list, or not yet.
    let script = "ps aux >list; wc -l <list; top -bn1 >list; grep -c box list";
    let output = shell(&tare, &[], script).ok();
    assert_eq!(output.stdout_text(), "3\n2\n", "{output}");
}

#[test]
fn free_df_and_uptime_answer() {
    let tare = tare!();
    if !has_program("free") {
        skip!("this host has no procps");
    }
    let script = "
        free | awk '/^Mem:/ { print ($2 > 0) }'
        df -P . /tmp /usr | awk 'NR > 1 { print ($2 > 0) }'
        df > /dev/null
        uptime > /dev/null
        vmstat > /dev/null";
    shell(&tare, &[], script).ok().printed("1\n1\n1\n1\n").said_nothing();
}

#[test]
fn user_host_and_home_names_are_those_of_the_box() {
    let tare = tare!();
    let script = "
        id -un; id -gn; whoami; hostname; cat /etc/hostname; uname -n
        test \"$(nproc)\" -ge 1
        test \"$(getconf PAGESIZE)\" -ge 4096
        getent passwd box | cut -d: -f6
        echo ~
        getent hosts a-name | cut -c1-9";
    shell(&tare, &["--name", "a-name"], script)
        .ok()
        .printed("box\nbox\nbox\na-name\na-name\na-name\n/work\n/work\n127.0.0.1\n")
        .said_nothing();
}

#[test]
fn archives_are_packed_and_unpacked() {
    let tare = tare!();
    let script = "
        mkdir -p tree/deep
        echo content > tree/deep/file
        ln -s deep/file tree/link
        ln tree/deep/file tree/hard
        for how in z j J; do
            tar c${how}f archive tree 2>/dev/null || { echo content; continue; }
            rm -rf out
            mkdir out
            tar xf archive -C out
            cat out/tree/link
        done
        gzip -9 < tree/hard | gunzip";
    shell(&tare, &[], script).ok().printed("content\ncontent\ncontent\ncontent\n").said_nothing();
}

#[test]
fn text_is_edited_sorted_and_searched() {
    let tare = tare!();
    let script = "
        seq 1 5 | sed 's/3/three/' | awk '{ sum += $1 } END { print sum }'
        seq 1 5 | sed -n '/4/p' > file
        sed -i 's/4/four/' file
        cat file
        find / -xdev -name passwd -path '/etc/*' 2>/dev/null
        seq 1 20 | xargs -P 4 -n 5 echo | wc -l
        printf 'b\\na\\n' | sort | tr '\\n' ' '
        echo one two | grep -o 't.*'";
    shell(&tare, &[], script).ok().printed("12\nfour\n/etc/passwd\n4\na b two\n").said_nothing();
}

/// More than sort may hold in memory here: it spills into /tmp.
#[test]
fn a_file_larger_than_its_memory_is_sorted() {
    let tare = tare!();
    let script = "
        seq 3000000 -1 1 > numbers
        sort -n -S 4m -T /tmp numbers -o sorted
        head -n 2 sorted
        tail -n 1 sorted";
    shell(&tare, &[], script).ok().printed("1\n2\n3000000\n").said_nothing();
}

#[test]
fn bash_controls_jobs() {
    let tare = tare!();
    if !has_program("bash") {
        skip!("this host has no bash");
    }
    let script = "
        set -m
        sleep 60 &
        kill -STOP %1
        while [ \"$(jobs %1 | grep -c Stopped)\" = 0 ]; do :; done
        echo stopped
        bg %1 > /dev/null
        kill %1
        wait %1
        echo $?
        (exit 7) & wait $!
        echo $?
        cat <(echo substituted)
        trap 'echo trapped' USR1
        kill -USR1 $$";
    tare.run(["--", "bash", "-c", script]).ok().printed("stopped\n143\n7\nsubstituted\ntrapped\n");
}

#[test]
fn perl_forks_and_talks_over_sockets() {
    let tare = tare!();
    if !has_program("perl") {
        skip!("this host has no perl");
    }
    let script = r#"
use strict; use warnings; use IO::Socket::INET; use File::Temp; use POSIX;
my $server = IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1") or die $!;
my $pid = fork // die;
if (!$pid) {
    my $peer = IO::Socket::INET->new(PeerAddr => "127.0.0.1", PeerPort => $server->sockport) or die $!;
    print $peer "from a child\n";
    exit 3;
}
print scalar readline $server->accept;
waitpid $pid, 0;
print $? >> 8, " ", scalar(getpwuid($<)), " ", -w File::Temp->new ? "writable" : "", "\n";
"#;
    tare.run(["--", "perl", "-e", script])
        .ok()
        .printed("from a child\n3 box writable\n")
        .said_nothing();
}

#[test]
fn time_zones_work() {
    let tare = tare!();
    if !std::path::Path::new("/usr/share/zoneinfo/Asia/Tokyo").exists() {
        skip!("this host has no tzdata");
    }
    let script = "
        date -d @0 '+%H %Z'
        python3 -c 'import zoneinfo, datetime; print(datetime.datetime.fromtimestamp(0, zoneinfo.ZoneInfo(\"America/New_York\")))'";
    shell(&tare, &["-e", "TZ=Asia/Tokyo"], script)
        .ok()
        .printed("09 JST\n1969-12-31 19:00:00-05:00\n")
        .said_nothing();
}

#[test]
fn a_busybox_root_has_its_own_tools() {
    let tare = tare!();
    let Some(root) = busybox_root() else {
        skip!("this host has no static busybox");
    };
    let script = "
        set -e
        busybox ps | busybox grep -c busybox
        busybox df > /dev/null
        busybox free > /dev/null
        echo text | busybox gzip | busybox gunzip
        busybox mktemp > name
        busybox rm \"$(cat name)\"
        busybox nproc > /dev/null
        busybox vi --help 2>&1 | busybox head -n 1 | busybox cut -c1-7";
    let output = tare.run(["--rootfs", root.text(), "--", "/bin/sh", "-c", script]).ok();
    let text = output.stdout_text();
    assert!(text.ends_with("text\nBusyBox\n"), "{output}");
}
