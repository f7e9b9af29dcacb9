//! Whether KVM runs ordinary kernels here, and its device for a monitor.
//!
//! The presence of `/dev/kvm` does not show it. Some hosts that are machines themselves offer the
//! device, run a few instructions, and end at the first exception, which every kernel takes. So
//! the probe runs a guest in long mode that takes a breakpoint, returns from its handler, and then
//! writes to a port (the kernel's Documentation/virt/kvm/api.rst).
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, chmodat, mknodat, openat, stat};
use rustix::io::Errno;

use crate::mount::{self, Attributes};
use crate::step::step;

const DEVICE: &CStr = c"/dev/kvm";
/// The name of the node in the file system of [`own_node`].
const NODE: &CStr = c"kvm";

/// The support for KVM on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kvm {
    Works,
    Absent,
    /// This process may not open `/dev/kvm`.
    Denied,
    /// A guest that takes an exception does not go on.
    BootsNothing,
}

/// Runs the guest. Changes nothing: the machine ends with its descriptors. A host whose KVM is broken
/// may never return from the guest. Then its thread is left behind, and ends with this process.
pub fn probe(within: Duration) -> Kvm {
    let (report, reported) = mpsc::channel();
    let probe = move || {
        let _ = report.send(run_probe());
    };
    let started = thread::Builder::new().spawn(probe);
    let found = started.ok().and_then(|_| reported.recv_timeout(within).ok());
    found.unwrap_or(Kvm::BootsNothing)
}

/// Makes a file system with one node, `kvm`, that every user may open. A monitor has another user
/// than root, and the host's node is often root's alone. The file system ends with its last mount.
pub fn own_node() -> io::Result<OwnedFd> {
    let attributes = Attributes::MOUNT_ATTR_NOSUID | Attributes::MOUNT_ATTR_NOEXEC;
    let filesystem = mount::filesystem(c"tmpfs", &[("size", "4k"), ("mode", "0755")], attributes)?;
    let device = stat(DEVICE)?.st_rdev;
    let all = Mode::from_raw_mode(0o666);
    step("make the node of KVM", || {
        mknodat(&filesystem, NODE, FileType::CharacterDevice, all, device)
    })?;
    // The umask of this process took rights away.
    chmodat(&filesystem, NODE, all, AtFlags::empty())?;
    Ok(filesystem)
}

fn run_probe() -> Kvm {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    match openat(CWD, DEVICE, flags, Mode::empty()) {
        Err(Errno::ACCESS | Errno::PERM) => Kvm::Denied,
        Err(_) => Kvm::Absent,
        Ok(kvm) => match runs_guest(&kvm, &TAKES_EXCEPTION) {
            Ok(true) => Kvm::Works,
            Ok(false) | Err(_) => Kvm::BootsNothing,
        },
    }
}

const GET_VCPU_MMAP_SIZE: u64 = 0xae04;
const CREATE_VM: u64 = 0xae01;
const CREATE_VCPU: u64 = 0xae41;
const SET_USER_MEMORY_REGION: u64 = 0x4020_ae46;
const RUN: u64 = 0xae80;
const SET_REGS: u64 = 0x4090_ae82;
const GET_SREGS: u64 = 0x8138_ae83;
const SET_SREGS: u64 = 0x4138_ae84;

const EXIT_IO: u32 = 2;
const EXIT_INTERRUPTED: u32 = 10;
/// A guest of four instructions does not exit as often.
const EXITS_MAX: usize = 16;

/// The guest's memory, which begins at its address 0.
const MEMORY_BYTES: usize = 0x1_0000;
const PAGE_TABLES: [usize; 3] = [0x1000, 0x2000, 0x3000];
const IDT: usize = 0x4000;
const CODE: usize = 0x6000;
const HANDLER: usize = 0x6100;
const STACK: u64 = 0x8000;
const PORT: u8 = 0x10;

/// `int3; out PORT, al; hlt`
const TAKES_EXCEPTION: [u8; 4] = [0xcc, 0xe6, PORT, 0xf4];

const CODE_SELECTOR: u16 = 8;
const DATA_SELECTOR: u16 = 16;
/// Present, readable, executable, 64-bit; present, writable.
const GDT: [u64; 3] = [0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff];

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Segment {
    base: u64,
    limit: u32,
    selector: u16,
    kind: u8,
    present: u8,
    dpl: u8,
    db: u8,
    s: u8,
    l: u8,
    g: u8,
    avl: u8,
    unusable: u8,
    padding: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Table {
    base: u64,
    limit: u16,
    padding: [u16; 3],
}

/// `struct kvm_sregs`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct SystemRegisters {
    cs: Segment,
    data: [Segment; 5],
    tr: Segment,
    ldt: Segment,
    gdt: Table,
    idt: Table,
    cr0: u64,
    cr2: u64,
    cr3: u64,
    cr4: u64,
    cr8: u64,
    efer: u64,
    apic_base: u64,
    interrupts: [u64; 4],
}

/// `struct kvm_regs`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Registers {
    before_stack: [u64; 6],
    rsp: u64,
    after_stack: [u64; 9],
    rip: u64,
    rflags: u64,
}

/// `struct kvm_userspace_memory_region`.
#[repr(C)]
struct MemoryRegion {
    slot: u32,
    flags: u32,
    guest_address: u64,
    bytes: u64,
    address: u64,
}

/// Returns whether the guest reaches its access to the port.
fn runs_guest(kvm: &OwnedFd, code: &[u8]) -> io::Result<bool> {
    let machine = descriptor(kvm, CREATE_VM)?;
    let mut memory = Mapping::anonymous(MEMORY_BYTES)?;
    write_guest(memory.bytes(), code);
    let mut region = MemoryRegion {
        slot: 0,
        flags: 0,
        guest_address: 0,
        bytes: MEMORY_BYTES as u64,
        address: memory.start as u64,
    };
    with_struct(&machine, SET_USER_MEMORY_REGION, &mut region)?;
    let processor = descriptor(&machine, CREATE_VCPU)?;
    // SAFETY: KVM_GET_VCPU_MMAP_SIZE takes no argument.
    let shared_bytes = unsafe { request(kvm, GET_VCPU_MMAP_SIZE, 0) }?;
    let mut shared = Mapping::of(&processor, shared_bytes as usize)?;
    let mut system = SystemRegisters::default();
    with_struct(&processor, GET_SREGS, &mut system)?;
    enter_long_mode(&mut system);
    with_struct(&processor, SET_SREGS, &mut system)?;
    // Bit 1 of the flags is always set.
    let mut registers =
        Registers { rip: CODE as u64, rsp: STACK, rflags: 2, ..Registers::default() };
    with_struct(&processor, SET_REGS, &mut registers)?;
    for _ in 0..EXITS_MAX {
        // SAFETY: KVM_RUN takes no argument. It writes to the shared mapping and to the guest's
        // memory, of which this function holds no reference meanwhile.
        let run = unsafe { request(&processor, RUN, 0) };
        match run {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            run => run?,
        };
        // `struct kvm_run`: the reason is at 8, the port of an access at 34.
        let shared = shared.bytes();
        let reason = u32::from_ne_bytes([shared[8], shared[9], shared[10], shared[11]]);
        match reason {
            EXIT_INTERRUPTED => {}
            EXIT_IO => return Ok(shared[34] == PORT),
            _ => return Ok(false),
        }
    }
    Ok(false)
}

fn write_guest(memory: &mut [u8], code: &[u8]) {
    let mut put = |at: usize, bytes: &[u8]| memory[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &GDT.map(u64::to_le_bytes).concat());
    // Present and writable; the last is a page of 2 MiB from the address 0.
    put(PAGE_TABLES[0], &(PAGE_TABLES[1] as u64 | 3).to_le_bytes());
    put(PAGE_TABLES[1], &(PAGE_TABLES[2] as u64 | 3).to_le_bytes());
    put(PAGE_TABLES[2], &0x83_u64.to_le_bytes());
    // The gate of the breakpoint, vector 3: offset, selector, present interrupt gate, offset.
    let [low, high] = (HANDLER as u16).to_le_bytes();
    let [selector, _] = CODE_SELECTOR.to_le_bytes();
    put(IDT + 3 * 16, &[low, high, selector, 0, 0, 0x8e]);
    put(CODE, code);
    // iretq
    put(HANDLER, &[0x48, 0xcf]);
}

fn enter_long_mode(system: &mut SystemRegisters) {
    let flat = Segment { limit: u32::MAX, present: 1, s: 1, g: 1, ..Segment::default() };
    system.cs = Segment { selector: CODE_SELECTOR, kind: 11, l: 1, ..flat };
    system.data = [Segment { selector: DATA_SELECTOR, kind: 3, db: 1, ..flat }; 5];
    // A busy task segment, which Intel's processors require.
    system.tr = Segment { limit: 0x67, kind: 11, present: 1, ..Segment::default() };
    system.ldt = Segment { unusable: 1, ..Segment::default() };
    system.gdt = Table { base: 0, limit: 23, ..Table::default() };
    system.idt = Table { base: IDT as u64, limit: 16 * 4 - 1, ..Table::default() };
    // Protection, extension type, numeric errors, write protection, paging.
    system.cr0 = 0x8001_0031;
    system.cr3 = PAGE_TABLES[0] as u64;
    // Physical address extension; long mode enabled and active.
    system.cr4 = 0x20;
    system.efer = 0x500;
}

/// Makes a request that returns a new descriptor.
fn descriptor(of: &OwnedFd, code: u64) -> io::Result<OwnedFd> {
    // SAFETY: KVM_CREATE_VM and KVM_CREATE_VCPU take a number, here 0.
    let number = unsafe { request(of, code, 0) }?;
    // SAFETY: the request succeeded, so `number` is a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Makes a request that reads or writes one structure.
fn with_struct<T>(of: &OwnedFd, code: u64, value: &mut T) -> io::Result<()> {
    const { assert!(size_of::<SystemRegisters>() == 0x138 && size_of::<Registers>() == 0x90) };
    assert_eq!((code >> 16) & 0x3fff, size_of::<T>() as u64, "the code has the structure's size");
    // SAFETY: the request reads or writes as many bytes as its code says, which is the size of
    // the live `value`; each of these structures is valid for any bytes.
    unsafe { request(of, code, ptr::from_mut(value) as usize) }.map(|_| ())
}

/// Makes one request (`ioctl(2)`).
///
/// # Safety
/// The argument must meet what the request requires.
unsafe fn request(of: &OwnedFd, code: u64, argument: usize) -> io::Result<i32> {
    // SAFETY: the caller answers for the argument.
    let result = unsafe { libc::ioctl(of.as_raw_fd(), code as libc::Ioctl, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Mapped memory, which ends with this value.
struct Mapping {
    start: *mut u8,
    length: usize,
}

impl Mapping {
    fn anonymous(length: usize) -> io::Result<Self> {
        Self::new(None, length, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS)
    }

    fn of(file: &OwnedFd, length: usize) -> io::Result<Self> {
        Self::new(Some(file.as_fd()), length, libc::MAP_SHARED)
    }

    fn new(file: Option<BorrowedFd<'_>>, length: usize, flags: i32) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let file = file.map_or(-1, |file| file.as_raw_fd());
        // SAFETY: without MAP_FIXED, mmap replaces no mapping that exists.
        let start = unsafe { libc::mmap(ptr::null_mut(), length, protection, flags, file, 0) };
        if start == libc::MAP_FAILED {
            Err(io::Error::last_os_error())
        } else {
            Ok(Self { start: start.cast(), length })
        }
    }

    /// KVM writes to the memory only during KVM_RUN, while no reference is held.
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is readable, writable and `length` bytes long until the drop, and
        // `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.length) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value, and no reference to it outlives the value.
        unsafe { libc::munmap(self.start.cast(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    use tare_harness::skip;

    #[test]
    fn the_probe_answers_and_keeps_no_descriptor() {
        let count = || fs::read_dir("/proc/self/fd").unwrap().count();
        let probe = || probe(Duration::from_secs(10));
        let (first, before) = (probe(), count());
        assert_eq!(probe(), first);
        assert_eq!(count(), before);
        assert_eq!(first == Kvm::Absent, !fs::exists("/dev/kvm").unwrap());
    }

    /// So a guest that does not go on after an exception was ended by the exception.
    #[test]
    fn a_guest_without_an_exception_runs_where_kvm_can_be_opened() {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let Ok(kvm) = openat(CWD, c"/dev/kvm", flags, Mode::empty()) else {
            skip!("/dev/kvm cannot be opened");
        };
        assert!(runs_guest(&kvm, &TAKES_EXCEPTION[1..]).unwrap());
        // `ud2`, an exception without a handler.
        assert!(!runs_guest(&kvm, &[0x0f, 0x0b]).unwrap());
    }
}
