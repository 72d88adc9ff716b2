//! Values in a child made by `fork`: its parent's values refuse, and its own values work.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use datapipes_core::ErrorKind;
use datapipes_core::process::{OwningProcess, PerProcess};
use datapipes_testkit::child::{in_child, in_child_by_system_call};

#[test]
fn a_value_knows_its_process() {
    let owner = OwningProcess::here();
    for fork in [in_child, in_child_by_system_call] {
        fork(&|| {
            assert!(!owner.is_here());
            let error = owner.check("transfer").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Forked);
            let mine = OwningProcess::here();
            assert!(mine.is_here() && mine != owner);
            // A child of the child is another process, in which values of both ancestors exist.
            in_child(&|| {
                assert!(!mine.is_here() && !owner.is_here());
                assert!(OwningProcess::here() != mine && OwningProcess::here() != owner);
            });
        });
        assert!(owner.is_here() && owner == OwningProcess::here());
    }
}

#[test]
fn a_static_of_a_process_is_made_anew_in_a_child_though_its_lock_was_held() {
    static MADE: AtomicU64 = AtomicU64::new(0);
    static VALUE: PerProcess<Mutex<u64>> = PerProcess::new();
    let value = || VALUE.get(|| Mutex::new(MADE.fetch_add(1, Ordering::SeqCst)));
    let held = value().lock().unwrap();
    in_child(&|| {
        assert_eq!(*value().lock().unwrap(), 1);
        assert_eq!(*value().lock().unwrap(), 1);
    });
    assert_eq!(*held, 0);
    drop(held);
    assert_eq!((*value().lock().unwrap(), MADE.load(Ordering::SeqCst)), (0, 1));
}
