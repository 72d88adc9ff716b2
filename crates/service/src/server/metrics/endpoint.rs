//! One thread that answers all who fetch metrics.
//!
//! A hostile client can hold none of the service: the thread does nothing else, waits for nobody,
//! and keeps at most [`MAX_CONNECTIONS`] of them for at most two seconds. If one more comes, the
//! oldest is closed: a client that wants metrics was answered long before. The text is made at most
//! ten times a second, however often it is asked for.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datapipes_metrics::{Label, Sample, prometheus, vocabulary};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};

use super::connection::{MetricsConnection, Progress};
use super::listener::MetricsListener;
use super::request::{Wanted, head};
use crate::server::quotas::token_bucket::TokenBucket;
use crate::server::shared::Shared;
use crate::server::status::{Viewer, service_status};

/// Connections at a time.
const MAX_CONNECTIONS: usize = 16;
/// Connections accepted in a second.
const MAX_ACCEPTS_PER_S: u32 = 200;
/// How long a text is given to others who ask.
const FRESH: Duration = Duration::from_millis(100);
/// How long to accept nobody after the kernel had no descriptor or memory for a connection.
const PAUSE: Duration = Duration::from_millis(100);

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Answers until the service closes.
pub(in crate::server) fn run(shared: &Shared, listener: MetricsListener) {
    let now = Instant::now();
    let accepts = TokenBucket::new(MAX_ACCEPTS_PER_S, now);
    let page = Page { shared, shows_clients: listener.shows_clients, text: None, counts: Counts::default() };
    let mut endpoint = Endpoint { listener, connections: Vec::new(), accepts, accepts_from: now, page };
    while endpoint.turn() {}
}

struct Endpoint<'a> {
    listener: MetricsListener,
    /// The oldest first.
    connections: Vec<MetricsConnection>,
    accepts: TokenBucket,
    /// Nobody is accepted before.
    accepts_from: Instant,
    page: Page<'a>,
}

impl Endpoint<'_> {
    /// Waits for events and goes on with what they are for. Returns false when the service closes.
    fn turn(&mut self) -> bool {
        let now = Instant::now();
        let accepts = now >= self.accepts_from;
        let listens = if accepts { PollFlags::IN } else { PollFlags::empty() };
        let mut fds =
            vec![PollFd::new(&self.page.shared.closing, PollFlags::IN), PollFd::new(&self.listener.socket, listens)];
        fds.extend(self.connections.iter().map(MetricsConnection::event));
        let ends = self.connections.iter().map(|connection| connection.until);
        let next = ends.chain((!accepts).then_some(self.accepts_from)).min();
        let timeout = next.map(|at| {
            let left = at.saturating_duration_since(now);
            // The kernel's clock may be a little behind: one turn too early is only a short one.
            Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() }
        });
        // Only EINTR can happen: these descriptors are our own.
        let ready = poll(&mut fds, timeout.as_ref()).is_ok();
        let due: Vec<bool> = fds.iter().map(|fd| ready && !fd.revents().is_empty()).collect();
        drop(fds);
        if due[0] {
            return false;
        }
        self.go_on(&due[2..]);
        if due[1] && accepts {
            self.accept();
        }
        true
    }

    /// Goes on with the connections that something came for, and closes those whose time is over.
    fn go_on(&mut self, due: &[bool]) {
        let now = Instant::now();
        let mut due = due.iter();
        let page = &mut self.page;
        self.connections.retain_mut(|connection| {
            let progress = match due.next() {
                Some(true) => connection.go_on(|wanted| page.answer(wanted)),
                _ => Progress::Waits,
            };
            let stays = progress != Progress::Gone && now < connection.until;
            if !stays && !connection.is_answered() {
                page.counts.cut += 1;
            }
            stays
        });
    }

    fn accept(&mut self) {
        match accept_with(&self.listener.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => self.add(socket),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
            Err(_) => self.accepts_from = Instant::now() + PAUSE,
        }
    }

    fn add(&mut self, socket: OwnedFd) {
        let now = Instant::now();
        if self.connections.len() >= MAX_CONNECTIONS && !self.connections.remove(0).is_answered() {
            self.page.counts.cut += 1;
        }
        self.connections.push(MetricsConnection::new(socket, now));
        self.accepts_from = now + self.accepts.take(now);
    }
}

/// The numbers of requests by how they ended.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    answered: u64,
    refused: u64,
    cut: u64,
}

/// The page that clients get.
struct Page<'a> {
    shared: &'a Shared,
    shows_clients: bool,
    /// The last one, and when it was made.
    text: Option<(Instant, Arc<[u8]>)>,
    counts: Counts,
}

impl Page<'_> {
    fn answer(&mut self, wanted: Wanted) -> Arc<[u8]> {
        match wanted {
            Wanted::Metrics { with_body } => {
                // The answer counts itself.
                self.counts.answered += 1;
                self.metrics(with_body)
            }
            Wanted::Refusal(status, reason, advice) => {
                self.counts.refused += 1;
                refusal(status, reason, advice)
            }
        }
    }

    fn metrics(&mut self, with_body: bool) -> Arc<[u8]> {
        let now = Instant::now();
        let answer = match &self.text {
            Some((at, answer)) if now.saturating_duration_since(*at) < FRESH => answer.clone(),
            _ => {
                let viewer = if self.shows_clients { Viewer::All } else { Viewer::Nobody };
                let status = match service_status(self.shared, viewer) {
                    Ok(status) => status,
                    Err(e) => {
                        self.counts.answered -= 1;
                        self.counts.refused += 1;
                        return refusal(503, "Service Unavailable", &e.to_string());
                    }
                };
                let mut samples = status.samples();
                let Counts { answered, refused, cut } = self.counts;
                let of = |(outcome, n)| Sample::new(&vocabulary::SERVICE_SCRAPES, n).label(Label::Outcome, outcome);
                samples.extend([("completed", answered), ("refused", refused), ("cut", cut)].map(of));
                let text = prometheus(&samples);
                let answer: Arc<[u8]> = (head(200, "OK", TEXT, text.len()) + &text).into_bytes().into();
                self.text = Some((now, answer.clone()));
                answer
            }
        };
        if with_body {
            return answer;
        }
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").map_or(answer.len(), |at| at + 4);
        answer[..end].into()
    }
}

fn refusal(status: u16, reason: &str, advice: &str) -> Arc<[u8]> {
    let text = format!("{advice}\n");
    (head(status, reason, "text/plain; charset=utf-8", text.len()) + &text).into_bytes().into()
}
