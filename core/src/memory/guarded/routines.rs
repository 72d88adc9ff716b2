//! The routines, and the table by which a fault in one of them is known.
//!
//! All take the target in rdi, the source in rsi and the length in rdx, keep in rdx what is left,
//! and return rax = 0, or what the handler put there, and rdx. They touch no stack and none but
//! caller-saved registers, so that the fixup can return from any instruction of the loop. rdx is
//! lowered after the accesses it counts: what it says is done is done.

use super::AccessFault;

/// What a routine returns, in rax and rdx.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Answer {
    /// 0, or the address that was touched with the cause above it.
    fault: u64,
    left: usize,
}

#[cfg(test)]
impl Answer {
    pub(super) fn for_test(fault: u64, left: usize) -> Answer {
        Answer { fault, left }
    }
}

/// User addresses end far below this bit, also with five levels of page tables.
const CAUSE_SHIFT: u32 = 58;

/// What the handler puts into rax. Never 0.
pub(super) fn fault_word(address: usize, bad_block: bool) -> u64 {
    let cause = if bad_block { 2u64 } else { 1 };
    cause << CAUSE_SHIFT | (address as u64 & ((1 << CAUSE_SHIFT) - 1))
}

/// The answer to a piece of `len` bytes.
pub(super) fn answer(len: usize, answer: Answer) -> Result<(), AccessFault> {
    if answer.fault == 0 {
        return Ok(());
    }
    Err(AccessFault {
        address: (answer.fault & ((1 << CAUSE_SHIFT) - 1)) as usize,
        done: len - answer.left.min(len),
        bad_block: answer.fault >> CAUSE_SHIFT == 2,
    })
}

/// Where a fault is answered, and where execution goes on then.
#[repr(C)]
struct Entry {
    start: usize,
    end: usize,
    fixup: usize,
}

const ROUTINES: usize = 8;

unsafe extern "sysv64" {
    pub(super) fn datapipes_guarded_copy(to: *mut u8, from: *const u8, len: usize) -> Answer;
    pub(super) fn datapipes_guarded_stream_sse2(to: *mut u8, from: *const u8, len: usize) -> Answer;
    pub(super) fn datapipes_guarded_stream_avx2(to: *mut u8, from: *const u8, len: usize) -> Answer;
    pub(super) fn datapipes_guarded_stream_avx512(to: *mut u8, from: *const u8, len: usize) -> Answer;
    pub(super) fn datapipes_guarded_clwb(first: *mut u8, len: usize) -> Answer;
    pub(super) fn datapipes_guarded_clflushopt(first: *mut u8, len: usize) -> Answer;
    pub(super) fn datapipes_guarded_clflush(first: *mut u8, len: usize) -> Answer;
    pub(super) fn datapipes_guarded_load(first: *mut u8, len: usize) -> Answer;
    static datapipes_guarded_routines: [Entry; ROUTINES];
}

/// Where to go on after a fault at `instruction`; None where it is none of ours. Called by the
/// handler: reads constants.
pub(super) fn fixup(instruction: usize) -> Option<usize> {
    // SAFETY: the table is constant data that the assembly below defines with as many entries.
    let table = unsafe { &datapipes_guarded_routines };
    table.iter().find(|entry| (entry.start..entry.end).contains(&instruction)).map(|entry| entry.fixup)
}

/// One routine as text: its name, its lines, and its entry in the table, by the labels 2 (start), 3
/// (end) and 4 (fixup).
macro_rules! routine {
    ($name:literal, $($line:expr),* $(,)?) => {
        concat!(
            ".balign 64\n.weak ", $name, "\n.hidden ", $name, "\n", $name, ":\n",
            $($line, "\n",)*
            ".pushsection .data.rel.ro.datapipes_guarded_routines,\"aw\",@progbits\n.quad 2b, 3b, 4b\n.popsection"
        )
    };
}

/// Stores past the caches, 256 bytes a turn and then 64, with loads of any alignment. The source is
/// prefetched past the caches 512 bytes ahead; a prefetch never faults.
macro_rules! stream {
    ($name:literal, $load:literal, $store:literal, $leave:literal,
     block: [$(($register:literal, $at:literal)),*], line: [$(($line_register:literal, $line_at:literal)),*]) => {
        routine!($name,
            "2: cmp rdx, 256",
            "jb 6f",
            "5: prefetchnta [rsi + 512]",
            "prefetchnta [rsi + 576]",
            "prefetchnta [rsi + 640]",
            "prefetchnta [rsi + 704]",
            $(concat!($load, " ", $register, ", [rsi + ", $at, "]"),)*
            $(concat!($store, " [rdi + ", $at, "], ", $register),)*
            "add rsi, 256",
            "add rdi, 256",
            "sub rdx, 256",
            "cmp rdx, 256",
            "jae 5b",
            "6: test rdx, rdx",
            "jz 3f",
            $(concat!($load, " ", $line_register, ", [rsi + ", $line_at, "]"),)*
            $(concat!($store, " [rdi + ", $line_at, "], ", $line_register),)*
            "add rsi, 64",
            "add rdi, 64",
            "sub rdx, 64",
            "jmp 6b",
            "3: xor eax, eax",
            "4: sfence",
            $leave,
            "ret",
        )
    };
}

/// Writes lines back; the length comes in rsi and goes to rdx.
macro_rules! write_back {
    ($name:literal, $instruction:literal) => {
        routine!(
            $name,
            "mov rdx, rsi",
            "2: test rdx, rdx",
            "jz 3f",
            concat!($instruction, " [rdi]"),
            "add rdi, 64",
            "sub rdx, 64",
            "jmp 2b",
            "3: xor eax, eax",
            "4: sfence",
            "ret",
        )
    };
}

/// Reads a byte of each line; the length comes in rsi and goes to rdx. A line is read, not only
/// prefetched, for a prefetch may be dropped; those of the next page are prefetched, because the
/// processor stops at the border of a page.
macro_rules! load {
    ($name:literal) => {
        routine!(
            $name,
            "mov rdx, rsi",
            "2: test rdx, rdx",
            "jz 3f",
            "prefetcht0 [rdi + 1024]",
            "mov al, [rdi]",
            "add rdi, 64",
            "sub rdx, 64",
            "jmp 2b",
            "3: xor eax, eax",
            "4: ret",
        )
    };
}

// One block of assembly, so that the entries of the table are adjacent and follow its label. The
// names are weak: a program that has this crate twice (its unit tests, beside what depends on it)
// has one of each, and all refer to the same.
std::arch::global_asm!(
    ".pushsection .data.rel.ro.datapipes_guarded_routines,\"aw\",@progbits",
    ".balign 8",
    ".weak datapipes_guarded_routines",
    ".hidden datapipes_guarded_routines",
    "datapipes_guarded_routines:",
    ".popsection",
    ".pushsection .text.datapipes_guarded,\"ax\",@progbits",
    // Ordinary loads and stores: the microcoded copy, whose registers say after a fault how far it
    // came.
    routine!(
        "datapipes_guarded_copy",
        "mov rcx, rdx",
        "2: rep movsb",
        "3: xor eax, eax",
        "xor edx, edx",
        "ret",
        "4: mov rdx, rcx",
        "ret",
    ),
    stream!("datapipes_guarded_stream_sse2", "movups", "movntps", "nop",
        block: [("xmm0", "0"), ("xmm1", "16"), ("xmm2", "32"), ("xmm3", "48"),
                ("xmm4", "64"), ("xmm5", "80"), ("xmm6", "96"), ("xmm7", "112"),
                ("xmm8", "128"), ("xmm9", "144"), ("xmm10", "160"), ("xmm11", "176"),
                ("xmm12", "192"), ("xmm13", "208"), ("xmm14", "224"), ("xmm15", "240")],
        line: [("xmm0", "0"), ("xmm1", "16"), ("xmm2", "32"), ("xmm3", "48")]),
    stream!("datapipes_guarded_stream_avx2", "vmovdqu", "vmovntdq", "vzeroupper",
        block: [("ymm0", "0"), ("ymm1", "32"), ("ymm2", "64"), ("ymm3", "96"),
                ("ymm4", "128"), ("ymm5", "160"), ("ymm6", "192"), ("ymm7", "224")],
        line: [("ymm0", "0"), ("ymm1", "32")]),
    stream!("datapipes_guarded_stream_avx512", "vmovdqu64", "vmovntdq", "vzeroupper",
        block: [("zmm0", "0"), ("zmm1", "64"), ("zmm2", "128"), ("zmm3", "192")], line: [("zmm0", "0")]),
    write_back!("datapipes_guarded_clwb", "clwb"),
    write_back!("datapipes_guarded_clflushopt", "clflushopt"),
    write_back!("datapipes_guarded_clflush", "clflush"),
    load!("datapipes_guarded_load"),
    ".popsection",
);
