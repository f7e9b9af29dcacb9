# How scripts check what must hold. They run as root in the virtual machine; each check
# prints one line, with what went wrong below it.

cgroups=/sys/fs/cgroup
if [ -e $cgroups/unified ]; then
    layout=hybrid unified=$cgroups/unified
else
    layout=pure unified=$cgroups
fi

fail() {
    echo "$*"
    exit 1
}

# Runs a command: its exit code, and words that its output must have.
expect() {
    local code=$1 words=$2 output got
    shift 2
    output=$("$@" 2>&1 </dev/null)
    got=$?
    [ "$got" = "$code" ] || fail "exit code $got, not $code, of $*: $output"
    case $output in
        *"$words"*) ;;
        *) fail "no '$words' from $*: $output" ;;
    esac
}

# Asks again until it holds; nothing here takes longer than this bound.
eventually() {
    local tries=0
    until "$@" >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || fail "never: $*"
        sleep 0.05
    done
}

# Everything of tare on this host, and what it may have changed.
traces() {
    find $cgroups -type d -name 'tare-*' 2>/dev/null
    ls /run/tare/boxes /run/tare/names /tmp/tare-1000/boxes 2>/dev/null | grep -v ':$' | grep .
    # What boxes run for long here are sleepers.
    cat /proc/[0-9]*/comm 2>/dev/null | grep '^tare\|^sleep$\|^qemu' | sort
    cut -d' ' -f5 /proc/self/mountinfo
}

nothing_left() {
    traces >/run/now
    cmp -s /run/before /run/now
}

all_gone() {
    (eventually nothing_left) || diff /run/before /run/now
}

check() {
    local name=$1 output
    traces >/run/before
    # Seconds since boot, so that a slow check is seen.
    if output=$("$name" 2>&1) && output=$(all_gone); then
        echo "CHECK $name ok [$(cut -d. -f1 /proc/uptime) s]"
    else
        echo "CHECK $name FAILED"
        echo "$output" | sed 's/^/    /'
    fi
}
