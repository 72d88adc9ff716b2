//! Which network interface has an address.
//!
//! This module's unsafe code walks the list that the C library made, until it gives it back.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr::null_mut;

use datapipes_core::{Error, ErrorKind, Result};

/// Returns the name of the interface that has an address.
///
/// # Errors
/// `NotFound` where none has it; errors of asking.
pub(crate) fn interface_of(address: IpAddr) -> Result<String> {
    let mut list: *mut libc::ifaddrs = null_mut();
    // SAFETY: it writes the beginning of a list.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Err(Error::io("look at", std::io::Error::last_os_error(), "the network interfaces"));
    }
    let mut found = None;
    let mut at = list;
    while !at.is_null() && found.is_none() {
        // SAFETY: `at` is an element of the list, which is freed below.
        let element = unsafe { &*at };
        // SAFETY: the element has a name that ends with a zero, and an address or none.
        if unsafe { ip_of(element.ifa_addr) } == Some(address.to_canonical()) {
            // SAFETY: as above.
            found = Some(unsafe { CStr::from_ptr(element.ifa_name) }.to_string_lossy().into_owned());
        }
        at = element.ifa_next;
    }
    // SAFETY: it is the list from above, and nothing refers to it any more.
    unsafe { libc::freeifaddrs(list) };
    found.ok_or_else(|| Error::new(ErrorKind::NotFound, "look at", format!("no network interface has {address}")))
}

/// # Safety
/// The pointer is null or points to a socket address of the length that its family has.
unsafe fn ip_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller promises it.
    match unsafe { address.as_ref() }.map(|address| i32::from(address.sa_family))? {
        libc::AF_INET => {
            // SAFETY: an address of this family has this structure; it may not be aligned to it.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes()).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}
