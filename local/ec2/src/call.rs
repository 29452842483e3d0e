//! One API call, and what every action may use of it.
//!
//! Guarantees: a call has the world for itself, and one time for everything that it does.
//! Does not: read a clock, or ask a machine.

use model::{Span, Time};

use crate::api_error::ApiError;
use crate::instance::Ec2Instance;
use crate::settings::Ec2Settings;
use crate::wire::Params;
use crate::world::World;

pub(crate) struct Ec2Call<'a> {
    pub(crate) settings: &'a Ec2Settings,
    pub(crate) params: &'a Params,
    pub(crate) world: &'a mut World,
    pub(crate) now: Time,
    /// The end of the machine's console output, if the call asks for it.
    pub(crate) console: Option<String>,
}

impl Ec2Call<'_> {
    /// The error that ends a dry run. The caller has checked the request, and has changed nothing.
    pub(crate) fn unless_dry_run(&self) -> Result<(), ApiError> {
        if self.params.filled("DryRun") == Some("true") { Err(ApiError::dry_run()) } else { Ok(()) }
    }

    /// EC2 is eventually consistent: a new instance is not known everywhere at once
    /// ("Eventual consistency in the Amazon EC2 API", EC2 Developer Guide).
    pub(crate) fn is_listed(&self, instance: &Ec2Instance) -> bool {
        self.now.since(instance.launched_at) >= Span::from_ms(self.settings.list_lag_ms)
    }
}
