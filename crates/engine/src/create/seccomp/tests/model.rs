//! The profile once more, as a person would say it: by name, argument by argument.
//!
//! Slow and plain on purpose. It shares with the compiler the names of the numbers
//! and nothing else.

use crate::create::seccomp::tests::interpreter::{Answer, Call, X86_64};
use crate::create::seccomp::tests::*;

/// As the security profile lists them.
const EPERM_ALWAYS: &str = "
acct add_key keyctl request_key bpf perf_event_open userfaultfd chroot pivot_root mount umount2
move_mount open_tree open_tree_attr fsopen fsconfig fsmount fspick mount_setattr setns init_module
finit_module delete_module kexec_load kexec_file_load reboot swapon swapoff quotactl quotactl_fd
syslog iopl ioperm modify_ldt clock_settime settimeofday clock_adjtime adjtimex sethostname
setdomainname open_by_handle_at name_to_handle_at lookup_dcookie fanotify_init fanotify_mark
process_madvise kcmp pidfd_getfd move_pages migrate_pages mbind set_mempolicy
set_mempolicy_home_node get_mempolicy vhangup nfsservctl uselib ustat sysfs _sysctl create_module
get_kernel_syms query_module vserver afs_syscall tuxcall security getpmsg putpmsg
lsm_get_self_attr lsm_set_self_attr lsm_list_modules listmount statmount uprobe uretprobe
memfd_secret vmsplice epoll_ctl_old epoll_wait_old";

pub struct Model {
    /// By number; the flag says that the call is on the list above.
    calls: Vec<Option<(&'static str, bool)>>,
    profile: SeccompProfile,
    set_id_bits: SetIdBits,
}

impl Model {
    pub fn new(profile: SeccompProfile, set_id_bits: SetIdBits) -> Self {
        Self { calls: (0..=469).map(find).collect(), profile, set_id_bits }
    }

    pub fn answer(&self, call: &Call) -> Answer {
        if call.architecture != X86_64 {
            return Answer::KillProcess;
        }
        let Some(Some((name, always))) = self.calls.get(call.number as usize).copied() else {
            return Answer::Errno(38);
        };
        let low = call.arguments.map(|argument| argument as u32);
        if self.profile == SeccompProfile::Unconfined {
            return self.answer_unconfined(name, low);
        }
        if always
            || self.is_tracing_refused(name)
            || self.is_refused_by_strict(name, low)
            || self.sets_id_bits(name, low)
            || is_refused_by_arguments(name, low)
        {
            return Answer::Errno(1);
        }
        match name {
            "clone3" | "io_uring_setup" | "io_uring_enter" | "io_uring_register" => {
                Answer::Errno(38)
            }
            "openat2" if self.set_id_bits == SetIdBits::Denied => Answer::Errno(38),
            "socket" if !is_socket_allowed(low) => Answer::Errno(97),
            _ => Answer::Allow,
        }
    }

    fn answer_unconfined(&self, name: &str, low: [u32; 6]) -> Answer {
        match name {
            "openat2" | "io_uring_setup" | "io_uring_enter" | "io_uring_register" => {
                Answer::Errno(38)
            }
            _ if self.sets_id_bits(name, low) => Answer::Errno(1),
            _ => Answer::Allow,
        }
    }

    fn is_tracing_refused(&self, name: &str) -> bool {
        let traces = matches!(name, "ptrace" | "process_vm_readv" | "process_vm_writev");
        traces && self.profile != SeccompProfile::Debug
    }

    fn is_refused_by_strict(&self, name: &str, low: [u32; 6]) -> bool {
        if self.profile != SeccompProfile::Strict {
            return false;
        }
        match name {
            "shmget" | "shmat" | "shmctl" | "shmdt" => true,
            "semget" | "semop" | "semctl" | "semtimedop" => true,
            "msgget" | "msgsnd" | "msgrcv" | "msgctl" => true,
            "sendto" | "recvfrom" | "sendmmsg" | "recvmmsg" => low[3] % 2 == 1,
            "sendmsg" | "recvmsg" => low[2] % 2 == 1,
            _ => false,
        }
    }

    fn sets_id_bits(&self, name: &str, low: [u32; 6]) -> bool {
        let has_set_id = |mode: u32| mode & 0o4000 != 0 || mode & 0o2000 != 0;
        let creates = |flags: u32| flags & 0o100 != 0 || flags & 0o20000000 != 0;
        self.set_id_bits == SetIdBits::Denied
            && match name {
                "chmod" | "fchmod" | "creat" | "mknod" => has_set_id(low[1]),
                "fchmodat" | "fchmodat2" | "mknodat" => has_set_id(low[2]),
                "open" => creates(low[1]) && has_set_id(low[2]),
                "openat" => creates(low[2]) && has_set_id(low[3]),
                _ => false,
            }
    }
}

fn find(number: u32) -> Option<(&'static str, bool)> {
    let (_, name, _) = table::SYSCALLS.iter().find(|entry| entry.0 == number)?;
    let always = EPERM_ALWAYS.split_whitespace().any(|each| each == *name);
    Some((name, always))
}

fn is_refused_by_arguments(name: &str, low: [u32; 6]) -> bool {
    match name {
        "clone" => {
            [17, 25, 26, 27, 28, 29, 30].iter().any(|namespace| low[0] >> namespace & 1 == 1)
        }
        "unshare" => (0..32).any(|bit| low[0] >> bit & 1 == 1 && ![9, 10, 18].contains(&bit)),
        "ioctl" => matches!(low[1], 0x5412 | 0x541c | 0x5423),
        "prlimit64" => low[0] != 0,
        "personality" => !matches!(low[0], 0 | 8 | 0x20000 | 0x20008 | 0xffffffff),
        _ => false,
    }
}

fn is_socket_allowed(low: [u32; 6]) -> bool {
    match low[0] {
        1 | 2 | 10 => true,
        16 => low[2] == 0,
        _ => false,
    }
}
