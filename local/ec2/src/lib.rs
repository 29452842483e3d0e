//! A stand-in for EC2: an HTTP server that speaks the calls that nodekeeper makes, for the unmodified AWS SDK, with the
//! instances in memory. It also answers for AWS's price list and for Service Quotas.
//!
//! Guarantees: client tokens, states, limits, pages, filters and error codes are as AWS documents them (each rule names its
//! source). The same seed, clock and requests give the same instances, ids and answers. No request can cause a panic.
//! Does not: verify signatures (its server may check them around [`Ec2Region::api`]); know networks, volumes, or more than one account
//! and region, and of images only on which types they run; end an instance by itself. CreateFleet refuses parameters that EC2 does
//! not know, and other calls ignore them; two requests with one client token must still agree on them.
//!
//! With [`Faults`], the stand-in fails on demand as EC2 fails: no capacity, lost answers, instances
//! that hang. `GET` and `POST /_stand-in/faults` read and replace the faults.
//! `GET /_stand-in/instances` shows all instances, and
//! `POST /_stand-in/instances/{id}/{interrupt|terminate|stop}` does what EC2 or another user may
//! do to an instance.
//!
//! | where | what |
//! | --- | --- |
//! | [`Ec2Region`] | the region: its clock, its instances, what others do to them |
//! | `http` | requests in, answers out |
//! | `call`, `actions` | one API call, and which function performs it |
//! | `offers` with `catalogue` and `filters`, `price_list` | which types exist, where, and what they cost |
//! | `run` with `tags`, `templates` and `images`, `fleet` with its rules, `describe`, `terminate`, `console` | one action each |
//! | `world`, `instance` | the instances, and how their states change over time |
//! | [`Faults`], [`Ec2Settings`], [`Machines`] | what fails, what the region offers, what runs behind an instance |
//! | `wire`, `pages`, `instance_xml`, `api_error` | parameters, XML, page tokens, error codes |

mod actions;
mod api_error;
mod call;
mod catalogue;
mod ec2;
mod faults;
mod fleet;
mod http;
mod ids;
mod instance;
mod instance_xml;
mod machines;
mod settings;
mod wire;
mod world;

#[cfg(test)]
mod tests;

pub use ec2::Ec2Region;
pub use faults::{FailCall, Faults, Forget, LostAs, Reservation, Shortage};
pub use http::serve;
pub use instance::{Ec2Instance, InstanceState, StateReason};
pub use machines::{MachineStart, Machines, NoMachines};
pub use settings::{
    Ec2Settings, Ec2Subnet, Gpus, Image, InstanceType, Latency, LaunchTemplate, TemplateVersion, Throttle, TokenBucket,
};
