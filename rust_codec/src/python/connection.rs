//! Where the bytes of a streamed response go.

use std::io::{self, Write};
use std::net::TcpStream;
use std::os::fd::{BorrowedFd, RawFd};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::render::{HTTP_CHUNK_TAIL, HTTP_LAST_CHUNK, http_chunk_head};

#[pyclass(frozen, module = "smg_fast._codec")]
pub struct Connection {
    head: Vec<u8>,
    fd: Option<RawFd>,
    chunked: bool,
}

#[pymethods]
impl Connection {
    #[new]
    #[pyo3(signature = (head, *, fd, chunked))]
    fn new(head: Vec<u8>, fd: Option<RawFd>, chunked: bool) -> PyResult<Self> {
        if fd.is_some_and(|fd| fd < 0) {
            return Err(PyValueError::new_err("a descriptor is not negative"));
        }
        Ok(Self { head, fd, chunked })
    }
}

/// One response on a connection.
pub struct HttpStream {
    /// What goes before the first bytes; taken with them.
    head: Option<Vec<u8>>,
    chunked: bool,
    socket: Option<TcpStream>,
    /// The socket took less than it was given: whoever got the rest writes on until it says otherwise.
    blocked: bool,
}

impl HttpStream {
    pub fn new(connection: &Connection) -> Self {
        // Without a descriptor to spare, the caller writes it all.
        let socket = connection.fd.and_then(|fd| duplicate(fd).ok());
        Self { head: Some(connection.head.clone()), chunked: connection.chunked, socket, blocked: false }
    }

    /// Whether anything of the response has been given out.
    pub fn has_begun(&self) -> bool {
        self.head.is_none()
    }

    /// Write to the socket again, once nothing waits before it any more.
    pub fn unblock(&mut self) {
        self.blocked = false;
    }

    /// Frame events and send them; what is left for the caller to write. Nothing follows the last.
    pub fn send<'a>(&mut self, frame: &'a mut Vec<u8>, events: &[u8], is_last: bool) -> &'a [u8] {
        frame.clear();
        if let Some(head) = self.head.take() {
            frame.extend_from_slice(&head);
        }
        if !self.chunked {
            frame.extend_from_slice(events);
        } else if !events.is_empty() {
            frame.extend_from_slice(&http_chunk_head(events.len()));
            frame.extend_from_slice(events);
            frame.extend_from_slice(HTTP_CHUNK_TAIL);
        }
        if self.chunked && is_last {
            frame.extend_from_slice(HTTP_LAST_CHUNK);
        }
        if self.blocked {
            return frame;
        }
        // Whatever hinders this write, an error included, the caller's own will meet.
        let sent = self.socket.as_ref().map_or(0, |mut socket| socket.write(frame).unwrap_or(0));
        self.blocked = sent < frame.len();
        &frame[sent..]
    }
}

/// A descriptor of our own for a socket, which cannot come to mean another connection when the caller closes theirs.
fn duplicate(fd: RawFd) -> io::Result<TcpStream> {
    // SAFETY: it is not -1 (`Connection::new`), and borrowed for one system call, which fails if nothing is open there:
    // there is no other use of it.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    Ok(borrowed.try_clone_to_owned()?.into())
}
