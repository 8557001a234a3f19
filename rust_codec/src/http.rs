//! The head of a client's request, if it is a plain one.

/// What a plain POST with a JSON body says in its head.
#[derive(Debug, PartialEq, Eq)]
pub struct RequestHead<'a> {
    /// The target as written.
    pub path: &'a str,
    /// Bytes of the body.
    pub content_length: usize,
    /// Whether the connection may be used again.
    pub keep_alive: bool,
    /// The value of `X-data-parallel-rank`.
    pub rank: Option<&'a [u8]>,
    /// Bytes of the head; the body follows.
    pub size: usize,
}

/// What exceeds these is not plain; whoever gets that has limits of its own.
const MAX_SIZE: usize = 8190;
const MAX_HEADERS: usize = 64;
/// Headers that ask for more, or once did.
const NOT_PLAIN: [&str; 7] =
    ["Content-Encoding", "Expect", "Proxy-Connection", "Sec-WebSocket-Key1", "Trailer", "Transfer-Encoding", "Upgrade"];
/// What is longer has more digits than any body that is taken.
const MAX_LENGTH_DIGITS: usize = 15;

impl<'a> RequestHead<'a> {
    /// The head that `data` begins with; `None` unless all of it is there, it is well-formed, and nothing in it asks for
    /// more than to read a body of so many bytes and to answer. Whatever there may be two opinions about is not plain,
    /// such as a header that stands twice.
    pub fn parse(data: &'a [u8]) -> Option<Self> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        let begin = data.get(..data.len().min(MAX_SIZE))?;
        let httparse::Status::Complete(size) = request.parse(begin).ok()? else { return None };
        // The parser passes over empty lines before a request, and takes a line feed alone for the end of a line.
        let plain_lines = !lone_line_feed(&begin[..size]);
        if request.method != Some("POST") || request.version != Some(1) || begin[0] != b'P' || !plain_lines {
            return None;
        }
        let mut content_length = None;
        let mut keep_alive = true;
        let mut has_host = false;
        let mut rank = None;
        for (index, header) in request.headers.iter().enumerate() {
            let is = |name: &str| header.name.eq_ignore_ascii_case(name);
            if request.headers[..index].iter().any(|earlier| is(earlier.name)) {
                return None;
            }
            if is("Content-Length") {
                content_length = Some(length(header.value)?);
            } else if is("Connection") {
                keep_alive = persistence(header.value)?;
            } else if is("Content-Type") {
                (header.value == b"application/json").then_some(())?;
            } else if is("Host") {
                header.value.iter().all(is_of_host).then_some(())?;
                has_host = true;
            } else if is("X-data-parallel-rank") {
                rank = Some(header.value);
            } else if NOT_PLAIN.iter().any(|name| is(name)) {
                return None;
            }
        }
        has_host.then_some(())?;
        Some(Self { path: request.path?, content_length: content_length?, keep_alive, rank, size })
    }
}

/// Whether it can stand in a name, an address, or before a port.
fn is_of_host(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~:[]%".contains(byte)
}

fn length(value: &[u8]) -> Option<usize> {
    if value.len() > MAX_LENGTH_DIGITS || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(value).ok()?.parse().ok()
}

fn persistence(value: &[u8]) -> Option<bool> {
    if value.eq_ignore_ascii_case(b"keep-alive") {
        Some(true)
    } else {
        value.eq_ignore_ascii_case(b"close").then_some(false)
    }
}

fn lone_line_feed(head: &[u8]) -> bool {
    let mut before = 0;
    head.iter().any(|&byte| {
        let lone = byte == b'\n' && before != b'\r';
        before = byte;
        lone
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 12\r\n\r\n";

    fn with(line: &str) -> String {
        HEAD.replace("Host: x\r\n", &format!("Host: x\r\n{line}\r\n"))
    }

    fn is_plain(head: &str) -> bool {
        RequestHead::parse(head.as_bytes()).is_some()
    }

    #[test]
    fn a_plain_head_is_read() {
        let data = format!("{}body, and what follows", with("content-type: application/json"));
        let head = RequestHead::parse(data.as_bytes()).unwrap();
        assert_eq!(head.path, "/v1/completions");
        assert_eq!((head.content_length, head.keep_alive, head.rank), (12, true, None));
        assert_eq!(&data[head.size..], "body, and what follows");
    }

    #[test]
    fn the_connection_and_the_rank_are_read() {
        let data = with("CONNECTION: Close\r\nx-Data-Parallel-Rank: \t3 ");
        let head = RequestHead::parse(data.as_bytes()).unwrap();
        assert_eq!((head.keep_alive, head.rank), (false, Some(&b"3"[..])));
        assert!(RequestHead::parse(with("Connection: keep-alive").as_bytes()).unwrap().keep_alive);
    }

    #[test]
    fn no_beginning_of_a_head_is_plain() {
        for end in 0..HEAD.len() {
            assert!(!is_plain(&HEAD[..end]), "{end}");
        }
    }

    #[test]
    fn what_asks_for_more_is_not_plain() {
        for line in [
            "Transfer-Encoding: chunked",
            "transfer-encoding: identity",
            "Content-Encoding: gzip",
            "Expect: 100-continue",
            "Upgrade: h2c",
            "Trailer: x",
            "Proxy-Connection: close",
            "Sec-WebSocket-Key1: x",
            "Host: x",
            "User-Agent: a\r\nuser-agent: b",
            "Connection: upgrade",
            "Connection: keep-alive, close",
            "Connection: keep-alive\r\nConnection: keep-alive",
            "Content-Length: 12",
            "Content-Type: text/plain",
            "Content-Type: application/json; charset=utf-8",
            "Content-Type: application/json\r\nContent-Type: application/json",
            "X-data-parallel-rank: 1\r\nX-data-parallel-rank: 2",
        ] {
            assert!(!is_plain(&with(line)), "{line}");
        }
        for (what, instead) in [
            ("POST", "GET"),
            ("POST", "post"),
            ("POST", "\r\nPOST"),
            ("HTTP/1.1", "HTTP/1.0"),
            ("HTTP/1.1", "HTTP/2.0"),
            ("Content-Length: 12\r\n", ""),
            ("Host: x\r\n", ""),
            ("Host: x", "Host: x y"),
            ("Host: x", "Host: x\u{e4}"),
            (": 12", ": "),
            (": 12", ": +12"),
            (": 12", ": 0x12"),
            (": 12", ": 12, 12"),
            (": 12", ": 1 2"),
            (": 12", ": 1234567890123456"),
        ] {
            assert!(!is_plain(&HEAD.replace(what, instead)), "{what} -> {instead}");
        }
    }

    #[test]
    fn what_is_malformed_is_not_plain() {
        for line in ["no colon", "Name : value", ": value", " folded: value", "Name: a\0b", "Name: a\rb", "Na\tme: x"] {
            assert!(!is_plain(&with(line)), "{line:?}");
        }
        assert!(!is_plain(&HEAD.replace("\r\n", "\n")));
        assert!(!is_plain(&HEAD.replace("Host: x\r\n", "Host: x\n")));
        assert!(!is_plain(&with(&format!("Long: {}", "x".repeat(MAX_SIZE)))));
        assert!(!is_plain(&with(&vec!["A: b"; MAX_HEADERS].join("\r\n"))));
    }
}
