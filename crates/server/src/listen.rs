//! Connections: as many as may be, each with a bound on everything that a client can
//! make it wait for.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tare_engine::{Doing, Error};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::app::{App, Phase};
use crate::config::Listen;
use crate::patience::Patient;

/// For the head of a request to come, also between two requests of a connection, where
/// the configuration has no less patience with clients.
const HEAD_WITHIN: Duration = Duration::from_secs(10);
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
            .doing(|| format!("cannot listen on {listen}"))
            .map_err(|error| error.with_hint(hint))
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

/// A socket that nobody listens on any more is in nobody's way. Made by another name
/// and moved: before its mode is set nobody can find it.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};
    if let Ok(found) = std::fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            return Err(io::Error::other("something is there that is no socket"));
        }
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(io::Error::other("another server listens there"));
        }
    }
    let mut hidden = path.as_os_str().to_owned();
    hidden.push(format!(".{}", std::process::id()));
    let hidden = Path::new(&hidden);
    let listener = UnixListener::bind(hidden)?;
    let private = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(hidden, private)
        .and_then(|()| std::fs::rename(hidden, path))
        .inspect_err(|_| drop(std::fs::remove_file(hidden)))?;
    Ok(listener)
}

/// Serves until nothing new is to begin, and returns when the last connection is over.
pub async fn serve(listener: Listener, router: Router, app: App) {
    let most = app.config().limits.connections;
    let connections = Arc::new(Semaphore::new(most));
    accept_all(&listener, &connections, &router, &app).await;
    drop(listener);
    let all = u32::try_from(most).unwrap_or(u32::MAX);
    connections.acquire_many(all).await.ok();
}

async fn accept_all(listener: &Listener, connections: &Arc<Semaphore>, router: &Router, app: &App) {
    loop {
        let permit = Arc::clone(connections).acquire_owned().await;
        let permit = permit.expect("the semaphore is never closed");
        let accepted = tokio::select! {
            accepted = accept(listener) => accepted,
            () = app.stopping.reached(Phase::Draining) => return,
        };
        match accepted {
            Ok(Stream::Tcp(stream)) => {
                // Small frames of a stream are sent as they come.
                stream.set_nodelay(true).ok();
                attend(stream, router, app, permit);
            }
            Ok(Stream::Unix(stream)) => attend(stream, router, app, permit),
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
    permit: OwnedSemaphorePermit,
) {
    let service = TowerToHyperService::new(router.clone());
    let app = app.clone();
    let patience = app.config().limits.client;
    let stream = Patient::new(stream, patience);
    tokio::spawn(async move {
        let _permit = permit;
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_WITHIN.min(patience))
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
