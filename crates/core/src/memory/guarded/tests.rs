//! Tests which faults are handled and what is reported. The backend `dax`, which uses the routines,
//! tests the routines themselves.

use super::{AccessFault, routines};

#[test]
fn only_accesses_of_the_routines_are_answered() {
    let of = |routine: unsafe extern "sysv64" fn(*mut u8, *const u8, usize) -> routines::Answer| {
        routine as *const () as usize
    };
    let start = of(routines::datapipes_guarded_stream_sse2);
    assert!(routines::fixup(start).is_some_and(|fixup| fixup > start));
    assert_ne!(routines::fixup(start), routines::fixup(of(routines::datapipes_guarded_stream_avx2)));
    assert_eq!(routines::fixup(of(routines::datapipes_guarded_copy)), None, "its first instruction touches nothing");
    for elsewhere in [0, usize::MAX, (only_accesses_of_the_routines_are_answered as fn()) as usize] {
        assert_eq!(routines::fixup(elsewhere), None);
    }
}

#[test]
fn a_word_of_a_fault_comes_back_as_it_was() {
    for bad_block in [false, true] {
        for address in [0, 1, 0x7fff_ffff_f000, 0xff_ffff_ffff_ffff] {
            let word = routines::fault_word(address, bad_block);
            assert_ne!(word, 0);
            let answer = routines::Answer::for_test(word, 3);
            assert_eq!(routines::answer(10, answer), Err(AccessFault { address, done: 7, bad_block }));
        }
    }
    assert_eq!(routines::answer(10, routines::Answer::for_test(0, 0)), Ok(()));
}
