//! The keeper's end of the control socket.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use tare_control::{
    PLAN_BYTES_MAX, Plan, REPORT_BYTES_MAX, REQUEST_BYTES_MAX, Report, Request, SetupStep, decode,
    encode,
};
use tare_kernel::fds;

use crate::setup::{Failing, Failure};

/// The control socket's number at birth.
const CONTROL_FD: i32 = 3;
/// The claim on the uid range: held, never used; it ends with the box.
const CLAIM_FD: i32 = 4;

#[derive(Debug)]
pub struct Link {
    socket: OwnedFd,
    _claim: OwnedFd,
    /// Bytes of frames that are not complete yet.
    pending: Vec<u8>,
}

/// What came from the creator.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    Request(Request),
    /// Nothing complete yet.
    Nothing,
    /// The creator is gone, or talks nonsense.
    Closed,
}

impl Link {
    pub fn inherit() -> io::Result<Self> {
        Ok(Self {
            socket: fds::inherited(CONTROL_FD)?,
            _claim: fds::inherited(CLAIM_FD)?,
            pending: Vec::new(),
        })
    }

    /// Waits for the plan.
    pub fn read_plan(&mut self) -> Result<Plan, Failure> {
        loop {
            match decode(&self.pending, PLAN_BYTES_MAX) {
                Ok(Some((plan, length))) => {
                    self.pending.drain(..length);
                    return Ok(plan);
                }
                Ok(None) => {}
                Err(_) => return Err(Failure::of(SetupStep::ReadPlan, "", Errno::BADMSG)),
            }
            if self.read().failing(SetupStep::ReadPlan, "")? == 0 {
                return Err(Failure::of(SetupStep::ReadPlan, "", Errno::PIPE));
            }
        }
    }

    /// Waits until the command may start; `false` when the creator is gone, or
    /// wants the command ended before it began.
    pub fn wait_for_go(&mut self) -> bool {
        loop {
            match self.hear() {
                Heard::Request(Request::Go) => return true,
                Heard::Nothing => {}
                Heard::Request(Request::Signal(_)) | Heard::Closed => return false,
            }
        }
    }

    /// One read's worth of what the creator said.
    pub fn hear(&mut self) -> Heard {
        if self.pending.is_empty() && !matches!(self.read(), Ok(1..)) {
            return Heard::Closed;
        }
        match decode(&self.pending, REQUEST_BYTES_MAX) {
            Ok(Some((request, length))) => {
                self.pending.drain(..length);
                Heard::Request(request)
            }
            Ok(None) => match self.read() {
                Ok(1..) => Heard::Nothing,
                Ok(0) | Err(_) => Heard::Closed,
            },
            Err(_) => Heard::Closed,
        }
    }

    /// Whether a frame may be waiting that poll knows nothing of.
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    fn read(&mut self) -> io::Result<usize> {
        let mut buffer = [0; 16 << 10];
        let length = rustix::io::retry_on_intr(|| rustix::io::read(&self.socket, &mut buffer))?;
        self.pending.extend_from_slice(&buffer[..length]);
        Ok(length)
    }

    /// Tells the creator; if it is gone there is nobody to tell.
    pub fn report(&self, report: &Report) {
        if let Ok(frame) = encode(report, REPORT_BYTES_MAX) {
            send(&self.socket, &frame, SendFlags::NOSIGNAL).ok();
        }
    }

    /// Hands the terminal's master side over.
    pub fn report_terminal(&self, master: BorrowedFd<'_>) -> io::Result<()> {
        let frame = encode(&Report::Terminal, REPORT_BYTES_MAX).map_err(io::Error::other)?;
        fds::send_with(self.socket.as_fd(), &frame, master)?;
        Ok(())
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
