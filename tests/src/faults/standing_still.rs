//! Functions that stand still: which other function notices, and until when `status` shows it.

use crate::world::all_rows::AllRows;
use crate::world::{World, job, quick_policy};
use async_trait::async_trait;
use model::functions::{CLEAN_STALE_RECORDS, HEARTBEAT_INGEST, POLL_AND_SCALE, SWEEP_DISPATCH};
use model::{
    Class, ClientStatus, Cloud, CloudError, Function, Instance, LaunchAnswer, LaunchError, LaunchRequest, Reach,
    Refusal,
};
use serde_json::json;
use std::sync::Arc;

pub(super) struct Dead;

fn unreachable(operation: &'static str) -> CloudError {
    CloudError::Unreachable { operation, detail: "it is away".into() }
}

#[async_trait]
impl Cloud for Dead {
    async fn instances(&self) -> Result<Vec<Instance>, CloudError> {
        Err(unreachable("DescribeInstances"))
    }
    async fn instance(&self, _: &str) -> Result<Option<Instance>, CloudError> {
        Err(unreachable("DescribeInstances"))
    }
    async fn launch(&self, _: &LaunchRequest, _: &str) -> Result<LaunchAnswer, LaunchError> {
        Err(LaunchError::Lost("it is away".into()))
    }
    async fn terminate(&self, _: &[String]) -> Result<(), CloudError> {
        Err(unreachable("TerminateInstances"))
    }
    async fn console_output(&self, _: &str) -> Result<Option<String>, CloudError> {
        Err(unreachable("GetConsoleOutput"))
    }
}

/// A world with one node that works, in which every function has run.
async fn at_work() -> World {
    let mut policy = quick_policy();
    policy["heartbeat"]["ttl_s"] = json!(60);
    let mut world = World::with(policy, ec2_stand_in::Ec2Settings::default()).await;
    world.submit(job(&["forever"])).await;
    for _ in 0..24 {
        world.step().await;
    }
    let allocs = world.look.live_allocs().await.unwrap();
    assert!(allocs.iter().all(|a| a.client == ClientStatus::Running) && allocs.len() == 1, "{allocs:?}");
    world
}

impl World {
    /// Runs a function once. For heartbeat-ingest, the nodes do a round. Returns the signs that its alarm tells.
    async fn run(&mut self, function: Function) -> Result<Vec<&'static str>, String> {
        let (input, clock, now) = (json!({}), self.clock(), self.now());
        let outcome = match function {
            POLL_AND_SCALE => {
                let run = poll_and_scale::tick(&self.store, &*self.cloud, &self.settings, &input, clock).await;
                run.map(|run| run.wrong).map_err(|e| e.to_string())
            }
            CLEAN_STALE_RECORDS => {
                let run = clean_stale_records::tick(&self.store, &*self.cloud, &input, clock).await;
                run.map(|run| run.wrong).map_err(|e| e.to_string())
            }
            SWEEP_DISPATCH => {
                let run = sweep_dispatch::tick(&self.store, &input, clock).await;
                run.map(|run| run.wrong).map_err(|e| e.to_string())
            }
            _ => {
                for node in self.nodes.values_mut() {
                    node.live(&self.ingest, &self.sweep, &self.switch, now, clock).await;
                }
                Ok(Vec::new())
            }
        };
        self.not_before(clock);
        outcome
    }

    /// The line of `status` about a function.
    async fn status_of(&self, function: Function) -> String {
        let out = self.operate(&["status"]).await;
        let line = out.lines().find(|line| line.split_whitespace().nth(1) == Some(function.name));
        line.unwrap_or_else(|| panic!("{out}")).to_owned()
    }
}

const ALL: [Function; 4] = [POLL_AND_SCALE, CLEAN_STALE_RECORDS, SWEEP_DISPATCH, HEARTBEAT_INGEST];

/// EC2 does not answer. The functions that need it fail, and say so until it answers again.
#[tokio::test]
async fn a_function_that_fails_says_why_until_it_succeeds_again() {
    for function in [POLL_AND_SCALE, CLEAN_STALE_RECORDS] {
        let mut world = at_work().await;
        let alive = std::mem::replace(&mut world.cloud, Arc::new(Dead));
        let period_s = function.period.unwrap().as_ms() / 1000;
        world.pass(period_s);
        world.run(function).await.unwrap_err();
        let row = |world: &World| {
            let look = world.look.clone();
            async move { look.control().await.unwrap().runs.remove(function.name).unwrap() }
        };
        let first = row(&world).await;
        let since = first.failing_since_at.unwrap().since(world.now());
        assert!(since < model::time::Span::from_s(10), "{since}");
        assert!(first.error.as_ref().unwrap().contains("it is away"), "{first:?}");
        let line = world.status_of(function).await;
        assert!(line.starts_with("look") && line.contains("its last run failed"), "{line}");
        world.pass(period_s);
        world.run(function).await.unwrap_err();
        let second = row(&world).await;
        let kept = |row: &model::control::RunRow| (row.failing_since_at, row.last_success_at, row.in_use);
        assert_eq!(kept(&second), kept(&first), "a failed run changes neither");
        let line = world.status_of(function).await;
        assert!(line.starts_with("WRONG") && line.contains("it is away"), "{line}");
        let out = world.operate(&["status"]).await;
        assert!(out.contains("not all is well"), "{out}");
        world.cloud = alive;
        world.run(function).await.unwrap();
        let line = world.status_of(function).await;
        assert!(line.starts_with("ok"), "{line}");
        let row = row(&world).await;
        assert_eq!((&row.error, row.failing_since_at), (&None, None));
    }
}

/// The real EC2, except for its list of instances.
struct Lists {
    real: Arc<dyn Cloud>,
    /// `None`: the list is empty, and so is every answer about several instances.
    refusal: Option<&'static str>,
}

impl Lists {
    fn list(&self, operation: &'static str) -> Result<Vec<Instance>, CloudError> {
        let refused = |code: &&'static str| CloudError::Refused {
            operation,
            code: (*code).to_owned(),
            message: "the credentials were not accepted".into(),
        };
        self.refusal.as_ref().map(refused).map_or(Ok(Vec::new()), Err)
    }
}

#[async_trait]
impl Cloud for Lists {
    async fn instances(&self) -> Result<Vec<Instance>, CloudError> {
        self.list("DescribeInstances")
    }
    async fn instance(&self, id: &str) -> Result<Option<Instance>, CloudError> {
        match self.refusal {
            Some(_) => self.list("DescribeInstances").map(|_| None),
            None => self.real.instance(id).await,
        }
    }
    async fn launch(&self, _: &LaunchRequest, _: &str) -> Result<LaunchAnswer, LaunchError> {
        let message = "AuthFailure: the credentials were not accepted".into();
        Err(Refusal { reach: Reach::Account, class: Class::Refused, message }.into())
    }
    async fn terminate(&self, ids: &[String]) -> Result<(), CloudError> {
        match self.refusal {
            Some(_) => self.list("TerminateInstances").map(drop),
            None => self.real.terminate(ids).await,
        }
    }
    async fn console_output(&self, id: &str) -> Result<Option<String>, CloudError> {
        self.real.console_output(id).await
    }
}

struct Way {
    name: &'static str,
    /// The functions that do not run: their schedule is off, they were deleted, or Lambda ends every run at its time
    /// limit.
    stopped: &'static [Function],
    cloud: fn(Arc<dyn Cloud>) -> Arc<dyn Cloud>,
    tables_away: bool,
    /// The most minutes until the alarm of a run says so. `None` if no run is left.
    told_within: Option<u32>,
    /// The most minutes until `status` says that something is wrong.
    wrong_within: Option<u32>,
}

const WAYS: &[Way] = &[
    Way {
        name: "poll-and-scale stopped",
        stopped: &[POLL_AND_SCALE],
        cloud: |real| real,
        tables_away: false,
        told_within: Some(6),
        wrong_within: Some(6),
    },
    Way {
        name: "clean-stale-records stopped",
        stopped: &[CLEAN_STALE_RECORDS],
        cloud: |real| real,
        tables_away: false,
        told_within: Some(26),
        wrong_within: Some(26),
    },
    Way {
        name: "sweep-dispatch stopped",
        stopped: &[SWEEP_DISPATCH],
        cloud: |real| real,
        tables_away: false,
        told_within: Some(6),
        wrong_within: Some(6),
    },
    Way {
        name: "heartbeat-ingest stopped",
        stopped: &[HEARTBEAT_INGEST],
        cloud: |real| real,
        tables_away: false,
        told_within: Some(10),
        wrong_within: Some(10),
    },
    Way {
        name: "all stopped",
        stopped: &ALL,
        cloud: |real| real,
        tables_away: false,
        told_within: None,
        wrong_within: Some(6),
    },
    Way {
        name: "EC2 away",
        stopped: &[],
        cloud: |_| Arc::new(Dead),
        tables_away: false,
        told_within: Some(6),
        wrong_within: Some(6),
    },
    Way {
        name: "DynamoDB away",
        stopped: &[],
        cloud: |real| real,
        tables_away: true,
        told_within: None,
        wrong_within: Some(6),
    },
    Way {
        name: "DynamoDB and EC2 away",
        stopped: &[],
        cloud: |_| Arc::new(Dead),
        tables_away: true,
        told_within: None,
        wrong_within: Some(6),
    },
    Way {
        name: "EC2 refuses the credentials",
        stopped: &[],
        cloud: |real| Arc::new(Lists { real, refusal: Some("AuthFailure") }),
        tables_away: false,
        told_within: Some(6),
        wrong_within: Some(6),
    },
    Way {
        name: "EC2's list is empty",
        stopped: &[],
        cloud: |real| Arc::new(Lists { real, refusal: None }),
        tables_away: false,
        told_within: Some(26),
        wrong_within: Some(8),
    },
];

/// For each way: who notices, after how many minutes, and when the warning ends.
#[tokio::test]
async fn each_way_to_stand_still_is_noticed_and_ends() {
    for way in WAYS {
        let mut world = at_work().await;
        let alive = Arc::clone(&world.cloud);
        world.cloud = (way.cloud)(Arc::clone(&alive));
        world.switch.take_tables_away(way.tables_away);
        let work = world.look.live_allocs().await.unwrap().iter().map(|a| a.alloc_id).collect::<Vec<_>>();
        let (mut told, mut wrong) = (None, None);
        let mut minute = 0;
        while minute < 40
            && ((wrong.is_none() && way.wrong_within.is_some()) || (told.is_none() && way.told_within.is_some()))
        {
            minute += 1;
            let (failed, signs) = world.minute(minute, way.stopped).await;
            // Lambda counts these failures, and an alarm watches the count.
            let scheduled = ALL.iter().filter(|function| is_due(function, minute)).count();
            assert!(!way.tables_away || failed == scheduled, "{}: {failed} of {scheduled} runs failed", way.name);
            if !signs.is_empty() && told.is_none() {
                told = Some((minute, signs));
            }
            let out = world.operate(&["status"]).await;
            if wrong.is_none() && out.contains("not all is well") {
                let line = out.lines().find(|line| line.starts_with("WRONG")).unwrap_or_default().to_owned();
                wrong = Some((minute, line));
            }
        }
        world.cloud = alive;
        world.switch.take_tables_away(false);
        let mut over = 0;
        while over < 40 {
            over += 1;
            world.minute(over, &[]).await;
            if !world.operate(&["status"]).await.contains("not all is well") {
                break;
            }
        }
        println!("| {} | {told:?} | {wrong:?} | {over} |", way.name);
        match way.told_within {
            Some(most) => assert!(told.is_some_and(|(minute, _)| minute <= most), "{}: no alarm", way.name),
            None => assert_eq!(told, None),
        }
        match way.wrong_within {
            Some(most) => assert!(wrong.is_some_and(|(minute, _)| minute <= most), "{}: status", way.name),
            None => assert_eq!(wrong, None, "{}", way.name),
        }
        assert!(over <= 10, "{}: status does not become well again", way.name);
        if !way.stopped.contains(&HEARTBEAT_INGEST) {
            let after = world.look.live_allocs().await.unwrap().iter().map(|a| a.alloc_id).collect::<Vec<_>>();
            assert_eq!(after, work, "{}: the work went on meanwhile", way.name);
        }
    }
}

fn is_due(function: &Function, minute: u32) -> bool {
    function.period.is_some_and(|period| i64::from(minute) % (period.as_ms() / 60_000).max(1) == 0)
}

impl World {
    /// Passes one minute: every function but `stopped` runs on its schedule, and the nodes do a round. Returns the
    /// number of failed runs, and the signs that the others tell.
    async fn minute(&mut self, minute: u32, stopped: &[Function]) -> (usize, Vec<&'static str>) {
        self.pass(60);
        self.machines();
        let (mut failed, mut signs) = (0, Vec::new());
        for function in ALL.into_iter().filter(|function| !stopped.contains(function)) {
            if function.period.is_none() || is_due(&function, minute) {
                match self.run(function).await {
                    Ok(told) => signs.extend(told),
                    Err(_) => failed += 1,
                }
            }
        }
        (failed, signs)
    }
}
