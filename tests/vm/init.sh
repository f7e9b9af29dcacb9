#!/usr/bin/busybox sh
# The first process of the virtual machine: makes a small host out of the archive,
# with the cgroup layout that the kernel's command line names, runs the checks on
# it, and ends the machine.
bb=/usr/bin/busybox

# The archive's own root cannot be pivoted away from, by anyone: a host's root is
# mounted on it.
if ! [ -e /etc/vm/moved ]; then
    $bb mount -t tmpfs -o mode=0755,size=60% root /mnt
    $bb cp -a /usr /etc /bin /sbin /lib /mnt
    [ ! -L /lib64 ] || $bb cp -a /lib64 /mnt
    $bb mkdir -p /mnt/proc /mnt/sys /mnt/dev /mnt/run /mnt/tmp /mnt/mnt /mnt/srv /mnt/root
    $bb touch /mnt/etc/vm/moved
    exec $bb switch_root /mnt /etc/vm/init
fi

export PATH=/usr/bin HOME=/root
$bb mount -t proc proc /proc
$bb mount -t sysfs sysfs /sys
$bb mount -t devtmpfs devtmpfs /dev
$bb mount -t tmpfs -o mode=0755 tmpfs /run
$bb mount -t tmpfs -o mode=1777 tmpfs /tmp
$bb --install -s /usr/bin
# The kernel's own words would break into the lines of the checks.
dmesg -n 1
# Their names begin with numbers in the order in which they need each other.
for module in /etc/vm/*.ko; do insmod "$module"; done
ip link set lo up

# The programs of the host that started the machine, below those of the archive.
if grep -q vm_shares /proc/cmdline; then
    mkdir /run/usr /run/kernels
    for share in usr kernels; do
        mount -t 9p -o ro,trans=virtio,version=9p2000.L,cache=loose,msize=262144 $share /run/$share
    done
    mount -t overlay -o lowerdir=/usr:/run/usr overlay /usr
fi

# Whatever hangs: the machine does not outlive this, nobody may be left to end it.
(sleep 300; echo "VM gives up"; reboot -f) &

if grep -q vm_layout=systemd /proc/cmdline; then
    exec /usr/lib/systemd/systemd --unit=checks.service --log-target=null
fi

if grep -q vm_layout=hybrid /proc/cmdline; then
    mount -t tmpfs -o mode=0755 tmpfs /sys/fs/cgroup
    for controllers in memory pids cpu,cpuacct; do
        mkdir /sys/fs/cgroup/$controllers
        mount -t cgroup -o $controllers cgroup /sys/fs/cgroup/$controllers
    done
    mkdir /sys/fs/cgroup/unified
    mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified
else
    # No v1 hierarchy has taken a controller, so v2 has them all.
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
fi

# A child, so that this process has nothing to do but to reap orphans.
setsid sh /etc/vm/checks </dev/null &
wait $!
echo "VM done $?"
reboot -f
