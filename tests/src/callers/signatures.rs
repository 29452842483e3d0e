//! Signed requests. The local function URLs accept what botocore and the agent sign, and nothing else.
//!
//! Three implementations are compared: botocore, the signer of the AWS SDK for Rust (in the agent), and the check of
//! the local function URLs, which is our own code after AWS's documentation.

use crate::second_opinions::python_tool;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use guard::sigv4::{Issued, Issuer, MAX_SKEW, RawRequest, SignScope, caller};
use model::{Rng, Span, Time};
use nodekeeper_agent::contact::imds::Imds;
use nodekeeper_agent::contact::role_keys::RoleKeys;
use nodekeeper_agent::contact::signer::Signer;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::process::{Command, Stdio};

const REGION: &str = "eu-west-1";
const SCOPE: SignScope<'static> = SignScope { region: REGION, service: "lambda" };
const KEY_ID: &str = "ASIAEXAMPLE";

/// Signs each request of a JSON list with botocore, and prints the headers as a list.
const BOTOCORE: &str = r#"
import json, sys
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
signed = []
for r in json.load(sys.stdin):
    request = AWSRequest(method=r["method"], url=r["url"], data=bytes(r["body"]), headers=r["headers"])
    SigV4Auth(Credentials(r["key_id"], r["secret"], r["token"]), "lambda", r["region"]).add_auth(request)
    headers = {k.lower(): v for k, v in request.headers.items()}
    signed.append(headers)
json.dump(signed, sys.stdout)
"#;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Plain {
    method: String,
    url: String,
    headers: std::collections::BTreeMap<String, String>,
    body: Vec<u8>,
    key_id: String,
    secret: String,
    token: String,
    region: String,
}

/// A request as the function URL receives it.
#[derive(Clone, Debug)]
struct Received {
    method: String,
    path: String,
    query: String,
    headers: HeaderMap,
    body: Vec<u8>,
}

#[derive(Clone, Debug)]
struct OneRole {
    issued: Issued,
}

impl Issuer for OneRole {
    fn issued(&self, access_key_id: &str) -> Option<Issued> {
        (access_key_id == KEY_ID).then(|| self.issued.clone())
    }
}

fn role(now: Time) -> OneRole {
    let issued = Issued {
        secret_access_key: "wJalrXUtnFEMI/K7MDENG".into(),
        session_token: Some("session/token+of==role".into()),
        expires_at: now + Span::from_s(3600),
        account: "123456789012".into(),
        arn: "arn:aws:sts::123456789012:assumed-role/node/i-0abc".into(),
        user_id: "AROA1:i-0abc".into(),
    };
    OneRole { issued }
}

fn check(request: &Received, auth: &OneRole, now: Time) -> Result<String, &'static str> {
    let Received { method, path, query, headers, body } = request;
    caller(RawRequest { method, path, query, headers, body }, SCOPE, auth, now).map(|issued| issued.arn)
}

/// Requests with many kinds of paths, queries, headers and bodies.
fn requests(rng: &Rng) -> Vec<Plain> {
    let auth = role(Time::from_ms(0)).issued;
    let pick = |from: &[&str]| from[rng.between(0.0, from.len() as f64) as usize % from.len()].to_owned();
    (0..200)
        .map(|n| {
            let path = pick(&["/", "/v1/nodes/3-01JD/heartbeat", "/a%20b/c", "/x/~y/-_.", "/caf%C3%A9", "/a/b/"]);
            let query = pick(&["", "?a=1", "?b=2&a=1", "?a=%2F%3F&c", "?x=y%20z&x=a", "?~=-_."]);
            let host = pick(&["abc.lambda-url.eu-west-1.on.aws", "127.0.0.1:9000", "localhost"]);
            let mut headers =
                std::collections::BTreeMap::from([("content-type".to_owned(), "application/json".to_owned())]);
            if n % 3 == 0 {
                headers.insert("x-amz-meta-odd".into(), pick(&["a", "a  b   c", " padded "]));
            }
            let length = rng.between(0.0, 300.0) as usize;
            Plain {
                method: pick(&["POST", "GET", "PUT"]),
                url: format!("http://{host}{path}{query}"),
                headers,
                body: (0..length).map(|_| rng.between(0.0, 255.9) as u8).collect(),
                key_id: KEY_ID.into(),
                secret: auth.secret_access_key.clone(),
                token: auth.session_token.clone().unwrap(),
                region: REGION.into(),
            }
        })
        .collect()
}

fn received(plain: &Plain, signed: &std::collections::BTreeMap<String, String>) -> Received {
    let rest = plain.url.strip_prefix("http://").unwrap();
    let (host, rest) = rest.split_at(rest.find('/').unwrap());
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let mut headers = HeaderMap::new();
    headers.insert("host", HeaderValue::from_str(host).unwrap());
    for (name, value) in signed {
        headers.insert(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap());
    }
    Received { method: plain.method.clone(), path: path.into(), query: query.into(), headers, body: plain.body.clone() }
}

/// The time in `x-amz-date`.
fn signed_at(request: &Received) -> Time {
    let text = request.headers["x-amz-date"].to_str().unwrap();
    let (day, second) = text.split_once('T').unwrap();
    let iso =
        format!("{}-{}-{}T{}:{}:{}Z", &day[..4], &day[4..6], &day[6..], &second[..2], &second[2..4], &second[4..6]);
    Time::from_ms(iso.parse::<jiff::Timestamp>().unwrap().as_millisecond())
}

fn signed_by_botocore(requests: &[Plain]) -> Vec<Received> {
    let mut python = Command::new(python_tool("python"));
    let mut python = python.args(["-c", BOTOCORE]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    python.stdin.take().unwrap().write_all(&serde_json::to_vec(requests).unwrap()).unwrap();
    let output = python.wait_with_output().unwrap();
    assert!(output.status.success());
    let signed: Vec<std::collections::BTreeMap<String, String>> = serde_json::from_slice(&output.stdout).unwrap();
    requests.iter().zip(&signed).map(|(plain, headers)| received(plain, headers)).collect()
}

#[test]
fn what_botocore_signs_is_accepted_and_with_any_change_it_is_refused() {
    let rng = Rng::seeded(18);
    let all = signed_by_botocore(&requests(&rng));
    for request in &all {
        let now = signed_at(request);
        let auth = role(now);
        assert_eq!(check(request, &auth, now).as_deref(), Ok(auth.issued.arn.as_str()), "{request:?}");
        // AWS accepts a request again within five minutes, so the functions must tolerate repeats.
        for skew in [Span::from_s(-300), Span::from_s(300)] {
            assert!(check(request, &auth, now + skew).is_ok());
        }
        let changed = |change: &dyn Fn(&mut Received)| {
            let mut other = request.clone();
            change(&mut other);
            check(&other, &auth, now)
        };
        let set = |name: &'static str, value: &'static str| {
            move |r: &mut Received| _ = r.headers.insert(name, HeaderValue::from_static(value))
        };
        let attacks: [(&str, Result<String, &str>); 12] = [
            ("another method", changed(&|r| r.method = "DELETE".into())),
            ("another node's path", changed(&|r| r.path.push_str("/x"))),
            ("another query", changed(&|r| r.query.push_str("&z=1"))),
            ("another body", changed(&|r| r.body.push(b' '))),
            ("another host", changed(&set("host", "other.lambda-url.eu-west-1.on.aws"))),
            ("another session token", changed(&set("x-amz-security-token", "other"))),
            ("an added header that means something", changed(&set("x-amz-extra", "1"))),
            ("no signature", changed(&|r| _ = r.headers.remove("authorization"))),
            ("no date", changed(&|r| _ = r.headers.remove("x-amz-date"))),
            ("another date", changed(&set("x-amz-date", "20200101T000000Z"))),
            ("too old", check(request, &auth, now + MAX_SKEW + Span::from_ms(1))),
            ("of the future", check(request, &auth, now - MAX_SKEW - Span::from_ms(1))),
        ];
        for (attack, outcome) in attacks {
            assert!(outcome.is_err(), "{attack}: {request:?}");
        }
        // Credentials that have expired, another secret, and another region.
        let ended = OneRole { issued: Issued { expires_at: now - Span::from_ms(1), ..auth.issued.clone() } };
        let other = OneRole { issued: Issued { secret_access_key: "other".into(), ..auth.issued.clone() } };
        assert!(check(request, &ended, now).is_err() && check(request, &other, now).is_err());
        let Received { method, path, query, headers, body } = request;
        assert!(
            caller(
                RawRequest { method, path, query, headers, body },
                SignScope { region: "eu-west-2", ..SCOPE },
                &auth,
                now
            )
            .is_err()
        );
    }
    assert_eq!(all.len(), 200);
}

/// The check accepts what the agent signs. After the first refusal, the agent corrects a wrong clock.
#[tokio::test]
async fn what_the_agent_signs_is_accepted_also_after_a_wrong_clock() {
    let now = Time::from_ms(1_800_000_000_000);
    let auth = role(now);
    let credentials = serde_json::json!({
        "AccessKeyId": KEY_ID, "SecretAccessKey": auth.issued.secret_access_key, "Token": auth.issued.session_token,
        "Expiration": "2099-01-01T00:00:00Z",
    });
    let app = axum::Router::new()
        .route("/latest/api/token", axum::routing::put(|| async { "t" }))
        .route("/latest/meta-data/iam/security-credentials/", axum::routing::get(|| async { "node\n" }))
        .route(
            "/latest/meta-data/iam/security-credentials/node",
            axum::routing::get(move || async move { credentials.to_string() }),
        );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let imds = Imds::new(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    let signer = Signer::new(std::sync::Arc::new(RoleKeys::new(imds)), REGION.into());
    let clock = |time: Time| jiff::Timestamp::from_millisecond(time.as_ms()).unwrap();
    let url = "http://abc.lambda-url.eu-west-1.on.aws/v1/nodes/3-01JD/heartbeat";
    let signed = async |at: Time| {
        let headers = signer.headers(url, b"{}", clock(at)).await.unwrap();
        let mut headers: std::collections::BTreeMap<_, _> = headers.into_iter().collect();
        headers.insert("content-type".into(), "application/json".into());
        let plain = Plain {
            method: "POST".into(),
            url: url.into(),
            body: b"{}".to_vec(),
            ..requests(&Rng::seeded(1))[0].clone()
        };
        received(&plain, &headers)
    };
    assert_eq!(check(&signed(now).await, &auth, now), Ok(auth.issued.arn.clone()));
    // The node's clock is an hour behind.
    let wrong = now - Span::from_s(3600);
    assert_eq!(check(&signed(wrong).await, &auth, now), Err("Signature expired"));
    signer.refused(Some("Fri, 15 Jan 2027 08:00:00 GMT"), clock(wrong)).await;
    assert_eq!(check(&signed(wrong).await, &auth, now), Ok(auth.issued.arn.clone()));
}
