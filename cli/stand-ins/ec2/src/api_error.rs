//! Every error code that this stand-in answers, with its HTTP status.
//!
//! Codes and their meaning are those of "Error codes for the Amazon EC2 API", EC2 API
//! Reference. Client errors are 4xx and server errors 5xx. **A capacity shortage is a server
//! error**: the AWS SDK retries it unless told not to.

/// Why a request is refused. The text is the `Message` that a client sees.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ApiError {
    /// Whoever serves the stand-in refuses the signature.
    #[error("AWS was not able to validate the provided access credentials: {0}")]
    Unsigned(String),
    #[error("The request must contain the parameter Action")]
    MissingAction,
    #[error("The action {0} is not valid for this web service.")]
    InvalidAction(String),
    #[error("The request body is larger than {limit} bytes")]
    TooLarge { limit: usize },
    #[error("The request must contain the parameter {0}")]
    MissingParameter(&'static str),
    #[error("{0}")]
    InvalidParameterValue(String),
    #[error("{0}")]
    InvalidParameterCombination(String),
    #[error("The specified pagination token is invalid or has expired.")]
    InvalidPaginationToken,
    #[error("The request exceeds the limit of 200 filter values.")]
    FilterLimitExceeded,
    #[error("Invalid id: \"{0}\"")]
    InstanceIdMalformed(String),
    #[error("The instance {} not exist", no_such(.0))]
    InstanceNotFound(Vec<String>),
    #[error("The subnet ID '{0}' does not exist")]
    SubnetNotFound(String),
    #[error("The Capacity Reservation ID '{0}' does not exist")]
    ReservationNotFound(String),
    #[error("The Capacity Reservation '{0}' is not active")]
    ReservationState(String),
    #[error("The requested reservation {0} does not have sufficient capacity for this request.")]
    ReservationCapacityExceeded(String),
    #[error("There are not enough free addresses in subnet '{0}' to satisfy the requested number of instances.")]
    NoFreeAddresses(String),
    #[error("The following supplied instance types do not exist: [{0}]")]
    InstanceTypeUnknown(String),
    /// An error of the price list, which has codes of its own.
    #[error("{message}")]
    Json { code: &'static str, message: String },
    #[error("The specified launch template, with template ID {0}, does not exist.")]
    TemplateIdNotFound(String),
    #[error("The specified launch template, with template name {0}, does not exist.")]
    TemplateNameNotFound(String),
    #[error("Could not find the specified version {version} for the launch template with ID {template}.")]
    TemplateVersionNotFound { template: String, version: String },
    #[error("Invalid BASE64 encoding of user data.")]
    UserDataMalformed,
    #[error("A resource can have at most 50 tags.")]
    TagLimitExceeded,
    #[error("Arguments on this idempotent request are inconsistent with arguments used in previous request(s).")]
    IdempotentParameterMismatch,
    #[error("The instance launched by the earlier request with this client token has been terminated.")]
    IdempotentInstanceTerminated,
    #[error("Your quota allows for {0} more running instance(s). You requested more.")]
    InstanceLimitExceeded(u32),
    #[error(
        "You have requested more vCPU capacity than your current vCPU limit of {0} allows for the instance bucket that the \
         specified instance type belongs to."
    )]
    VcpuLimitExceeded(u32),
    #[error("Max spot instance count exceeded")]
    MaxSpotInstanceCountExceeded,
    #[error(
        "We currently do not have sufficient {instance_type} capacity in the Availability Zone you requested ({zone})."
    )]
    InsufficientInstanceCapacity { instance_type: String, zone: String },
    #[error(
        "Your requested instance type ({instance_type}) is not supported in your requested Availability Zone ({zone})."
    )]
    Unsupported { instance_type: String, zone: String },
    #[error("Request limit exceeded.")]
    RequestLimitExceeded,
    /// The action is done, but a fault replaces its answer by this error.
    #[error("An internal error has occurred")]
    InternalError,
    #[error("{message}")]
    OnDemand { status: u16, code: String, message: String },
}

impl ApiError {
    /// `InvalidParameterValue` in EC2's usual wording; `why` says what is wrong.
    pub(crate) fn value(value: &str, name: &str, why: &str) -> Self {
        let value: String = value.chars().take(100).collect();
        Self::InvalidParameterValue(format!("Value ({value}) for parameter {name} is invalid: {why}."))
    }

    /// The error code by which clients tell errors apart.
    pub(crate) fn code(&self) -> &str {
        self.wire().1
    }

    /// The HTTP status of the answer.
    pub(crate) fn status(&self) -> u16 {
        self.wire().0
    }

    fn wire(&self) -> (u16, &str) {
        match self {
            Self::Unsigned(_) => (401, "AuthFailure"),
            Self::MissingAction => (400, "MissingAction"),
            Self::InvalidAction(_) => (400, "InvalidAction"),
            Self::TooLarge { .. } => (413, "RequestEntityTooLarge"),
            Self::MissingParameter(_) => (400, "MissingParameter"),
            Self::InvalidParameterValue(_) => (400, "InvalidParameterValue"),
            Self::InvalidParameterCombination(_) => (400, "InvalidParameterCombination"),
            Self::InvalidPaginationToken => (400, "InvalidPaginationToken"),
            Self::FilterLimitExceeded => (400, "FilterLimitExceeded"),
            Self::InstanceIdMalformed(_) => (400, "InvalidInstanceID.Malformed"),
            Self::InstanceNotFound(_) => (400, "InvalidInstanceID.NotFound"),
            Self::SubnetNotFound(_) => (400, "InvalidSubnetID.NotFound"),
            Self::ReservationNotFound(_) => (400, "InvalidCapacityReservationId.NotFound"),
            Self::ReservationState(_) => (400, "InvalidCapacityReservationState"),
            Self::ReservationCapacityExceeded(_) => (400, "ReservationCapacityExceeded"),
            Self::NoFreeAddresses(_) => (400, "InsufficientFreeAddressesInSubnet"),
            Self::InstanceTypeUnknown(_) => (400, "InvalidInstanceType"),
            Self::Json { code, .. } => (400, code),
            Self::TemplateIdNotFound(_) => (400, "InvalidLaunchTemplateId.NotFound"),
            Self::TemplateNameNotFound(_) => (400, "InvalidLaunchTemplateName.NotFoundException"),
            Self::TemplateVersionNotFound { .. } => (400, "InvalidLaunchTemplateId.VersionNotFound"),
            Self::UserDataMalformed => (400, "InvalidUserData.Malformed"),
            Self::TagLimitExceeded => (400, "TagLimitExceeded"),
            Self::IdempotentParameterMismatch => (400, "IdempotentParameterMismatch"),
            Self::IdempotentInstanceTerminated => (400, "IdempotentInstanceTerminated"),
            Self::InstanceLimitExceeded(_) => (400, "InstanceLimitExceeded"),
            Self::VcpuLimitExceeded(_) => (400, "VcpuLimitExceeded"),
            Self::MaxSpotInstanceCountExceeded => (400, "MaxSpotInstanceCountExceeded"),
            Self::InsufficientInstanceCapacity { .. } => (500, "InsufficientInstanceCapacity"),
            Self::Unsupported { .. } => (400, "Unsupported"),
            Self::RequestLimitExceeded => (503, "RequestLimitExceeded"),
            Self::InternalError => (500, "InternalError"),
            Self::OnDemand { status, code, .. } => (*status, code),
        }
    }
}

/// `ID 'i-1' does`, `IDs 'i-1, i-2' do`: the middle of EC2's sentence about unknown instances.
fn no_such(ids: &[String]) -> String {
    match ids {
        [id] => format!("ID '{id}' does"),
        ids => format!("IDs '{}' do", ids.join(", ")),
    }
}
