//! A simulated world that tries to break every rule of the five functions and of the agents' protocol.
//!
//! ```text
//! world ─ scenario ─ core     one world for each seed: time, chance, faults, counts, jobs, operators
//! functions ─ caller          the five functions, sometimes killed or late; the network
//! tables ─ database ─ rules   DynamoDB in memory
//! fault                       what can go wrong
//! embedded                    the real store, which must give the same answers
//! ec2                         lists that lag, tokens, shortages, machines that die
//! replay ─ compare            compares policies on the same arrivals
//! machine                     a node: the agent's protocol and its calls
//! check                       the invariants
//! happened                    what was reached, and what never was
//! panics                      a panic anywhere fails its world
//! story                       makes a failure small and tells it
//! stack                       threads on which a world has room
//! ```
//!
//! Guarantees: one seed gives one history; the product's own code runs, down to the conditions of its writes.
//! Deliberately absent: the AWS SDK, HTTP, processes and real time (the tests in `tests` use those).

pub mod caller;
pub mod check;
pub mod compare;
pub mod core;
pub mod database;
pub mod ec2;
pub mod embedded;
pub mod fault;
pub mod functions;
pub mod happened;
pub mod launch_limits;
pub mod machine;
pub mod panics;
pub mod replay;
pub mod rules;
pub mod scenario;
pub mod stack;
pub mod story;
pub mod tables;
pub mod world;
