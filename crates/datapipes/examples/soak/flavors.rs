//! Carrying out the transfers of a leg in one of the flavors. Each function returns the outcome of
//! each span.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::sync::mpsc;
use std::task::{Context, Poll};

use datapipes::descriptor::wire::{Completion, MESSAGE_BYTES, TransferRequest};
use datapipes::graph::Graph;
use datapipes::runtime::{Cancelled, RuntimePipe};
use datapipes::{ErrorKind, Handle, Pipe, PipeFd, Result, Runtime, Span};
use rustix::event::{PollFd, PollFlags, poll};

use crate::harm;
use crate::random::Random;

/// The outcome of a span: moved or failed, stopped by the caller, or not reported.
pub(crate) enum Fate {
    Done(Result<()>),
    Cancelled,
    Unheard,
}

/// A pipe in one of the flavors.
pub(crate) enum AnyPipe {
    Blocking(Box<Pipe>),
    Runtime(RuntimePipe),
    Descriptor(PipeFd),
    /// A bare descriptor, as another process would have.
    Packets(OwnedFd),
}

/// The number of ways to use a pipe of the runtime.
const WAYS: u64 = 13;

impl AnyPipe {
    /// Moves the spans, which do not overlap, each once. The outcomes are in their order.
    pub(crate) fn carry(&self, runtime: &Runtime, spans: &[Span], random: &mut Random) -> Vec<Fate> {
        match self {
            AnyPipe::Blocking(pipe) if random.one_in(2) => {
                spans.iter().map(|s| Fate::Done(pipe.transfer(*s))).collect()
            }
            AnyPipe::Blocking(pipe) => {
                let started: Vec<_> = spans.iter().map(|span| pipe.start(*span)).collect();
                in_any_order(started, random, |started| Fate::Done(started.and_then(|transfer| transfer.wait())))
            }
            AnyPipe::Runtime(pipe) => by_runtime(pipe, runtime, spans, random),
            AnyPipe::Descriptor(pipe) => by_descriptor(pipe, spans, random),
            AnyPipe::Packets(fd) => by_packets(fd, spans),
        }
    }
}

/// Ends the operations in any order. The results are in the order in which they were begun.
fn in_any_order<T>(begun: Vec<T>, random: &mut Random, mut end: impl FnMut(T) -> Fate) -> Vec<Fate> {
    let mut fates: Vec<Option<Fate>> = begun.iter().map(|_| None).collect();
    let mut begun: Vec<(usize, T)> = begun.into_iter().enumerate().collect();
    while !begun.is_empty() {
        let (at, one) = begun.swap_remove(random.below(begun.len() as u64) as usize);
        fates[at] = Some(end(one));
    }
    fates.into_iter().map(|fate| fate.unwrap_or(Fate::Unheard)).collect()
}

fn by_runtime(pipe: &RuntimePipe, runtime: &Runtime, spans: &[Span], random: &mut Random) -> Vec<Fate> {
    let start = |span: &Span| pipe.transfer(*span);
    let way = random.below(WAYS);
    match way {
        0 => in_any_order(spans.iter().map(start).collect(), random, |h: Result<Handle>| {
            Fate::Done(h.and_then(Handle::wait))
        }),
        1 => in_any_order(spans.iter().map(start).collect(), random, |h| Fate::Done(h.and_then(pollster::block_on))),
        2 => in_any_order(spans.iter().map(start).collect(), random, |h| {
            Fate::Done(h.and_then(|handle| runtime.block_on(handle)))
        }),
        3 => {
            let (sender, receiver) = mpsc::channel();
            for (at, span) in spans.iter().enumerate() {
                let sender = sender.clone();
                match pipe.transfer(*span) {
                    Ok(handle) => handle.on_done(move |result| _ = sender.send((at, result))),
                    Err(e) => _ = sender.send((at, Err(e))),
                }
            }
            collect(spans.len(), || receiver.recv().ok())
        }
        4 => {
            spans.iter().for_each(|span| drop(pipe.transfer(*span)));
            pipe.drain();
            spans.iter().map(|_| Fate::Unheard).collect()
        }
        5 => in_any_order(spans.iter().map(start).collect(), random, |h| match h.and_then(Handle::cancel) {
            Ok(Cancelled::Completed) => Fate::Done(Ok(())),
            Ok(Cancelled::Stopped { .. }) => Fate::Cancelled,
            Err(e) => Fate::Done(Err(e)),
        }),
        // A full queue gives the span back. Then an earlier transfer is waited for, and the span is
        // tried again.
        6 => {
            let mut fates: Vec<Fate> = spans.iter().map(|_| Fate::Unheard).collect();
            let mut under: Vec<(usize, Handle)> = Vec::new();
            for (at, span) in spans.iter().enumerate() {
                loop {
                    match pipe.try_transfer(*span) {
                        Ok(handle) => break under.push((at, handle)),
                        Err(refused) if refused.error.kind() == ErrorKind::Busy && !under.is_empty() => {
                            let (at, handle) = under.remove(0);
                            fates[at] = Fate::Done(handle.wait());
                        }
                        Err(refused) => break fates[at] = Fate::Done(Err(refused.error)),
                    }
                }
            }
            under.into_iter().for_each(|(at, handle)| fates[at] = Fate::Done(handle.wait()));
            fates
        }
        7 => {
            let outcome = Mutexed::new(spans.len());
            let mut graph = Graph::new("soak");
            let part = graph.pipe("move", pipe, |item| Ok(spans[item.index() as usize]));
            let note = graph.compute("note", |item| {
                outcome.done(item.index() as usize);
                Ok(())
            });
            if random.one_in(2) {
                _ = graph.in_order(note);
            }
            graph.threads(1);
            let result = graph.after(note, part).and_then(|()| runtime.run(&graph, spans.len() as u64));
            drop(graph);
            outcome.fates(result.map(drop))
        }
        // The handles are polled and tested, and then left alone or waited for.
        8 => in_any_order(spans.iter().map(start).collect(), random, |h| match h {
            Ok(handle) => {
                while !handle.is_done() {
                    std::thread::yield_now();
                }
                Fate::Done(handle.wait())
            }
            Err(e) => Fate::Done(Err(e)),
        }),
        // The callbacks panic after they have reported.
        9 => {
            let (sender, receiver) = mpsc::channel();
            for (at, span) in spans.iter().enumerate() {
                let sender = sender.clone();
                match pipe.transfer(*span) {
                    Ok(handle) => handle.on_done(move |result| {
                        _ = sender.send((at, result));
                        harm::throw();
                    }),
                    Err(e) => _ = sender.send((at, Err(e))),
                }
            }
            collect(spans.len(), || receiver.recv().ok())
        }
        // The wakers panic; their futures are waited for afterwards.
        10 => in_any_order(spans.iter().map(start).collect(), random, |h| match h {
            Ok(mut handle) => match pin!(&mut handle).poll(&mut Context::from_waker(&harm::waker())) {
                Poll::Ready(result) => Fate::Done(result),
                Poll::Pending => Fate::Done(handle.wait()),
            },
            Err(e) => Fate::Done(Err(e)),
        }),
        // A child drops the handles, and the parent waits for them.
        11 => {
            let (mut fates, mut started): (Vec<_>, Vec<_>) = (Vec::new(), Vec::new());
            for (at, span) in spans.iter().enumerate() {
                match start(span) {
                    Ok(handle) => started.push((at, handle)),
                    Err(e) => fates.push((at, Err(e))),
                }
            }
            let (places, handles): (Vec<_>, Vec<_>) = started.into_iter().unzip();
            let handles = harm::fork(pipe, handles, spans[0]);
            fates.extend(places.into_iter().zip(handles.into_iter().map(Handle::wait)));
            let mut fates = fates.into_iter();
            collect(spans.len(), || fates.next())
        }
        _ => {
            let handles = pipe.transfer_all(spans.iter().copied());
            match handles.map(|handles| runtime.block_on(handles)) {
                Ok(Ok(())) => spans.iter().map(|_| Fate::Done(Ok(()))).collect(),
                Ok(Err(e)) | Err(e) => {
                    // Spans that were started before the one that failed to start are carried out.
                    pipe.drain();
                    let mut fates: Vec<Fate> = spans.iter().map(|_| Fate::Unheard).collect();
                    fates[0] = Fate::Done(Err(e));
                    fates
                }
            }
        }
    }
}

/// The items of a graph that completed.
struct Mutexed(std::sync::Mutex<Vec<bool>>);

impl Mutexed {
    fn new(len: usize) -> Mutexed {
        Mutexed(std::sync::Mutex::new(vec![false; len]))
    }

    fn done(&self, at: usize) {
        self.0.lock().unwrap_or_else(|e| e.into_inner())[at] = true;
    }

    fn fates(self, result: Result<()>) -> Vec<Fate> {
        let done = self.0.into_inner().unwrap_or_else(|e| e.into_inner());
        let mut fates: Vec<_> = done.iter().map(|d| if *d { Fate::Done(Ok(())) } else { Fate::Unheard }).collect();
        if let Err(e) = result
            && let Some(fate) = fates.iter_mut().find(|fate| matches!(fate, Fate::Unheard))
        {
            *fate = Fate::Done(Err(e));
        }
        fates
    }
}

fn collect(n: usize, mut next: impl FnMut() -> Option<(usize, Result<()>)>) -> Vec<Fate> {
    let mut fates: Vec<Fate> = (0..n).map(|_| Fate::Unheard).collect();
    for _ in 0..n {
        if let Some((at, result)) = next() {
            fates[at] = Fate::Done(result);
        }
    }
    fates
}

fn by_descriptor(pipe: &PipeFd, spans: &[Span], random: &mut Random) -> Vec<Fate> {
    let mut places = HashMap::new();
    let mut fates: Vec<Fate> = spans.iter().map(|_| Fate::Unheard).collect();
    let mut take = |places: &mut HashMap<u64, usize>, wait: bool| -> Result<bool> {
        let done = if wait { Some(pipe.complete_wait()?) } else { pipe.complete()? };
        let Some(done) = done else { return Ok(false) };
        if let Some(at) = places.remove(&done.token) {
            fates[at] = Fate::Done(done.result);
        }
        Ok(true)
    };
    let mut broken = None;
    for (at, span) in spans.iter().enumerate() {
        loop {
            match pipe.submit(*span) {
                Ok(token) => {
                    places.insert(token, at);
                    break;
                }
                Err(e) if e.kind() == ErrorKind::Busy => {
                    if places.is_empty() || random.one_in(2) {
                        until(pipe, PollFlags::OUT);
                    } else if let Err(e) = take(&mut places, true) {
                        broken = Some(e);
                    }
                }
                Err(e) => {
                    broken = Some(e);
                    break;
                }
            }
        }
        if random.one_in(4) {
            _ = take(&mut places, false);
        }
    }
    while !places.is_empty() && broken.is_none() {
        if let Err(e) = take(&mut places, true) {
            broken = Some(e);
        }
    }
    if let Some(e) = broken {
        fates[0] = Fate::Done(Err(e));
    }
    fates
}

fn by_packets(fd: &OwnedFd, spans: &[Span]) -> Vec<Fate> {
    let mut fates: Vec<Fate> = spans.iter().map(|_| Fate::Unheard).collect();
    let (mut sent, mut heard) = (0, 0);
    while heard < spans.len() {
        let flags = if sent < spans.len() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        until(fd, flags);
        if sent < spans.len() {
            let request = TransferRequest { token: sent as u64, span: spans[sent] };
            if rustix::io::write(fd, &request.to_bytes()).is_ok() {
                sent += 1;
            }
        }
        let mut message = [0; MESSAGE_BYTES];
        while let Ok(len) = rustix::io::read(fd, &mut message) {
            if let Some(done) = Completion::from_bytes(&message[..len]) {
                fates[done.token as usize] = Fate::Done(done.result);
                heard += 1;
            }
        }
    }
    fates
}

fn until(fd: &impl AsFd, flags: PollFlags) {
    let mut fds = [PollFd::new(fd, flags)];
    while !fds[0].revents().intersects(flags) {
        _ = poll(&mut fds, None);
    }
}
