//! What can go wrong in a world, and what a world must not let happen.

use model::Time;

/// A broken invariant.
#[derive(Clone, Debug)]
pub struct Broken {
    pub rule: &'static str,
    pub what: String,
    pub at: Time,
}

/// Makes the enum, [`Fault::ALL`], [`Fault::base`] and [`Fault::meaning`] from one table. A row has the meaning, the
/// name and the chance of a fault.
macro_rules! faults {
    ($($(#[doc = $doc:literal])* $name:ident = $p:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Fault { $($(#[doc = $doc])* $name),* }
        impl Fault {
            pub const ALL: &'static [Fault] = &[$(Fault::$name),*];
        }
        /// The chance and the meaning of each kind, in the order of [`Fault::ALL`].
        const ROWS: &[(f64, &str)] = &[$(($p, concat!($($doc),*))),*];
    };
}

// A new fault needs a new last row here, and a call of `Core::happens` at the place where it happens. The position of a
// row decides its stream of random numbers, so a row in between would change the history of every seed.
faults! {
    /// a call of DynamoDB takes up to 20 s
    DbSlow = 0.002,
    /// DynamoDB throttles a call
    DbThrottles = 0.001,
    /// a call of DynamoDB fails before it does anything
    DbFails = 0.001,
    /// a write is committed and its answer lost
    DbAnswerLost = 0.002,
    /// a write meets another transaction
    DbContended = 0.01,
    /// an index lags by up to a minute and a half
    IndexLags = 0.02,
    /// the scan of a table shows it as it was seconds ago
    StaleScan = 0.04,
    /// a page of a list fails after earlier pages
    PageFails = 0.001,
    /// the tables are restored to an older state
    Restored = 0.0,
    /// a new instance is not listed for up to five minutes
    ListLags = 0.25,
    /// a list leaves out an instance
    ListForgets = 0.01,
    /// an instance is left out of lists for up to half an hour, and unknown by id
    ListLoses = 0.003,
    /// many instances are left out at once, for some minutes
    ListCollapses = 0.002,
    /// a list, or a look at one instance, fails
    ListFails = 0.01,
    /// a call of EC2 that is no launch takes up to 20 s
    Ec2Slow = 0.005,
    /// an accepted launch whose answer is lost
    LaunchAnswerLost = 0.08,
    /// a launch that lands late
    LaunchSlow = 0.05,
    LaunchThrottled = 0.02,
    /// a quota of the account, for some minutes: of a family, a type or a market
    Quota = 0.02,
    /// a type is short in a zone and market, for up to an hour
    Shortage = 0.05,
    /// EC2 does not accept a part of launches for some minutes: a market, a subnet, the template or one request
    BadRequest = 0.002,
    /// EC2 does not take a launch call of several ways, for up to two hours
    FleetNotTaken = 0.001,
    /// an instance that runs and never calls
    NeverBoots = 0.03,
    /// a node hangs, as soon as it has registered or within an hour: it is silent, and nothing on it ends
    Hangs = 0.005,
    /// a node registers and never reports
    NeverReports = 0.005,
    /// an instance that fails while it boots
    DiesBooting = 0.02,
    /// an instance that takes long to boot
    BootsSlowly = 0.05,
    /// a termination call fails
    TerminateFails = 0.05,
    /// a termination call fails after it took some of the instances
    TerminatesSome = 0.03,
    /// a termination takes up to 20 min
    TerminatesSlowly = 0.1,
    /// somebody else stops an instance
    Stopped = 0.0003,
    /// somebody else terminates an instance
    TerminatedByOthers = 0.0003,
    /// an instance fails: EC2 ends it
    InstanceDies = 0.0003,
    /// two thirds of the instances end at once, and EC2 soon forgets them
    ZoneLost = 0.003,
    /// spot capacity is taken back after two minutes' warning
    SpotTaken = 0.002,
    /// spot capacity is taken back without warning
    SpotTakenAtOnce = 0.0005,
    /// a function is killed at some await point
    Killed = 0.03,
    /// a scheduled run comes late
    RunLate = 0.1,
    /// a scheduled run is made twice
    RunTwice = 0.05,
    /// up to ten runs at once
    RunsOverlap = 0.01,
    /// a function does not run at all for up to two hours
    FunctionDown = 0.000_4,
    /// a run has little time: its deadline comes early
    ShortRun = 0.02,
    /// the ingest answers nobody for up to an hour
    IngestDown = 0.000_02,
    /// another version of the code runs for a while: it renders another launch request
    OtherVersion = 0.005,
    /// the clocks of two runs differ by some seconds
    ClockSkew = 0.2,
    /// an agent is killed and starts again
    AgentCrashes = 0.003,
    /// an agent forgets its state file
    StateLost = 0.0005,
    /// a node reboots
    Reboots = 0.001,
    /// a node reboots with an empty disk
    DiskLost = 0.0005,
    /// a node is cut off from the network, for up to an hour
    CutOff = 0.001,
    /// a node is cut off and never comes back
    CutOffForever = 0.000_2,
    /// many nodes are cut off at once
    PartOfTheNetwork = 0.000_2,
    /// a request of a node is lost
    RequestLost = 0.01,
    /// the answer to a node is lost
    AnswerLost = 0.01,
    /// a request of a node arrives up to ten minutes late
    RequestLate = 0.003,
    /// a request of a node arrives once more, later
    RequestTwice = 0.005,
    /// a node reports that it is busy with other work
    Busy = 0.002,
    /// a process ends as failed
    WorkFails = 0.05,
    /// a process ignores TERM
    IgnoresTerm = 0.1,
    /// a handle that nobody ordered appears on a node, with the node's label
    StrayHandle = 0.001,
    /// a handle with another node's label, or with none, appears on a node
    ForeignHandle = 0.0005,
    /// a handle on a node vanishes
    HandleVanishes = 0.001,
    /// a handle cannot be destroyed for a while
    HandleSticks = 0.05,
    /// the handles of an alloc are listed only after up to twenty minutes
    AppearsLate = 0.05,
    /// a listing of handles is not complete
    ListingPartial = 0.01,
    /// a node reports an alloc of another node
    Liar = 0.001,
    /// an operator holds a node
    OperatorHolds = 0.02,
    /// an operator drains a node
    OperatorDrains = 0.03,
    /// an operator cancels a job
    OperatorCancels = 0.1,
    /// an operator lowers or raises the maximum
    OperatorResizes = 0.03,
    /// an operator changes what launches look like
    OperatorRewrites = 0.02,
    /// an operator takes a size out of the policy
    OperatorDropsSize = 0.01,
    /// an operator changes what a size offers or costs
    OperatorRewritesSize = 0.01,
    /// an operator changes how often nodes call and report
    OperatorRewritesTimes = 0.01,
    /// a single write is committed, its answer lost, and the SDK sends it once more
    DbSentTwice = 0.003,
    /// the requests of a node arrive and all answers are lost, for up to an hour
    Deaf = 0.001,
    /// a list shows an instance in the state that it had up to two minutes ago (small fleets, and `--fault`)
    ListsOlderState = 0.0,
    /// EC2 does not accept the caller of launches for some minutes: credentials, clock or permissions (small fleets, and
    /// `--fault`)
    LaunchNotAllowed = 0.0,
    /// an agent takes no work for up to an hour, because it finds that it cannot isolate jobs (`--fault`)
    AgentRefuses = 0.0,
    /// a machine can start no work for up to an hour: its disk is full, or its daemon is away (`--fault`)
    CannotStart = 0.0,
    /// EC2 launches fewer instances than a batch asks for (`--batches`)
    BatchCutShort = 0.0,
    /// EC2 refuses a call because it does not know an id, and does not name the id (small fleets, and `--fault`)
    IdsNotNamed = 0.0,
    /// somebody makes a row of any table unreadable for up to half an hour (`--fault`)
    RowUnreadable = 0.0,
    /// another scheduler has work for a node from its first heartbeat on (`--fault`)
    ForeignWork = 0.0,
    /// a controller says how many nodes another scheduler needs, and may forget to renew it (`--fault`)
    ControllerWants = 0.0,
    /// a job that arrives follows jobs that arrived before (`--fault`)
    JobFollows = 0.0,
    /// a job that arrives is put off to a time, gives up after one, or is of an array that stops after failures (`--fault`)
    JobPutOff = 0.0,
    /// an operator pauses a job, changes its priority, or lets it go on (`--fault`)
    OperatorPauses = 0.0,
    /// a job that arrives is an array, of which only some jobs may be placed at once (`--fault`)
    ArrayArrives = 0.0,
    /// a job that arrives runs elements (`--fault`)
    PackArrives = 0.0,
    /// any chance: the policy also has a size of several types, whose prices change (`--fault`)
    SeveralTypes = 0.0,
    /// a zone is lost with all its instances, and gives none for up to an hour (`--fault`)
    ZoneGone = 0.0,
    /// a subnet has no free address when EC2 is asked (`--fault`)
    SubnetFull = 0.0,
    /// a job that arrives needs GPUs (`--fault`)
    GpusWanted = 0.0,
    /// a GPU of a machine cannot be used for up to an hour (`--fault`)
    GpuSick = 0.0,
    /// a job that arrives has several members, and names so many caches that one transaction places only one of them (`--fault`)
    MembersInParts = 0.0,
    /// a job that arrives has a role, and a node asks for the credentials of an alloc, its own or another one's (`--fault`)
    RoleWanted = 0.0,
    /// any chance: the policy also names capacity reservations and a capacity block, which are used up and end (`--fault`)
    Reservations = 0.0,
    /// the node of one of several copies of a member goes: EC2 takes it back, or an operator drains it (`--fault`)
    CopyLeaves = 0.0,
    /// the driver of a new machine shows no GPU, or not all of them, for up to an hour (`--fault`)
    GpusLate = 0.0,
    /// programs submit jobs with keys that others give too, are killed, and begin again (`--fault`)
    KeyGivenAgain = 0.0,
    /// the list of what starts next is lost, older than it says, counts for too long, or is drawn again from its beginning
    NextListWrong = 0.02,
    /// any chance: the policy has shares, one of them with a limit (`--fault`)
    Shares = 0.0,
}

impl Fault {
    pub(crate) fn index(self) -> usize {
        self as usize
    }

    /// The chance at each occasion, in an ordinary seed.
    pub fn base(self) -> f64 {
        ROWS.get(self.index()).map_or(0.0, |(chance, _)| *chance)
    }

    pub fn meaning(self) -> &'static str {
        ROWS.get(self.index()).map_or("", |(_, meaning)| meaning)
    }
}
