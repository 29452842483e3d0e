//! Who may use the parts: the credentials of this start, and the checks at each port.
//!
//! | port | part | programs of the owner only | no page of another site | signature |
//! | --- | --- | --- | --- | --- |
//! | page | the page | yes | yes | no: a browser opens it |
//! | page | the machines' metadata | yes | yes | no: as in EC2 |
//! | page | the secret | yes | yes | yes |
//! | DynamoDB | its API | yes | yes | yes |
//! | EC2 | its API, which can run commands as the owner | yes | yes | yes |
//! | EC2 | the price list | yes | yes | yes |
//! | EC2 | `/_stand-in`: faults and events | yes | yes | no: `curl` uses it, and it runs nothing |
//! | rights | STS: assumes roles | no: jobs have users of their own | yes | yes: only the owner's count |
//! | rights | secrets | no | yes | yes: only those of a role's session count |
//! | S3 | its API | no: jobs read and write there | yes | yes: those of the owner, of the nodes, and of a role's session count |
//! | functions | function URLs | yes | yes | as `--node-auth` says |
//!
//! Guarantees: each start has new credentials, and only the environment file has them. All ports share the limits of connections
//! (the crate `listener`).
//! Does not: keep out programs of the owner, who can read the environment file anyway.

use super::args::LocalEnv;
use super::directory::REGION;
use super::error;
use crate::console::WallClock;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_dynamodb::config::SharedCredentialsProvider;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::IntoResponse;
use cloud::PRICES_REGION;
use ec2_stand_in::Ec2Region;
use guard::{KeyPair, Refuse, Signatures};
use listener::{Admission, Callers, origin};
use rights_stand_in::{Rights, random};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

#[derive(Clone)]
pub(super) struct Gates {
    admission: Admission,
    credentials: Arc<KeyPair>,
    /// The credentials by which nodes use S3.
    of_nodes: Arc<KeyPair>,
    clock: WallClock,
}

/// The bucket of the local policy.
const BUCKET: &str = "local";

impl Gates {
    pub(super) fn new(env: &LocalEnv) -> Self {
        Self::of(Admission::of_this_program(env.given.var("SUDO_UID")), Arc::clone(&env.clock))
    }

    #[cfg(test)]
    #[allow(clippy::disallowed_methods, reason = "the SDK signs with the real time")]
    pub(super) fn of_test() -> Self {
        Self::of(Admission::of_this_program(None), Arc::new(model::time::Time::now))
    }

    fn of(admission: Admission, clock: WallClock) -> Self {
        Self { admission, credentials: Arc::new(new()), of_nodes: Arc::new(new()), clock }
    }

    /// The variables of the environment with the credentials of the owner.
    pub(super) fn variables(&self) -> [(&'static str, String); 2] {
        variables(&self.credentials)
    }

    /// The configuration of the AWS SDK for the part at this address.
    pub(super) fn sdk_config(&self, at: SocketAddr) -> SdkConfig {
        let KeyPair { access_key_id, secret_access_key } = self.credentials.as_ref();
        let source = "nodekeeper local";
        let credentials =
            aws_sdk_dynamodb::config::Credentials::new(access_key_id, secret_access_key, None, None, source);
        SdkConfig::builder()
            .behavior_version(BehaviorVersion::latest())
            .http_client(store::http_client())
            .region(Region::new(REGION))
            .endpoint_url(format!("http://{at}"))
            .retry_config(runtime::lambda::retries())
            .timeout_config(runtime::lambda::timeouts())
            .credentials_provider(SharedCredentialsProvider::new(credentials))
            .build()
    }

    /// The check of the signatures of requests to a service.
    pub(super) fn signatures(&self, service: &'static str, refusal: Refuse) -> Signatures {
        let (credentials, clock) = (Arc::clone(&self.credentials), Arc::clone(&self.clock));
        Signatures { credentials, region: REGION, service, refusal, clock }
    }

    /// A service that answers only signed requests, and no page in a browser.
    pub(super) fn signed(&self, router: Router, service: &'static str, refusal: Refuse) -> Router {
        programs_only(router.layer(from_fn_with_state(self.signatures(service, refusal), Signatures::check)))
    }

    /// The APIs of EC2, the price list and Service Quotas, which listen at one port. A request must be signed for its service.
    pub(super) fn signed_for_ec2(&self, router: Router) -> Router {
        let ec2 = self.signatures("ec2", Ec2Region::unsigned);
        let quotas = self.signatures("servicequotas", Ec2Region::unsigned_json);
        // The price list has an endpoint in one region only.
        let prices = Signatures { region: PRICES_REGION, ..self.signatures("pricing", Ec2Region::unsigned_json) };
        let check = move |request: Request, next: Next| {
            let service = Ec2Region::service(request.headers());
            let meant = [&ec2, &quotas].into_iter().find(|known| known.service == service).unwrap_or(&prices);
            Signatures::check(State(meant.clone()), request, next)
        };
        programs_only(router.layer(from_fn(check)))
    }

    /// STS and the secrets in this file.
    pub(super) fn rights(&self, secrets: PathBuf) -> Arc<Rights> {
        let (owner, clock) = (Arc::clone(&self.credentials), Arc::clone(&self.clock));
        Arc::new(Rights::new(REGION, owner, clock, secrets))
    }

    /// S3 in this folder, with the bucket of the local policy.
    pub(super) fn s3(&self, folder: &Path, rights: Arc<Rights>) -> anyhow::Result<Router> {
        let of_nodes = Arc::clone(&self.of_nodes);
        let keys = move |id: &str| {
            let of_node = (of_nodes.access_key_id == id).then(|| of_nodes.secret_access_key.clone());
            of_node.or_else(|| rights.secret_key(id))
        };
        let router = s3_stand_in::router(folder, &[BUCKET], Box::new(keys));
        Ok(programs_only(router.map_err(error::file("use", folder))?))
    }

    /// The variables with the credentials by which nodes use S3.
    pub(super) fn node_keys(&self) -> [(&'static str, String); 2] {
        variables(&self.of_nodes)
    }

    /// Serves these callers, until the task is aborted. Jobs have users of their own, so a service for jobs is one for everyone, and
    /// checks the signatures itself.
    pub(super) fn serve(
        &self,
        what: &'static str,
        listener: TcpListener,
        callers: Callers,
        router: Router,
        tasks: &mut JoinSet<()>,
    ) {
        let admission = self.admission.clone();
        tasks.spawn(async move { match listener::serve(what, listener, router, callers, admission).await {} });
    }
}

fn new() -> KeyPair {
    KeyPair { access_key_id: format!("AKIA{}", random(8).to_ascii_uppercase()), secret_access_key: random(20) }
}

fn variables(credentials: &KeyPair) -> [(&'static str, String); 2] {
    let KeyPair { access_key_id, secret_access_key } = credentials;
    [("AWS_ACCESS_KEY_ID", access_key_id.clone()), ("AWS_SECRET_ACCESS_KEY", secret_access_key.clone())]
}

/// Refuses requests of pages in a browser.
pub(super) fn programs_only(router: Router) -> Router {
    router.layer(from_fn(async |request: Request, next: Next| match of_program(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refused) => refused.into_response(),
    }))
}

/// Whether a program asks, by a name of this machine.
fn of_program(headers: &HeaderMap) -> Result<(), origin::Refused> {
    origin::by_our_name(headers)?;
    if headers.contains_key(header::ORIGIN) || headers.contains_key(origin::SITE) {
        return Err((StatusCode::FORBIDDEN, "only programs are answered here, and no page in a browser\n"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ec2_stand_in::{Ec2Settings, NoMachines};
    use model::catalogue::Offers;
    use std::collections::BTreeSet;

    #[test]
    fn pages_are_no_programs() {
        let asked = |more: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in [("host", "127.0.0.1:7070")].iter().chain(more) {
                headers.insert(*name, value.parse().unwrap());
            }
            of_program(&headers).is_ok()
        };
        assert!(asked(&[]) && !asked(&[("host", "evil.example")]));
        assert!(!asked(&[("sec-fetch-site", "none")]) && !asked(&[("origin", "http://127.0.0.1:7070")]));
    }

    #[tokio::test]
    async fn ec2_the_price_list_and_service_quotas_answer_requests_that_are_signed_for_them() {
        let (access, other) = (Gates::of_test(), Gates::of_test());
        let ec2 = Ec2Region::new(Ec2Settings::default(), Arc::clone(&access.clock), Arc::new(NoMachines));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let router = access.signed_for_ec2(ec2.api());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let names = BTreeSet::from(["m7i.large".to_owned()]);
        for (access, allowed) in [(access, true), (other, false)] {
            let cloud = cloud::AwsOffers::connect(&access.sdk_config(at));
            let types = cloud.types(&names).await.map(|_| ());
            let (prices, quotas) = (cloud.prices(&names).await.map(|_| ()), cloud.quotas().await.map(|_| ()));
            for answer in [types, prices, quotas] {
                assert_eq!(answer.is_ok(), allowed, "{answer:?}");
                let error = answer.err().map(|error| error.to_string());
                assert!(error.is_none_or(|error| error.contains("AuthFailure")));
            }
        }
    }
}
