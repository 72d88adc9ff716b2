//! Reports that a function of the caller's is given as a whole.

use std::ffi::{CString, c_char, c_void};

use datapipes::{Error, ErrorKind, Result};

use crate::error::dp_error;

/// Is given a whole text, `len` bytes and a NUL, which is valid until it returns. What it returns is
/// the result of the call that made the text; what was done then stays done.
pub type dp_text_told = Option<unsafe extern "C" fn(user: *mut c_void, text: *const c_char, len: usize) -> dp_error>;

/// Gives a text to the caller's function, if there is one.
pub(crate) fn tell(told: dp_text_told, user: *mut c_void, text: String) -> Result<()> {
    let Some(told) = told else { return Ok(()) };
    let text = CString::new(text).map_err(|e| Error::new(ErrorKind::System, "write a text", e.to_string()))?;
    // SAFETY: the caller gave the function for this argument; the text lives until it returns.
    unsafe { told(user, text.as_ptr(), text.as_bytes().len()) }.into_result("take a text")
}
