//! HTTP: connections to servers, and the bounds of what they answer.
//!
//! A server may be slow, broken or hostile. A request on which no byte moves for the idle time has
//! failed; an answer has at most the bytes that were asked for; an answer that is no success is
//! read up to a bound, and becomes a [`ServerRefusal`]; redirections are not followed.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use datapipes_core::Result;
use http::header::{CONTENT_LENGTH, CONTENT_RANGE, HeaderMap, HeaderName, HeaderValue, RANGE, USER_AGENT};
use http::{Method, StatusCode};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse, HttpResponseBody,
    HttpService,
};
use tokio::time::{Instant, Sleep};

use super::byte_sum::{OF_AZURE, SumKind, answered_crc64, for_azure};
use super::connection::{BoundedConnector, unanswered};
use super::connections::ConnectionUse;
use super::exchange::{Exchange, publishes};
use super::failure::{BrokenExchange, ServerRefusal, Trouble};
use super::list_page::ListProtocol;
use super::xml;
use crate::address::ObjectScheme;

/// The most bytes of an answer that is not a range of an object: a page of a listing has 1000 keys
/// of 1 KiB, in XML.
const MAX_ANSWER: u64 = 16 << 20;
/// The most bytes of a refusal that are read.
const MAX_REFUSAL: u64 = 64 << 10;
/// How much a connection reads at once. With less, a fast connection costs more system calls.
const READ_BUFFER: usize = 256 << 10;

/// The connections of a client, for all stores.
#[derive(Clone)]
pub(crate) struct Transport {
    client: Client<BoundedConnector, SentBody>,
    idle: Duration,
}

impl Transport {
    /// Makes a transport without connections. `authorities` is a file of certificates to trust in
    /// place of the system's.
    ///
    /// # Errors
    /// `Unavailable` where there are no certificates.
    pub(crate) fn new(idle: Duration, connections: u32, authorities: Option<&str>) -> Result<Transport> {
        let connector = BoundedConnector::new(idle, authorities)?;
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(20))
            .pool_max_idle_per_host(usize::try_from(connections).unwrap_or(1))
            .http1_max_buf_size(READ_BUFFER)
            .build(connector);
        Ok(Transport { client, idle })
    }

    /// What connects a store, and notes its requests.
    pub(crate) fn connector(&self, exchange: Arc<Exchange>) -> StoreConnector {
        StoreConnector { transport: self.clone(), exchange }
    }

    async fn call(
        &self,
        request: HttpRequest,
        exchange: &Arc<Exchange>,
    ) -> std::result::Result<HttpResponse, HttpError> {
        let (mut parts, body) = request.into_parts();
        let mut is_changed = exchange.asked(&mut parts);
        // Azure's server compares the sum, and its answers have that of what came.
        let is_summed = exchange.scheme == ObjectScheme::Azure && parts.method == Method::PUT;
        let sum = if is_summed { crc64_of(body.clone()) } else { None };
        if let Some(sum) = sum
            && exchange.states_sums.load(Relaxed)
            && let Ok(text) = HeaderValue::from_str(&for_azure(sum))
        {
            parts.headers.insert(HeaderName::from_static(OF_AZURE), text);
            is_changed = true;
        }
        let mut request = HttpRequest::from_parts(parts, body);
        if is_changed {
            exchange.sign_again(&mut request).await.map_err(|e| HttpError::new(HttpErrorKind::Request, e))?;
        }
        let (mut parts, body) = request.into_parts();
        parts.headers.insert(USER_AGENT, HeaderValue::from_static(concat!("datapipes/", env!("CARGO_PKG_VERSION"))));
        let (method, range) = (parts.method.clone(), range_len(&parts.headers));
        let peeks = publishes(&method, &parts.uri);
        let list = ListProtocol::of(&parts.uri).filter(|_| method == Method::GET);
        let progress = Arc::new(AtomicU64::new(0));
        let mut used = ConnectionUse::begin(&exchange.connections, progress.clone());
        let body = SentBody { inner: body, progress: progress.clone(), exchange: exchange.clone() };
        let answer = self.client.request(http::Request::from_parts(parts, body));
        let answer = self.unless_idle(answer, &progress).await?;
        let answer = answer.map_err(|e| unanswered(&e))?;
        used.answered(answer.extensions());
        let (mut parts, incoming) = answer.into_parts();
        let status = parts.status;
        leave_out_unreadable(&mut parts.headers);
        if !status.is_success() {
            let body = self.collect(incoming, MAX_REFUSAL, used).await.unwrap_or_default();
            return Err(refused(ServerRefusal::new(status.as_u16(), &body)));
        }
        if method == Method::HEAD {
            exchange.looked(&parts.headers);
        }
        if let (Some(sum), Some(came)) = (sum, answered_crc64(&parts.headers))
            && sum != came
        {
            let what = "the server's checksum is not that of the bytes that were sent".to_owned();
            return Err(broken(HttpErrorKind::Interrupted, what, true));
        }
        if peeks {
            // S3 may answer 200 first, and find out then that it cannot.
            let body = self.collect(incoming, MAX_ANSWER, used).await?;
            if xml::root(&String::from_utf8_lossy(&body)).is_ok_and(|root| root == "Error") {
                return Err(refused(ServerRefusal::new(status.as_u16(), &body)));
            }
            return Ok(HttpResponse::from_parts(parts, HttpResponseBody::from(body)));
        }
        if let Some(list) = list {
            let body = self.collect(incoming, MAX_ANSWER, used).await?;
            if let Err(why) = list.check(&body) {
                let what = format!("the server's answer is not the list that was asked for: {why}");
                return Err(broken(HttpErrorKind::Decode, what, false));
            }
            return Ok(HttpResponse::from_parts(parts, HttpResponseBody::from(body)));
        }
        let given = parts.headers.get(CONTENT_RANGE).filter(|_| status == StatusCode::PARTIAL_CONTENT).cloned();
        if given.as_ref().is_some_and(is_beyond) {
            return Err(broken(HttpErrorKind::Decode, "the server's range ends beyond all numbers".into(), false));
        }
        // A server that sends in chunks states no length; that of a range follows from the range.
        if let (false, Some(len)) = (parts.headers.contains_key(CONTENT_LENGTH), given.as_ref().and_then(given_len)) {
            parts.headers.insert(CONTENT_LENGTH, HeaderValue::from(len));
        }
        let most = range.unwrap_or(MAX_ANSWER);
        let body = ReceivedBody::new(incoming, most, self.idle, used);
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body)))
    }

    /// Waits for an answer, as long as bytes of the request move.
    async fn unless_idle<T>(
        &self,
        answer: impl Future<Output = T>,
        progress: &AtomicU64,
    ) -> std::result::Result<T, HttpError> {
        let mut answer = std::pin::pin!(answer);
        let mut seen = 0;
        loop {
            if let Ok(answer) = tokio::time::timeout(self.idle, &mut answer).await {
                return Ok(answer);
            }
            let now = progress.load(Relaxed);
            if now == seen {
                let what = format!("no byte moved for {:?}", self.idle);
                return Err(broken(HttpErrorKind::Timeout, what, true));
            }
            seen = now;
        }
    }

    /// Reads an answer of at most so many bytes.
    async fn collect(
        &self,
        incoming: Incoming,
        most: u64,
        used: ConnectionUse,
    ) -> std::result::Result<Bytes, HttpError> {
        let mut body = ReceivedBody::new(incoming, most, self.idle, used);
        let mut bytes = BytesMut::new();
        while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            if let Ok(data) = frame?.into_data() {
                bytes.extend_from_slice(&data);
            }
        }
        Ok(bytes.freeze())
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Transport")
    }
}

/// A transport for one store.
#[derive(Clone, Debug)]
pub(crate) struct StoreConnector {
    transport: Transport,
    exchange: Arc<Exchange>,
}

impl HttpConnector for StoreConnector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

impl HttpService for StoreConnector {
    // The attribute `async_trait`, without its crate.
    fn call<'a, 'b>(
        &'a self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = std::result::Result<HttpResponse, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(self.transport.call(request, &self.exchange))
    }
}

fn refused(refusal: ServerRefusal) -> HttpError {
    HttpError::new(HttpErrorKind::Unknown, refusal)
}

fn broken(kind: HttpErrorKind, what: String, passing: bool) -> HttpError {
    HttpError::new(kind, BrokenExchange { what, passing, trouble: Trouble::Network, sent: true })
}

/// The CRC-64 of the body of a request, all of which is there.
fn crc64_of(mut body: HttpRequestBody) -> Option<u64> {
    let mut sum = SumKind::Crc64.digest();
    let mut context = Context::from_waker(Waker::noop());
    loop {
        match Pin::new(&mut body).poll_frame(&mut context) {
            Poll::Ready(None) => return Some(sum.finalize()),
            Poll::Ready(Some(Ok(frame))) => sum.update(frame.data_ref()?),
            Poll::Ready(Some(Err(_))) | Poll::Pending => return None,
        }
    }
}

/// Takes out headers with other characters than those of ASCII. Servers send names of files so, and
/// the protocols' library refuses the whole answer for that.
fn leave_out_unreadable(headers: &mut HeaderMap) {
    let odd: Vec<_> =
        headers.iter().filter(|(_, value)| value.to_str().is_err()).map(|(name, _)| name.clone()).collect();
    for name in odd {
        headers.remove(&name);
    }
}

/// The bytes that a request asks for by its header.
fn range_len(headers: &HeaderMap) -> Option<u64> {
    let (first, last) = headers.get(RANGE)?.to_str().ok()?.strip_prefix("bytes=")?.split_once('-')?;
    last.parse::<u64>().ok()?.checked_sub(first.parse().ok()?)?.checked_add(1)
}

/// The bytes of a range that is given.
fn given_len(range: &HeaderValue) -> Option<u64> {
    let (first, last) = range.to_str().ok()?.strip_prefix("bytes ")?.split('/').next()?.split_once('-')?;
    last.trim().parse::<u64>().ok()?.checked_sub(first.trim().parse().ok()?)?.checked_add(1)
}

/// Whether a range ends where no number follows, which the protocols' library does not check.
fn is_beyond(range: &HeaderValue) -> bool {
    let last = || range.to_str().ok()?.split_once('-')?.1.split('/').next()?.trim().parse::<u64>().ok();
    last() == Some(u64::MAX)
}

/// The body of a request, whose bytes are counted as they go.
pub(crate) struct SentBody {
    inner: HttpRequestBody,
    progress: Arc<AtomicU64>,
    exchange: Arc<Exchange>,
}

impl Body for SentBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, HttpError>>> {
        let frame = Pin::new(&mut self.inner).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && let Some(data) = frame.data_ref()
        {
            self.progress.fetch_add(data.len() as u64, Relaxed);
            self.exchange.sent.fetch_add(data.len() as u64, Relaxed);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// The body of an answer, with a bound and a time limit.
struct ReceivedBody {
    inner: Incoming,
    left: u64,
    idle: Duration,
    timer: Pin<Box<Sleep>>,
    /// Noted when the body is dropped.
    used: ConnectionUse,
}

impl ReceivedBody {
    fn new(inner: Incoming, most: u64, idle: Duration, used: ConnectionUse) -> ReceivedBody {
        ReceivedBody { inner, left: most, idle, timer: Box::pin(tokio::time::sleep(idle)), used }
    }
}

impl Body for ReceivedBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, HttpError>>> {
        match Pin::new(&mut self.inner).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                let len = frame.data_ref().map_or(0, |data| data.len() as u64);
                self.used.came(len);
                let Some(left) = self.left.checked_sub(len) else {
                    let what = "the answer is longer than what was asked for".to_owned();
                    return Poll::Ready(Some(Err(broken(HttpErrorKind::Decode, what, false))));
                };
                self.left = left;
                let next = Instant::now() + self.idle;
                self.timer.as_mut().reset(next);
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                let what = format!("the answer broke off: {error}");
                Poll::Ready(Some(Err(broken(HttpErrorKind::Interrupted, what, true))))
            }
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => match self.timer.as_mut().poll(cx) {
                Poll::Ready(()) => {
                    let what = format!("no byte came for {:?}", self.idle);
                    Poll::Ready(Some(Err(broken(HttpErrorKind::Timeout, what, true))))
                }
                Poll::Pending => Poll::Pending,
            },
        }
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read() {
        let of = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(RANGE, text.parse().unwrap());
            range_len(&headers)
        };
        assert_eq!(of("bytes=5-9"), Some(5));
        for odd in ["bytes=9-5", "bytes=-5", "bytes=5-", "bytes=0-18446744073709551615", "x"] {
            assert_eq!(of(odd), None, "{odd}");
        }
        let given = |text: &str| given_len(&text.parse().unwrap());
        assert_eq!(given("bytes 0-4/5"), Some(5));
        for odd in ["bytes 5-2/9", "bytes x", "*", "bytes 0-18446744073709551615/5"] {
            assert_eq!(given(odd), None, "{odd}");
        }
        let beyond = |text: &str| is_beyond(&text.parse().unwrap());
        assert!(beyond("bytes 0-18446744073709551615/5") && !beyond("bytes 0-4/5") && !beyond("*"));
    }
}
