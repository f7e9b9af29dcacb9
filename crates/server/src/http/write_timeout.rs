//! Closes a connection whose peer has read nothing for `[limits] client`, and ends the work for it.
//! The same happens if the peer is gone and left unread bytes, which hide the end of the stream.

use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// How often the end of the connection is checked when it is not read.
const CHECK_EVERY: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub struct WriteTimeout<S> {
    stream: S,
    timeout: Duration,
    /// Runs while the peer reads nothing.
    timer: Option<Pin<Box<Sleep>>>,
    /// Whether hyper may be working on a request. It does not read meanwhile, so it would not notice
    /// that the peer is gone.
    has_more: bool,
    next_check: Option<Pin<Box<Sleep>>>,
}

impl<S> WriteTimeout<S> {
    pub fn new(stream: S, timeout: Duration) -> Self {
        Self { stream, timeout, timer: None, has_more: false, next_check: None }
    }

    /// Every byte that the peer reads restarts the timer.
    fn bounded<T>(
        &mut self,
        polled: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.timer = None;
            return polled;
        }
        let timeout = self.timeout;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(timeout)));
        timer.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsFd> WriteTimeout<S> {
    /// Returns an error if the peer is gone while the connection is not read.
    fn check_peer(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if !self.has_more {
            self.next_check = None;
            return Ok(());
        }
        loop {
            let next_check = self.next_check.get_or_insert_with(|| Box::pin(sleep(CHECK_EVERY)));
            if next_check.as_mut().poll(context).is_pending() {
                return Ok(());
            }
            self.next_check = None;
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

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
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

impl<S: AsyncWrite + AsFd + Unpin> AsyncWrite for WriteTimeout<S> {
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
        // The server polls this while it serves a request.
        Poll::Ready(self.check_peer(context))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(context);
        self.bounded(polled, context)
    }
}
