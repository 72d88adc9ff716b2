//! What is freed when a thread ends, for variables that have no destructors of their own.
//!
//! `exit` runs the destructors of a thread's variables before the handlers of `atexit`. A variable
//! that such a handler still needs has none, and registers a function here that frees its memory.

use std::cell::Cell;

use crate::sync::thread_local;

/// How many variables there are.
const VARIABLES: usize = 2;

thread_local! {
    static FUNCTIONS: Functions = const { Functions(Cell::new([None; VARIABLES])) };
}

type Function = Option<fn()>;

/// Called when the thread ends, and at the begin of `exit` in the thread that calls it.
struct Functions(Cell<[Function; VARIABLES]>);

impl Drop for Functions {
    fn drop(&mut self) {
        self.0.take().into_iter().flatten().for_each(|free| free());
    }
}

/// Whether the functions were called: the thread runs destructors of other variables, or handlers
/// of `atexit`. What a variable takes then, it must free as soon as it does not need it.
pub(super) fn is_over() -> bool {
    FUNCTIONS.try_with(|_| ()).is_err()
}

/// Has `free` called once when the thread ends, unless it [`is_over`].
pub(super) fn call(free: fn()) {
    let _ = FUNCTIONS.try_with(|functions| {
        let mut all = functions.0.get();
        let known = |f: &&mut Function| f.is_none_or(|f| std::ptr::fn_addr_eq(f, free));
        if let Some(place) = all.iter_mut().find(known) {
            *place = Some(free);
            functions.0.set(all);
        }
    });
}
