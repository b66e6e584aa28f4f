//! The threads: one that accepts, and one for each connection.

use super::access::Access;
use super::connections::{Connections, Place, Stage};
use super::current::{Change, CurrentAccess};
use super::request::{HEAD_MAX, Method, Refusal, Request, parse};
use super::{Page, Pages, reason};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::thread::{CapabilitySet, CapabilitySets};
use rustls::{ServerConnection, StreamOwned};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread::Scope;
use std::time::{Duration, Instant};

/// Time for a whole request to arrive.
const REQUEST_TIME: Duration = Duration::from_secs(5);
/// Time for a whole answer to be taken.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// Time for a refusal to be taken: it fits in the socket's buffer.
const REFUSAL_TIME: Duration = Duration::from_secs(1);
/// Pause after the system has no descriptors or memory for a connection.
const AGAIN: Duration = Duration::from_millis(100);
/// Stack of a thread: nothing here recurses.
const STACK: usize = 256 * 1024;

/// What all threads share.
pub struct Server<'a> {
    pages: Arc<dyn Pages>,
    access: CurrentAccess,
    connections: Connections,
    say: &'a (dyn Fn(&str) + Sync),
}

impl<'a> Server<'a> {
    /// Serves these pages to those who may see them; reports when that changes.
    pub fn new(
        pages: Arc<dyn Pages>,
        access: CurrentAccess,
        say: &'a (dyn Fn(&str) + Sync),
    ) -> Self {
        Self { pages, access, connections: Connections::default(), say }
    }

    /// As [`CurrentAccess::is_current`].
    pub fn is_current(&self) -> Option<bool> {
        self.access.is_current()
    }

    /// The rules for a connection.
    fn access(&self) -> Arc<Access> {
        let (access, change) = self.access.now();
        match change {
            None => {}
            Some(Change::Read) => (self.say)("the web configuration has been read again"),
            Some(Change::Refused(error)) => {
                (self.say)(&format!("cannot use the changed web configuration: {error}"));
            }
        }
        access
    }
}

/// Takes all capabilities but these from the calling thread, for threads that it starts, too. (They are of a thread:
/// capabilities(7).)
fn keep_capabilities(keep: CapabilitySet) -> io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    let kept = rustix::thread::capabilities(None)?.permitted & keep;
    let inheritable = CapabilitySet::empty();
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}

/// Serves until `stop` is readable or hung up. The calling thread reads changed files of the web configuration, which may
/// belong to any user, and keeps the capability for that; the threads that read what comes from the network have none.
///
/// # Errors
/// Capabilities cannot be dropped, or waiting failed. Errors of a connection end that connection alone.
pub fn serve<'scope>(
    scope: &'scope Scope<'scope, '_>,
    server: &'scope Server<'scope>,
    listener: &TcpListener,
    stop: BorrowedFd<'_>,
) -> io::Result<()> {
    keep_capabilities(CapabilitySet::DAC_READ_SEARCH)?;
    listener.set_nonblocking(true)?;
    loop {
        let listens = listener.as_fd();
        let mut fds =
            [PollFd::new(&listens, PollFlags::IN), PollFd::from_borrowed_fd(stop, PollFlags::IN)];
        match poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other?,
        };
        if !fds[1].revents().is_empty() {
            return Ok(());
        }
        match listener.accept() {
            Ok((stream, from)) => connected(scope, server, stream, from.ip()),
            // It has gone already, or was taken: nothing to do.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            // No descriptors or no memory: the connection stays in the backlog, so poll returns at once.
            Err(_) => std::thread::sleep(AGAIN),
        }
    }
}

fn connected<'scope>(
    scope: &'scope Scope<'scope, '_>,
    server: &'scope Server<'scope>,
    stream: TcpStream,
    address: IpAddr,
) {
    if stream.set_nonblocking(false).is_err() {
        return;
    }
    let stream = Arc::new(stream);
    let Some(place) = server.connections.add(address, &stream, end) else {
        busy(&stream);
        return;
    };
    // Here, where a file may take a stack as large as it needs.
    let access = server.access();
    let thread = std::thread::Builder::new().name("http".to_owned()).stack_size(STACK);
    // Without a thread the connection is closed.
    let _ = thread.spawn_scoped(scope, move || {
        let _ = keep_capabilities(CapabilitySet::empty())
            .and_then(|()| connection(server, &access, stream, &place));
    });
}

/// Refuses without reading, and without waiting: what fits in the socket's buffer is sent.
fn busy(stream: &TcpStream) {
    let _ = stream.set_write_timeout(Some(Duration::from_millis(1)));
    let page = Page::text(503, "too many connections");
    let _ = (&*stream).write_all(&head(&page));
    let _ = (&*stream).write_all(&page.body);
    let _ = stream.shutdown(Shutdown::Write);
}

/// Refuses a connection that has begun: its thread reads and writes nothing more.
fn end(stream: &TcpStream) {
    busy(stream);
    let _ = stream.shutdown(Shutdown::Both);
}

fn connection(
    server: &Server<'_>,
    access: &Access,
    stream: Arc<TcpStream>,
    place: &Place<'_>,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let stream = Limited::new(stream, REQUEST_TIME);
    match access.tls() {
        None => exchange(server, access, stream, place)?.close(),
        Some(config) => {
            let tls = ServerConnection::new(config).map_err(io::Error::other)?;
            let mut stream = exchange(server, access, StreamOwned::new(tls, stream), place)?;
            stream.conn.send_close_notify();
            stream.flush()?;
            stream.sock.close();
        }
    }
    Ok(())
}

/// A connection whose end can be set again.
trait Timed: Read + Write {
    fn end(&self) -> Instant;
    fn give(&mut self, time: Duration);
}

impl Timed for Limited {
    fn end(&self) -> Instant {
        self.end
    }

    fn give(&mut self, time: Duration) {
        self.end = Instant::now() + time;
    }
}

impl Timed for StreamOwned<ServerConnection, Limited> {
    fn end(&self) -> Instant {
        self.sock.end
    }

    fn give(&mut self, time: Duration) {
        self.sock.give(time);
    }
}

/// Reads a request and answers it.
fn exchange<S: Timed>(
    server: &Server<'_>,
    access: &Access,
    mut stream: S,
    place: &Place<'_>,
) -> io::Result<S> {
    let (mut time, mut is_head) = (REFUSAL_TIME, false);
    let page = match read(&mut stream) {
        Ok(Ok(request)) => {
            is_head = request.method == Method::Head;
            let header = request.authorization.as_deref();
            let check = || place.check(stream.end(), || access.check(header.unwrap_or_default()));
            match access.known(header).or_else(check) {
                Some(true) => {
                    time = ANSWER_TIME;
                    place.set(if access.has_users() { Stage::Allowed } else { Stage::Open });
                    let page = server.pages.page(&request.path, &request.accept);
                    page.unwrap_or_else(|| Page::text(404, "no such page"))
                }
                Some(false) => Page::text(401, "a user and a password are needed"),
                None => Page::text(503, "too many passwords to check"),
            }
        }
        Ok(Err(refusal)) => Page::text(refusal.status(), reason(refusal.status())),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            Page::text(408, "the request did not arrive in time")
        }
        Err(error) => return Err(error),
    };
    stream.give(time);
    stream.write_all(&head(&page))?;
    if !is_head {
        stream.write_all(&page.body)?;
    }
    stream.flush()?;
    place.set(Stage::Waiting);
    Ok(stream)
}

/// Reads the head of a request.
fn read(stream: &mut impl Read) -> io::Result<Result<Request, Refusal>> {
    let mut bytes = Vec::with_capacity(1024);
    let mut piece = [0; 1024];
    loop {
        let n = stream.read(&mut piece)?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes.extend_from_slice(&piece[..n]);
        match parse(&bytes) {
            Ok(Some(request)) => return Ok(Ok(request)),
            Ok(None) if bytes.len() >= HEAD_MAX => return Ok(Err(Refusal::TooLarge)),
            Ok(None) => {}
            Err(refusal) => return Ok(Err(refusal)),
        }
    }
}

fn head(page: &Page) -> Vec<u8> {
    let field = match page.status {
        405 => "Allow: GET, HEAD\r\n",
        401 => "WWW-Authenticate: Basic realm=\"nearpath\"\r\n",
        _ => "",
    };
    let text = format!(
        "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{field}Cache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
        page.status,
        reason(page.status),
        page.content_type,
        page.body.len(),
    );
    text.into_bytes()
}

/// A connection whose reads and writes end by a time, however slowly the other end goes.
struct Limited {
    stream: Arc<TcpStream>,
    end: Instant,
}

impl Limited {
    fn new(stream: Arc<TcpStream>, time: Duration) -> Self {
        Self { stream, end: Instant::now() + time }
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }

    /// Ends the connection once the other end has everything: closing with unread data would reset it, and the
    /// other end might lose the answer.
    fn close(mut self) {
        let _ = self.stream.shutdown(Shutdown::Write);
        self.end = self.end.min(Instant::now() + Duration::from_secs(1));
        let mut rest = [0; 1024];
        for _ in 0..16 {
            if !matches!(self.read(&mut rest), Ok(n) if n > 0) {
                return;
            }
        }
    }
}

/// The kernel reports the end of a socket's time as `EAGAIN`.
fn timed(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { io::ErrorKind::TimedOut.into() } else { error }
}

impl Read for Limited {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        (&*self.stream).read(buffer).map_err(timed)
    }
}

impl Write for Limited {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        (&*self.stream).write(buffer).map_err(timed)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&*self.stream).flush()
    }
}
