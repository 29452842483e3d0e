//! webhook as a Lambda function: reads the environment, the key and the clock, then tells what events name.

#![allow(clippy::disallowed_methods, reason = "main.rs reads the clock and the environment")]

use async_trait::async_trait;
use aws_sdk_secretsmanager::Client;
use aws_sdk_secretsmanager::error::DisplayErrorContext;
use model::time::Time;
use model::webhook::SigningKey;
use runtime::env::Needs;
use runtime::lambda::{self, Parts, Reply};
use std::convert::Infallible;
use std::sync::Arc;
use webhook::keys::{KeySecret, Keys};
use webhook::settings::{KeySource, Settings};
use webhook::{FUNCTION, Webhook};

#[tokio::main]
async fn main() {
    let parts = lambda::start(FUNCTION, Needs { nodes: false, urls: false }).await;
    let webhook = match made(&parts).await {
        Ok(webhook) => Arc::new(webhook),
        Err(e) => lambda::fail(FUNCTION, &e),
    };
    lambda::serve(FUNCTION, parts.env.cluster.clone(), move |event, clock| {
        let webhook = Arc::clone(&webhook);
        async move { Ok::<_, Infallible>(Reply::Told(webhook.handle(&event, clock).await)) }
    })
    .await;
}

async fn made(parts: &Parts) -> Result<Webhook, String> {
    let settings = Settings::read(|name| std::env::var(name).ok())?;
    let keys = match settings.key {
        KeySource::Given(key) => Keys::fixed(key),
        KeySource::Secret(name) => {
            Keys::of_secret(Arc::new(Secret { client: Client::new(&parts.aws), name }), Time::now()).await?
        }
    };
    Webhook::new(parts.store.clone(), parts.env.cluster.clone(), settings.url, keys)
}

/// The secret of the key. Secrets Manager keeps the value before the current one under a label of its own.
#[derive(Debug)]
struct Secret {
    client: Client,
    name: String,
}

impl Secret {
    /// The value with this label.
    async fn value(&self, label: &str) -> Result<SigningKey, String> {
        let name = &self.name;
        let answer = self.client.get_secret_value().secret_id(name).version_stage(label).send().await;
        let answer = answer.map_err(|e| {
            format!("secret {name} (NODEKEEPER_WEBHOOK_KEY_SECRET) cannot be read: {}", DisplayErrorContext(e))
        })?;
        let text = answer.secret_string().unwrap_or_default();
        text.parse().map_err(|e| format!("secret {name} (NODEKEEPER_WEBHOOK_KEY_SECRET) is wrong: {e}"))
    }
}

#[async_trait]
impl KeySecret for Secret {
    async fn read(&self) -> Result<Vec<SigningKey>, String> {
        let current = self.value("AWSCURRENT").await?;
        // A new secret has none. A previous value that is no key does not count, for example one written by mistake.
        Ok([Some(current), self.value("AWSPREVIOUS").await.ok()].into_iter().flatten().collect())
    }
}
