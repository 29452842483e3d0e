//! Calls the function for each action of the API, and applies the faults to the call.
//!
//! Guarantees: a fault that fails the call comes before the action, and one that loses the answer comes after it.
//! Does not: check parameters; each action does.

pub(crate) mod console;
pub(crate) mod describe;
pub(crate) mod filters;
pub(crate) mod images;
pub(crate) mod json_services;
pub(crate) mod offers;
pub(crate) mod pages;
pub(crate) mod price_list;
pub(crate) mod reservations;
pub(crate) mod run;
pub(crate) mod service_quotas;
pub(crate) mod tags;
pub(crate) mod templates;
pub(crate) mod terminate;

use crate::api_error::{ApiError, clip};
use crate::call::Ec2Call;
use crate::faults::LostAs;
use crate::wire::Xml;

/// The answer to a successful action.
pub(crate) enum Ec2Answer {
    Xml(String),
    /// The action is done, but the connection breaks before the answer.
    Disconnect,
}

impl Ec2Call<'_> {
    /// Performs the action that the request names.
    pub(crate) fn answer(mut self, request_id: &str) -> Result<Ec2Answer, ApiError> {
        let missing = || ApiError::new("MissingAction", "The request must contain the parameter Action");
        let action = self.params.filled("Action").ok_or_else(missing)?;
        let perform: fn(&mut Self, &mut Xml) -> Result<(), ApiError> = match action {
            "RunInstances" => Self::run_instances,
            "CreateFleet" => Self::create_fleet,
            "DescribeInstances" => Self::describe_instances,
            "DescribeInstanceTypes" => Self::describe_instance_types,
            "DescribeInstanceTypeOfferings" => Self::describe_instance_type_offerings,
            "DescribeSpotPriceHistory" => Self::describe_spot_price_history,
            "DescribeCapacityReservations" => Self::describe_capacity_reservations,
            "DescribeSubnets" => Self::describe_subnets,
            "TerminateInstances" => Self::terminate_instances,
            "GetConsoleOutput" => Self::get_console_output,
            other => {
                let message = format!("The action {} is not valid for this web service.", clip(other));
                return Err(ApiError::new("InvalidAction", message));
            }
        };
        self.world.faults.fail_call(action, self.params)?;
        let xml = Xml::answer(action, request_id, |xml| perform(&mut self, xml))?;
        let lost_as =
            if matches!(action, "RunInstances" | "CreateFleet") { self.world.faults.lose_answer() } else { None };
        match lost_as {
            None => Ok(Ec2Answer::Xml(xml)),
            Some(LostAs::Disconnect) => Ok(Ec2Answer::Disconnect),
            Some(LostAs::InternalError) => Err(ApiError::internal()),
        }
    }
}
