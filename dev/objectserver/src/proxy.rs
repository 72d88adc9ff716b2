//! A proxy that cuts, delays, damages and refuses.
//!
//! It takes one request a connection, forwards it, and reads the answer to its end before it passes
//! it on, so that a fault hits exactly the bytes that a test names.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Duration;

use crc_fast::{CrcAlgorithm, checksum};

/// A request, as the proxy sees it.
#[derive(Clone, Debug)]
pub struct ProxyRequest {
    /// Its number, from 0.
    pub number: u64,
    /// The method, such as `GET`.
    pub method: String,
    /// The path and the query.
    pub target: String,
    /// Whether it asks for a range.
    pub ranged: bool,
}

/// What is done to a request or its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProxyFault {
    /// Nothing.
    Pass,
    /// The connection ends before the server sees the request.
    CutRequest,
    /// The server carries the request out, and the connection ends without an answer.
    LoseAnswer,
    /// The connection ends after so many bytes of the answer's body.
    CutAnswer(usize),
    /// The answer's body has only so many bytes, and its head says so.
    ShortenAnswer(usize),
    /// The answer's body is followed by so many more bytes, and its head says so.
    LengthenAnswer(usize),
    /// A byte of the answer's body is another one.
    DamageAnswer(usize),
    /// A byte of the request's body is another one.
    DamageRequest(usize),
    /// The answer states the CRC-64 of the body that the server got, as Azure's do; a byte of it is
    /// another one where there is an offset.
    StateSum(Option<usize>),
    /// The server does not see the request: this status and code of S3 is the answer.
    Refuse(u16, String),
    /// The server carries the request out, and this status and code of S3 is the answer.
    RefuseAfter(u16, String),
    /// The server does not see the request, and the connection stays open.
    Swallow,
    /// The answer is only its first bytes, and the connection stays open.
    Stall(usize),
    /// The answer is these bytes, whatever the request was.
    Answer(Vec<u8>),
    /// A pause before the answer.
    Late(Duration),
    /// A pause before each 64 KiB of the answer's body.
    Slow(Duration),
    /// The server does not see this header, which is no part of the signature.
    LeaveOut(&'static str),
}

type Choose = dyn Fn(&ProxyRequest) -> ProxyFault + Send + Sync;

/// A proxy in front of a server. It stops when it is dropped.
pub struct FaultProxy {
    address: SocketAddr,
    seen: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl FaultProxy {
    /// Starts a proxy that asks `choose` about each request.
    ///
    /// # Errors
    /// Those of the port and the thread.
    pub fn start(
        server: SocketAddr,
        choose: impl Fn(&ProxyRequest) -> ProxyFault + Send + Sync + 'static,
    ) -> io::Result<FaultProxy> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        let (seen, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counted, stopped, choose): (_, _, Arc<Choose>) = (seen.clone(), stop.clone(), Arc::new(choose));
        let thread = std::thread::Builder::new().name("fault-proxy".into()).spawn(move || {
            for client in listener.incoming() {
                if stopped.load(SeqCst) {
                    return;
                }
                let Ok(client) = client else { continue };
                let (counted, choose, stopped) = (counted.clone(), choose.clone(), stopped.clone());
                let serve = move || {
                    // A connection that ends early is what many tests want.
                    let _ = serve(client, server, &counted, &*choose, &stopped);
                };
                drop(std::thread::Builder::new().spawn(serve));
            }
        })?;
        Ok(FaultProxy { address, seen, stop, thread: Some(thread) })
    }

    /// The address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many requests came.
    pub fn requests(&self) -> u64 {
        self.seen.load(SeqCst)
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        // The thread waits for a connection.
        drop(TcpStream::connect(self.address));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(
    mut client: TcpStream,
    server: SocketAddr,
    counted: &AtomicU64,
    choose: &Choose,
    stopped: &AtomicBool,
) -> io::Result<()> {
    client.set_read_timeout(Some(Duration::from_secs(60)))?;
    let (head, rest) = read_head(&mut client)?;
    let mut body = rest;
    let len = header(&head, "content-length").and_then(|len| len.parse().ok()).unwrap_or(0);
    while body.len() < len {
        let mut piece = vec![0; (len - body.len()).min(1 << 20)];
        let read = client.read(&mut piece)?;
        if read == 0 {
            return Ok(());
        }
        body.extend_from_slice(&piece[..read]);
    }
    let mut words = head.split_ascii_whitespace();
    let request = ProxyRequest {
        number: counted.fetch_add(1, SeqCst),
        method: words.next().unwrap_or_default().to_owned(),
        target: words.next().unwrap_or_default().to_owned(),
        ranged: header(&head, "range").is_some(),
    };
    let fault = choose(&request);
    match &fault {
        ProxyFault::CutRequest => return Ok(()),
        ProxyFault::Refuse(status, code) => {
            let xml = format!("<Error><Code>{code}</Code><Message>as the test wants</Message></Error>");
            let xml = if request.method == "HEAD" { String::new() } else { xml };
            write!(
                client,
                "HTTP/1.1 {status} Refused\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{xml}",
                xml.len()
            )?;
            return close(&client);
        }
        ProxyFault::Answer(bytes) => {
            client.write_all(bytes)?;
            return close(&client);
        }
        ProxyFault::Swallow => return wait_for_end(&mut client, stopped),
        ProxyFault::DamageRequest(at) | ProxyFault::StateSum(Some(at)) => {
            if let Some(byte) = body.get_mut(*at) {
                *byte ^= 1;
            }
        }
        _ => {}
    }
    let head = match &fault {
        ProxyFault::LeaveOut(name) => without(&head, name) + "\r\n",
        _ => head,
    };
    let answer = forward(server, &head, &body)?;
    let split = answer.windows(4).position(|end| end == b"\r\n\r\n").map_or(answer.len(), |at| at + 4);
    let (answer_head, answer_body) = answer.split_at(split);
    let mut answer_body = answer_body.to_vec();
    match fault {
        ProxyFault::LoseAnswer => return Ok(()),
        ProxyFault::RefuseAfter(status, code) => {
            let xml = format!("<Error><Code>{code}</Code></Error>");
            let len = xml.len();
            write!(client, "HTTP/1.1 {status} X\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n{xml}")?;
        }
        ProxyFault::CutAnswer(at) => {
            client.write_all(answer_head)?;
            client.write_all(&answer_body[..at.min(answer_body.len())])?;
        }
        ProxyFault::ShortenAnswer(len) => {
            answer_body.truncate(len);
            client.write_all(&with_len(answer_head, answer_body.len()))?;
            client.write_all(&answer_body)?;
        }
        ProxyFault::LengthenAnswer(more) => {
            answer_body.extend(std::iter::repeat_n(b'x', more));
            client.write_all(&with_len(answer_head, answer_body.len()))?;
            client.write_all(&answer_body)?;
        }
        ProxyFault::DamageAnswer(at) => {
            if let Some(byte) = answer_body.get_mut(at) {
                *byte ^= 1;
            }
            client.write_all(answer_head)?;
            client.write_all(&answer_body)?;
        }
        ProxyFault::StateSum(_) => {
            let sum = checksum(CrcAlgorithm::Crc64Nvme, &body).to_le_bytes();
            let mut head = without(&String::from_utf8_lossy(answer_head), "x-ms-content-crc64");
            head.push_str(&format!("x-ms-content-crc64: {}\r\n\r\n", in_base64(&sum)));
            client.write_all(head.as_bytes())?;
            client.write_all(&answer_body)?;
        }
        ProxyFault::Stall(at) => {
            client.write_all(&answer[..at.min(answer.len())])?;
            client.flush()?;
            wait_for_end(&mut client, stopped)?;
        }
        ProxyFault::Late(pause) => {
            std::thread::sleep(pause);
            client.write_all(&answer)?;
        }
        ProxyFault::Slow(pause) => {
            client.write_all(answer_head)?;
            for piece in answer_body.chunks(64 << 10) {
                std::thread::sleep(pause);
                client.write_all(piece)?;
            }
        }
        _ => {
            client.write_all(answer_head)?;
            client.write_all(&answer_body)?;
        }
    }
    close(&client)
}

/// Waits until the client gives up, or the test is over.
fn wait_for_end(client: &mut TcpStream, stopped: &AtomicBool) -> io::Result<()> {
    client.set_read_timeout(Some(Duration::from_millis(50)))?;
    while !stopped.load(SeqCst) {
        match client.read(&mut [0; 16]) {
            Ok(0) => break,
            Err(e) if !matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => break,
            _ => {}
        }
    }
    Ok(())
}

/// Ends a connection after what was written.
fn close(client: &TcpStream) -> io::Result<()> {
    client.shutdown(Shutdown::Write)
}

fn read_head(client: &mut TcpStream) -> io::Result<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|end| end == b"\r\n\r\n") {
            let rest = bytes.split_off(end + 4);
            return Ok((String::from_utf8_lossy(&bytes).into_owned(), rest));
        }
        let mut piece = [0; 16 << 10];
        let read = client.read(&mut piece)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes.extend_from_slice(&piece[..read]);
    }
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut pairs = head.lines().filter_map(|line| line.split_once(':'));
    pairs.find_map(|(its, value)| its.eq_ignore_ascii_case(name).then(|| value.trim()))
}

/// Sends a request on a connection of its own, and reads the answer to its end.
fn forward(server: SocketAddr, head: &str, body: &[u8]) -> io::Result<Vec<u8>> {
    let mut upstream = TcpStream::connect(server)?;
    let head = without(head, "connection") + "Connection: close\r\n\r\n";
    upstream.write_all(head.as_bytes())?;
    upstream.write_all(body)?;
    let mut answer = Vec::new();
    upstream.read_to_end(&mut answer)?;
    Ok(answer)
}

/// The head of an answer with another length.
fn with_len(head: &[u8], len: usize) -> Vec<u8> {
    let mut head = without(&String::from_utf8_lossy(head), "content-length");
    head.push_str(&format!("Content-Length: {len}\r\n\r\n"));
    head.into_bytes()
}

/// Bytes in base64.
fn in_base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let bits = three.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for digit in 0..4 {
            let six = bits >> (18 - 6 * digit) & 63;
            text.push(if digit <= three.len() { char::from(DIGITS[six as usize]) } else { '=' });
        }
    }
    text
}

/// The lines of a head but those of one header, and without the empty line at its end.
fn without(head: &str, header: &str) -> String {
    let is_its = |line: &&str| line.split(':').next().is_some_and(|name| name.eq_ignore_ascii_case(header));
    head.trim_end().lines().filter(|line| !is_its(line)).map(|line| format!("{line}\r\n")).collect()
}
