# What must hold on Linux 6.1.

# The one box that runs now.
box() { ls -d $unified/tare-*; }
box_runs() {
    for pid in $(cat "$(box)/cgroup.procs"); do
        [ "$(cat /proc/$pid/comm)" != sleep ] || return 0
    done
    return 1
}

# What the kernel has been told, in the hierarchy (v1) or the box's directory.
limit_is() {
    local file
    case $layout in
        pure) file=$(box)/$2 ;;
        hybrid) file=$(ls -d $cgroups/$1/tare-*)/$2 ;;
    esac
    [ "$(cat "$file")" = "$3" ] || fail "$file is $(cat "$file"), not $3"
}

the_layout_is_what_it_should_be() {
    case $layout in
        pure)
            ! grep -q ' - cgroup ' /proc/self/mountinfo || fail "there is a v1 hierarchy"
            grep -q memory $cgroups/cgroup.controllers || fail "v2 has no memory controller"
            expect 0 "pure v2, memory, pids, cpu can be limited" tare doctor
            ;;
        hybrid)
            ! grep -q memory $unified/cgroup.controllers || fail "v2 has the memory controller"
            expect 0 "beside v2), memory, pids, cpu can be limited" tare doctor
            ;;
    esac
}

the_doctor_finds_that_boxes_can_be_made() {
    expect 0 "Boxes can be made here." tare doctor
    expect 0 "ABI 2" tare doctor
}

a_box_says_hello() {
    expect 0 "hello from 1000" tare run -- sh -c 'echo hello from $(id -u)'
    [ "$(echo through | tare run -i -- cat)" = through ] || fail "stdin does not arrive"
}

a_box_is_alone() {
    [ "$(tare run -- sh -c 'set -- /proc/[0-9]*; echo $#')" = 1 ] || fail "others are seen"
    expect 0 "LOOPBACK,UP" tare run -- ip link show lo
    expect 1 "" tare run -- sh -c 'ls -A /root /run /sys/fs 2>/dev/null | grep -v ":$" | grep .'
    expect 1 "Read-only file system" tare run -- touch /usr/bin/new
}

exit_codes_tell_what_happened() {
    expect 7 "" tare run -- sh -c 'exit 7'
    expect 127 "" tare run -- nowhere
    expect 126 "" tare run -- /etc/passwd
    expect 137 "" tare run -- sh -c 'kill -9 $$'
    expect 125 "--memory" tare run --memory banana -- true
}

# The limit on processor time is the workload's: the keeper is in the cgroup above it.
workload_limit_is() {
    local own file
    case $layout in
        pure) own=$(box) file=cpu.max ;;
        hybrid) own=$(ls -d $cgroups/cpu,cpuacct/tare-*) file=cpu.cfs_quota_us ;;
    esac
    [ "$(cat "$own/work/$file")" = "$1" ] || fail "$own/work/$file is $(cat "$own/work/$file")"
    case $(cat "$own/$file") in
        max*|-1) ;;
        *) fail "the keeper is limited too: $(cat "$own/$file")" ;;
    esac
}

limits_are_written_to_the_kernel() {
    tare run --cpus 0.5 --memory 64m --pids 10 -- sleep 1000 &
    eventually box_runs
    case $layout in
        pure)
            limit_is memory memory.max 67108864
            limit_is memory memory.oom.group 1
            workload_limit_is "50000 100000"
            ;;
        hybrid)
            limit_is memory memory.limit_in_bytes 67108864
            workload_limit_is 50000
            ;;
    esac
    limit_is pids pids.max 11
    kill -TERM $!
    wait $!
    [ $? = 143 ] || fail "the signal did not reach the command"
}

memory_beyond_the_limit_ends_the_box() {
    expect 137 "memory limit of 32 MiB reached" tare run --memory 32m -- dd if=/dev/zero of=/dev/null bs=200M count=1
    expect 137 "memory limit of 32 MiB reached" tare run --memory 32m -- dd if=/dev/zero of=/tmp/full bs=1M count=100
}

processes_are_limited() {
    expect 2 "can't fork" tare run --pids 8 -- \
        sh -c 'for i in $(seq 20); do sleep 100 & done'
}

a_timeout_ends_sleepers_that_ignore_signals() {
    expect 124 "" tare run --timeout 3s -- \
        sh -c 'trap "" TERM INT HUP; for i in $(seq 20); do setsid sleep 1000 & done; wait'
}

scratch_is_bounded() {
    expect 1 "No space left" tare run --scratch 4m -- dd if=/dev/zero of=/tmp/full bs=1M count=8
}

a_writable_volume_belongs_to_its_owner() {
    mkdir -p /mnt/disk/theirs
    chown 1234:1235 /mnt/disk/theirs
    expect 0 "1000:1000" tare run -v /mnt/disk/theirs:/data -- \
        sh -c 'echo new >/data/file && stat -c %u:%g /data/file'
    expect 0 "1234:1235" stat -c %u:%g /mnt/disk/theirs/file
    expect 1 "Read-only" tare run -v /mnt/disk/theirs:/data:ro -- touch /data/other
    expect 0 "new" tare run -v /mnt/disk/theirs:/data:ro -- cat /data/file
}

a_volume_that_cannot_be_mapped_says_so() {
    mkdir -p /srv/shared
    echo words >/srv/shared/file
    expect 125 "':ro' needs none" tare run -v /srv/shared:/data -- true
    expect 0 "words" tare run -v /srv/shared:/data:ro -- cat /data/file
}

make_root() {
    mkdir -p "$1/bin" "$1/old"
    cp /usr/bin/busybox "$1/bin"
    for applet in sh cat rm mkdir ls mv; do ln -s busybox "$1/bin/$applet"; done
    echo "from below" >"$1/old/file"
}

a_root_on_disk_lies_unchanged_beneath_an_overlay() {
    local root=/mnt/disk/root
    make_root $root
    expect 0 "from below" tare run --rootfs $root -- cat /old/file
    expect 0 "changed" tare run --rootfs $root -u 0 -- \
        sh -c 'echo changed >/old/file; rm /bin/ls; mkdir /new; mv /bin/mv /new; cat /old/file'
    [ "$(cat $root/old/file)" = "from below" ] || fail "the source was changed"
    expect 0 "cannot remove a directory" tare doctor
}

a_root_that_cannot_be_mapped_says_so() {
    make_root /srv/root
    expect 125 "copy it to a disk" tare run --rootfs /srv/root -- true
}

a_terminal_is_one() {
    tare run -t -- sh -c 'test -t 0 && tty' </dev/ttyS0 >/run/terminal 2>&1
    grep -q /dev/pts/0 /run/terminal || fail "$(cat /run/terminal)"
}

contained_processes_see_the_host() {
    expect 0 "0" tare run --contain -- sh -c 'id -u && ls /srv'
    expect 137 "memory limit of 32 MiB reached" tare run --contain --memory 32m -- dd if=/dev/zero of=/dev/null bs=200M count=1
}

users_without_privileges_have_boxes() {
    expect 0 "hello" su -s /bin/sh user -c 'tare run -- echo hello'
    expect 125 "cannot enforce the memory limit" su -s /bin/sh user -c 'tare run --memory 64m -- true'
    expect 124 "" su -s /bin/sh user -c 'tare run --timeout 1s -- sh -c "setsid sleep 1000 & wait"'
}

# As a service manager delegates: the directory and the files to move processes.
a_delegated_cgroup_is_used() {
    local theirs=$unified/theirs
    mkdir $theirs
    chown 1000:1000 $theirs $theirs/cgroup.procs $theirs/cgroup.subtree_control
    # Its shell is in there too, so v2 does not let it hand a controller down.
    in_theirs() {
        sh -c "echo \$\$ >$theirs/cgroup.procs && exec su -s /bin/sh user -c '$1; exit \$?'"
    }
    in_theirs "tare run --timeout 3s -- sh -c \"setsid sleep 1000 & wait\"" &
    used() { grep . $theirs/tare-*/cgroup.procs; }
    eventually used
    wait $!
    [ $? = 124 ] || fail "it did not end with the timeout"
    expect 125 "systemd-run --user --scope -p Delegate=yes" \
        in_theirs "tare run --memory 64m -- true"
    eventually rmdir $theirs
}

# What `systemd-run --user --scope -p Delegate=yes tare run` does: tare is alone in a cgroup that
# its user owns. As a manager does, the check removes the empty cgroup with those below.
a_delegated_cgroup_gives_limits_to_users() {
    local scope=$unified/scope
    echo "+memory +pids +cpu" >$unified/cgroup.subtree_control
    in_scope() {
        mkdir $scope
        chown 1000:1000 $scope $scope/cgroup.procs $scope/cgroup.threads $scope/cgroup.subtree_control
        expect "$1" "$2" sh -c "echo \$\$ >$scope/cgroup.procs && exec su -s /bin/sh user -c 'exec $3'"
    }
    scope_is_removed() {
        eventually rmdir $scope/tare
        eventually rmdir $scope
    }
    scope_is_swept() {
        is_found() { su -s /bin/sh user -c 'tare audit' | grep "no process is left in $scope/tare"; }
        eventually is_found
        expect 0 "" su -s /bin/sh user -c 'tare sweep'
        expect 0 "" su -s /bin/sh user -c 'tare audit'
        eventually rmdir $scope
    }
    in_scope 0 "hello" 'tare run --memory 64m --pids 20 --cpus 0.5 -- echo hello'
    scope_is_swept
    in_scope 137 "memory limit of 32 MiB reached" \
        'tare run --memory 32m -- dd if=/dev/zero of=/dev/null bs=200M count=1'
    scope_is_removed
    in_scope 0 "memory, pids, cpu can be limited" 'tare doctor'
    scope_is_removed
    # A box that outlives its tare keeps its limit, and any tare of the user ends it.
    in_scope 0 "" 'tare run -d --memory 32m --name limited -- sleep 1000'
    expect 0 "33554432" sh -c "cat $scope/tare-*/memory.max"
    expect 0 "limited" su -s /bin/sh user -c 'tare rm -f limited'
    scope_is_swept
}

# The same cgroup in each hierarchy in which boxes have one.
same_cgroup() {
    case $layout in
        pure) echo $unified/$1 ;;
        hybrid) for root in unified memory pids cpu,cpuacct; do echo $cgroups/$root/$1; done ;;
    esac
}

# v2 with processes cannot hand limits down: there a box is at the root.
a_box_is_below_its_caller_where_limits_hold() {
    local parent=$unified/caller
    mkdir $(same_cgroup caller)
    [ $layout = hybrid ] || parent=$unified
    sh -c 'for at; do echo 0 >$at/cgroup.procs; done; exec tare run -- sleep 1000' sh \
        $(same_cgroup caller) >/dev/null 2>&1 &
    sleeps() {
        for pid in $(cat $parent/tare-*/cgroup.procs); do
            [ "$(cat /proc/$pid/comm)" != sleep ] || return 0
        done
        return 1
    }
    eventually sleeps
    [ $layout = pure ] || ls -d $cgroups/pids/caller/tare-* || fail "it is not below its caller"
    if [ $layout = pure ]; then
        expect 125 "has processes of its own" tare run -d --cgroup-parent caller -- true
    fi
    kill -TERM $!
    wait $!
    eventually rmdir $(same_cgroup caller)
    expect 125 "there is no such cgroup" tare run -d --cgroup-parent caller -- true
}

a_box_is_below_the_parent_that_was_chosen() {
    mkdir $(same_cgroup chosen)
    id=$(tare run -d --pids 10 --cgroup-parent chosen -- sleep 1000) || fail "no box"
    ls -d $unified/chosen/tare-*-$id || fail "it is not there"
    [ "$(cat $(same_cgroup chosen | grep 'pids\|cgroup/chosen')/tare-*-$id/pids.max)" = 11 ] ||
        fail "it has no limit"
    expect 0 "agree" tare audit
    expect 0 "$id" tare rm -f "$id"
    rmdir $(same_cgroup chosen) || fail "a box is left"
    expect 0 "" tare sweep
    [ -z "$(ls /run/tare/parents)" ] || fail "the parent is still listed"
}

the_next_run_ends_what_a_killed_one_left() {
    tare run --name orphan -- sleep 1000 &
    eventually box_runs
    kill -9 $!
    wait $!
    expect 0 "" tare run --name orphan -- true
    nothing_left || fail "$(diff /run/before /run/now)"
}

# Before Linux 6.9 a pidfd does not tell one process from another with its number.
a_number_that_was_used_again_is_spared() {
    tare run -- sleep 1000 &
    eventually box_runs
    local number innocent
    number=$(head -n 1 "$(box)/cgroup.procs")
    kill -9 $!
    wait $!
    eventually test ! -e "/proc/$number"
    echo $((number - 1)) >/proc/sys/kernel/ns_last_pid
    sleep 1000 &
    innocent=$!
    [ "$innocent" = "$number" ] || fail "the number $number could not be had: $innocent"
    expect 0 "" tare run -- true
    kill "$innocent" || fail "a stranger was killed"
}

fifty_in_a_row_leave_nothing() {
    for i in $(seq 50); do
        tare run -- true || fail "box $i ended with $?"
    done
    nothing_left || fail "$(diff /run/before /run/now)"
}

is_cloned() {
    wget -q -O - --header 'Content-Type: application/json' \
        --post-data '{"language": "python", "code": "print(6 * 7)"}' http://127.0.0.1:7000/v1/run \
        | grep '"stdout":"42.n"' | grep '"warm":"clone"'
}

calls_of_python_get_clones() {
    tare serve --listen 127.0.0.1:7000 >/run/serve.log 2>&1 &
    local server=$!
    eventually grep listening /run/serve.log
    (eventually is_cloned) || fail "$(cat /run/serve.log)"
    expect 0 "warm(python-template)" tare ls -a
    is_cloned || fail "the next call got no clone: $(cat /run/serve.log)"
    kill $server
    wait $server
}

# One of the last: nothing brings the hierarchy back.
without_cgroups_boxes_still_end_whole() {
    expect 0 "no writable cgroup here" tare run -- true
    expect 125 "cannot enforce the memory limit" tare run --memory 64m -- true
    expect 124 "" tare run --timeout 1s -- sh -c 'setsid sleep 1000 & setsid sleep 1000 & wait'
    expect 0 "none, pids can be limited" tare doctor
}

. /etc/vm/living

truncate -s 24M /run/disk
mke2fs -F /run/disk >/dev/null 2>&1
mkdir /mnt/disk
mount -t ext4 -o loop /run/disk /mnt/disk || echo "CHECK disk FAILED"

# The directories of the records are kept by design.
tare run --quiet -- true
su -s /bin/sh user -c 'tare run --quiet -- true'

check the_layout_is_what_it_should_be
check the_doctor_finds_that_boxes_can_be_made
check a_box_says_hello
check a_box_is_alone
check exit_codes_tell_what_happened
check limits_are_written_to_the_kernel
check memory_beyond_the_limit_ends_the_box
check processes_are_limited
check a_timeout_ends_sleepers_that_ignore_signals
check scratch_is_bounded
check a_writable_volume_belongs_to_its_owner
check a_volume_that_cannot_be_mapped_says_so
check a_root_on_disk_lies_unchanged_beneath_an_overlay
check a_root_that_cannot_be_mapped_says_so
check a_terminal_is_one
check contained_processes_see_the_host
check users_without_privileges_have_boxes
check a_delegated_cgroup_is_used
[ $layout = hybrid ] || check a_delegated_cgroup_gives_limits_to_users
check a_box_is_below_its_caller_where_limits_hold
check a_box_is_below_the_parent_that_was_chosen
check the_next_run_ends_what_a_killed_one_left
check a_number_that_was_used_again_is_spared
check fifty_in_a_row_leave_nothing
check a_box_lives_on_and_is_used
check a_box_that_got_little_processor_time_ends_with_its_lease
check a_box_is_paused
check a_lease_ends_a_box_that_nobody_watches
check users_without_privileges_have_boxes_that_live_on
check a_number_that_a_keeper_had_is_spared
[ ! -e /usr/bin/python3 ] || check calls_of_python_get_clones
if [ $layout = pure ]; then
    umount $cgroups
    check without_cgroups_boxes_still_end_whole
    check without_cgroups_a_box_lives_on
    check a_number_that_a_keeper_had_is_spared
fi
exit 0
