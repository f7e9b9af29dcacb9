//! Connections: as many as may be, each with a bound on everything that a client can
//! make it wait for.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{MatchedPath, Request};
use axum::http::Method;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::fs::{Mode, fchmod};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use tare_engine::{Context as _, Error};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::app::{App, Phase};
use crate::config::Listen;
use crate::error::ServiceError;
use crate::http::write_timeout::Patient;

/// For the head of a request to come, also between two requests of a connection, where
/// the configuration has no less patience with clients.
const HEAD_WITHIN: Duration = Duration::from_secs(10);
/// Connections that wait to be accepted: as many as the kernel allows (net.core.somaxconn).
const BACKLOG: i32 = 4096;
const HEAD_BYTES_MAX: usize = 32 << 10;
const HEADERS_MAX: usize = 100;
/// Where accepting fails, most likely for want of descriptors, it is tried again so
/// much later: by then something may have ended.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    pub async fn bind(listen: &Listen) -> Result<Self, Error> {
        let bound = match listen {
            Listen::Tcp(address) => TcpListener::bind(address).await.map(Self::Tcp),
            Listen::Unix(path) => bind_unix(path).map(Self::Unix),
        };
        let hint = "another place is named with --listen, or with 'listen' in the configuration";
        bound
            .context(|| format!("cannot listen on {listen}"))
            .map_err(|error| error.with_hint(hint))
    }

    pub fn port(&self) -> Option<u16> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok().map(|it| it.port()),
            Self::Unix(_) => None,
        }
    }

    /// As clients reach it: with the port that the kernel chose.
    pub fn address(&self, listen: &Listen) -> String {
        match self {
            Self::Tcp(listener) => listener
                .local_addr()
                .map_or_else(|_| listen.to_string(), |it| Listen::Tcp(it).to_string()),
            Self::Unix(_) => listen.to_string(),
        }
    }
}

/// Listens on a socket that only its owner can use. The socket of a server that is gone is
/// replaced. On Linux a socket takes its mode along when it is bound (unix(7)), so there is
/// no moment with a wider mode and no second path that a killed server could leave.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    if let Ok(found) = std::fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            return Err(io::Error::other("something is there that is no socket"));
        }
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(io::Error::other("another server listens there"));
        }
        std::fs::remove_file(path)?;
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    UnixListener::from_std(socket.into())
}

/// Connections beyond `[limits] connections`, for [`ESSENTIAL`] routes alone: an operator
/// can still look at a server whose connections are all taken, and end boxes.
pub const RESERVE: usize = 16;
/// For the head of a request on a connection of the reserve, which has one request.
const RESERVE_HEAD_WITHIN: Duration = Duration::from_secs(2);

const ESSENTIAL: [(Method, &str); 5] = [
    (Method::GET, "/health"),
    (Method::GET, "/v1/health"),
    (Method::GET, "/metrics"),
    (Method::POST, "/v1/boxes/{id}/stop"),
    (Method::DELETE, "/v1/boxes/{id}"),
];

/// In the extensions of a request that came on a connection of the reserve.
#[derive(Debug, Clone, Copy)]
struct Reserved;

/// Why a request on a connection of the reserve is not served.
pub fn refused_in_reserve(app: &App, request: &Request) -> Option<ServiceError> {
    request.extensions().get::<Reserved>()?;
    let route = request.extensions().get::<MatchedPath>();
    let method = match *request.method() {
        Method::HEAD => &Method::GET,
        _ => request.method(),
    };
    let asked = route.map(|route| (method, route.as_str()));
    let mut essential = ESSENTIAL.iter();
    if essential.any(|(method, path)| asked == Some((method, path))) {
        return None;
    }
    let most = app.config().limits.connections;
    let message = format!("server busy: {most} of {most} connections are in use");
    let hint = "try again, or raise [limits] connections in the configuration";
    Some(ServiceError::unavailable("connections_full", message).with_hint(hint))
}

/// The connections that there may be.
struct Seats {
    ordinary: Arc<Semaphore>,
    reserve: Arc<Semaphore>,
}

/// One of the connections, until it is dropped.
struct Seat {
    kind: SeatKind,
    _permit: OwnedSemaphorePermit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SeatKind {
    Ordinary,
    Reserve,
}

impl Seats {
    /// One of the reserve if there is no other. Waits where there is none.
    async fn next(&self) -> Seat {
        let (ordinary, reserve) = (Arc::clone(&self.ordinary), Arc::clone(&self.reserve));
        let (permit, kind) = tokio::select! {
            biased;
            permit = ordinary.acquire_owned() => (permit, SeatKind::Ordinary),
            permit = reserve.acquire_owned() => (permit, SeatKind::Reserve),
        };
        Seat { kind, _permit: permit.expect("the semaphore is never closed") }
    }

    /// An ordinary one that became free while the listener waited for a client.
    fn better(&self, seat: Seat) -> Seat {
        if seat.kind == SeatKind::Ordinary {
            return seat;
        }
        match Arc::clone(&self.ordinary).try_acquire_owned() {
            Ok(permit) => Seat { kind: SeatKind::Ordinary, _permit: permit },
            Err(_) => seat,
        }
    }
}

/// Serves until nothing new is to begin, and returns when the last connection is over.
pub async fn serve(listener: Listener, router: Router, app: App) {
    let most = app.config().limits.connections;
    let seats = Seats {
        ordinary: Arc::new(Semaphore::new(most)),
        reserve: Arc::new(Semaphore::new(RESERVE)),
    };
    accept_all(&listener, &seats, &router, &app).await;
    drop(listener);
    for (semaphore, most) in [(&seats.ordinary, most), (&seats.reserve, RESERVE)] {
        let all = u32::try_from(most).unwrap_or(u32::MAX);
        semaphore.acquire_many(all).await.ok();
    }
}

async fn accept_all(listener: &Listener, seats: &Seats, router: &Router, app: &App) {
    let reserved = router.clone().layer(Extension(Reserved));
    loop {
        let seat = seats.next().await;
        let accepted = tokio::select! {
            accepted = accept(listener) => accepted,
            () = app.stopping.reached(Phase::Draining) => return,
        };
        let seat = seats.better(seat);
        let router = match seat.kind {
            SeatKind::Ordinary => router,
            SeatKind::Reserve => &reserved,
        };
        match accepted {
            Ok(Stream::Tcp(stream)) => {
                // Small frames of a stream are sent as they come.
                stream.set_nodelay(true).ok();
                attend(stream, router, app, seat);
            }
            Ok(Stream::Unix(stream)) => attend(stream, router, app, seat),
            Err(_) => tokio::time::sleep(ACCEPT_AGAIN).await,
        }
    }
}

enum Stream {
    Tcp(tokio::net::TcpStream),
    Unix(tokio::net::UnixStream),
}

async fn accept(listener: &Listener) -> io::Result<Stream> {
    match listener {
        Listener::Tcp(listener) => Ok(Stream::Tcp(listener.accept().await?.0)),
        Listener::Unix(listener) => Ok(Stream::Unix(listener.accept().await?.0)),
    }
}

fn attend<S: AsyncRead + AsyncWrite + AsFd + Unpin + Send + 'static>(
    stream: S,
    router: &Router,
    app: &App,
    seat: Seat,
) {
    let service = TowerToHyperService::new(router.clone());
    let app = app.clone();
    let patience = app.config().limits.client;
    let stream = Patient::new(stream, patience);
    let (head_within, keep_alive) = match seat.kind {
        SeatKind::Ordinary => (HEAD_WITHIN, true),
        SeatKind::Reserve => (RESERVE_HEAD_WITHIN, false),
    };
    tokio::spawn(async move {
        let _seat = seat;
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(head_within.min(patience))
            .keep_alive(keep_alive)
            .max_buf_size(HEAD_BYTES_MAX)
            .max_headers(HEADERS_MAX)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades();
        tokio::pin!(connection);
        // What goes wrong with a connection is its client's to notice.
        tokio::select! {
            ended = &mut connection => drop(ended),
            () = app.stopping.reached(Phase::Draining) => {
                connection.as_mut().graceful_shutdown();
                connection.await.ok();
            }
        }
    });
}
