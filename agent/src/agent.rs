//! Puts the parts of the agent together, runs the loops, and ends the agent.
//!
//! Guarantees: when the agent is asked to end, allocs keep running, unless `--stop-work-on-exit` is given; when the
//! node is gone, all work is stopped before `--on-gone` runs.
//! Does not: know the protocol, or processes.

use crate::OWN_PROGRAM;
use crate::config::{AgentArgs, NO_INSTANCE_ID};
use crate::contact::client::{ControlPlaneClient, Credential, NodeClock};
use crate::contact::imds::Imds;
use crate::contact::role_keys::RoleKeys;
use crate::contact::s3_access::{FilesSource, S3Access, S3Environment};
use crate::contact::shared_node::SharedNode;
use crate::contact::signer::{Signer, region_in};
use crate::contact::{binding, control};
use crate::handles::HandleStore;
use crate::handles::sweep::Sweeper;
use crate::isolation::{OwnIds, cgroup};
use crate::job_files::cache::Cache;
use crate::machine::data_dir::DataDir;
use crate::machine::end_pipe::{self, END_PIPE};
use crate::machine::gpus::{self, GpuSource};
use crate::machine::guard::{self, Guard};
use crate::machine::watch;
use crate::output::outputs::Outputs;
use crate::output::uploads::Uploads;
use crate::protocol::{Identity, Node};
use crate::rights::{CredentialsPort, port, service::CredentialsService};
use crate::runtime::Containers;
use crate::services::{Services, watch as services_watch};
use crate::work::reconcile;
use crate::work::runner::{Runner, RunnerSettings};
use anyhow::{anyhow, bail};
use model::names::is_host;
use model::wire::{LaunchFile, NodeFile};
use std::sync::Arc;
use std::time::Duration;
use tokio::process::Command;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

/// How long an agent that must end goes on storing outputs. Service managers wait longer before they kill it.
const LAST_UPLOADS: Duration = Duration::from_secs(20);

/// Everything the agent needs to start. The agent reads nothing else from its environment.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    pub node: LaunchFile,
    pub args: AgentArgs,
    pub boot_id: String,
    pub s3: S3Environment,
    /// Signs requests, and dates the use of cached inputs. No decision of the protocol uses it.
    pub clock: NodeClock,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndReason {
    Gone,
    OnRequest,
}

/// What the agent learns about its instance and its node before it starts to work.
struct NodeSetup {
    file: NodeFile,
    identity: Identity,
    imds: Option<Imds>,
    role: Option<Arc<RoleKeys>>,
    region: Option<String>,
    client: ControlPlaneClient,
    data_dir: DataDir,
}

/// Runs the agent until the node is gone or `shutdown` completes.
pub async fn run(config: AgentConfig, shutdown: impl Future<Output = ()>) -> anyhow::Result<()> {
    tokio::pin!(shutdown);
    let known = tokio::select! {
        known = know(&config) => known?,
        () = &mut shutdown => return Ok(()),
    };
    match known {
        Some(known) => work(config, known, shutdown).await,
        None => {
            run_on_gone(&config.args.on_gone).await;
            Ok(())
        }
    }
}

/// Learns which instance and which node this is. `None` if the instance is no longer a node of its batch.
async fn know(config: &AgentConfig) -> anyhow::Result<Option<NodeSetup>> {
    let (args, file) = (&config.args, config.node.clone());
    let imds = if args.no_imds { None } else { Some(Imds::new(&args.imds_url)?) };
    let identity = identity(args, imds.as_ref()).await?;
    let data_dir = DataDir::open(&args.data_dir)?;
    let role = imds.clone().map(|imds| Arc::new(RoleKeys::new(imds)));
    let region = args.region.clone().or_else(|| region_in(&file.heartbeat_url));
    let credential = credential(&file, args, role.as_ref(), imds.as_ref(), region.clone()).await?;
    let any = file.any_node().ok_or_else(|| {
        let file = args.config.display();
        anyhow!("the node file {file} has neither node_id nor batch: launch the instance with nodekeeper's user data")
    })?;
    let client = ControlPlaneClient::new(any, credential, config.clock)
        .map_err(|e| anyhow!("cannot set up HTTP: {e}; are the system's certificates installed?"))?;
    let node_id = match (file.node_id, &file.batch) {
        (None, Some(batch)) => {
            let asked = binding::node_of(batch, &identity.instance_id, &data_dir, &client, &file.heartbeat_url);
            let Some(node_id) = asked.await? else { return Ok(None) };
            node_id
        }
        _ => any,
    };
    let (file, client) = (file.of(node_id), client.of(node_id));
    Ok(Some(NodeSetup { file, identity, imds, role, region, client, data_dir }))
}

async fn work(config: AgentConfig, known: NodeSetup, shutdown: impl Future<Output = ()>) -> anyhow::Result<()> {
    let AgentConfig { args, boot_id, s3, clock, .. } = config;
    let NodeSetup { file, identity, imds, role, region, client, data_dir } = known;
    let source = GpuSource::of(args.gpus_from.as_deref())?;
    let durable = data_dir.load(file.node_id, &boot_id)?;
    data_dir.save(&durable)?;
    tracing::info!(
        node_id = %file.node_id, instance_id = identity.instance_id, allocs = durable.allocs.len(),
        registered = durable.incarnation.is_some(), "the agent starts"
    );
    let client = Arc::new(client);
    let no_port = |e: std::io::Error| anyhow!("cannot open a port of this machine for the credentials of jobs: {e}");
    let listener = port::listen(&args.data_dir).await.map_err(no_port)?;
    let credentials_port = listener.local_addr().map_err(no_port)?.port();
    let (users, guard) = guard::prepare(&args, &data_dir).await?;
    let containers = Containers::find(args.containers).await;
    let settings = RunnerSettings {
        node_id: file.node_id,
        boot_id,
        containers: containers.clone(),
        users,
        program: OWN_PROGRAM.into(),
        credentials: CredentialsPort { port: credentials_port, region: region.clone().or(s3.region.clone()) },
        files: files_source(&args, &data_dir, region.clone()),
    };
    let inputs = Cache::at(data_dir.inputs()).sweep(args.keep_inputs_mib << 20, clock);
    let runner = Runner::new(settings, &data_dir);
    let ends = end_pipe::open(&args.data_dir.join(END_PIPE))?;
    let outputs = Outputs::open(&data_dir, file.node_id, args.keep_output_mib);
    let handles = HandleStore::new(&data_dir, containers.clone(), outputs.clone());
    let sweeper = Sweeper::new(handles.clone(), usize::from(args.max_destroys), args.destroy_timeout_s);
    let (allocs, gpu_samples) = (data_dir.allocs(), data_dir.gpu_samples());
    let state = Arc::new(SharedNode::new(Node::new(identity, durable), data_dir));
    // A task of its own: jobs may keep it busy.
    let mut serving = JoinSet::new();
    serving.spawn(CredentialsService::new(Arc::clone(&state), Arc::clone(&client), allocs).serve(listener));
    let runner = check_first(&state, &guard, &source, runner).await;
    // A task of its own: it waits for the disk, and no heartbeat waits with it.
    let mut reconciling = JoinSet::new();
    reconciling.spawn(reconcile::run(Arc::clone(&state), Arc::clone(&runner), reconcile::INTERVAL, args.stop_after_s));
    let services = Services::of_node(&args.data_dir);
    let access = S3Access::new(s3, role, imds.clone(), region, services.clone(), clock);
    let uploads = Uploads::start(Arc::clone(&state), outputs, access);
    let end = tokio::select! {
        () = control::run(&state, &client, &file.heartbeat_url) => EndReason::Gone,
        () = sweeper.run(&state, &client, &file.sweep_url) => EndReason::Gone,
        ended = reconciling.join_next() => bail!("the loop that starts and stops allocs failed: {ended:?}"),
        () = inputs => EndReason::OnRequest,
        () = handles.keep_room(&state) => EndReason::OnRequest,
        () = end_pipe::pass_on(&ends, &state.reconcile_now) => EndReason::OnRequest,
        () = watch::interruption(&state, imds) => EndReason::OnRequest,
        () = guard::watch(&state, &guard) => EndReason::OnRequest,
        () = gpus::watch(&state, &source, &gpu_samples) => EndReason::OnRequest,
        () = containers.watch() => EndReason::OnRequest,
        () = services_watch::watch(&state, &services, clock) => EndReason::OnRequest,
        () = watch::other_work(&state, args.busy_check.as_deref(), args.busy_check_every_s) => EndReason::OnRequest,
        () = shutdown => EndReason::OnRequest,
    };
    reconciling.shutdown().await;
    finish(end, &args, &state, &mut *runner.lock().await, uploads).await;
    Ok(())
}

fn files_source(args: &AgentArgs, data_dir: &DataDir, region: Option<String>) -> FilesSource {
    let imds_url = (!args.no_imds).then(|| args.imds_url.clone());
    FilesSource { cache: data_dir.inputs(), imds_url, region }
}

/// Stops the work if the node is gone, or with `--stop-work-on-exit`. Then stores the outputs that can be stored in
/// `LAST_UPLOADS`.
async fn finish(end: EndReason, args: &AgentArgs, state: &SharedNode, runner: &mut Runner, uploads: Uploads) {
    match end {
        EndReason::Gone => {
            tracing::warn!("this node is gone: stopping all work");
            reconcile::stop_everything(state, runner, "the node is gone").await;
        }
        EndReason::OnRequest if args.stop_work_on_exit => {
            reconcile::stop_everything(state, runner, "the agent was stopped together with its work").await;
        }
        EndReason::OnRequest => tracing::info!("the agent ends; allocs keep running"),
    }
    uploads.finish(LAST_UPLOADS).await;
    if let Some(OwnIds { cgroups: Some(parent), .. }) = &runner.settings.users {
        cgroup::remove_if_empty(parent);
    }
    if end == EndReason::Gone {
        run_on_gone(&args.on_gone).await;
    }
}

/// Checks the machine before the first heartbeat. The first report then lists the allocs that are on it.
async fn check_first(state: &SharedNode, guard: &Guard, source: &GpuSource, mut runner: Runner) -> Arc<Mutex<Runner>> {
    guard::first(state, guard).await;
    gpus::first(state, source).await;
    reconcile::run_once(state, &mut runner).await;
    Arc::new(Mutex::new(runner))
}

/// How the node proves who it is: by the token of its file, or else by the role of its instance.
async fn credential(
    file: &LaunchFile,
    args: &AgentArgs,
    role: Option<&Arc<RoleKeys>>,
    imds: Option<&Imds>,
    region: Option<String>,
) -> anyhow::Result<Credential> {
    if let Some(token) = &file.token {
        return Ok(Credential::Token(token.clone()));
    }
    let (Some(role), Some(imds)) = (role, imds) else {
        let file = args.config.display();
        bail!("the node file {file} has no token, and --no-imds is given: the node cannot prove who it is");
    };
    let region = match region {
        Some(region) => region,
        None => imds.region().await?,
    };
    Ok(Credential::Signature(Signer::new(Arc::clone(role), region)))
}

async fn identity(args: &AgentArgs, imds: Option<&Imds>) -> anyhow::Result<Identity> {
    let instance_id = match (&args.instance_id, imds) {
        (Some(id), _) => id.clone(),
        (None, Some(imds)) => imds.instance_id().await?,
        (None, None) => bail!(NO_INSTANCE_ID),
    };
    let address = match (&args.address, imds) {
        (Some(address), _) => Some(address.clone()),
        // The control plane refuses every heartbeat whose address is not a host.
        (None, Some(imds)) => imds.address().await?.filter(|address| is_host(address)),
        (None, None) => None,
    };
    Ok(Identity { instance_id, address })
}

async fn run_on_gone(command: &str) {
    tracing::warn!(command, "running the command of --on-gone");
    match Command::new("sh").args(["-c", command]).status().await {
        Ok(status) if status.success() => {}
        Ok(status) => tracing::error!(%status, command, "the command of --on-gone failed"),
        Err(error) => tracing::error!(%error, command, "cannot run the command of --on-gone"),
    }
}
