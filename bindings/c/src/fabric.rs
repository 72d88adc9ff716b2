//! Devices, and the controller that connects them by channels (Asmussen and Roitzsch, *Towards
//! Disaggregation-Native Data Streaming between Devices*).

use std::ffi::{CString, c_char, c_void};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datapipes::fabric::capability::{Cap, Party, Rights};
use datapipes::fabric::channel::Patience;
use datapipes::fabric::control::{Encryption, Key, LinkSpec, Program, Session};
use datapipes::fabric::device::{DeviceArguments, Function, Functions};
use datapipes::fabric::process;
use datapipes::fabric::transport::Carrier;
use datapipes::{Error, ErrorKind, Result};

use crate::arguments::{self, Field, Options, fields};
use crate::channel::{dp_channel_shape, dp_receiver, dp_sender, keep_receiver, keep_sender, patience_of, trust_of};
use crate::device_body::{self, dp_device_body};
use crate::door::enter;
use crate::error::dp_error;
use crate::handles::{Kind, Table};
use crate::machine::Shared;
use crate::process_lock::ProcessLock;

/// A controller process, which starts devices and connects them. It belongs to the caller, who closes
/// it with `dp_fabric_close`. Any number of threads may use it at once; their requests take turns.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dp_fabric {
    /// The number; 0 for none.
    pub id: u64,
}

/// The right to use a channel, as the controller knows it. It is a name, not a handle: it ends by
/// `dp_fabric_revoke`, or with its fabric.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dp_capability {
    /// The controller's number of it.
    pub number: u64,
}

/// What a capability allows. Sums of them are possible.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum dp_right {
    /// To be the sender of a channel.
    DP_RIGHT_SEND = 1,
    /// To be its receiver.
    DP_RIGHT_RECEIVE = 2,
    /// To read a memory.
    DP_RIGHT_READ = 4,
    /// To write a memory.
    DP_RIGHT_WRITE = 8,
    /// To delegate.
    DP_RIGHT_DELEGATE = 16,
}

fn rights_of(number: u32) -> Result<Rights> {
    let known =
        [(1, Rights::SEND), (2, Rights::RECEIVE), (4, Rights::READ), (8, Rights::WRITE), (16, Rights::DELEGATE)];
    if number & !known.iter().fold(0, |all, (bit, _)| all | bit) != 0 {
        return Err(Error::new(ErrorKind::InvalidInput, "call", format!("{number} is no sum of dp_right")));
    }
    Ok(known.iter().filter(|(bit, _)| number & bit != 0).fold(Rights::NONE, |all, (_, right)| all.and(*right)))
}

/// The technology of a channel within one machine.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum dp_carrier {
    /// Memory that both ends map.
    DP_CARRIER_SHARED_MEMORY = 0,
    /// A Unix socket.
    DP_CARRIER_UNIX_SOCKET = 1,
    /// A TCP connection over the loopback interface.
    DP_CARRIER_TCP = 2,
    /// UCX over shared memory, between two processes beside the ends; DP_UNAVAILABLE where UCX is
    /// not installed.
    DP_CARRIER_UCX = 3,
}

pub(crate) fn carrier_of(number: u32) -> Result<Carrier> {
    match number {
        0 => Ok(Carrier::SharedMemory),
        1 => Ok(Carrier::UnixSocket),
        2 => Ok(Carrier::TcpLoopback),
        3 => Ok(Carrier::Ucx),
        other => Err(Error::new(ErrorKind::InvalidInput, "call", format!("{other} is no dp_carrier"))),
    }
}

/// The longest time for which a thread keeps a fabric from others while it waits for an event.
const TURN: Duration = Duration::from_millis(20);

/// A session that one thread at a time uses.
pub(crate) struct Fabric(ProcessLock<Session>);

impl Fabric {
    pub(crate) fn with<R>(&self, operation: &'static str, work: impl FnOnce(&mut Session) -> R) -> Result<R> {
        Ok(work(&mut *self.0.lock(operation)?))
    }

    /// Waits for something, and lets other threads in meanwhile.
    pub(crate) fn wait<R>(
        &self,
        operation: &'static str,
        patience: Patience,
        mut work: impl FnMut(&mut Session, Patience) -> Result<R>,
    ) -> Result<R> {
        let since = Instant::now();
        loop {
            let left = patience.limit.saturating_sub(since.elapsed());
            let turn = Patience::up_to(left.min(TURN));
            match self.with(operation, |session| work(session, turn))? {
                Err(e) if e.kind() == ErrorKind::Busy && left > TURN => std::thread::yield_now(),
                outcome => return outcome,
            }
        }
    }
}

static FABRICS: Table<Arc<Fabric>> = Table::new(Kind::Fabric);

pub(crate) fn fabric_of(fabric: dp_fabric) -> Result<Arc<Fabric>> {
    Ok(Arc::clone(&*FABRICS.get(fabric.id)?))
}

/// Makes one block from another, in a device: reads `input_len` bytes at `input`, writes up to
/// `capacity` bytes at `output`, and says in `*output_len` how many. `arguments` is what the device was
/// given, as JSON. It is called by one thread, and can open nothing.
pub type dp_device_work = Option<
    unsafe extern "C" fn(
        user: *mut c_void,
        arguments: *const c_char,
        input: *const c_void,
        input_len: usize,
        output: *mut c_void,
        capacity: usize,
        output_len: *mut usize,
    ) -> dp_error,
>;

/// A function that devices of this program have, beside those of the library.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dp_device_function {
    /// The name by which a device's role calls it.
    pub name: *const c_char,
    /// What it does with a block.
    pub work: dp_device_work,
    /// What it is called with.
    pub user: *mut c_void,
}

/// A function of a program in C, in the process of a device.
struct OfC {
    work: unsafe extern "C" fn(
        *mut c_void,
        *const c_char,
        *const c_void,
        usize,
        *mut c_void,
        usize,
        *mut usize,
    ) -> dp_error,
    user: Shared,
    arguments: CString,
}

impl Function for OfC {
    fn apply(&mut self, input: &[u8], output: &mut [u8]) -> Result<usize> {
        let mut wrote = 0;
        let (from, to) = (input.as_ptr().cast(), output.as_mut_ptr().cast());
        // SAFETY: the program gave the function for these arguments; both slices live until it
        // returns.
        let outcome = unsafe {
            (self.work)(self.user.get(), self.arguments.as_ptr(), from, input.len(), to, output.len(), &raw mut wrote)
        };
        outcome.into_result("compute")?;
        if wrote > output.len() {
            let why = format!("the function says that it wrote {wrote} bytes into {}", output.len());
            return Err(Error::new(ErrorKind::OutOfRange, "compute", why));
        }
        Ok(wrote)
    }
}

/// If this process was started as a controller or a device, runs as that, and sets `*code` to the
/// exit code for `main`; in all other processes sets it to -1. Call it first in `main`, before there
/// are threads, with the functions that devices may be told to run (NULL and 0 for none): devices are
/// processes of the same program.
///
/// Errors: DP_INVALID_INPUT for a function without a name or without work.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_fabric_enter(
    functions: *const dp_device_function,
    count: usize,
    code: *mut i32,
) -> dp_error {
    // SAFETY: the header says what the pointers are.
    unsafe { dp_fabric_enter_with(functions, count, std::ptr::null(), 0, code) }
}

/// As `dp_fabric_enter`, with bodies that devices may be told to have.
///
/// Errors: as `dp_fabric_enter`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_fabric_enter_with(
    functions: *const dp_device_function,
    count: usize,
    bodies: *const dp_device_body,
    body_count: usize,
    code: *mut i32,
) -> dp_error {
    enter(|| {
        arguments::check(code, "code")?;
        // SAFETY: the header says what the pointers are.
        let (given, bodies) = unsafe {
            (arguments::slice(functions, count, "functions")?, arguments::slice(bodies, body_count, "bodies")?)
        };
        let mut known = Functions::default();
        for function in given {
            // SAFETY: as above.
            let name = unsafe { arguments::text(function.name, "the name of a function")? };
            let none = || Error::new(ErrorKind::InvalidInput, "enter", format!("`{name}` has no work"));
            let (work, user) = (function.work.ok_or_else(none)?, Shared(function.user));
            known = known.with(name, move |arguments: &DeviceArguments| {
                let wrong = |_| Error::new(ErrorKind::InvalidInput, "launch", "the arguments have a NUL");
                let arguments = CString::new(arguments::json(arguments)?).map_err(wrong)?;
                Ok(Box::new(OfC { work, user, arguments }))
            });
        }
        for body in bodies {
            // SAFETY: as above.
            let name = unsafe { arguments::text(body.name, "the name of a body")? };
            known = known.with_body(name, device_body::maker(name, body)?);
        }
        let exit = process::enter(&known).map_or(-1, |exit| i32::from(exit != ExitCode::SUCCESS));
        // SAFETY: as above.
        unsafe { arguments::give(code, "code", exit) }
    })
}

/// Starts a controller. `program` is the program that runs as controller and devices, whose `main`
/// begins with `dp_fabric_enter`; NULL for this one.
///
/// Errors: DP_NOT_FOUND where the program does not exist; DP_UNAVAILABLE where it cannot act as a
/// controller.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_fabric_start(program: *const c_char, fabric: *mut dp_fabric) -> dp_error {
    enter(|| {
        arguments::check(fabric, "fabric")?;
        let program = match program.is_null() {
            true => Program::This,
            // SAFETY: the header says what the pointer is.
            false => Program::At(unsafe { arguments::path(program, "program")? }.to_path_buf()),
        };
        let session = Session::start(&program)?;
        let id = FABRICS.put(Arc::new(Fabric(ProcessLock::new(session))))?;
        // SAFETY: as above.
        unsafe { arguments::give(fabric, "fabric", dp_fabric { id }) }
    })
}

/// Copies what the controller has as JSON, as `snprintf` does: devices, channels, capabilities.
///
/// Errors: DP_UNAVAILABLE where the controller ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_fabric_status(
    fabric: dp_fabric,
    text: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> dp_error {
    enter(|| {
        arguments::check_optional(len, "len")?;
        let status = fabric_of(fabric)?.with("ask", Session::status)??;
        let shown = arguments::json(&status)?;
        // SAFETY: the header says what the pointers are.
        unsafe { arguments::copy_text(&shown, text, capacity, len) };
        Ok(())
    })
}

/// # Safety
/// `capability` is null or valid for a write.
pub(crate) unsafe fn created(
    fabric: dp_fabric,
    capability: *mut dp_capability,
    make: impl FnOnce(&mut Session) -> Result<Cap>,
) -> Result<()> {
    arguments::check(capability, "capability")?;
    let cap = fabric_of(fabric)?.with("ask", make)??;
    // SAFETY: the caller of this function says so.
    unsafe { arguments::give(capability, "capability", dp_capability { number: cap.0 }) }
}

/// Creates a channel. The capability has all rights to it. `carrier` is a `dp_carrier`.
///
/// Errors: DP_INVALID_INPUT for a shape that is out of bounds; DP_OUT_OF_MEMORY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_fabric_channel(
    fabric: dp_fabric,
    shape: dp_channel_shape,
    carrier: u32,
    capability: *mut dp_capability,
) -> dp_error {
    enter(|| {
        let (shape, carrier) = (shape.shape()?, carrier_of(carrier)?);
        // SAFETY: the header says what the pointer is.
        unsafe { created(fabric, capability, |session| session.channel_over(shape, carrier)) }
    })
}

/// Gives a party a capability with the same rights or fewer. The application is party 0; that of a
/// device is given by `dp_flow_device`. `rights` is a sum of `dp_right`.
///
/// Errors: DP_PERMISSION_DENIED for more rights, or without the right to delegate; DP_NOT_FOUND for a
/// capability that was revoked, or a party that ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_fabric_delegate(
    fabric: dp_fabric,
    from: dp_capability,
    party: u32,
    rights: u32,
    capability: *mut dp_capability,
) -> dp_error {
    enter(|| {
        let rights = rights_of(rights)?;
        // SAFETY: the header says what the pointer is.
        unsafe { created(fabric, capability, |session| session.delegate(Cap(from.number), Party(party), rights)) }
    })
}

/// Removes a capability and all that was delegated from it, also while blocks are under way: when
/// this returns, both ends of the channel are cut off. `*removed`, if it is not NULL, becomes how
/// many were removed.
///
/// Errors: DP_NOT_FOUND for one that was revoked; DP_PERMISSION_DENIED for that of another party.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_fabric_revoke(
    fabric: dp_fabric,
    capability: dp_capability,
    removed: *mut usize,
) -> dp_error {
    enter(|| {
        arguments::check_optional(removed, "removed")?;
        let count = fabric_of(fabric)?.with("revoke", |session| session.revoke(Cap(capability.number)))??;
        // SAFETY: the header says what the pointer is.
        if let Some(removed) = unsafe { removed.as_mut() } {
            *removed = count;
        }
        Ok(())
    })
}

/// Makes an end of a channel, or a view of a memory, at the holder of a capability, which knows it by
/// the name `port`. A channel works when both ends exist. `right` is `DP_RIGHT_SEND` or
/// `DP_RIGHT_RECEIVE`, or a sum of `DP_RIGHT_READ` and `DP_RIGHT_WRITE`; `trust`, a `dp_trust`, matters
/// for a receiver.
///
/// Errors: DP_PERMISSION_DENIED where the capability lacks the right; DP_BUSY where that end exists.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_fabric_activate(
    fabric: dp_fabric,
    capability: dp_capability,
    port: *const c_char,
    right: u32,
    trust: u32,
) -> dp_error {
    enter(|| {
        // SAFETY: the header says what the pointer is.
        let port = unsafe { arguments::text(port, "port")? };
        let (right, trust) = (rights_of(right)?, trust_of(trust)?);
        fabric_of(fabric)?.with("activate", |session| session.activate(Cap(capability.number), port, right, trust))?
    })
}

/// Takes the program's sending end at a port, once the channel works (over a socket, once this end
/// exists). It waits for that, up to `milliseconds`.
///
/// Errors: DP_BUSY where it did not work in time; DP_NOT_FOUND for a receiving port; DP_UNAVAILABLE
/// where the controller ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_fabric_sender(
    fabric: dp_fabric,
    port: *const c_char,
    milliseconds: u64,
    sender: *mut dp_sender,
) -> dp_error {
    enter(|| {
        arguments::check(sender, "sender")?;
        // SAFETY: the header says what the pointers are.
        let port = unsafe { arguments::text(port, "port")? };
        let patience = patience_of(milliseconds);
        let taken = fabric_of(fabric)?.wait("take", patience, |session, turn| session.sender(port, turn))?;
        // SAFETY: as above.
        unsafe { arguments::give(sender, "sender", keep_sender(taken)?) }
    })
}

/// Takes the program's receiving end at a port, as `dp_fabric_sender` does.
///
/// Errors: as `dp_fabric_sender`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_fabric_receiver(
    fabric: dp_fabric,
    port: *const c_char,
    milliseconds: u64,
    receiver: *mut dp_receiver,
) -> dp_error {
    enter(|| {
        arguments::check(receiver, "receiver")?;
        // SAFETY: the header says what the pointers are.
        let port = unsafe { arguments::text(port, "port")? };
        let patience = patience_of(milliseconds);
        let taken = fabric_of(fabric)?.wait("take", patience, |session, turn| session.receiver(port, turn))?;
        // SAFETY: as above.
        unsafe { arguments::give(receiver, "receiver", keep_receiver(taken)?) }
    })
}

/// One half of a channel between two machines. Set `size` to `sizeof(dp_link)`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dp_link {
    /// `sizeof(dp_link)`.
    pub size: u32,
    /// `DP_RIGHT_SEND` or `DP_RIGHT_RECEIVE`; the other half has the other one.
    pub side: u32,
    /// Not 0: the bytes are neither encrypted nor protected against change, here and there.
    pub unencrypted: u32,
    /// Bytes of the key: 32.
    pub key_len: u32,
    /// The shape of the channel, here and there.
    pub shape: dp_channel_shape,
    /// The address with its port, such as "192.0.2.1:7000".
    pub address: *const c_char,
    /// The secret that both controllers have, which nobody can guess.
    pub key: *const u8,
}

// SAFETY: the fields are numbers and pointers.
unsafe impl Options for dp_link {
    const FIELDS: &'static [Field] = fields!(dp_link { size, side, unencrypted, key_len, shape, address, key });
}

/// # Safety
/// `link` is null or points to a link, whose pointers are as the header says.
unsafe fn link_of(link: *const dp_link) -> Result<(LinkSpec, SocketAddr, Key)> {
    // SAFETY: the caller of this function says so.
    let (asked, address) = unsafe {
        let asked = arguments::options(link, "link")?;
        (asked, arguments::text(asked.address, "address")?)
    };
    let wrong = |what: String| Error::new(ErrorKind::InvalidInput, "link", what);
    let at = address.parse().map_err(|_| wrong(format!("`{address}` is no address with a port")))?;
    // SAFETY: as above.
    let key = unsafe { arguments::slice(asked.key, asked.key_len as usize, "key")? };
    let key = key.try_into().map_err(|_| wrong(format!("a key of {} bytes; it has 32", key.len())))?;
    let encryption = if asked.unencrypted == 0 { Encryption::On } else { Encryption::Off };
    let spec = LinkSpec::new(asked.shape.shape()?, rights_of(asked.side)?).encryption(encryption);
    Ok((spec, at, Key::new(key)))
}

/// Offers one half of a channel to another machine, whose controller joins it. The controller listens
/// at the address; with port 0 it takes any. The address is copied as `snprintf` does.
///
/// Errors: DP_INVALID_INPUT for an address, a key, a side or a shape that is none; those of listening.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_fabric_offer(
    fabric: dp_fabric,
    link: *const dp_link,
    capability: *mut dp_capability,
    address: *mut c_char,
    capacity: usize,
    len: *mut usize,
) -> dp_error {
    enter(|| {
        arguments::check_optional(len, "len")?;
        // SAFETY: the header says what the pointers are.
        let (spec, at, key) = unsafe { link_of(link)? };
        let mut listens = None;
        let offer = |session: &mut Session| {
            let (cap, at) = session.offer_link(spec, at, &key)?;
            listens = Some(at);
            Ok(cap)
        };
        // SAFETY: as above.
        unsafe {
            created(fabric, capability, offer)?;
            if let Some(listens) = listens {
                arguments::copy_text(&listens.to_string(), address, capacity, len);
            }
        }
        Ok(())
    })
}

/// Joins the half of a channel that another controller offers at the address.
///
/// Errors: DP_INVALID_INPUT for an address, a key, a side or a shape that is none. `dp_fabric_joined`
/// tells whether the other controller is there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_fabric_join(
    fabric: dp_fabric,
    link: *const dp_link,
    capability: *mut dp_capability,
) -> dp_error {
    enter(|| {
        // SAFETY: the header says what the pointers are.
        unsafe {
            let (spec, to, key) = link_of(link)?;
            created(fabric, capability, |session| session.join_link(spec, to, &key))
        }
    })
}

/// Waits until a link that was offered or joined is connected, up to `milliseconds`. It is told once.
///
/// Errors: DP_BUSY where it was not in time; DP_DEVICE where it cannot be connected.
#[unsafe(no_mangle)]
pub extern "C" fn dp_fabric_joined(fabric: dp_fabric, link: dp_capability, milliseconds: u64) -> dp_error {
    enter(|| {
        let joined = |session: &mut Session, turn| session.joined(Cap(link.number), turn);
        fabric_of(fabric)?.wait("join", patience_of(milliseconds), joined)
    })
}

/// Ends a fabric: its controller, its devices and its channels. It lives on until its last flow is
/// closed.
///
/// Errors: DP_INVALID_INPUT for a fabric that was closed.
#[unsafe(no_mangle)]
pub extern "C" fn dp_fabric_close(fabric: dp_fabric) -> dp_error {
    enter(|| FABRICS.close(fabric.id))
}
