//! Graphs of devices, and their flows.

use std::ffi::c_char;
use std::fmt::Write as _;
use std::sync::Arc;

use datapipes::fabric::capability::Cap;
use datapipes::fabric::device::DeviceRole;
use datapipes::fabric::placement::{DeviceGraph, DeviceNode, Flow, Placement};
use datapipes::{Error, ErrorKind, Result};

use crate::arguments;
use crate::channel::{dp_channel_shape, dp_receiver, dp_sender, keep_receiver, keep_sender, patience_of, trust_of};
use crate::door::enter;
use crate::error::dp_error;
use crate::fabric::{Fabric, carrier_of, dp_capability, dp_fabric, fabric_of};
use crate::handles::{Kind, Table};
use crate::place::duplicate;
use crate::process_lock::ProcessLock;

/// Devices, and the channels between them, before any of them exists. It belongs to the caller, who
/// starts it with `dp_device_graph_start`, or closes it with `dp_device_graph_close`. One thread at a
/// time uses it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dp_device_graph {
    /// The number; 0 for none.
    pub id: u64,
}

/// Running devices, and the program's ends of their channels. It belongs to the caller, who closes it
/// with `dp_flow_close`. Any number of threads may use it at once.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dp_flow {
    /// The number; 0 for none.
    pub id: u64,
}

/// Who moves blocks from device to device.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum dp_placement {
    /// The one of the three that is estimated to be the best here.
    DP_PLACEMENT_AUTO = 0,
    /// The program, which talks to each device.
    DP_PLACEMENT_APPLICATION_SIDE = 1,
    /// A process beside the devices, which alone talks to them.
    DP_PLACEMENT_CENTRAL = 2,
    /// The devices themselves.
    DP_PLACEMENT_DISTRIBUTED = 3,
}

fn placement_of(number: u32) -> Result<Placement> {
    match number {
        0 => Ok(Placement::Auto),
        1 => Ok(Placement::ApplicationSide),
        2 => Ok(Placement::CentralResourceSide),
        3 => Ok(Placement::DistributedResourceSide),
        other => Err(Error::new(ErrorKind::InvalidInput, "start", format!("{other} is no dp_placement"))),
    }
}

/// The nodes of a graph by number; the first is the application.
struct Declared {
    graph: DeviceGraph,
    nodes: Vec<DeviceNode>,
}

fn node_of(nodes: &[DeviceNode], number: u32) -> Result<DeviceNode> {
    nodes.get(number as usize).copied().ok_or_else(|| {
        let why = format!("node {number} of a graph with {}", nodes.len());
        Error::new(ErrorKind::InvalidInput, "use a node", why)
    })
}

static GRAPHS: Table<ProcessLock<Option<Declared>>> = Table::new(Kind::DeviceGraph);

struct Flowing {
    fabric: Arc<Fabric>,
    nodes: Vec<DeviceNode>,
    flow: ProcessLock<Option<Flow>>,
}

static FLOWS: Table<Flowing> = Table::new(Kind::Flow);

fn with<R>(graph: dp_device_graph, work: impl FnOnce(&mut Declared) -> Result<R>) -> Result<R> {
    let graph = GRAPHS.get(graph.id)?;
    let mut declared = graph
        .try_lock("use a graph")?
        .ok_or_else(|| Error::new(ErrorKind::Busy, "declare", "another thread declares the graph"))?;
    work(declared.as_mut().ok_or_else(|| Error::new(ErrorKind::InvalidInput, "declare", "the graph was started"))?)
}

fn with_flow<R>(flow: dp_flow, work: impl FnOnce(&Flowing, &mut Flow) -> Result<R>) -> Result<R> {
    let flowing = FLOWS.get(flow.id)?;
    let mut held = flowing.flow.lock("use a flow")?;
    work(
        &flowing,
        held.as_mut().ok_or_else(|| Error::new(ErrorKind::InvalidInput, "use a flow", "it is being closed"))?,
    )
}

/// Makes a graph without devices. The shape, the trust of receivers in senders (a `dp_trust`) and the
/// carrier (a `dp_carrier`) are those of its channels.
///
/// Errors: DP_INVALID_INPUT for a shape that is out of bounds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_device_graph_new(
    shape: dp_channel_shape,
    trust: u32,
    carrier: u32,
    graph: *mut dp_device_graph,
) -> dp_error {
    enter(|| {
        arguments::check(graph, "graph")?;
        let (shape, trust, carrier) = (shape.shape()?, trust_of(trust)?, carrier_of(carrier)?);
        shape.check()?;
        let graph_of_devices = DeviceGraph::new(shape, trust).over(carrier);
        let declared = Declared { graph: graph_of_devices, nodes: vec![DeviceGraph::APPLICATION] };
        let id = GRAPHS.put(ProcessLock::new(Some(declared)))?;
        // SAFETY: the header says what the pointer is.
        unsafe { arguments::give(graph, "graph", dp_device_graph { id }) }
    })
}

/// # Safety
/// `node` is valid for a write.
unsafe fn add(declared: &mut Declared, made: DeviceNode, node: *mut u32) -> Result<()> {
    declared.nodes.push(made);
    // SAFETY: the caller of this function says so.
    unsafe { arguments::give(node, "node", u32::try_from(declared.nodes.len() - 1).unwrap_or(u32::MAX)) }
}

/// Adds a device; `*node` becomes its number. Node 0 is the program itself. `role` is JSON, such as
/// `{"transform": {"function": "crc32"}}` (docs/c.md lists the roles). A place in it names one of the
/// `count` descriptors by its index. They are duplicated, and stay the caller's.
///
/// Errors: DP_INVALID_INPUT for a role that is none, or a descriptor that is not open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_device_graph_device(
    graph: dp_device_graph,
    name: *const c_char,
    role: *const c_char,
    descriptors: *const i32,
    count: usize,
    node: *mut u32,
) -> dp_error {
    enter(|| {
        arguments::check(node, "node")?;
        // SAFETY: the header says what the pointers are.
        let (name, role, given) = unsafe {
            (
                arguments::text(name, "name")?,
                arguments::text(role, "role")?,
                arguments::slice(descriptors, count, "descriptors")?,
            )
        };
        let role: DeviceRole = serde_json::from_str(role)
            .map_err(|e| Error::new(ErrorKind::InvalidInput, "declare", format!("`{role}` is no role: {e}")))?;
        let given = given.iter().map(|number| duplicate(*number)).collect::<Result<_>>()?;
        with(graph, |declared| {
            let made = declared.graph.device(name, role, given);
            // SAFETY: as above.
            unsafe { add(declared, made, node) }
        })
    })
}

/// Adds the other end of a link: a part of a graph on another machine; `*node` becomes its number. It
/// takes one edge. The flow owns the link, and revokes it at its end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_device_graph_elsewhere(
    graph: dp_device_graph,
    link: dp_capability,
    node: *mut u32,
) -> dp_error {
    enter(|| {
        arguments::check(node, "node")?;
        with(graph, |declared| {
            let made = declared.graph.elsewhere(Cap(link.number));
            // SAFETY: the header says what the pointer is.
            unsafe { add(declared, made, node) }
        })
    })
}

/// Lets blocks flow from one node to another. Several edges from a node are a fan-out, several edges
/// to a node a fan-in.
///
/// Errors: DP_INVALID_INPUT for an edge from a node to itself, and for a node of another graph.
#[unsafe(no_mangle)]
pub extern "C" fn dp_device_graph_connect(graph: dp_device_graph, from: u32, to: u32) -> dp_error {
    enter(|| {
        with(graph, |declared| {
            let (from, to) = (node_of(&declared.nodes, from)?, node_of(&declared.nodes, to)?);
            declared.graph.connect(from, to)
        })
    })
}

/// As `dp_device_graph_connect`, with another shape and another trust.
///
/// Errors: as `dp_device_graph_connect`; DP_INVALID_INPUT for a trust that needs checks over a shape
/// without.
#[unsafe(no_mangle)]
pub extern "C" fn dp_device_graph_connect_with(
    graph: dp_device_graph,
    from: u32,
    to: u32,
    shape: dp_channel_shape,
    trust: u32,
) -> dp_error {
    enter(|| {
        let (shape, trust) = (shape.shape()?, trust_of(trust)?);
        with(graph, |declared| {
            let (from, to) = (node_of(&declared.nodes, from)?, node_of(&declared.nodes, to)?);
            declared.graph.connect_with(from, to, shape, trust)
        })
    })
}

/// Starts the devices of a graph, and connects them by a `dp_placement`. The graph is closed by this,
/// also where it fails; only where an argument is refused it stays as it was.
///
/// Errors: DP_INVALID_INPUT for a graph without edges; DP_DEVICE for a device that does not start;
/// DP_OUT_OF_MEMORY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_device_graph_start(
    graph: dp_device_graph,
    fabric: dp_fabric,
    placement: u32,
    flow: *mut dp_flow,
) -> dp_error {
    enter(|| {
        arguments::check(flow, "flow")?;
        let (placement, fabric) = (placement_of(placement)?, fabric_of(fabric)?);
        let taken = {
            let held = GRAPHS.get(graph.id)?;
            let declared = held.try_lock("start")?.and_then(|mut declared| declared.take());
            declared.ok_or_else(|| Error::new(ErrorKind::Busy, "start", "another thread uses the graph"))?
        };
        GRAPHS.close(graph.id)?;
        let Declared { graph, nodes } = taken;
        let started = fabric.with("start", |session| graph.start(session, placement))??;
        let id = FLOWS.put(Flowing { fabric, nodes, flow: ProcessLock::new(Some(started)) })?;
        // SAFETY: the header says what the pointer is.
        unsafe { arguments::give(flow, "flow", dp_flow { id }) }
    })
}

/// Ends a graph that was not started.
///
/// Errors: DP_INVALID_INPUT for a graph that was started or closed.
#[unsafe(no_mangle)]
pub extern "C" fn dp_device_graph_close(graph: dp_device_graph) -> dp_error {
    enter(|| GRAPHS.close(graph.id))
}

fn taken(what: &str, number: usize) -> Error {
    let why = format!("the program's {what} {number} was taken already, or there is none");
    Error::new(ErrorKind::InvalidInput, "take", why)
}

/// Takes the program's sending end with this number, in the order of the edges that begin at it.
///
/// Errors: DP_INVALID_INPUT where it was taken already, or there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_flow_sender(flow: dp_flow, number: usize, sender: *mut dp_sender) -> dp_error {
    enter(|| {
        arguments::check(sender, "sender")?;
        let end = with_flow(flow, |_, flow| flow.take_sender(number).ok_or_else(|| taken("sender", number)))?;
        // SAFETY: the header says what the pointer is.
        unsafe { arguments::give(sender, "sender", keep_sender(end)?) }
    })
}

/// Takes the program's receiving end with this number, in the order of the edges that end at it.
///
/// Errors: DP_INVALID_INPUT where it was taken already, or there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_flow_receiver(flow: dp_flow, number: usize, receiver: *mut dp_receiver) -> dp_error {
    enter(|| {
        arguments::check(receiver, "receiver")?;
        let end = with_flow(flow, |_, flow| flow.take_receiver(number).ok_or_else(|| taken("receiver", number)))?;
        // SAFETY: the header says what the pointer is.
        unsafe { arguments::give(receiver, "receiver", keep_receiver(end)?) }
    })
}

/// Gives the party of a device, to which capabilities can be delegated.
///
/// Errors: DP_INVALID_INPUT for a node that is no device of this flow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_flow_device(flow: dp_flow, node: u32, party: *mut u32) -> dp_error {
    enter(|| {
        arguments::check(party, "party")?;
        let device = with_flow(flow, |flowing, flow| flow.device(node_of(&flowing.nodes, node)?))?;
        // SAFETY: the header says what the pointer is.
        unsafe { arguments::give(party, "party", device.0.0) }
    })
}

/// Gives the capability of a wire, which `dp_fabric_revoke` cuts. `dp_flow_describe` lists the wires.
///
/// Errors: DP_OUT_OF_RANGE for a wire that is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_flow_capability(flow: dp_flow, wire: usize, capability: *mut dp_capability) -> dp_error {
    enter(|| {
        arguments::check(capability, "capability")?;
        let cap = with_flow(flow, |_, flow| {
            let has = flow.capabilities().len();
            let none = || Error::new(ErrorKind::OutOfRange, "name a wire", format!("wire {wire} of {has}"));
            flow.capabilities().get(wire).copied().ok_or_else(none)
        })?;
        // SAFETY: the header says what the pointer is.
        unsafe { arguments::give(capability, "capability", dp_capability { number: cap.0 }) }
    })
}

/// Copies the placement of a flow, why it was chosen, and its wires, one a line, as `snprintf` does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_flow_describe(
    flow: dp_flow,
    text: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> dp_error {
    enter(|| {
        arguments::check_optional(len, "len")?;
        let shown = with_flow(flow, |_, flow| {
            let mut shown = format!("{}\n", flow.placement.name());
            if let Some(choice) = &flow.choice {
                let _ = writeln!(shown, "{choice}"); // A String takes everything.
            }
            for wire in &flow.wiring().wires {
                let _ = writeln!(shown, "{wire}");
            }
            Ok(shown)
        })?;
        // SAFETY: the header says what the pointers are.
        unsafe { arguments::copy_text(&shown, text, capacity, len) };
        Ok(())
    })
}

/// Waits for a device's next report on a stream, up to `milliseconds`, and copies it as JSON, as
/// `snprintf` does. A report is given once, also where the text was cut.
///
/// Errors: DP_BUSY where none came in time; DP_DEVICE where the device ended, or its stream failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_flow_report(
    flow: dp_flow,
    node: u32,
    milliseconds: u64,
    text: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> dp_error {
    enter(|| {
        arguments::check_optional(len, "len")?;
        let fabric = with_flow(flow, |flowing, flow| {
            flow.device(node_of(&flowing.nodes, node)?)?;
            Ok(Arc::clone(&flowing.fabric))
        })?;
        let report = fabric.wait("wait for a report", patience_of(milliseconds), |session, turn| {
            with_flow(flow, |flowing, flow| flow.report(session, node_of(&flowing.nodes, node)?, turn))
        })?;
        let shown = arguments::json(&report)?;
        // SAFETY: the header says what the pointers are.
        unsafe { arguments::copy_text(&shown, text, capacity, len) };
        Ok(())
    })
}

/// Ends a flow: revokes its channels and stops its devices. Ends that were taken fail from then on.
///
/// Errors: DP_INVALID_INPUT for a flow that was closed; DP_UNAVAILABLE where the controller ended, and
/// with it the devices. The flow is closed nonetheless.
#[unsafe(no_mangle)]
pub extern "C" fn dp_flow_close(flow: dp_flow) -> dp_error {
    enter(|| {
        let (taken, fabric) = {
            let flowing = FLOWS.get(flow.id)?;
            if !flowing.flow.owner().is_here() {
                return FLOWS.close(flow.id); // A child ends its copy of the handle, and no device.
            }
            let taken = flowing.flow.lock("close")?.take();
            (taken, Arc::clone(&flowing.fabric))
        };
        FLOWS.close(flow.id)?;
        taken.map_or(Ok(()), |flow| fabric.with("end", |session| flow.end(session))?)
    })
}
