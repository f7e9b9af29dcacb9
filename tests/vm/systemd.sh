# What must hold for users of a machine that systemd manages.

as_user() {
    su -s /bin/sh user -c "export XDG_RUNTIME_DIR=/run/user/1000; exec $*"
}

in_scope() {
    as_user systemd-run --quiet --user --scope -p Delegate=yes "$@"
}

scope_is_gone() { ! find $cgroups -name 'run-*.scope' | grep .; }

systemd_runs_a_manager_for_the_user() {
    expect 0 "user@1000.service" as_user systemctl --user status
}

users_without_a_scope_get_the_command_for_one() {
    expect 125 "systemd-run --user --scope -p Delegate=yes tare run" as_user tare run --memory 64m -- true
}

limits_work_in_the_scope_that_the_hint_names() {
    expect 0 "hello" in_scope tare run --memory 64m --pids 20 --cpus 0.5 -- echo hello
    eventually scope_is_gone
    expect 137 "memory limit of 32 MiB reached" \
        in_scope tare run --memory 32m -- dd if=/dev/zero of=/dev/null bs=200M count=1
    eventually scope_is_gone
    expect 0 "memory, pids, cpu can be limited" in_scope tare doctor
    eventually scope_is_gone
}

a_box_keeps_its_limit_after_its_command() {
    expect 0 "" in_scope tare run -d --memory 32m --name limited -- sleep 1000
    expect 0 "33554432" sh -c "cat \$(find $cgroups/user.slice -path '*.scope/tare-*' -name memory.max | head -n 1)"
    expect 0 "limited" as_user tare rm -f limited
    eventually scope_is_gone
    expect 0 "" as_user tare sweep
    expect 0 "" as_user tare audit
}

systemctl start dbus.socket user@1000.service
# The directories of the records are kept by design.
as_user tare run --quiet -- true

check systemd_runs_a_manager_for_the_user
check users_without_a_scope_get_the_command_for_one
check limits_work_in_the_scope_that_the_hint_names
check a_box_keeps_its_limit_after_its_command
