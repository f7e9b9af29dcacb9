//! The meaning of the table's rules: a verdict for each profile.
//!
//! A rule says what a call *is*, and a verdict says what one program does with it. This file knows
//! nothing about instructions.

use crate::create::seccomp::SetIdBits;
use crate::spec::SeccompProfile;

pub const EPERM: u16 = 1;
pub const ENOSYS: u16 = 38;
pub const EAFNOSUPPORT: u16 = 97;

/// Arguments are counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    Allow,
    Errno(u16),
    SocketDomain,
    CloneFlags,
    UnshareFlags,
    IoctlRequest,
    Personality,
    /// Sets the limits of the process in this argument.
    LimitsOf(u8),
    /// Runs other calls where no filter sees them. With ENOSYS, libraries use other calls.
    Ring,
    /// Reaches into another process: for debuggers only.
    Tracing,
    /// Rarely used, with many kernel bugs in the past. Not allowed with `Strict`.
    SysvIpc,
    /// The `MSG_*` flags are in this argument: no MSG_OOB for `Strict`.
    MessageFlags(u8),
    /// A file's mode is in this argument. mkdir is not of this kind: the kernel
    /// drops the set-id bits of its mode.
    FileMode(u8),
    /// The `O_*` flags are in this argument and the mode is in the next.
    OpenMode(u8),
    /// The mode is in memory, which a filter cannot read.
    OpenHow,
}

/// What one program does with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Allow,
    Errno(u16),
    /// Allowed or refused by its arguments.
    Check(Check),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// Only AF_UNIX, AF_INET, AF_INET6, and the routing protocol of AF_NETLINK.
    SocketDomain,
    /// No new namespace.
    CloneFlags,
    /// Only what concerns the caller's own threads.
    UnshareFlags,
    /// No input into a terminal, and no change of its line discipline.
    IoctlRequest,
    /// Only the plain personalities, and the query for the present one.
    Personality,
    /// Only the caller, which is 0 in this argument. The kernel requires only the same ids, which a keeper
    /// can have. Its limit on descriptors could then be lowered.
    OwnProcess(u8),
    /// No MSG_OOB in this argument.
    MessageFlags(u8),
    /// No set-id bit in this argument.
    FileMode(u8),
    /// No set-id bit in the argument after this one, if this one has a flag that creates a file.
    /// Otherwise the mode has no meaning.
    OpenMode(u8),
}

impl Rule {
    pub fn verdict(self, profile: SeccompProfile, set_id_bits: SetIdBits) -> Verdict {
        let confined = self.confined(profile, set_id_bits);
        match (profile, self.guards_set_id_bits()) {
            (SeccompProfile::Unconfined, false) => Verdict::Allow,
            (SeccompProfile::Unconfined, true)
            | (SeccompProfile::Default | SeccompProfile::Debug | SeccompProfile::Strict, _) => {
                confined
            }
        }
    }

    /// Returns whether the rule keeps set-id programs off a volume. Every profile has these rules.
    fn guards_set_id_bits(self) -> bool {
        matches!(self, Self::FileMode(_) | Self::OpenMode(_) | Self::OpenHow | Self::Ring)
    }

    fn confined(self, profile: SeccompProfile, set_id_bits: SetIdBits) -> Verdict {
        match self {
            Self::Allow => Verdict::Allow,
            Self::Errno(errno) => Verdict::Errno(errno),
            Self::SocketDomain => Verdict::Check(Check::SocketDomain),
            Self::CloneFlags => Verdict::Check(Check::CloneFlags),
            Self::UnshareFlags => Verdict::Check(Check::UnshareFlags),
            Self::IoctlRequest => Verdict::Check(Check::IoctlRequest),
            Self::Personality => Verdict::Check(Check::Personality),
            Self::LimitsOf(process) => Verdict::Check(Check::OwnProcess(process)),
            Self::Ring => Verdict::Errno(ENOSYS),
            Self::Tracing => only_for_debug(profile),
            Self::SysvIpc => unless_strict(profile, Verdict::Errno(EPERM)),
            Self::MessageFlags(flags) => {
                unless_strict(profile, Verdict::Check(Check::MessageFlags(flags)))
            }
            Self::FileMode(mode) => {
                unless_denied(set_id_bits, Verdict::Check(Check::FileMode(mode)))
            }
            Self::OpenMode(flags) => {
                unless_denied(set_id_bits, Verdict::Check(Check::OpenMode(flags)))
            }
            // ENOSYS and not EPERM: libraries then use openat.
            Self::OpenHow => unless_denied(set_id_bits, Verdict::Errno(ENOSYS)),
        }
    }
}

fn only_for_debug(profile: SeccompProfile) -> Verdict {
    match profile {
        SeccompProfile::Debug | SeccompProfile::Unconfined => Verdict::Allow,
        SeccompProfile::Default | SeccompProfile::Strict => Verdict::Errno(EPERM),
    }
}

fn unless_strict(profile: SeccompProfile, strict: Verdict) -> Verdict {
    match profile {
        SeccompProfile::Strict => strict,
        SeccompProfile::Default | SeccompProfile::Debug | SeccompProfile::Unconfined => {
            Verdict::Allow
        }
    }
}

fn unless_denied(set_id_bits: SetIdBits, denied: Verdict) -> Verdict {
    match set_id_bits {
        SetIdBits::Allowed => Verdict::Allow,
        SetIdBits::Denied => denied,
    }
}
