//! `key`: shows and rotates the master key of the node tokens.
//!
//! Guarantees: a rotation locks out no node: it is refused while a node uses an older key than the current one, and while a
//! function may still launch nodes with an older key. Two rotations at once store one key. No key is printed.
//! Does not: reach the functions or the nodes. The functions read the secret again by themselves, and give each node a
//! token of the new key with its next heartbeat (`docs/rules.md#section-11`).

use crate::changes::operate::{BY_OPERATOR, retention, tell};
use crate::console::show::{self, several};
use crate::console::{Cluster, Context, Outcome};
use anyhow::Context as _;
use aws_sdk_secretsmanager::error::{DisplayErrorContext, SdkError};
use aws_sdk_secretsmanager::operation::put_secret_value::PutSecretValueError;
use clap::{Args, Subcommand};
use model::ActionName;
use model::auth::{NumberedKey, hex};
use model::events::Subject;
use model::ids::Slot;
use model::time::{Span, Time};
use serde::Serialize;
use sha2::{Digest, Sha256};

/// `key`
#[derive(Subcommand, Clone, Debug)]
pub enum KeyCommand {
    /// Show the number of the current key, and which nodes use an older one
    Show(ShowArgs),
    /// Store a new key. The current key stays valid until the next rotation
    Rotate(RotateArgs),
}

/// Where the key is.
#[derive(Args, Clone, Debug)]
pub(super) struct SecretArgs {
    /// The secret's name or ARN: the output NodeKeySecret of the stack
    #[arg(long, env = "NODEKEEPER_NODE_KEY_SECRET", hide_env_values = true, value_name = "ID")]
    secret: String,
}

/// `key show`
#[derive(Args, Clone, Debug)]
pub struct ShowArgs {
    #[command(flatten)]
    secret: SecretArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// `key rotate`
#[derive(Args, Clone, Debug)]
pub struct RotateArgs {
    #[command(flatten)]
    secret: SecretArgs,
    /// How old the functions' copies of the key may be, in seconds
    #[arg(
        long,
        env = "NODEKEEPER_KEY_MAX_AGE_S",
        hide_env_values = true,
        value_name = "SECONDS",
        default_value_t = 300
    )]
    max_age_s: u32,
    /// Rotate even if that locks out nodes with an older key, for example after a key was stolen
    #[arg(long)]
    force: bool,
}

/// The key and its users in JSON.
#[derive(Serialize)]
struct Keys {
    version: u32,
    /// When the current key was stored.
    #[serde(skip)]
    stored_at: Option<Time>,
    /// The slots whose nodes use an older key.
    older: Vec<Slot>,
}

pub(crate) async fn run(context: &mut Context<'_>, command: &KeyCommand) -> anyhow::Result<Outcome> {
    match command {
        KeyCommand::Show(args) => show(context, args).await,
        KeyCommand::Rotate(args) => rotate(context, args).await,
    }
}

impl Keys {
    async fn read(cluster: &Cluster, secret: &str) -> anyhow::Result<Self> {
        let answer = cluster.secrets.get_secret_value().secret_id(secret).send().await;
        let answer = answer.map_err(|e| {
            let missing = e.as_service_error().is_some_and(|e| e.is_resource_not_found_exception());
            let why = if missing { "there is no such secret".to_owned() } else { DisplayErrorContext(e).to_string() };
            anyhow::anyhow!("secret {secret} cannot be read: {why}: --secret gives its name or ARN")
        })?;
        let key: NumberedKey = answer
            .secret_string()
            .unwrap_or_default()
            .parse()
            .with_context(|| format!("secret {secret} does not hold the key"))?;
        let nodes = cluster.store.nodes().await?;
        let older = nodes.iter().filter(|n| n.life().is_some_and(|l| l.key_version < key.version));
        let stored_at = answer.created_date().and_then(|date| date.to_millis().ok()).map(Time::from_ms);
        Ok(Self { version: key.version, stored_at, older: older.map(|n| n.slot).collect() })
    }

    fn older(&self) -> String {
        self.older.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }
}

async fn show(context: &mut Context<'_>, args: &ShowArgs) -> anyhow::Result<Outcome> {
    let cluster = context.cluster().await?;
    let keys = Keys::read(&cluster, &args.secret.secret).await?;
    if args.json {
        show::json(context.out, &keys)?;
        return Ok(Outcome::Done);
    }
    writeln!(context.out, "the current key has version {}", keys.version)?;
    match keys.older.len() {
        0 => writeln!(context.out, "no node uses an older key")?,
        n => writeln!(context.out, "{} with an older key: slots {}", several(n, "node"), keys.older())?,
    }
    Ok(Outcome::Done)
}

async fn rotate(context: &mut Context<'_>, args: &RotateArgs) -> anyhow::Result<Outcome> {
    let cluster = context.cluster().await?;
    let secret = &args.secret.secret;
    let keys = Keys::read(&cluster, secret).await?;
    if !keys.older.is_empty() && !args.force {
        anyhow::bail!(
            "nothing was stored: nodes still use a key older than version {} (slots {}), and a rotation would lock them \
             out: wait until `nodekeeper key show` lists none, or give --force (with NodeAuth=iam, no node uses a token)",
            keys.version,
            keys.older()
        );
    }
    // A run of poll-and-scale that began just before its copy was too old launches with the older key.
    let settled = Span::from_s(i64::from(args.max_age_s) + i64::from(args.max_age_s) / 5);
    let age = keys.stored_at.map_or(settled, |at| context.now().since(at));
    if age < settled && !args.force {
        anyhow::bail!(
            "nothing was stored: version {} is {} old, and until it is {} old, a function may still launch nodes with the \
             key before it: wait, or give --force",
            keys.version,
            show::rough(age),
            show::rough(settled)
        );
    }
    let version = keys.version.checked_add(1).context("the key has the highest version: store a new secret")?;
    #[allow(clippy::disallowed_methods, reason = "a secret, which Chance does not make")]
    let key = hex(&rand::random::<[u8; 32]>());
    // The request token names the version. Secrets Manager refuses a second value with the same token, so of two
    // rotations at the same time one is refused.
    let token = Sha256::digest(format!("nodekeeper {} key {version}", cluster.dynamo.cluster()));
    let token = hex(token.get(..16).unwrap_or_default());
    let put = cluster.secrets.put_secret_value().secret_id(secret).secret_string(format!("{version}:{key}"));
    put.client_request_token(token).send().await.map_err(|e| match e {
        SdkError::ServiceError(service) if matches!(service.err(), PutSecretValueError::ResourceExistsException(_)) => {
            anyhow::anyhow!(
                "nothing was stored: version {version} was stored before or at the same time: see `key show`"
            )
        }
        SdkError::ServiceError(service) if service.raw().status().as_u16() < 500 => {
            anyhow::anyhow!("nothing was stored: {}", DisplayErrorContext(service.err()))
        }
        other => {
            anyhow::anyhow!("it is not known whether version {version} was stored: {}", DisplayErrorContext(other))
        }
    })?;
    writeln!(
        context.out,
        "stored as version {version}; the functions use it within {} s, and the nodes after their next heartbeats",
        args.max_age_s
    )?;
    let (keep, now) = (retention(&cluster).await?, context.now());
    let reason = format!("{BY_OPERATOR}: version {version}");
    tell(&cluster, &Subject::Cluster, ActionName::KeyRotated, &reason, keep, now).await?;
    Ok(Outcome::Done)
}
