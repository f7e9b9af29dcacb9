//! Sockets and connections. Everything that a client can delay has a bound.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::{MatchedPath, Request};
use axum::http::Method;
use hyper::body::Incoming;
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
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::config::Listen;
use crate::error::ServiceError;
use crate::http::Http;
use crate::http::write_timeout::WriteTimeout;
use crate::permits::{Permit, Permits};

/// How long a client may take for the head of a request, also between two requests of a
/// connection. `[limits] client` can lower it.
const HEAD_WITHIN: Duration = Duration::from_secs(10);
/// Connections that wait to be accepted: as many as the kernel allows (net.core.somaxconn).
const BACKLOG: i32 = 4096;
const HEAD_BYTES_MAX: usize = 32 << 10;
const HEADERS_MAX: usize = 100;
/// The pause after a failed accept. Most likely there was no free descriptor, and there may be one
/// by then.
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
        let hint = "choose another with --listen, or with 'listen' in the configuration";
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

    /// The address with the port that the kernel chose.
    pub fn address(&self, listen: &Listen) -> String {
        match self {
            Self::Tcp(listener) => listener
                .local_addr()
                .map_or_else(|_| listen.to_string(), |it| Listen::Tcp(it).to_string()),
            Self::Unix(_) => listen.to_string(),
        }
    }
}

/// Listens on a socket that only its owner can use. Replaces the socket of a server that is gone. On
/// Linux, bind(2) gives the file the mode of the socket (unix(7)), so its mode is never wider, and a
/// killed server leaves no second path.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    if let Ok(found) = std::fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            return Err(io::Error::other("the path exists and is not a socket"));
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

/// Connections beyond `[limits] connections`, for [`ESSENTIAL`] routes only. With them an operator can
/// look at a server whose other connections are all in use, and end boxes.
pub const ESSENTIAL_CONNECTIONS: usize = 16;
/// The time limit for the head of a request on a connection of the reserve.
const ESSENTIAL_HEAD_WITHIN: Duration = Duration::from_secs(2);

/// A connection of the reserve that has sent no request for this long is idle.
const IDLE_AFTER: Duration = Duration::from_millis(50);
/// How long a connection may take to end.
const CLOSED_WITHIN: Duration = Duration::from_millis(1);

const ESSENTIAL: [(Method, &str); 5] = [
    (Method::GET, "/health"),
    (Method::GET, "/v1/health"),
    (Method::GET, "/metrics"),
    (Method::POST, "/v1/boxes/{id}/stop"),
    (Method::DELETE, "/v1/boxes/{id}"),
];

/// A connection of the reserve. In the extensions of its request.
#[derive(Debug, Clone)]
struct Reserved {
    accepted: Instant,
    has_request: Arc<AtomicBool>,
    /// Closes the connection.
    close: CancellationToken,
}

/// Returns why a request on a connection of the reserve is not served.
pub fn refused_in_reserve(http: &Http, request: &Request) -> Option<ServiceError> {
    let reserved = request.extensions().get::<Reserved>()?;
    reserved.has_request.store(true, Ordering::Relaxed);
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
    let most = http.config().limits.connections;
    let message = format!(
        "server busy: {most} connections are in use, the limit set by [limits] connections"
    );
    Some(ServiceError::unavailable("connections_full", message).with_hint("try again later"))
}

/// The connections that the server allows.
struct Connections {
    ordinary: Permits,
    reserve: Permits,
    /// Connections of the reserve that may be idle, the oldest first.
    reserved: VecDeque<Reserved>,
}

impl Connections {
    /// Returns the permit of a connection that was accepted, one of the reserve if there is no
    /// other. If the reserve is full too, it closes the oldest connection that has sent no
    /// request for a while: idle clients must not delay an operator.
    async fn next(&mut self) -> (Permit, Option<Reserved>) {
        tokio::select! {
            biased;
            permit = self.ordinary.next() => (permit, None),
            permit = self.reserve.next() => {
                let reserved = Reserved {
                    accepted: Instant::now(),
                    has_request: Arc::default(),
                    close: CancellationToken::new(),
                };
                // Only this queue still knows a connection that is over.
                self.reserved.retain(|one| Arc::strong_count(&one.has_request) > 1);
                self.reserved.push_back(reserved.clone());
                (permit, Some(reserved))
            }
            never = close_idle(&mut self.reserved) => match never {},
        }
    }
}

/// Closes idle connections of the reserve, the oldest first, until it is dropped.
async fn close_idle(reserved: &mut VecDeque<Reserved>) -> Infallible {
    while let Some(oldest) = reserved.front() {
        tokio::time::sleep_until(oldest.accepted + IDLE_AFTER).await;
        if !oldest.has_request.load(Ordering::Relaxed) {
            oldest.close.cancel();
            reserved.pop_front();
            // That one may be enough.
            tokio::time::sleep(CLOSED_WITHIN).await;
        } else {
            reserved.pop_front();
        }
    }
    std::future::pending().await
}

/// Serves until the server drains, and returns when the last connection is over.
pub async fn serve(listener: Listener, router: Router, http: Http) {
    let mut connections = Connections {
        ordinary: Permits::new(http.config().limits.connections),
        reserve: Permits::new(ESSENTIAL_CONNECTIONS),
        reserved: VecDeque::new(),
    };
    tokio::select! {
        () = accept_all(&listener, &mut connections, &router, &http) => {}
        () = http.shutdown.draining() => {}
    }
    drop(listener);
    connections.ordinary.all_free().await;
    connections.reserve.all_free().await;
}

async fn accept_all(
    listener: &Listener,
    connections: &mut Connections,
    router: &Router,
    http: &Http,
) {
    loop {
        match accept(listener).await {
            Ok(Stream::Tcp(stream)) => {
                // Small frames of a stream are sent as they come.
                stream.set_nodelay(true).ok();
                let client = stream.peer_addr().map_or("unknown".to_owned(), |it| it.to_string());
                serve_connection((stream, &client), router, http, connections.next().await);
            }
            Ok(Stream::Unix(stream)) => {
                let user = stream.peer_cred().map(|it| format!("uid {}", it.uid()));
                let client = user.unwrap_or_else(|_| "unknown".to_owned());
                serve_connection((stream, &client), router, http, connections.next().await);
            }
            Err(_) => tokio::time::sleep(ACCEPT_AGAIN).await,
        }
    }
}

/// The address of the client of a connection. In the extensions of its requests.
#[derive(Debug, Clone)]
pub struct ClientAddress(pub Arc<str>);

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

fn serve_connection<S: AsyncRead + AsyncWrite + AsFd + Unpin + Send + 'static>(
    (stream, client): (S, &str),
    router: &Router,
    http: &Http,
    (permit, reserved): (Permit, Option<Reserved>),
) {
    let client = ClientAddress(client.into());
    let shutdown = http.shutdown.clone();
    let client_timeout = http.config().limits.client.0;
    let stream = WriteTimeout::new(stream, client_timeout);
    let (head_within, close) = match &reserved {
        None => (HEAD_WITHIN, CancellationToken::new()),
        Some(reserved) => (ESSENTIAL_HEAD_WITHIN, reserved.close.clone()),
    };
    let is_reserved = reserved.is_some();
    let service = router.clone().map_request(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(client.clone());
        if let Some(reserved) = &reserved {
            request.extensions_mut().insert(reserved.clone());
        }
        request
    });
    tokio::spawn(async move {
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(head_within.min(client_timeout))
            .keep_alive(!is_reserved)
            .max_buf_size(HEAD_BYTES_MAX)
            .max_headers(HEADERS_MAX)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service))
            .with_upgrades();
        tokio::pin!(connection);
        // If a connection fails, its client notices.
        tokio::select! {
            ended = &mut connection => drop(ended),
            () = close.cancelled() => {}
            () = shutdown.draining() => {
                connection.as_mut().graceful_shutdown();
                connection.await.ok();
            }
        }
        drop(permit);
    });
}
