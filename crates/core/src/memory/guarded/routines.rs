//! The guarded routines, and the table by which the handler recognizes a fault in one of them.
//!
//! All take the target in rdi, the source in rsi and the length in rdx, and keep in rdx the bytes
//! that are left. They return rax and rdx; rax is 0 or what the handler put there. They use no
//! stack and only caller-saved registers, so the fixup can return from any instruction of the loop.
//! rdx is lowered after the accesses that it counts, so it never counts a byte too early.

use super::fault::AccessFault;

/// What a routine returns, in rax and rdx.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Answer {
    /// 0, or the address of the fault with the cause in the bits above it.
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

/// Returns what the handler puts into rax, which is never 0.
pub(super) fn fault_word(address: usize, bad_block: bool) -> u64 {
    let cause = if bad_block { 2u64 } else { 1 };
    cause << CAUSE_SHIFT | (address as u64 & ((1 << CAUSE_SHIFT) - 1))
}

/// Returns the result of a routine for a piece of `len` bytes.
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

/// The instructions of a routine in which faults are handled, and where execution then goes on.
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

/// Returns where to go on after a fault at `instruction`, or `None` outside the routines. The
/// handler calls it; it only reads constants.
pub(super) fn fixup(instruction: usize) -> Option<usize> {
    // SAFETY: the table is constant data; the assembly below defines as many entries as its type
    // has.
    let table = unsafe { &datapipes_guarded_routines };
    table.iter().find(|entry| (entry.start..entry.end).contains(&instruction)).map(|entry| entry.fixup)
}

/// Ends the routine that a fault interrupted, and stores the cause in its result. Returns false
/// where the thread was in no such routine.
pub(super) fn answer_in_routine(context: &mut libc::ucontext_t, address: usize, bad_block: bool) -> bool {
    let registers = &mut context.uc_mcontext.gregs;
    let Some(fixup) = fixup(registers[libc::REG_RIP as usize] as usize) else { return false };
    registers[libc::REG_RAX as usize] = fault_word(address, bad_block) as i64;
    registers[libc::REG_RIP as usize] = fixup as i64;
    true
}

/// The text of one routine: its name, its lines, and its entry in the table, with the labels 2
/// (start), 3 (end) and 4 (fixup).
macro_rules! routine {
    ($name:literal, $($line:expr),* $(,)?) => {
        concat!(
            ".balign 64\n.weak ", $name, "\n.hidden ", $name, "\n", $name, ":\n",
            $($line, "\n",)*
            ".pushsection .data.rel.ro.datapipes_guarded_routines,\"aw\",@progbits\n.quad 2b, 3b, 4b\n.popsection"
        )
    };
}

/// Copies with stores that bypass the caches, in rounds of 256 bytes and then of 64, from a source
/// of any alignment. The source is prefetched past the caches 512 bytes ahead; a prefetch never
/// faults.
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

/// Writes lines back. The length comes in rsi and is moved to rdx.
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

/// Reads a byte of each line. The length comes in rsi and is moved to rdx. Each line is read
/// because a prefetch may be dropped. Lines of the next page are prefetched too, because the
/// processor's own prefetch stops at the end of a page.
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

// All is one block of assembly, so that the entries of the table are adjacent and follow its label.
// The names are weak: a program that contains this crate twice (its unit tests and its dependents)
// has one copy of each, to which all refer.
std::arch::global_asm!(
    ".pushsection .data.rel.ro.datapipes_guarded_routines,\"aw\",@progbits",
    ".balign 8",
    ".weak datapipes_guarded_routines",
    ".hidden datapipes_guarded_routines",
    "datapipes_guarded_routines:",
    ".popsection",
    ".pushsection .text.datapipes_guarded,\"ax\",@progbits",
    // Ordinary loads and stores: the microcoded copy, whose registers tell after a fault how far it
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
