//! The node's side of nodekeeper: sends heartbeats, runs allocs, reports their states, sweeps handles.
//!
//! ```text
//! agent ─ config              puts the parts together, and runs the loops
//! control ─ backoff ─ client  the loop of heartbeats and alloc reports
//! signer ─ role_keys          signs requests with the instance's role, if the node has no token
//! output_files                the files of one output
//! output ─ outputs            the loop that sends output to readers
//! uploads ─ outputs           the loop that stores output in S3
//! s3_access ─ role_keys       region and credentials for S3
//! sweep ─ handles             the loop of handle reports; destroys the handles that an answer names
//! reconcile ─ runner          the loop that compares orders with the machine; starts and stops supervisors
//! end_tasks                   ends what is left of an alloc
//! ends                        how an alloc ended, even if files of its directory are missing or garbage
//! watch ─ imds ─ busy         the loops that watch the machine: interruptions, other work
//! fitness                     whether the node can start work; if not, it takes none
//! gpus                        the GPUs of the machine, and which of them cannot be used
//! services                    which services the node gets through to
//! guard                       whether jobs are isolated as promised; if not, the node takes no work
//! shared_node                 the state that the loops share
//! protocol                    pure: the messages of the node, and how an answer changes its state
//! blocking                    runs blocking work outside of the loops
//! locks                       locks of files
//! data_dir ─ atomic_file      the state file; every change is on disk before the agent uses it
//! alloc_dir                   the directory of one alloc
//! supervisor ─ process_table  one alloc: a process of its own, which survives the agent
//! supervised ─ provision      the alloc of a supervisor, and what its command gets before it starts
//! obstacle                    why a command does not get what it needs, and whose fault that is
//! capture ─ output_files      writes the output of a command to the disk
//! scratch                     measures the disk space of an alloc
//! over_memory                 finds an alloc that uses too much memory, where no control group limits it
//! ending                      how a command ends that is stopped: when it is asked and killed, and what is left of it
//! usage ─ process_table       measures what an alloc uses
//! enter                       a person's command inside of a running alloc
//! elements                    runs a command once for each element of a pack
//! job_command                 a command with its environment, input and limits
//! memory_file                 passes data in memory to a process that is started
//! program                     why a program cannot be executed
//! runtime                     how commands are run: as processes or in containers
//! user_ids                    which user id an alloc runs as, and whom the caches belong to
//! isolation                   keeps a job apart from the node, from the agent, and from other jobs
//! ```
//!
//! Guarantees: an alloc is started at most once, whichever process is killed and whenever; a restart of the agent loses no running
//! alloc; the agent stops work on its own decision only after 410 `gone`, and after a long silence of the control plane if
//! `--stop-after-s` is given.
//! Deliberately absent: times of the node's clock in anything that the control plane decides by, any choice of what to run, and any
//! retry of an alloc; the control plane decides.

/// The running program itself, even after an upgrade has replaced the file at its path. An agent starts its supervisors with it,
/// and a supervisor its helpers. So both sides of such a pair have the same version.
pub const OWN_PROGRAM: &str = "/proc/self/exe";

pub mod agent;
pub mod config;
pub mod contact;
pub mod elements;
mod ending;
pub mod enter;
pub mod handles;
pub mod isolation;
pub mod job_files;
pub mod machine;
pub mod output;
pub mod protocol;
pub mod rights;
pub mod runtime;
pub mod services;
mod usage;
pub mod work;
