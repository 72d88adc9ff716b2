//! The structures and numbers of UCX's C interface (`ucp/api/ucp.h`) that are used, by hand.
//!
//! Each structure begins with a mask of the fields that are set. A library reads no field that the
//! mask does not name, so a version with more fields at the end reads these as well.
//! `tests/abi.rs` compiles a C program against the installed header and compares.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// `ucs_status_t`: an enumeration that C packs into one byte.
pub type Status = i8;
pub(crate) const OK: Status = 0;
pub(crate) const IN_PROGRESS: Status = 1;
pub(crate) const BUSY: Status = -15;
/// `UCS_ERR_LAST`: pointers from here to the top of the address space are errors.
const LAST_ERROR: isize = -100;

/// Opaque objects of UCX.
pub(crate) type Handle = *mut c_void;

pub(crate) const FEATURE_RMA: u64 = 1 << 1;
pub(crate) const FEATURE_WAKEUP: u64 = 1 << 4;
pub(crate) const FEATURE_MESSAGES: u64 = 1 << 6;
pub(crate) const PARAM_FEATURES: u64 = 1 << 0;
pub(crate) const PARAM_ESTIMATED_PEERS: u64 = 1 << 6;
pub(crate) const WORKER_THREAD_MODE: u64 = 1 << 0;
pub(crate) const THREAD_MODE_SERIALIZED: c_int = 1;
pub(crate) const EP_REMOTE_ADDRESS: u64 = 1 << 0;
pub(crate) const EP_ERROR_MODE: u64 = 1 << 1;
pub(crate) const EP_ERROR_HANDLER: u64 = 1 << 2;
pub(crate) const ERROR_MODE_NONE: c_int = 0;
pub(crate) const ERROR_MODE_PEER: c_int = 1;
pub(crate) const MAP_ADDRESS: u64 = 1 << 0;
pub(crate) const MAP_LENGTH: u64 = 1 << 1;
pub(crate) const MAP_PROTECTION: u64 = 1 << 3;
pub(crate) const PROTECTION_LOCAL_READ: c_uint = 1 << 0;
pub(crate) const PROTECTION_LOCAL_WRITE: c_uint = 1 << 1;
pub(crate) const PROTECTION_REMOTE_READ: c_uint = 1 << 8;
pub(crate) const PROTECTION_REMOTE_WRITE: c_uint = 1 << 9;
pub(crate) const OP_FLAGS: u32 = 1 << 4;
pub(crate) const CLOSE_FORCE: u32 = 1 << 0;
pub(crate) const HANDLER_ID: u64 = 1 << 0;
pub(crate) const HANDLER_CALLBACK: u64 = 1 << 2;
pub(crate) const HANDLER_ARGUMENT: u64 = 1 << 3;
pub(crate) const SEND_EAGER: u32 = 1 << 1;
/// Of what is received: its bytes are still at the sender.
pub(crate) const RECEIVED_RENDEZVOUS: u64 = 1 << 17;

/// `ucp_params_t`.
#[repr(C)]
pub(crate) struct ContextParams {
    pub(crate) field_mask: u64,
    pub(crate) features: u64,
    pub(crate) request_size: usize,
    pub(crate) request_init: *const c_void,
    pub(crate) request_cleanup: *const c_void,
    pub(crate) tag_sender_mask: u64,
    pub(crate) mt_workers_shared: c_int,
    pub(crate) estimated_num_eps: usize,
    pub(crate) estimated_num_ppn: usize,
    pub(crate) name: *const c_char,
}

/// `ucp_worker_params_t`.
#[repr(C)]
pub(crate) struct WorkerParams {
    pub(crate) field_mask: u64,
    pub(crate) thread_mode: c_int,
    pub(crate) cpu_mask: [u64; 16],
    pub(crate) events: c_uint,
    pub(crate) user_data: *mut c_void,
    pub(crate) event_fd: c_int,
    pub(crate) flags: u64,
    pub(crate) name: *const c_char,
    pub(crate) am_alignment: usize,
    pub(crate) client_id: u64,
}

/// `ucs_sock_addr_t`.
#[repr(C)]
pub(crate) struct SocketAddress {
    pub(crate) address: *const c_void,
    pub(crate) len: c_uint,
}

/// The type of `ucp_err_handler_cb_t`.
pub(crate) type OnError = unsafe extern "C" fn(*mut c_void, Handle, Status);

/// `ucp_ep_params_t`.
#[repr(C)]
pub(crate) struct EndpointParams {
    pub(crate) field_mask: u64,
    pub(crate) address: *const c_void,
    pub(crate) error_mode: c_int,
    pub(crate) on_error: Option<OnError>,
    pub(crate) on_error_argument: *mut c_void,
    pub(crate) user_data: *mut c_void,
    pub(crate) flags: c_uint,
    pub(crate) socket: SocketAddress,
    pub(crate) connection_request: *mut c_void,
    pub(crate) name: *const c_char,
    pub(crate) local_socket: SocketAddress,
}

/// The type of `ucp_am_recv_callback_t`.
pub(crate) type OnMessage =
    unsafe extern "C" fn(*mut c_void, *const c_void, usize, *mut c_void, usize, *const ReceiveParams) -> Status;

/// `ucp_am_handler_param_t`.
#[repr(C)]
pub(crate) struct HandlerParams {
    pub(crate) field_mask: u64,
    pub(crate) id: c_uint,
    pub(crate) flags: u32,
    pub(crate) on_message: Option<OnMessage>,
    pub(crate) argument: *mut c_void,
}

/// `ucp_am_recv_param_t`.
#[repr(C)]
pub(crate) struct ReceiveParams {
    pub(crate) attributes: u64,
    pub(crate) reply_endpoint: Handle,
}

/// `ucp_mem_map_params_t`.
#[repr(C)]
pub(crate) struct MapParams {
    pub(crate) field_mask: u64,
    pub(crate) address: *mut c_void,
    pub(crate) len: usize,
    pub(crate) flags: c_uint,
    pub(crate) protection: c_uint,
    pub(crate) memory_type: c_int,
}

/// `ucp_request_param_t`.
#[repr(C)]
pub(crate) struct RequestParams {
    pub(crate) op_mask: u32,
    pub(crate) flags: u32,
    pub(crate) request: *mut c_void,
    pub(crate) callback: *const c_void,
    pub(crate) datatype: u64,
    pub(crate) user_data: *mut c_void,
    pub(crate) reply_buffer: *mut c_void,
    pub(crate) memory_type: c_int,
    pub(crate) receive_info: *mut c_void,
    pub(crate) memory_handle: Handle,
}

impl RequestParams {
    /// An operation that is asked for its end; nothing is called.
    pub(crate) const fn new(op_mask: u32, flags: u32) -> RequestParams {
        let none = std::ptr::null_mut();
        RequestParams {
            op_mask,
            flags,
            request: none,
            callback: none.cast_const(),
            datatype: 0,
            user_data: none,
            reply_buffer: none,
            memory_type: 0,
            receive_info: none,
            memory_handle: none,
        }
    }
}

/// What a function returned that starts an operation (`ucs_status_ptr_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Started {
    /// It is done.
    Done,
    /// It failed at once.
    Failed(Status),
    /// It goes on; the request must be asked and freed.
    Pending(Handle),
}

impl Started {
    pub(crate) fn of(pointer: *mut c_void) -> Started {
        match pointer.addr() as isize {
            0 => Started::Done,
            // The number fits, since it is from -100 to -1.
            error if (LAST_ERROR..0).contains(&error) => Started::Failed(error as Status),
            _ => Started::Pending(pointer),
        }
    }
}

/// Names, sizes and offsets of the structures, for the comparison with the header.
#[doc(hidden)]
pub fn layout() -> Vec<(&'static str, usize)> {
    macro_rules! offsets {
        ($($c:literal $t:ident { $($field:literal $name:ident),* })*) => {
            vec![$(
                (concat!("sizeof(", $c, ")"), size_of::<$t>()),
                $((concat!("offsetof(", $c, ", ", $field, ")"), std::mem::offset_of!($t, $name)),)*
            )*]
        };
    }
    let mut list = offsets! {
        "ucp_params_t" ContextParams { "features" features, "mt_workers_shared" mt_workers_shared,
            "estimated_num_eps" estimated_num_eps, "name" name }
        "ucp_worker_params_t" WorkerParams { "thread_mode" thread_mode, "cpu_mask" cpu_mask, "events" events,
            "event_fd" event_fd, "client_id" client_id }
        "ucs_sock_addr_t" SocketAddress { "addrlen" len }
        "ucp_ep_params_t" EndpointParams { "address" address, "err_mode" error_mode, "err_handler" on_error,
            "user_data" user_data, "flags" flags, "sockaddr" socket, "local_sockaddr" local_socket }
        "ucp_am_handler_param_t" HandlerParams { "id" id, "flags" flags, "cb" on_message, "arg" argument }
        "ucp_am_recv_param_t" ReceiveParams { "recv_attr" attributes, "reply_ep" reply_endpoint }
        "ucp_mem_map_params_t" MapParams { "address" address, "length" len, "flags" flags, "prot" protection,
            "memory_type" memory_type }
        "ucp_request_param_t" RequestParams { "flags" flags, "request" request, "cb" callback,
            "datatype" datatype, "user_data" user_data, "reply_buffer" reply_buffer,
            "memory_type" memory_type, "recv_info" receive_info, "memh" memory_handle }
    };
    list.push(("sizeof(ucs_status_t)", size_of::<Status>()));
    let numbers = [
        ("UCS_INPROGRESS", i64::from(IN_PROGRESS)),
        ("-UCS_ERR_BUSY", -i64::from(BUSY)),
        ("-UCS_ERR_LAST", -(LAST_ERROR as i64)),
        ("UCP_FEATURE_RMA", FEATURE_RMA as i64),
        ("UCP_FEATURE_WAKEUP", FEATURE_WAKEUP as i64),
        ("UCP_FEATURE_AM", FEATURE_MESSAGES as i64),
        ("UCP_AM_HANDLER_PARAM_FIELD_ID", HANDLER_ID as i64),
        ("UCP_AM_HANDLER_PARAM_FIELD_CB", HANDLER_CALLBACK as i64),
        ("UCP_AM_HANDLER_PARAM_FIELD_ARG", HANDLER_ARGUMENT as i64),
        ("UCP_AM_SEND_FLAG_EAGER", i64::from(SEND_EAGER)),
        ("UCP_AM_RECV_ATTR_FLAG_RNDV", RECEIVED_RENDEZVOUS as i64),
        ("UCP_PARAM_FIELD_FEATURES", PARAM_FEATURES as i64),
        ("UCP_PARAM_FIELD_ESTIMATED_NUM_EPS", PARAM_ESTIMATED_PEERS as i64),
        ("UCP_WORKER_PARAM_FIELD_THREAD_MODE", WORKER_THREAD_MODE as i64),
        ("UCS_THREAD_MODE_SERIALIZED", i64::from(THREAD_MODE_SERIALIZED)),
        ("UCP_EP_PARAM_FIELD_REMOTE_ADDRESS", EP_REMOTE_ADDRESS as i64),
        ("UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE", EP_ERROR_MODE as i64),
        ("UCP_EP_PARAM_FIELD_ERR_HANDLER", EP_ERROR_HANDLER as i64),
        ("UCP_ERR_HANDLING_MODE_NONE", i64::from(ERROR_MODE_NONE)),
        ("UCP_ERR_HANDLING_MODE_PEER", i64::from(ERROR_MODE_PEER)),
        ("UCP_MEM_MAP_PARAM_FIELD_ADDRESS", MAP_ADDRESS as i64),
        ("UCP_MEM_MAP_PARAM_FIELD_LENGTH", MAP_LENGTH as i64),
        ("UCP_MEM_MAP_PARAM_FIELD_PROT", MAP_PROTECTION as i64),
        ("UCP_MEM_MAP_PROT_LOCAL_READ", i64::from(PROTECTION_LOCAL_READ)),
        ("UCP_MEM_MAP_PROT_LOCAL_WRITE", i64::from(PROTECTION_LOCAL_WRITE)),
        ("UCP_MEM_MAP_PROT_REMOTE_READ", i64::from(PROTECTION_REMOTE_READ)),
        ("UCP_MEM_MAP_PROT_REMOTE_WRITE", i64::from(PROTECTION_REMOTE_WRITE)),
        ("UCP_OP_ATTR_FIELD_FLAGS", i64::from(OP_FLAGS)),
        ("UCP_EP_CLOSE_FLAG_FORCE", i64::from(CLOSE_FORCE)),
    ];
    list.extend(numbers.map(|(name, number)| (name, number as usize)));
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_returned_pointer_is_done_an_error_or_a_request() {
        let pointer = |n: isize| std::ptr::without_provenance_mut::<c_void>(n as usize);
        assert_eq!(Started::of(pointer(0)), Started::Done);
        assert_eq!(Started::of(pointer(-1)), Started::Failed(-1));
        assert_eq!(Started::of(pointer(-100)), Started::Failed(-100));
        assert_eq!(Started::of(pointer(-101)), Started::Pending(pointer(-101)));
        assert_eq!(Started::of(pointer(4096)), Started::Pending(pointer(4096)));
    }
}
