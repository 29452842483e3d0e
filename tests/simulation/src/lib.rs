//! The real decisions and actions of the four functions, and the agents' real protocol, in a
//! simulated world that tries to break every rule.
//!
//! ```text
//! world ─ scenario ─ core     one world a seed: time, chance, faults, counts
//! functions ─ caller          the four functions, killed and late; the network
//! tables ─ model ─ rules      DynamoDB in memory
//! embedded                    the real store beside it
//! ec2                         lists that lag, tokens, shortages, machines that die
//! machine                     the agent's protocol on a node
//! check                       the invariants
//! happened                    what was reached, and what never was
//! story                       a failure made small and told
//! ```
//!
//! Guarantees: one seed, one history; what runs is the product's code, down to the conditions
//! of its writes. Deliberately absent: the AWS SDK, HTTP, processes and real time (the tests of
//! `tests` have those).

pub mod caller;
pub mod check;
pub mod core;
pub mod database;
pub mod ec2;
pub mod embedded;
pub mod functions;
pub mod happened;
pub mod machine;
pub mod rules;
pub mod scenario;
pub mod story;
pub mod tables;
pub mod world;
