# What must hold for machines with KVM. /run/kernels has a kernel for them.

export TARE_VM_DIR=/run/kernels TARE_VM_BOOT=100s

as_user() {
    su -s /bin/sh user -c "export TARE_VM_DIR=/srv/kernels TARE_VM_BOOT=100s; $1"
}

found() { tare doctor --json | tr -d ' \n' | grep -o '"kvm":"[a-z]*"'; }

# With another node in the place of KVM's, or with none.
without_kvm() {
    mv /dev/kvm /dev/hidden
    [ $# = 0 ] || mknod /dev/kvm "$@"
}
with_kvm_again() { mv -f /dev/hidden /dev/kvm; }

doctor_and_run_say_what_kvm_lacks() {
    [ "$(found)" = '"kvm":"ok"' ] || fail "found $(found)"
    expect 0 "/dev/kvm runs guests" tare doctor
    without_kvm
    [ "$(found)" = '"kvm":"absent"' ] || fail "found $(found)"
    expect 125 "there is no /dev/kvm" tare run --driver vm -- true
    with_kvm_again
    # The null device accepts none of KVM's requests.
    without_kvm c 1 3
    [ "$(found)" = '"kvm":"bootsnothing"' ] || fail "found $(found)"
    expect 125 "boots no ordinary kernel" tare run --driver vm --accel kvm -- true
    with_kvm_again
}

the_monitor_has_kvm_and_nothing_else_of_the_host() {
    local pid
    chmod 0600 /dev/kvm
    tare run --driver vm -d --name web -- sleep 1000 || fail "no box"
    expect 0 "$(uname -r)" tare exec web -- uname -r
    expect 7 "" tare exec web -- sh -c 'exit 7'
    pid=$(pidof qemu-system-x86_64)
    ls -l /proc/$pid/fd | grep -q kvm-vcpu || fail "the machine does not use KVM"
    grep -q '^CapEff:.0000000000000000$' /proc/$pid/status || fail "the monitor has capabilities"
    ! grep -q '^Uid:.0' /proc/$pid/status || fail "the monitor is root"
    [ "$(cd /proc/$pid/root/dev && echo $(find . -maxdepth 1 -type c | sort))" = \
        "./full ./kvm ./null ./random ./tty ./urandom ./zero" ] ||
        fail "nodes: $(find /proc/$pid/root/dev -type c)"
    expect 0 web tare rm -f web
    [ "$(stat -c %a:%U /dev/kvm)" = 600:root ] || fail "tare changed the host's node"
}

a_user_needs_the_group_of_kvm() {
    local said
    chgrp kvm /dev/kvm
    chmod 0660 /dev/kvm
    mkdir -p /srv/kernels
    cp -a /run/kernels/. /srv/kernels
    chown -R user:user /srv/kernels
    expect 125 "add the user to the group kvm" as_user 'tare run --driver vm -- true'
    expect 0 "add the user to the group kvm" as_user 'tare doctor'
    sed -i 's/^kvm:.*/&user/' /etc/group
    said=$(as_user "tare run --driver vm --accel auto -- sh -c 'uname -r; exit 7'" 2>&1)
    # Another note says that the box has no range of users.
    case "$? $said" in
        *emulated*) fail "$said" ;;
        "7 "*"$(uname -r)") ;;
        *) fail "it says: $said" ;;
    esac
}

check doctor_and_run_say_what_kvm_lacks
check the_monitor_has_kvm_and_nothing_else_of_the_host
check a_user_needs_the_group_of_kvm
