//! Keeps jobs away from the kernel's keyrings.
//!
//! A user id has keyrings that outlive its processes, so the next alloc with this id would find the keys of the last one, or a
//! keyring that somebody revoked. And a session keyring is inherited, so that all jobs would share that of the agent. Docker
//! denies its containers the same three system calls for these reasons.
//! Guarantees: `add_key`, `request_key` and `keyctl` fail with `ENOSYS`, as on a kernel without keyrings, in the process that
//! calls [`deny`] and in all that come from it, by every ABI of the machine.
//! Does not: deny anything else.

use nix::libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_JEQ, BPF_JGE, BPF_JGT, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, ENOSYS,
    SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO,
};
use seccompiler::{BpfProgram, apply_filter, sock_filter};
use std::io;

/// The first of the three system calls, whose numbers follow each other, by the kernel's number of the ABI (`AUDIT_ARCH_…`).
const CALLS: [(u32, u32); 4] = [
    (0xc000_003e, 248), // x86-64
    (0x4000_0003, 286), // i386
    (0xc000_00b7, 217), // arm64
    (0x4000_0028, 309), // arm
];

/// Without the bit that marks calls of x32, which have the ABI of x86-64.
const WITHOUT_X32: u32 = !0x4000_0000;

/// Where the kernel's description of a system call (`struct seccomp_data`) has its number, and its ABI.
const NUMBER: u32 = 0;
const ABI: u32 = 4;

/// Denies the keyrings for ever. The process must have given up new privileges.
pub(super) fn deny() -> io::Result<()> {
    apply_filter(&filter()).map_err(io::Error::other)
}

fn filter() -> BpfProgram {
    let step = |code: u32, k: u32, jt: u8, jf: u8| sock_filter { code: code as u16, jt, jf, k };
    let load = |at| step(BPF_LD | BPF_W | BPF_ABS, at, 0, 0);
    let jump = |when, k, yes, no| step(BPF_JMP | when | BPF_K, k, yes, no);
    let end = |what| step(BPF_RET | BPF_K, what, 0, 0);
    let mut program = vec![load(ABI)];
    for (abi, first) in CALLS {
        program.extend([
            jump(BPF_JEQ, abi, 0, 6),
            load(NUMBER),
            step(BPF_ALU | BPF_AND | BPF_K, WITHOUT_X32, 0, 0),
            jump(BPF_JGE, first, 0, 2),
            jump(BPF_JGT, first + 2, 1, 0),
            end(SECCOMP_RET_ERRNO | ENOSYS as u32),
            end(SECCOMP_RET_ALLOW),
        ]);
    }
    program.push(end(SECCOMP_RET_ALLOW));
    program
}
