//! Words of docker and podman that tare does not have, each with the nearest feature that does the
//! job. The hint for a harmless word never names a command that removes something.

/// Commands, and the hint for them.
pub const COMMANDS: [(&[&str], &str); 17] = [
    (
        &["top"],
        "'tare stats --watch' shows what boxes use, 'tare exec BOX -- ps aux' the processes of one",
    ),
    (&["start", "restart", "up"], "an ended box does not start again: 'tare run' makes a new one"),
    (
        &["prune", "clean", "cleanup", "gc"],
        "nothing has to be pruned: tare removes ended boxes after their --retention, and leftovers \
         with every command; 'tare ls -a' shows what is kept, 'tare sweep --dry-run' what is left",
    ),
    (
        &["commit", "save", "export", "snapshot", "checkpoint"],
        "'tare cp BOX:/work -' writes the files of a box as a tar stream, and 'tare run -d --keep' \
         keeps them after its end",
    ),
    (
        &["pull", "push", "images", "image", "build", "rmi", "tag", "import", "load", "search"],
        "tare has no images: a box sees the programs of the host, or with 'tare run --rootfs DIR' \
         an unpacked root file system",
    ),
    (&["login", "logout"], "tare uses no registry, so there is nothing to log in to"),
    (
        &["volume", "volumes"],
        "a volume is a directory of the host: 'tare run -v HOST:BOX'; 'tare cp' copies files",
    ),
    (
        &["network", "networks"],
        "a box has only loopback; 'tare run --net host' shares the network of the host",
    ),
    (
        &["port", "ports"],
        "ports of a box are not published; 'tare audit' lists them, and 'tare run --net host' \
         shares the network of the host",
    ),
    (&["diff"], "'tare cp BOX:/work - | tar t' lists the files of a box"),
    (&["container", "containers", "pod", "box", "boxes"], "leave it out: 'tare ls' lists boxes"),
    (
        &["system", "info", "df"],
        "'tare doctor' shows what this host can do, 'tare stats' what boxes use; nothing has to be \
         pruned",
    ),
    (&["events"], "'tare ls --watch' shows boxes as they change, 'tare explain' the past of one"),
    (&["compose", "stack", "service"], "'tare serve' makes boxes over HTTP; tare has no compose"),
    (&["init", "setup", "install"], "nothing has to be set up; 'tare doctor' checks this host"),
    (&["healthcheck"], "'tare exec BOX -- COMMAND' runs a check in a box and exits with its code"),
    (&["ssh", "console", "sh", "bash"], "'tare exec -it BOX sh' opens a shell in a box"),
];

const NETWORK: &str = "ports of a box are not published: with --net host, the command shares the \
                       host's network and listens on the host's ports";
const OWN_NAMESPACES: &str = "every box has its own; --contain shares those of the host";
const NO_HOST_RIGHTS: &str = "a box has no rights on the host: --root is root of the box alone, \
                              --seccomp widens its system calls, and --contain isolates nothing";
const NO_IMAGES: &str = "tare has no images: --rootfs DIR is an unpacked root file system, of \
                         this machine's architecture";

/// Options, the commands that they are given to, and the hint for them.
pub const OPTIONS: [(&[&str], &[&str], &str); 31] = [
    (&["run"], &["-p", "--publish", "-P", "--publish-all", "--expose", "--port"], NETWORK),
    (
        &["run"],
        &["--ip", "--dns", "--add-host", "--link", "--network-alias"],
        "a box has only loopback; --net host shares the network of the host",
    ),
    (&["serve"], &["-p", "--port", "--host", "--address"], "write --listen ADDRESS:PORT"),
    (
        &["cp"],
        &["-r", "-R", "-a", "-p", "--recursive", "--archive"],
        "leave it out: cp copies directories whole",
    ),
    (
        &["kill"],
        &["-1", "-2", "-3", "-6", "-9", "-H", "-I", "-K", "-T"],
        "'tare kill -s 9 BOX' sends signal 9, and -s HUP another one",
    ),
    (
        &["update"],
        &["--scratch", "--timeout", "--nofile", "--output-limit", "--retention", "--net"],
        "it is fixed when the box is made; update changes --memory, --pids, --cpus and --lease",
    ),
    (
        &["run", "update"],
        &["--restart"],
        "a box that has ended does not start again: call 'tare run' in a loop, or in a service of \
         systemd with Restart=",
    ),
    (&["run"], &["--privileged", "--cap-add", "--device-cgroup-rule"], NO_HOST_RIGHTS),
    (&["exec"], &["--privileged"], "an exec has the rights of its box; -u chooses its user"),
    (
        &["run"],
        &["--cap-drop"],
        "leave it out: a box has no capabilities, and with --root only those over its own files",
    ),
    (
        &["run"],
        &["--gpus", "--device"],
        "a box has no devices of the host; --contain isolates nothing and leaves them visible",
    ),
    (&["run"], &["--security-opt", "--userns", "--apparmor"], "--seccomp PROFILE is the nearest"),
    (&["run"], &["--ipc", "--pid", "--uts", "--cgroupns"], OWN_NAMESPACES),
    (&["run"], &["--entrypoint"], "write the program first after --, as in 'tare run -- PROGRAM'"),
    (&["run"], &["--hostname"], "--name NAME is the host name of the box, too"),
    (&["run"], &["--platform", "--pull", "--arch", "--os"], NO_IMAGES),
    (&["run"], &["--init"], "leave it out: PID 1 of a box is tare's keeper, which reaps orphans"),
    (
        &["run"],
        &["--tmpfs", "--shm-size", "--storage-opt"],
        "/tmp, /work and /dev/shm are one space in memory: --scratch SIZE limits it",
    ),
    (
        &["run"],
        &["--read-only"],
        "leave it out: /usr is read-only, and -v HOST:BOX:ro is a read-only volume",
    ),
    (&["run"], &["--ulimit"], "--nofile, --pids and --memory limit a box"),
    (
        &["run", "update"],
        &["--memory-swap", "--memory-reservation", "--kernel-memory"],
        "--memory limits everything that a box has in memory",
    ),
    (
        &["run", "update"],
        &["--cpu-shares", "--cpu-quota", "--cpu-period", "--cpuset-cpus"],
        "--cpus N limits the processor time",
    ),
    (&["run"], &["--group-add"], "-u UID:GID chooses the group; a box has no others"),
    (&["run"], &["--stop-timeout", "--stop-signal"], "'tare stop -t DURATION' gives a grace"),
    (&["run"], &["--replace"], "choose another --name: a name belongs to one box at a time"),
    (&["run"], &["--log-driver", "--log-opt"], "--output-limit bounds the log of 'tare logs'"),
    (
        &["run"],
        &["--health-cmd", "--healthcheck-command", "--no-healthcheck"],
        "'tare exec BOX -- COMMAND' runs a check and exits with its code",
    ),
    (
        &["ls", "inspect", "stats"],
        &["--format", "--no-trunc", "--size", "-s", "-n", "-l", "--latest", "--last"],
        "--json prints every field, for jq",
    ),
    (&["stats"], &["--no-stream"], "leave it out: --watch repeats, and nothing else does"),
    (
        &["rm"],
        &["-r", "-R", "--recursive"],
        "leave it out: rm removes whole boxes, and -f ends those that run",
    ),
    (
        &["rm"],
        &["-v", "--volumes"],
        "leave it out: volumes are directories of the host, and tare never removes them",
    ),
];
