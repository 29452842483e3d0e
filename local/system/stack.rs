//! Starts the parts of the local system, and stops them.
//!
//! Flow: directories, ports, database and policy, machines and EC2, functions, page. A failure ends the parts that were started
//! before it.
//! Guarantees: other programs find every part by the environment file. [`Stack::shut_down`] returns when no function and no machine
//! is left.
//! Does not: decide when to end, or print to the terminal; `run` does.

use super::access::{Gates, programs_only};
use super::args::{LocalArgs, LocalAuth, LocalEnv};
use super::directory::{self, Layout, PRIVATE, REGION};
use super::functions;
use super::functions::Functions;
use super::functions::{function_urls, triggers};
use super::machines::isolation::JobIsolation;
use super::machines::processes;
use super::machines::{LocalMachines, MachineSettings};
use super::page::{self, LocalPage};
use super::ports::{Ports, other_s3};
use super::region::region;
use super::{database, environment};
use crate::aws;
use crate::commands::set_up::policy;
use crate::view::{Pace, ViewSource};
use anyhow::{Context as _, Error};
use cloud::Ec2 as Cloud;
use ec2_stand_in::Ec2Region;
use guard::sigv4::Issuer;
use listener::Callers;
use model::{NodeKey, Policy};
use rights_stand_in::{Sessions, random};
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::interval;

/// The variables of this environment that machines get, too. One is the endpoint of Amazon ECR, which has no stand-in here. Docker
/// and podman read the last five.
const OF_MACHINES: &str = "PATH RUST_LOG AWS_ENDPOINT_URL_ECR CONTAINERS_CONF CONTAINERS_STORAGE_CONF \
    CONTAINERS_REGISTRIES_CONF DOCKER_CONFIG DOCKER_HOST";
/// How often ended orphans are reaped.
const REAP: Duration = Duration::from_secs(5);

pub(super) struct Stack {
    pub(super) machines: LocalMachines,
    pub(super) isolation: JobIsolation,
    /// Absent if the functions run elsewhere.
    pub(super) functions: Option<Arc<Functions>>,
    pub(super) policy: Policy,
    pub(super) places: Layout,
    _tasks: JoinSet<()>,
    _lock: File,
}

impl Stack {
    pub(super) async fn start(args: &LocalArgs, env: &LocalEnv, agent: PathBuf) -> anyhow::Result<Self> {
        let mut tasks = JoinSet::new();
        let given = args.policy.as_deref().map(policy::read).transpose()?;
        let key = node_key(args.node_key.as_deref())?;
        let (dir, lock) = directory::working_directory(&args.dir)?;
        directory::fresh_directory(&dir.join("logs"), PRIVATE)?;

        let s3 = other_s3(args.port, env.given.var("AWS_ENDPOINT_URL_S3"));
        let ports = Ports::bind(args.port, args.functions_url.as_deref(), s3).await?;
        let places = ports.places(args.functions_url.as_deref(), s3, dir)?;
        let access = Gates::new(env);
        let variables = environment::variables(args, &places, &key, &access);

        let data = args.data.as_deref();
        let (store, written) =
            database::start(data, args.cluster.clone(), &access, ports.dynamo, places.dynamo, &mut tasks).await?;
        let policy = database::store_policy(&store, given).await?;
        let isolation = JobIsolation::of(args, &places.dir);
        let given = OF_MACHINES.split(' ').filter_map(|name| Some((name, env.given.var(name)?.to_owned())));
        let known = places.endpoints().into_iter().chain(access.node_keys()).chain([("AWS_REGION", REGION.to_owned())]);
        let settings = MachineSettings {
            agent,
            dir: places.dir.join("machines"),
            logs: places.logs.clone(),
            isolation: isolation.clone(),
            metadata_url: format!("http://{}/metadata", places.page),
            store: store.clone(),
            runtime: Handle::current(),
            user_data: !args.no_user_data,
            variables: known.chain(given).collect(),
        };
        let (machines, ec2) = start_ec2(settings, env, &access, &policy, ports.ec2, &mut tasks)?;
        serve_for_jobs(args, &places, &access, (ports.rights, ports.s3), &mut tasks)?;
        let sessions = (args.node_auth == LocalAuth::Iam).then(|| Arc::new(Sessions::default()));
        let functions = match ports.functions {
            Some(listener) => {
                let functions = Arc::new(Functions::new(env, &places, &variables, &access)?);
                let issuer = sessions.clone().map(|sessions| sessions as Arc<dyn Issuer>);
                let urls = function_urls::router(Arc::clone(&functions), Arc::clone(&env.clock), issuer);
                access.serve("the functions", listener, Callers::Owner, programs_only(urls), &mut tasks);
                functions.keep_schedules(args, &mut tasks);
                tasks.spawn(triggers::wake(written, Arc::clone(&functions)));
                Some(functions)
            }
            None => functions::wake_elsewhere(args, &places.functions, &mut tasks).map(|()| None)?,
        };
        let source = ViewSource {
            cluster: args.cluster.to_string(),
            store: store.clone(),
            // The page sees EC2 as the functions see it.
            cloud: Arc::new(Cloud::connect(&access.sdk_config(places.ec2), args.cluster.clone())),
            outputs: aws::s3(&access.sdk_config(places.ec2), Some(&places.s3), Arc::clone(&env.clock))?,
            clock: Arc::clone(&env.clock),
            pace: Pace::LOCAL,
            extra: Some(page::processes(Arc::clone(&ec2), functions.clone())),
        };
        let page = LocalPage { source, machines: machines.clone(), sessions };
        page::serve(ports.page, page, &access, &mut tasks);
        tasks.spawn(reap_orphans());
        // A program that waits for this file then finds the tables.
        environment::write_file(&places.env_file, &variables)?;
        Ok(Self { machines, isolation, functions, policy, places, _tasks: tasks, _lock: lock })
    }

    /// Stops the schedules, ends the functions and the machines, and returns when none is left.
    pub(super) async fn shut_down(&self) {
        let functions = async {
            if let Some(functions) = &self.functions {
                functions.stop().await;
            }
        };
        tokio::join!(functions, self.machines.shut_down());
        let _ = fs::remove_file(&self.places.env_file);
    }
}

fn node_key(given: Option<&str>) -> anyhow::Result<String> {
    let key = given.map_or_else(|| random(32), str::to_owned);
    key.parse::<NodeKey>().context("--node-key is wrong")?;
    Ok(key)
}

/// Serves EC2, with agent processes as its machines.
fn start_ec2(
    settings: MachineSettings,
    env: &LocalEnv,
    access: &Gates,
    policy: &Policy,
    listener: TcpListener,
    tasks: &mut JoinSet<()>,
) -> anyhow::Result<(LocalMachines, Arc<Ec2Region>)> {
    let (machines, mut powered_off) = LocalMachines::new(settings)?;
    let ec2 = Ec2Region::new(region(policy), Arc::clone(&env.clock), Arc::new(machines.clone()));
    let (kept, informed) = (Arc::clone(&ec2), Arc::clone(&ec2));
    let router = access.signed_for_ec2(ec2.api()).merge(programs_only(ec2.controls()));
    access.serve("the stand-in for EC2", listener, Callers::Owner, router, tasks);
    tasks.spawn(async move { kept.keep_advancing().await });
    tasks.spawn(async move {
        while let Some(instance_id) = powered_off.recv().await {
            informed.powered_off(&instance_id);
        }
    });
    Ok((machines, ec2))
}

/// Serves what jobs use: STS, the secrets and S3.
fn serve_for_jobs(
    args: &LocalArgs,
    places: &Layout,
    access: &Gates,
    (rights_at, s3_at): (TcpListener, Option<TcpListener>),
    tasks: &mut JoinSet<()>,
) -> anyhow::Result<()> {
    let rights = access.rights(places.secrets());
    // Each request reads them again. So a person who starts the system reads at once what is wrong.
    rights.secrets().map_err(Error::msg)?;
    if let Some(listener) = s3_at {
        // The content of S3 lasts as long as the tables.
        if args.data.is_none() {
            directory::fresh_directory(&places.stored(), PRIVATE)?;
        }
        let s3 = access.s3(&places.stored(), Arc::clone(&rights))?;
        access.serve("the stand-in for S3", listener, Callers::Everyone, s3, tasks);
    }
    let rights = programs_only(rights_stand_in::router(rights));
    access.serve("the stand-in for STS", rights_at, Callers::Everyone, rights, tasks);
    Ok(())
}

async fn reap_orphans() {
    let mut ticks = interval(REAP);
    loop {
        ticks.tick().await;
        processes::reap_orphans();
    }
}
