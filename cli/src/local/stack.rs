//! The parts of the local system put together, and taken apart again.
//!
//! Flow: directories, database and tables, policy, machines, EC2, functions, page. What fails on
//! the way ends what was started before it.
//! Guarantees: other programs find everything by the environment file; [`Stack::shut_down`]
//! returns when no function and no machine is left.
//! Does not: decide when to end, or speak to the terminal; `super::run` does.

use super::binaries::{Binaries, FUNCTIONS};
use super::ec2::{self, Ec2};
use super::lambda::{self, FunctionConfig, Lambda, LogSink, Schedule};
use super::machines::{self, LocalMachines};
use super::page::{self, Page};
use super::{Clock, LocalArgs, LocalEnv, LocalError, processes, wake};
use aws_sdk_dynamodb::config::{BehaviorVersion, Credentials, Region};
use shared::auth::{MasterKey, hex};
use shared::chance::Chance;
use shared::policy::Policy;
use shared::store::{Dynamo, Memory, POLICY, PolicyRow, Store};
use shared::time::Span;
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

/// The region everything here says it is in.
const REGION: &str = "local-1";
/// What stands for a secret where nothing checks it.
const NO_SECRET: &str = "local";
/// The policy when none is given.
const POLICY_TOML: &str = include_str!("policy.toml");
/// How often expired rows are deleted: DynamoDB takes up to days.
const TTL_SWEEP: Duration = Duration::from_secs(10);
/// How often those whom their parents left behind are buried.
const BURY: Duration = Duration::from_secs(5);

/// The running system.
pub(super) struct Stack {
    pub(super) store: Store,
    pub(super) ec2: Arc<Ec2>,
    pub(super) machines: LocalMachines,
    pub(super) lambda: Option<Arc<Lambda>>,
    pub(super) policy: Policy,
    pub(super) clock: Clock,
    pub(super) places: Places,
    _tasks: JoinSet<()>,
    _lock: File,
}

/// Where everything is.
#[derive(Clone, Debug)]
pub(super) struct Places {
    pub(super) page: SocketAddr,
    pub(super) dynamo: SocketAddr,
    pub(super) ec2: SocketAddr,
    /// What the functions' paths begin with.
    pub(super) functions: String,
    /// The working directory, absolute.
    pub(super) dir: PathBuf,
    /// Logs of functions and machines.
    pub(super) logs: PathBuf,
    /// The environment file.
    pub(super) env_file: PathBuf,
}

impl Stack {
    pub(super) async fn start(args: &LocalArgs, env: &LocalEnv, binaries: &Binaries) -> Result<Self, LocalError> {
        let mut tasks = JoinSet::new();
        let policy = args.policy.as_deref().map(read_policy).transpose()?;
        let key = node_key(args.node_key.as_deref())?;
        let (dir, lock) = working_directory(&args.dir)?;
        let logs = dir.join("logs");
        fresh_directory(&logs)?;

        let page_listener = listen(args.port).await?;
        let (dynamo_listener, ec2_listener) = (listen(0).await?, listen(0).await?);
        let (dynamo, ec2_at) = (address(&dynamo_listener)?, address(&ec2_listener)?);
        let lambda_listener = match &args.functions_url {
            None => Some(listen(0).await?),
            Some(_) => None,
        };
        let functions = match (&lambda_listener, &args.functions_url) {
            (Some(listener), _) => format!("http://{}", address(listener)?),
            (None, url) => url.as_deref().unwrap_or_default().trim_end_matches('/').to_owned(),
        };
        let places = Places {
            page: address(&page_listener)?,
            dynamo,
            ec2: ec2_at,
            functions,
            env_file: dir.join("env"),
            logs,
            dir,
        };
        let variables = variables(args, &places, &key);
        write_env_file(&places.env_file, &variables)?;

        serve_database(args.data.as_deref(), dynamo_listener, &mut tasks)?;
        let dynamo = Dynamo::new(dynamo_client(places.dynamo), args.cluster.clone());
        dynamo.create_tables().await?;
        let store = Store::new(Arc::new(dynamo));
        let policy = store_policy(&store, policy).await?;

        let settings = machines::Settings {
            agent: binaries.agent(),
            dir: places.dir.join("machines"),
            logs: places.logs.clone(),
            metadata_url: format!("http://{}/metadata", places.page),
            path: env.path.clone(),
            rust_log: env.rust_log.clone(),
        };
        let failed = LocalError::file("prepare", settings.dir.clone());
        let (machines, mut powered_off) = LocalMachines::new(settings).map_err(failed)?;
        let cloud = Ec2::new(region(&policy), Arc::clone(&env.clock), Arc::new(machines.clone()));
        let (served, told) = (Arc::clone(&cloud), Arc::clone(&cloud));
        tasks.spawn(async move {
            if let Err(error) = ec2::serve(ec2_listener, served).await {
                tracing::error!(%error, "the stand-in for EC2 no longer listens: restart");
            }
        });
        tasks.spawn(async move {
            while let Some(instance_id) = powered_off.recv().await {
                told.powered_off(&instance_id);
            }
        });

        let lambda = match lambda_listener {
            Some(listener) => {
                let config = functions_config(args, env, binaries, variables);
                let log = log_sink(&places.logs)?;
                Some(Arc::new(Lambda::start(config, listener, log, Arc::clone(&env.clock))?))
            }
            None => {
                wake_others(args, &places.functions, &mut tasks)?;
                None
            }
        };
        let page = Page::new(store.clone(), Arc::clone(&cloud), machines.clone(), lambda.clone(), args, env);
        tasks.spawn(page::serve(page_listener, page));
        tasks.spawn(async {
            let mut ticks = interval(BURY);
            loop {
                ticks.tick().await;
                processes::bury_orphans();
            }
        });
        let clock = Arc::clone(&env.clock);
        Ok(Self { store, ec2: cloud, machines, lambda, policy, clock, places, _tasks: tasks, _lock: lock })
    }

    /// Stops the schedules, ends the functions and the machines, and returns when none is left.
    pub(super) async fn shut_down(&self) {
        let functions = async {
            if let Some(lambda) = &self.lambda {
                lambda.shutdown().await;
            }
        };
        tokio::join!(functions, self.machines.shut_down());
        let _ = fs::remove_file(&self.places.env_file);
    }
}

fn read_policy(path: &Path) -> Result<Policy, LocalError> {
    let text = fs::read_to_string(path).map_err(LocalError::file("read the policy", path))?;
    let wrong = |why: String| LocalError::Policy { path: path.to_owned(), why };
    if path.extension().is_some_and(|e| e == "json") {
        let document = serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))?;
        return Policy::from_json(&document).map_err(|e| wrong(e.to_string()));
    }
    Policy::from_toml(&text).map_err(|e| wrong(e.to_string()))
}

fn node_key(given: Option<&str>) -> Result<String, LocalError> {
    #[allow(clippy::disallowed_methods, reason = "a secret, which Chance does not make")]
    let key = given.map_or_else(|| hex(&rand::random::<[u8; 32]>()), str::to_owned);
    MasterKey::from_hex(&key)?;
    Ok(key)
}

/// Makes the directory and makes sure that we are alone in it.
fn working_directory(dir: &Path) -> Result<(PathBuf, File), LocalError> {
    fs::create_dir_all(dir).map_err(LocalError::file("make", dir))?;
    let dir = dir.canonicalize().map_err(LocalError::file("find", dir))?;
    let path = dir.join("lock");
    let lock = File::create(&path).map_err(LocalError::file("write", &path))?;
    match lock.try_lock() {
        Ok(()) => Ok((dir, lock)),
        Err(TryLockError::WouldBlock) => Err(LocalError::InUse(dir)),
        Err(TryLockError::Error(source)) => Err(LocalError::file("lock", path)(source)),
    }
}

/// An empty directory, whatever stood there from an earlier time.
pub(super) fn fresh_directory(path: &Path) -> Result<(), LocalError> {
    if path.exists() {
        fs::remove_dir_all(path).map_err(LocalError::file("empty", path))?;
    }
    fs::create_dir_all(path).map_err(LocalError::file("make", path))
}

async fn listen(port: u16) -> Result<TcpListener, LocalError> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.map_err(|source| LocalError::Listen { port, source })
}

fn address(listener: &TcpListener) -> Result<SocketAddr, LocalError> {
    listener.local_addr().map_err(|source| LocalError::System { what: "tell where a port is", source })
}

/// What the functions and other programs need to know.
fn variables(args: &LocalArgs, places: &Places, key: &str) -> BTreeMap<String, String> {
    let url = |function: &str| format!("{}/lambda-url/{function}", places.functions);
    [
        ("NODEKEEPER_CLUSTER", args.cluster.to_string()),
        ("NODEKEEPER_NODE_KEY", key.to_owned()),
        ("NODEKEEPER_HEARTBEAT_URL", url("heartbeat-ingest")),
        ("NODEKEEPER_SWEEP_URL", url("sweep-dispatch")),
        ("AWS_ENDPOINT_URL_DYNAMODB", format!("http://{}", places.dynamo)),
        ("AWS_ENDPOINT_URL_EC2", format!("http://{}", places.ec2)),
        ("AWS_ENDPOINT_URL_LAMBDA", places.functions.clone()),
        ("AWS_REGION", REGION.to_owned()),
        ("AWS_ACCESS_KEY_ID", NO_SECRET.to_owned()),
        ("AWS_SECRET_ACCESS_KEY", NO_SECRET.to_owned()),
        ("AWS_EC2_METADATA_DISABLED", "true".to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// Lines that a shell and `cargo lambda watch --env-file` both read. It holds the node key.
fn write_env_file(path: &Path, variables: &BTreeMap<String, String>) -> Result<(), LocalError> {
    let what = || LocalError::file("write", path);
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path).map_err(what())?;
    let lines: String = variables.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
    file.write_all(lines.as_bytes()).map_err(what())
}

fn serve_database(path: Option<&Path>, listener: TcpListener, tasks: &mut JoinSet<()>) -> Result<(), LocalError> {
    let name = path.map_or_else(|| "a database in memory".to_owned(), |p| p.display().to_string());
    let failed = |why: String| LocalError::Database { path: name.clone(), why };
    let db = match path {
        None => dynoxide::Database::memory(),
        Some(path) => {
            let path = path.to_str().ok_or_else(|| failed("its name is not UTF-8".to_owned()))?;
            dynoxide::Database::new(path)
        }
    };
    let db = db.map_err(|e| failed(e.to_string()))?;
    tasks.spawn(dynoxide::server::serve_on(listener, db.clone()));
    tasks.spawn(async move {
        let mut ticks = interval(TTL_SWEEP);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            let db = db.clone();
            let swept = tokio::task::spawn_blocking(move || db.sweep_ttl()).await;
            if let Ok(Err(error)) = swept {
                tracing::warn!(%error, "expired rows are not deleted");
            }
        }
    });
    Ok(())
}

fn dynamo_client(at: SocketAddr) -> aws_sdk_dynamodb::Client {
    let config = aws_sdk_dynamodb::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new(REGION))
        .endpoint_url(format!("http://{at}"))
        .credentials_provider(Credentials::new(NO_SECRET, NO_SECRET, None, None, "nodekeeper local"))
        .build();
    aws_sdk_dynamodb::Client::from_conf(config)
}

/// Stores the policy given; without one keeps what a `--data` file holds, or begins with ours.
async fn store_policy(store: &Store, given: Option<Policy>) -> Result<Policy, LocalError> {
    let control = store.control().await?;
    let policy = match (given, control.checked_policy()) {
        (Some(policy), _) => policy,
        (None, Ok((stored, _))) => return Ok(stored),
        (None, Err(_)) => Policy::from_toml(POLICY_TOML)
            .map_err(|e| LocalError::Policy { path: "the built-in policy".into(), why: e.to_string() })?,
    };
    let before = control.policy;
    let version = before.as_ref().map_or_else(|| Memory::new(POLICY).version, |row| row.version);
    let row = PolicyRow { key: POLICY.to_owned(), version, document: policy.to_json().to_string() };
    store.write(before.as_ref(), &row, Vec::new()).await?;
    Ok(policy)
}

/// The stand-in's region: what the policy names is there.
fn region(policy: &Policy) -> ec2::Config {
    let mut config = ec2::Config { seed: Chance::real().bits() as u64, ..ec2::Config::default() };
    let named = policy.size.iter().filter_map(|s| s.template.as_ref()).chain(&policy.launch.template);
    for (n, name) in named.collect::<std::collections::BTreeSet<_>>().into_iter().enumerate() {
        let id = if name.starts_with("lt-") { name.clone() } else { format!("lt-{n:017x}") };
        let image = ec2::TemplateVersion { version: 1, image_id: Some("ami-local".into()), ..Default::default() };
        config.launch_templates.push(ec2::LaunchTemplate {
            id,
            name: name.clone(),
            default_version: 1,
            versions: vec![image],
        });
    }
    if !policy.launch.subnets.is_empty() {
        let zones = ('a'..='z').cycle();
        config.subnets = policy
            .launch
            .subnets
            .iter()
            .zip(zones)
            .map(|(subnet_id, zone)| ec2::Subnet { subnet_id: subnet_id.clone(), zone: format!("{REGION}{zone}") })
            .collect();
    }
    config
}

/// Lines of each function go to a file of its own.
fn log_sink(logs: &Path) -> Result<LogSink, LocalError> {
    let mut files = BTreeMap::new();
    for function in FUNCTIONS {
        let path = logs.join(format!("{function}.log"));
        let file = File::create(&path).map_err(LocalError::file("write", path))?;
        files.insert(function, Mutex::new(file));
    }
    Ok(Arc::new(move |function, line| {
        if let Some(file) = files.get(function) {
            let _ = writeln!(file.lock().unwrap_or_else(PoisonError::into_inner), "{line}");
        }
    }))
}

/// What runs by the clock, and how often.
fn schedules(args: &LocalArgs) -> [(&'static str, Span); 3] {
    let tick = i64::try_from(args.tick_s()).unwrap_or(60);
    [
        ("poll-and-scale", Span::from_s(tick)),
        ("sweep-dispatch", Span::from_s(tick)),
        ("clean-stale-records", Span::from_s(5 * tick)),
    ]
}

fn functions_config(
    args: &LocalArgs,
    env: &LocalEnv,
    binaries: &Binaries,
    variables: BTreeMap<String, String>,
) -> lambda::Config {
    // As in the template: time-outs of scheduled functions stay below their minute.
    let functions = [
        ("poll-and-scale", 55_000, 512, 1),
        ("clean-stale-records", 55_000, 512, 1),
        ("heartbeat-ingest", 20_000, 256, 4),
        ("sweep-dispatch", 55_000, 256, 4),
    ];
    let function = |(name, timeout_ms, memory_mb, max_concurrency): (&str, u64, u32, usize)| FunctionConfig {
        name: name.to_owned(),
        program: binaries.function(name),
        env: variables.clone(),
        timeout_ms,
        memory_mb,
        max_concurrency,
        max_waiting: 1_000,
        event_retries: 0,
    };
    let ms = |span: Span| u64::try_from(span.as_ms()).unwrap_or(1);
    let schedule = |(function, every): (&str, Span)| Schedule {
        function: function.to_owned(),
        first_after_ms: 100,
        every_ms: ms(every),
        payload: serde_json::json!({}),
    };
    let inherited = [("PATH", &env.path), ("HOME", &env.home), ("RUST_LOG", &env.rust_log)];
    lambda::Config {
        functions: functions.map(function).into(),
        schedules: schedules(args).map(schedule).into(),
        region: REGION.to_owned(),
        inherited_env: inherited.into_iter().filter_map(|(n, v)| Some((n.to_owned(), v.clone()?))).collect(),
        event_retry_ms: lambda::Config::AWS_EVENT_RETRY_MS,
    }
}

fn wake_others(args: &LocalArgs, url: &str, tasks: &mut JoinSet<()>) -> Result<(), LocalError> {
    let authority = wake::authority(url).ok_or_else(|| LocalError::FunctionsUrl(url.to_owned()))?;
    for (function, every) in schedules(args) {
        tasks.spawn(wake::keep(authority.to_owned(), function, every));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_policy_is_right_and_everything_it_names_is_there() {
        let policy = Policy::from_toml(POLICY_TOML).unwrap();
        let region = region(&policy);
        assert_eq!(region.launch_templates.len(), 1);
        assert_eq!(region.launch_templates[0].name, "nodekeeper");
        assert_eq!(region.subnets.len(), 1);
    }

    #[test]
    fn two_cannot_run_in_one_directory() {
        let dir = tempfile::tempdir().unwrap();
        let first = working_directory(dir.path()).unwrap();
        assert!(matches!(working_directory(dir.path()), Err(LocalError::InUse(_))));
        drop(first);
        working_directory(dir.path()).unwrap();
    }

    #[tokio::test]
    async fn a_stored_policy_stays_unless_another_is_given() {
        let mut tasks = JoinSet::new();
        let listener = listen(0).await.unwrap();
        let client = dynamo_client(address(&listener).unwrap());
        serve_database(None, listener, &mut tasks).unwrap();
        let dynamo = Dynamo::new(client, "t".parse().unwrap());
        dynamo.create_tables().await.unwrap();
        let store = Store::new(Arc::new(dynamo));
        let first = store_policy(&store, None).await.unwrap();
        let mut other = first.clone();
        other.nodes.max = 3;
        assert_eq!(store_policy(&store, Some(other.clone())).await.unwrap(), other);
        assert_eq!(store_policy(&store, None).await.unwrap(), other);
    }
}
