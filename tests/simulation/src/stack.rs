//! Threads on which a world has room: code that is not optimized needs more stack than a thread usually has.

use std::panic::resume_unwind;
use std::thread::{Builder, scope};

/// In bytes. Only what a thread uses of it is memory.
const STACK: usize = 64 * 1024 * 1024;

pub fn thread() -> Builder {
    Builder::new().stack_size(STACK)
}

/// Runs `work` on such a thread, and waits for it.
pub fn run<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    scope(|scope| match thread().spawn_scoped(scope, work) {
        Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
        Err(e) => unreachable!("the machine gives no thread: {e}"),
    })
}

/// Does the same work on so many such threads at once, and waits for all of them.
pub fn run_on(threads: usize, work: impl Fn() + Sync) {
    scope(|scope| {
        for _ in 0..threads {
            if let Err(e) = thread().spawn_scoped(scope, &work) {
                unreachable!("the machine gives no thread: {e}");
            }
        }
    });
}
