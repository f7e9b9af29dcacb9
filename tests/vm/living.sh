# Boxes that live on, on Linux 6.1: their keepers are known by number and tick
# there, not by the inode of a pidfd. Read by the checks, with their functions.

no_long_sleeper() { ! ps -o args | grep -q '^sleep 1000$'; }
has_logged() { tare logs "$1" 2>&1 | grep -q "$2"; }

# The life of one, with every command once.
a_box_lives_on_and_is_used() {
    local id
    id=$(tare run -d --name web -- sh -c \
        'echo up; echo oops >&2; trap "exit 5" TERM; while :; do sleep 0.1; done')
    expect 0 '"running"' tare ls --json
    expect 0 "$id" tare ls -q --filter name=web
    expect 0 "from 1000 to 7" tare exec -e TO=7 web -- sh -c 'echo from $(id -u) to $TO'
    expect 3 "" tare exec web -- sh -c 'exit 3'
    expect 127 "" tare exec web -- nowhere
    expect 124 "" tare exec --timeout 1s web -- \
        sh -c 'for i in 1 2 3; do setsid sleep 1000 & done; wait'
    no_long_sleeper || fail "the tree outlived its timeout"
    eventually has_logged web oops
    echo content >/run/file
    expect 0 "" tare cp /run/file web:/work/file
    expect 0 "content" tare exec web -- cat /work/file
    expect 0 "" tare cp web:/work/file /run/copied
    [ "$(cat /run/copied)" = content ] || fail "it was not copied back"
    expect 0 "" tare update --lease 1h web
    expect 0 "" tare rename web other
    expect 1 "running" tare rm other
    expect 0 "" tare stop -t 5s other
    expect 0 "5" tare wait other
    expect 0 '"exited"' tare ls -a --json
    expect 125 "ended" tare exec other -- true
    has_logged other up || fail "its log is gone"
    expect 0 "" tare rm other
    expect 0 "[]" tare ls -a --json
    nothing_left || fail "$(diff /run/before /run/now)"
}

a_box_that_got_little_processor_time_ends_with_its_lease() {
    local id busy='while :; do :; done'
    id=$(tare run -d --lease 3s -- sh -c "$busy & $busy & $busy")
    expect 0 "" tare update --cpus 0.01 "$id"
    case $layout in
        pure) workload_limit_is "1000 100000" ;;
        hybrid) workload_limit_is 1000 ;;
    esac
    expect 0 "" tare wait "$id"
    expect 0 '"lease"' tare ls -a --json
    expect 0 "" tare rm "$id"
}

a_box_is_paused() {
    tare run -d --name paused -- sh -c 'while :; do echo tick; sleep 0.05; done' >/run/id
    eventually has_logged paused tick
    expect 0 "" tare pause paused
    expect 0 '"paused"' tare ls --json
    expect 125 "paused" tare exec paused -- true
    expect 0 "" tare resume paused
    expect 0 "yes" tare exec paused -- echo yes
    expect 0 "" tare pause paused
    expect 0 "" tare rm -f paused
    nothing_left || fail "$(diff /run/before /run/now)"
}

no_keeper() {
    ! cat /proc/[0-9]*/comm 2>/dev/null | grep -q '^tare'
}

a_lease_ends_a_box_that_nobody_watches() {
    tare run -d --lease 1s --name leased -- \
        sh -c 'trap "" TERM; setsid sleep 1000 & wait' >/run/id
    # The keeper is there from the start, the sleeper perhaps not yet.
    eventually no_keeper
    eventually no_long_sleeper
    expect 0 '"lease"' tare ls -a --json
    expect 0 "" tare rm leased
}

users_without_privileges_have_boxes_that_live_on() {
    local as_user='su -s /bin/sh user -c'
    expect 0 "" $as_user 'tare run -d --name mine -- sleep 1000'
    expect 0 "here" $as_user 'tare exec mine -- echo here'
    expect 0 '"running"' $as_user 'tare ls --json'
    expect 125 "there is no box" tare exec mine -- true
    expect 0 "" $as_user 'tare stop -t 0 mine'
    expect 0 "" $as_user 'tare rm mine'
}

a_number_that_a_keeper_had_is_spared() {
    local id number innocent
    id=$(tare run -d -- sleep 1000)
    # The keeper comes first.
    number=$(tare inspect "$id" | grep -o 'pid [0-9]*' | head -n 1 | cut -d' ' -f2)
    kill -9 "$number"
    eventually test ! -e "/proc/$number"
    echo $((number - 1)) >/proc/sys/kernel/ns_last_pid
    sleep 1000 &
    innocent=$!
    [ "$innocent" = "$number" ] || fail "the number $number could not be had: $innocent"
    expect 0 '"exited"' tare ls -a --json
    expect 0 "" tare rm -f "$id"
    kill "$innocent" || fail "a stranger was killed"
}

without_cgroups_a_box_lives_on() {
    tare run -d --name lone -- sh -c 'setsid sleep 1000 & sleep 1000' >/run/id
    expect 0 "in" tare exec lone -- echo in
    expect 124 "" tare exec --timeout 1s lone -- sh -c 'setsid sleep 1000 & wait'
    expect 1 "" tare pause lone
    expect 0 '"running"' tare ls --json
    expect 0 "" tare stop -t 0 lone
    no_long_sleeper || fail "somebody outlived the box"
    expect 0 "" tare rm lone
    tare run -d --name lone -- sleep 1000 >/run/id
    expect 0 "" tare rm -f lone
    nothing_left || fail "$(diff /run/before /run/now)"
}
