//! The head of a request. Input: bytes from a socket. Output: what matters of them, or why they are refused.

/// Maximum length of a head in bytes.
pub const HEAD_MAX: usize = 8 * 1024;
/// Maximum number of fields.
const FIELDS_MAX: usize = 64;

/// A method that is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// With content.
    Get,
    /// Without.
    Head,
}

/// What matters of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Its method.
    pub method: Method,
    /// Its path, without the query.
    pub path: String,
    /// `Accept`; several are joined.
    pub accept: String,
    /// `Authorization`, if it is there once.
    pub authorization: Option<String>,
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Not HTTP, or a head that may hide another request.
    Malformed,
    /// Another method.
    Method,
    /// Too long, or too many fields.
    TooLarge,
    /// Not HTTP/1.
    Version,
}

impl Refusal {
    /// Its status.
    pub fn status(self) -> u16 {
        match self {
            Self::Malformed => 400,
            Self::Method => 405,
            Self::TooLarge => 431,
            Self::Version => 505,
        }
    }
}

/// Parses a head; `None` if it is not complete yet.
///
/// # Errors
/// It is refused, whatever follows.
pub fn parse(bytes: &[u8]) -> Result<Option<Request>, Refusal> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut head = httparse::Request::new(&mut fields);
    match head.parse(bytes) {
        Ok(httparse::Status::Complete(length)) if length > HEAD_MAX => Err(Refusal::TooLarge),
        Ok(httparse::Status::Complete(_)) => request(&head).map(Some),
        Ok(httparse::Status::Partial) if bytes.len() >= HEAD_MAX => Err(Refusal::TooLarge),
        Ok(httparse::Status::Partial) => Ok(None),
        Err(httparse::Error::TooManyHeaders) => Err(Refusal::TooLarge),
        Err(httparse::Error::Version) => Err(Refusal::Version),
        Err(_) => Err(Refusal::Malformed),
    }
}

fn request(head: &httparse::Request<'_, '_>) -> Result<Request, Refusal> {
    let method = match head.method {
        Some("GET") => Method::Get,
        Some("HEAD") => Method::Head,
        _ => return Err(Refusal::Method),
    };
    let target = head.path.filter(|path| path.starts_with('/')).ok_or(Refusal::Malformed)?;
    let path = target.split(['?', '#']).next().unwrap_or(target).to_owned();
    let (mut accept, mut authorization) = (String::new(), Vec::new());
    for field in head.headers.iter() {
        let value = || std::str::from_utf8(field.value).map_err(|_| Refusal::Malformed);
        match field.name.to_ascii_lowercase().as_str() {
            "accept" => {
                if !accept.is_empty() {
                    accept.push(',');
                }
                accept.push_str(value()?);
            }
            "authorization" => authorization.push(value()?.to_owned()),
            // GET and HEAD have no content here: whoever sends some means something else.
            "transfer-encoding" => return Err(Refusal::Malformed),
            "content-length" if value()?.trim() != "0" => return Err(Refusal::Malformed),
            _ => {}
        }
    }
    if authorization.len() > 1 {
        return Err(Refusal::Malformed);
    }
    Ok(Request { method, path, accept, authorization: authorization.pop() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_may_come_in_pieces() {
        let whole =
            "GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\nAccept: text/plain\r\nACCEPT: */*\r\n\r\n";
        for end in 0..whole.len() {
            assert_eq!(parse(&whole.as_bytes()[..end]), Ok(None), "{end}");
        }
        let request = parse(whole.as_bytes()).unwrap().unwrap();
        assert_eq!((request.method, request.path.as_str()), (Method::Get, "/metrics"));
        assert_eq!(request.accept, "text/plain,*/*");
    }

    proptest::proptest! {
        /// Whatever comes, cut anywhere: no panic, and no start of a request is another one.
        #[test]
        fn the_start_of_a_request_is_no_other(
            path in "/[ -~]{0,20}", fields in proptest::collection::vec("[A-Za-z-]{1,12}: [ -~]{0,20}", 0..6),
            junk in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200),
        ) {
            let _ = parse(&junk);
            let whole = format!("GET {path} HTTP/1.1\r\n{}\r\n\r\n", fields.join("\r\n"));
            let bytes = [whole.as_bytes(), &junk].concat();
            if let Ok(Some(request)) = parse(&bytes) {
                for end in 0..bytes.len() {
                    match parse(&bytes[..end]) {
                        Ok(None) => {}
                        earlier => proptest::prop_assert_eq!(earlier, Ok(Some(request.clone()))),
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_not_a_plain_request_is_refused() {
        let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(HEAD_MAX));
        let endless = "GET /".to_owned() + &"x".repeat(HEAD_MAX);
        let many = "GET / HTTP/1.1\r\n".to_owned() + &"A: b\r\n".repeat(100) + "\r\n";
        for (text, refusal) in [
            ("POST /metrics HTTP/1.1\r\n\r\n", Refusal::Method),
            ("PUT / HTTP/1.1\r\n\r\n", Refusal::Method),
            ("get / HTTP/1.1\r\n\r\n", Refusal::Method),
            ("GET / HTTP/2.0\r\n\r\n", Refusal::Version),
            ("PRI * HTTP/2.0\r\n\r\n", Refusal::Version),
            ("GET http://a/ HTTP/1.1\r\n\r\n", Refusal::Malformed),
            ("GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", Refusal::Malformed),
            ("GET / HTTP/1.1\r\nContent-Length: 7\r\n\r\n", Refusal::Malformed),
            ("GET / HTTP/1.1\r\nAuthorization: a\r\nAuthorization: b\r\n\r\n", Refusal::Malformed),
            ("GET / HTTP/1.1\r\nAccept: \u{ff}\r\n\r\n", Refusal::Malformed),
            ("\x16\x03\x01\x02\0\x01", Refusal::Malformed),
            (&long, Refusal::TooLarge),
            (&endless, Refusal::TooLarge),
            (&many, Refusal::TooLarge),
        ] {
            let bytes: Vec<u8> = if text.contains('\u{ff}') {
                text.chars().map(|c| c as u8).collect()
            } else {
                text.into()
            };
            assert_eq!(parse(&bytes), Err(refusal), "{text:.60}");
        }
    }
}
