//! Across machines, simulated on one: two network namespaces, connected by a pair of virtual
//! interfaces. The application and its controller are in one, the devices and their controller in
//! the other.
//!
//! ```text
//! distributed        application ==TCP==> device --memory--> device ==TCP==> application
//! application-side   application ==TCP==> device ==TCP==> application ==TCP==> device
//!                    ==TCP==> application
//! ```
//! Both namespaces belong to threads of this program and are gone with them. The unsafe code is the
//! call that makes a namespace. That call could also unshare the table of descriptors, and does not
//! here.
#![allow(unsafe_code)]

use std::net::SocketAddr;
use std::process::Command;
use std::sync::mpsc::{Receiver as Inbox, Sender as Outbox, channel};
use std::time::Duration;

use datapipes_fabric::capability::{Cap, Rights};
use datapipes_fabric::channel::{ChannelShape, Trust};
use datapipes_fabric::control::{Key, Program, Session};
use datapipes_fabric::device::relay;
use datapipes_fabric::placement::{DeviceGraph, Placement};
use rustix::thread::{UnshareFlags, gettid, unshare_unsafe};
use serde_json::json;

use super::{LONG, Outcome, forward, round_trips, row};

const DEVICES: usize = 2;

/// The application's sides of the links.
const DISTRIBUTED: [Rights; 2] = [Rights::SEND, Rights::RECEIVE];
const APPLICATION: [Rights; 4] = [Rights::SEND, Rights::RECEIVE, Rights::SEND, Rights::RECEIVE];

/// Prints rows, or the reason why this cannot run here.
pub(super) fn run(sizes: &[usize], span: Duration) -> Outcome<()> {
    let sizes = sizes.to_vec();
    let thread = std::thread::spawn(move || application(&sizes, span).map_err(|e| e.to_string()));
    Ok(thread.join().map_err(|_| "a thread panicked")??)
}

/// Runs on its own thread, because a namespace belongs to a thread.
fn application(sizes: &[usize], span: Duration) -> Outcome<()> {
    own_namespace()?;
    let (to_devices, orders) = channel();
    let (answers, from_devices) = channel();
    let devices = std::thread::spawn(move || machine_of_devices(&orders, &answers).map_err(|e| e.to_string()));
    let measured = measure(sizes, span, &to_devices, &from_devices);
    drop(to_devices);
    let ended = devices.join().map_err(|_| "a thread panicked")?;
    // An error there explains an error here.
    ended?;
    measured
}

/// Messages between the two machines beside the links.
enum Word {
    /// The devices' thread is running.
    Thread(i32),
    /// The interfaces are connected.
    Wired,
    /// A request for devices.
    Start { size: usize, links: Vec<Rights> },
    /// Links are offered there.
    Offered(Vec<(SocketAddr, Key)>),
    /// The measurement is done.
    Done,
    /// The devices are gone.
    Ended,
}

fn measure(sizes: &[usize], span: Duration, to: &Outbox<Word>, from: &Inbox<Word>) -> Outcome<()> {
    let Word::Thread(peer) = from.recv()? else { return Err("the devices' thread is not there".into()) };
    ip(&["link", "add", "dpa", "type", "veth", "peer", "name", "dpb", "netns", &peer.to_string()])?;
    ip(&["addr", "add", "192.0.2.1/24", "dev", "dpa"])?;
    ip(&["link", "set", "dpa", "up"])?;
    to.send(Word::Wired)?;
    let mut session = Session::start(&Program::This)?;
    for size in sizes {
        for (way, links) in [("distributed", &DISTRIBUTED[..]), ("application-side", &APPLICATION[..])] {
            to.send(Word::Start { size: *size, links: links.to_vec() })?;
            let Word::Offered(offered) = from.recv()? else { return Err("no devices".into()) };
            let (p50_us, p99_us) = over_links(&mut session, *size, span, links, &offered)?;
            to.send(Word::Done)?;
            from.recv()?;
            let way = format!("{way}, TCP across two network namespaces");
            row(&way, DEVICES, *size, json!({ "p50_us": p50_us, "p99_us": p99_us }));
        }
    }
    Ok(())
}

fn over_links(
    session: &mut Session,
    size: usize,
    span: Duration,
    links: &[Rights],
    offered: &[(SocketAddr, Key)],
) -> Outcome<(f64, f64)> {
    let shape = ChannelShape::new(1, size);
    let mut graph = DeviceGraph::new(shape, Trust::Copy);
    for (side, (address, key)) in links.iter().zip(offered) {
        let link = session.join(shape, *side, *address, key)?;
        session.joined(link, LONG)?;
        let there = graph.elsewhere(link);
        match *side {
            Rights::SEND => graph.connect(DeviceGraph::APPLICATION, there)?,
            _ => graph.connect(there, DeviceGraph::APPLICATION)?,
        }
    }
    let mut flow = graph.start(session, Placement::DistributedResourceSide)?;
    let mut take = |n: usize| -> Outcome<_> {
        let sender = flow.take_sender(n).ok_or("no sender")?.with_patience(LONG);
        Ok((sender, flow.take_receiver(n).ok_or("no receiver")?.with_patience(LONG)))
    };
    let (mut first, mut last) = take(0)?;
    let mut relaying = None;
    if links.len() > 2 {
        // In the application-side placement, the output of the first device is relayed to the
        // second.
        let (mut onward, end) = take(1)?;
        let mut between = std::mem::replace(&mut last, end);
        relaying = Some(std::thread::spawn(move || relay(&mut between, &mut onward).map(|_| ())));
    }
    let times = round_trips(&mut first, &mut last, size, span)?;
    drop((first, last));
    flow.end(session)?;
    if let Some(thread) = relaying {
        // It ended because the channel ended.
        let _ = thread.join();
    }
    Ok(times)
}

/// Acts as the other machine: a controller, and two devices for each order.
fn machine_of_devices(orders: &Inbox<Word>, answers: &Outbox<Word>) -> Outcome<()> {
    own_namespace()?;
    answers.send(Word::Thread(gettid().as_raw_nonzero().get()))?;
    let Ok(Word::Wired) = orders.recv() else { return Ok(()) };
    ip(&["addr", "add", "192.0.2.2/24", "dev", "dpb"])?;
    ip(&["link", "set", "dpb", "up"])?;
    let mut session = Session::start(&Program::This)?;
    while let Ok(Word::Start { size, links }) = orders.recv() {
        let shape = ChannelShape::new(1, size);
        let (mut caps, mut offered): (Vec<Cap>, Vec<_>) = Default::default();
        for side in &links {
            let (key, here) = (Key::random()?, if *side == Rights::SEND { Rights::RECEIVE } else { Rights::SEND });
            let (cap, address) = session.offer(shape, here, "192.0.2.2:0".parse()?, &key)?;
            caps.push(cap);
            offered.push((address, key));
        }
        answers.send(Word::Offered(offered))?;
        for cap in &caps {
            session.joined(*cap, LONG)?;
        }
        let mut graph = DeviceGraph::new(shape, Trust::Copy);
        let there: Vec<_> = caps.iter().map(|cap| graph.elsewhere(*cap)).collect();
        let devices = ["one", "two"].map(|name| graph.device(name, forward(), Vec::new()));
        match there[..] {
            [first, last] => {
                graph.connect(first, devices[0])?;
                graph.connect(devices[0], devices[1])?;
                graph.connect(devices[1], last)?;
            }
            _ => {
                for (at, link) in there.iter().enumerate() {
                    let device = devices[at / 2];
                    if at % 2 == 0 { graph.connect(*link, device)? } else { graph.connect(device, *link)? }
                }
            }
        }
        let flow = graph.start(&mut session, Placement::DistributedResourceSide)?;
        let Ok(Word::Done) = orders.recv() else { return Ok(()) };
        flow.end(&mut session)?;
        answers.send(Word::Ended)?;
    }
    Ok(())
}

/// Gives the calling thread, and threads that it starts, a new network namespace.
fn own_namespace() -> Outcome<()> {
    // SAFETY: the table of descriptors stays shared, and only unsharing that could break something.
    // A new network affects only sockets that are made from here on.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.map_err(|e| format!("a network namespace: {e}"))?;
    ip(&["link", "set", "lo", "up"])
}

fn ip(arguments: &[&str]) -> Outcome<()> {
    let output = Command::new("ip").args(arguments).output().map_err(|e| format!("ip: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ip {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim()).into())
}
