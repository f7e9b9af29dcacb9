//! A connection whose other end is waited for, but not for ever: whoever takes nothing
//! of what is sent to him for so long is cut off, and what was done for him ends. The
//! same of one who is gone and left more behind than the request that is served: what is
//! not read yet hides the end of the stream.

use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// How often the end is looked for where it would not be read.
const LOOK_EVERY: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub struct Patient<S> {
    stream: S,
    patience: Duration,
    /// Since the other end took nothing.
    waits: Option<Pin<Box<Sleep>>>,
    /// Whether the last that was read was something: its reader has enough for now, and
    /// may not come again before it has answered.
    has_more: bool,
    looks: Option<Pin<Box<Sleep>>>,
}

impl<S> Patient<S> {
    pub fn new(stream: S, patience: Duration) -> Self {
        Self { stream, patience, waits: None, has_more: false, looks: None }
    }

    /// Whatever was taken begins a new wait.
    fn bounded<T>(
        &mut self,
        polled: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.waits = None;
            return polled;
        }
        let patience = self.patience;
        let waits = self.waits.get_or_insert_with(|| Box::pin(sleep(patience)));
        waits.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsFd> Patient<S> {
    /// An error when the other end is gone and nobody reads.
    fn look(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if !self.has_more {
            self.looks = None;
            return Ok(());
        }
        loop {
            let looks = self.looks.get_or_insert_with(|| Box::pin(sleep(LOOK_EVERY)));
            if looks.as_mut().poll(context).is_pending() {
                return Ok(());
            }
            self.looks = None;
            if is_gone(&self.stream) {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
        }
    }
}

fn is_gone(stream: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&stream, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut fds, Some(&now)), Ok(1..))
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.has_more = polled.is_ready();
        polled
    }
}

impl<S: AsyncWrite + AsFd + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.bounded(polled, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.bounded(polled, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        ready!(self.bounded(polled, context))?;
        // Whoever serves a request comes by here each time.
        Poll::Ready(self.look(context))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(context);
        self.bounded(polled, context)
    }
}
