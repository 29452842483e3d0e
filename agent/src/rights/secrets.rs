//! Reads the secrets of a job from Secrets Manager and Parameter Store, with the job's own role.
//!
//! Guarantees: a secret that certainly cannot be had is told apart from a service that does not answer at present, and neither is a
//! failure of the command; no error contains a value.
//! Does not: use the rights of the node.
//! Source: GetSecretValue (AWS Secrets Manager API Reference), GetParameter (AWS Systems Manager API Reference).

use super::keys::{JobRole, PATIENCE, ServiceError, client};
use super::{SECRETS_DIR, write_for};
use crate::machine::atomic_file::make_dir;
use crate::runtime::interface::ProcessEnv;
use crate::work::obstacle::{Obstacle, patiently};
use model::Work;
use model::enums::Service;
use model::error_chain::error_chain;
use model::rights::{SecretPlace, SecretService};
use reqwest::StatusCode;
use s3::{Signed, signature};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// How secrets are read.
#[derive(Clone, Copy)]
pub struct SecretAccess<'a> {
    pub role: &'a JobRole,
    /// `AWS_ENDPOINT_URL` and the like, which stand in place of AWS's addresses.
    pub endpoints: &'a ProcessEnv,
}

impl SecretAccess<'_> {
    /// The values of all secrets of the job, by their places.
    pub async fn read(&self, work: &Work) -> Result<BTreeMap<String, String>, Obstacle> {
        let mut values = BTreeMap::new();
        for (name, place) in work.all_secrets() {
            if !values.contains_key(place) {
                let value = self.value(&format!("the secret {name}"), place).await?;
                values.insert(place.clone(), value);
            }
        }
        Ok(values)
    }

    /// The value of the secret at this place. `what` names it in an error.
    pub async fn value(&self, what: &str, place: &str) -> Result<String, Obstacle> {
        patiently(&format!("{what} cannot be read"), PATIENCE, async || self.one(place).await).await
    }

    async fn one(&self, place: &str) -> Result<String, Obstacle> {
        let place: SecretPlace = place.parse().map_err(|e| Obstacle::Job(format!("its place {e}")))?;
        let region = place.region.as_deref().or(self.role.source.region.as_deref());
        let region = region.ok_or_else(|| Obstacle::Job("the region is not known: give the ARN".to_owned()))?;
        let call = call_for(&place);
        let answer = self.call(region, &call).await?;
        let found = ["/SecretString", "/Parameter/Value"].iter().find_map(|path| answer.pointer(path)?.as_str());
        let text = found.map(str::to_owned).ok_or_else(|| Obstacle::Job("it is not text".to_owned()))?;
        match &place.field {
            None => Ok(text),
            Some(field) => match serde_json::from_str::<Value>(&text) {
                Ok(Value::Object(mut object)) => match object.remove(field) {
                    Some(Value::String(text)) => Ok(text),
                    Some(other) => Ok(other.to_string()),
                    None => Err(Obstacle::Job(format!("it has no field {field}"))),
                },
                _ => Err(Obstacle::Job(format!("it is not a JSON object, so it has no field {field}"))),
            },
        }
    }

    /// The answer to a call in this region.
    pub(crate) async fn call(&self, region: &str, call: &ServiceCall) -> Result<Value, Obstacle> {
        let http = client()?;
        let access = self.role.credentials(&http).await?;
        let ServiceCall { of, host, service, variable, target, body } = call;
        let endpoint = self.endpoints.get(&format!("AWS_ENDPOINT_URL_{variable}"));
        let endpoint = endpoint.or_else(|| self.endpoints.get("AWS_ENDPOINT_URL")).cloned();
        let url = endpoint.unwrap_or_else(|| format!("https://{host}.{region}.{}", suffix(region)));
        let url = format!("{}/", url.trim_end_matches('/'));
        let body = body.to_string().into_bytes();
        let headers = [("content-type", "application/x-amz-json-1.1"), ("x-amz-target", *target)];
        let signed = Signed { region, service, method: "POST", url: &url, headers: &headers, body: &body };
        let signature = signature(&access, &signed).map_err(Obstacle::Node)?;
        let request = headers.into_iter().fold(http.post(&url), |request, (name, value)| request.header(name, value));
        let away = |why: String| Obstacle::Service(*of, why);
        let request = signature.into_iter().fold(request, |request, (name, value)| request.header(name, value));
        let answer = request.body(body).send().await.map_err(|e| error_chain(&e));
        let failed =
            || answer.as_ref().ok().map(|a| a.status()).filter(StatusCode::is_server_error).map(|s| s.to_string());
        self.role.services.note(service, &url, answer.as_ref().err().cloned().or_else(failed).as_deref());
        let answer = answer.map_err(away)?;
        let status = answer.status();
        let bytes = answer.bytes().await.map_err(|e| away(error_chain(&e)))?;
        if !status.is_success() {
            return Err(refusal(*of, status, &bytes));
        }
        serde_json::from_slice(&bytes).map_err(|e| away(e.to_string()))
    }
}

/// A call of a service of AWS that speaks JSON.
pub(crate) struct ServiceCall {
    pub of: Service,
    /// The first part of its host.
    pub host: &'static str,
    /// Its name in signatures.
    pub service: &'static str,
    /// The end of the variable that stands in place of its address: `AWS_ENDPOINT_URL_…`.
    pub variable: &'static str,
    pub target: &'static str,
    pub body: Value,
}

/// Parts of the codes of refusals that may pass, or that another node may not get.
const PASSING: [&str; 7] = [
    "Throttl",
    "TooMany",
    "RequestExpired",
    "ExpiredToken",
    "InternalService",
    "InvalidSignature",
    "SignatureDoesNotMatch",
];

/// The call that reads the secret at this place.
fn call_for(place: &SecretPlace) -> ServiceCall {
    match place.service {
        SecretService::SecretsManager => ServiceCall {
            of: Service::Secrets,
            host: "secretsmanager",
            service: "secretsmanager",
            variable: "SECRETS_MANAGER",
            target: "secretsmanager.GetSecretValue",
            body: json!({"SecretId": place.id}),
        },
        SecretService::ParameterStore => ServiceCall {
            of: Service::Secrets,
            host: "ssm",
            service: "ssm",
            variable: "SSM",
            target: "AmazonSSM.GetParameter",
            body: json!({"Name": place.id, "WithDecryption": true}),
        },
    }
}

/// The end of the names of AWS's hosts in this region.
pub(crate) fn suffix(region: &str) -> &'static str {
    if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" }
}

/// Tells a refusal that may pass from one that is final. A signature that AWS does not accept may pass: the node's clock may be
/// wrong.
fn refusal(of: Service, status: StatusCode, body: &[u8]) -> Obstacle {
    let said: ServiceError = serde_json::from_slice(body).unwrap_or_default();
    let code = said.code.rsplit('#').next().unwrap_or_default().to_owned();
    let why = if said.message.is_empty() { format!("{code} ({status})") } else { format!("{code}: {}", said.message) };
    let passes =
        status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS || PASSING.iter().any(|p| code.contains(p));
    if passes { Obstacle::Service(of, why) } else { Obstacle::Job(why) }
}

/// The fault, if a secret that is wanted as a variable cannot be one.
pub fn unusable(work: &Work, values: &BTreeMap<String, String>) -> Option<Obstacle> {
    let (name, _) =
        work.secrets.iter().find(|(_, place)| values.get(*place).is_some_and(|value| value.contains('\0')))?;
    Some(Obstacle::Job(format!(
        "the secret {name} has a NUL character, which no variable can have: give it as --secret-file"
    )))
}

/// The variables of the job's secrets. A secret that is wanted as a file is written into the directory of the alloc; `seen_at` says
/// where the command finds this directory.
pub fn variables(
    work: &Work,
    values: &BTreeMap<String, String>,
    dir: &Path,
    seen_at: &Path,
    uid: Option<u32>,
) -> io::Result<ProcessEnv> {
    let value = |place: &String| values.get(place).cloned().unwrap_or_default();
    let mut env: ProcessEnv = work.secrets.iter().map(|(name, place)| (name.clone(), value(place))).collect();
    if work.secret_files.is_empty() {
        return Ok(env);
    }
    let files = dir.join(SECRETS_DIR);
    make_dir(&files)?;
    // The job may read its files, but cannot make others beside them.
    fs::set_permissions(&files, fs::Permissions::from_mode(0o711))?;
    for (n, (name, place)) in work.secret_files.iter().enumerate() {
        // The name of a variable may not be a valid name of a file.
        let file = n.to_string();
        write_for(&files.join(&file), value(place).as_bytes(), uid)?;
        env.insert(name.clone(), seen_at.join(SECRETS_DIR).join(file).display().to_string());
    }
    Ok(env)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_service_refuses_for_good_is_told_apart() {
        let of =
            |status: u16, body: &str| refusal(Service::Secrets, StatusCode::from_u16(status).unwrap(), body.as_bytes());
        let denied = r#"{"__type":"AccessDeniedException","Message":"not authorized"}"#;
        assert_eq!(of(400, denied), Obstacle::Job("AccessDeniedException: not authorized".into()));
        let absent = r#"{"__type":"com.amazonaws#ResourceNotFoundException","message":"no such secret"}"#;
        assert_eq!(of(400, absent), Obstacle::Job("ResourceNotFoundException: no such secret".into()));
        let skewed = r#"{"__type":"InvalidSignatureException","message":"Signature not yet current"}"#;
        let throttled = r#"{"__type":"ThrottlingException"}"#;
        for (status, body) in [(400, throttled), (400, skewed), (500, ""), (503, "<html>"), (429, "")] {
            assert!(matches!(of(status, body), Obstacle::Service(Service::Secrets, _)), "{status} {body}");
        }
    }

    #[test]
    fn a_secret_with_a_nul_character_is_no_variable_and_may_be_a_file() {
        let one = || BTreeMap::from([("A".to_owned(), "/a".to_owned())]);
        let values = |text: &str| BTreeMap::from([("/a".to_owned(), text.to_owned())]);
        let of = |work: &Work, text: &str| unusable(work, &values(text));
        let variable = Work { secrets: one(), ..Work::default() };
        assert!(matches!(of(&variable, "a\0b"), Some(Obstacle::Job(why)) if why.contains("the secret A ")));
        assert_eq!(of(&variable, "a\nb"), None);
        assert_eq!(of(&Work { secret_files: one(), ..Work::default() }, "a\0b"), None);
    }

    #[test]
    fn a_secret_is_a_variable_or_a_file_that_only_the_job_reads() {
        let dir = tempfile::tempdir().unwrap();
        let one = |name: &str| BTreeMap::from([(name.to_owned(), "/a".to_owned())]);
        let work = Work { secrets: one("PASSWORD"), secret_files: one("KEY"), ..Work::default() };
        let values = BTreeMap::from([("/a".to_owned(), "s3cret".to_owned())]);
        let env = variables(&work, &values, dir.path(), Path::new("/run/x"), None).unwrap();
        assert_eq!((env["PASSWORD"].as_str(), env["KEY"].as_str()), ("s3cret", "/run/x/secrets/0"));
        let file = dir.path().join("secrets/0");
        assert_eq!(fs::read_to_string(&file).unwrap(), "s3cret");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o400);
    }
}
