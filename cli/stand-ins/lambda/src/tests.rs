//! The stand-in from outside: the processes are real shells, and the tests speak the Runtime API for them over HTTP.

use crate::body::MAX_PAYLOAD;
use crate::*;
use axum::body::Bytes;
use model::time::Time;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A function whose process is a shell that runs `script`. Bash expands `BASH_ENV` before it reads its input; the input
/// is empty, so bash ends after the script. The script prints to standard error.
fn function(name: &str, script: &str) -> FunctionConfig {
    FunctionConfig {
        name: name.to_owned(),
        program: "/bin/bash".into(),
        env: BTreeMap::from([("BASH_ENV".to_owned(), format!("$({{ {script}; }} >&2)"))]),
        timeout_ms: 20_000,
        memory_mb: 256,
        max_concurrency: 1,
        max_waiting: 10,
    }
}

/// The shell prints its process id and stays.
const IDLE: &str = "echo pid $$; sleep 1000";

struct Bench {
    lambda: Lambda,
    lines: Arc<Mutex<Vec<String>>>,
}

fn bench_with(functions: Vec<FunctionConfig>, schedules: Vec<Schedule>) -> Bench {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&lines);
    let log: LogSink = Arc::new(move |_: &str, line: &str| sink.lock().unwrap().push(line.to_owned()));
    let ticks = AtomicI64::new(1_000_000);
    let clock = Arc::new(move || Time::from_ms(ticks.fetch_add(1, Ordering::Relaxed)));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let inherited_env = BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]);
    let settings = LambdaSettings {
        functions,
        schedules,
        region: "eu-west-1".to_owned(),
        inherited_env,
        url_auth: None,
        invoke_auth: None,
    };
    let lambda = Lambda::start(settings, TcpListener::from_std(listener).unwrap(), log, clock).unwrap();
    Bench { lambda, lines }
}

fn bench(function: FunctionConfig) -> Bench {
    bench_with(vec![function], Vec::new())
}

impl Bench {
    fn stats(&self) -> Stats {
        self.lambda.stats().remove(0)
    }

    /// The shell of each process, in the order of their starts.
    fn pids(&self) -> Vec<i32> {
        self.lines.lock().unwrap().iter().filter_map(|line| line.strip_prefix("pid ")?.parse().ok()).collect()
    }

    async fn http(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        http(self.lambda.address(), method, path, headers, body).await
    }

    async fn invoke_api(&self, function: &str, kind: &str, body: &str) -> Answer {
        let path = format!("/2015-03-31/functions/{function}/invocations");
        self.http("POST", &path, &[("X-Amz-Invocation-Type", kind)], body.as_bytes()).await
    }

    /// Polls for a process, as soon as there is one.
    async fn next(&self, process: u64) -> Answer {
        next(self.lambda.address(), process).await
    }

    async fn tell(&self, process: u64, what: &str, body: &str) -> Answer {
        self.http("POST", &format!("/.rt/f/{process}/2018-06-01/runtime/{what}"), &[], body.as_bytes()).await
    }

    /// Answers every invocation of process 0 with the result of `answer`.
    fn fake(&self, answer: impl Fn(Value) -> Result<Value, Value> + Send + 'static) {
        let address = self.lambda.address();
        tokio::spawn(async move {
            loop {
                let work = next(address, 0).await;
                let id = work.header("lambda-runtime-aws-request-id").to_owned();
                let (what, body) = match answer(work.json()) {
                    Ok(value) => ("response", value),
                    Err(value) => ("error", value),
                };
                let path = format!("/.rt/f/0/2018-06-01/runtime/invocation/{id}/{what}");
                http(address, "POST", &path, &[], body.to_string().as_bytes()).await;
            }
        });
    }
}

async fn next(address: SocketAddr, process: u64) -> Answer {
    let path = format!("/.rt/f/{process}/2018-06-01/runtime/invocation/next");
    let started = Instant::now();
    loop {
        let answer = http(address, "GET", &path, &[], b"").await;
        if answer.status != 403 || started.elapsed() > Duration::from_secs(10) {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn header(&self, name: &str) -> &str {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(key, _)| *key == name).map_or("", |(_, value)| value)
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

async fn http(address: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or(answer.len());
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let status = head.get(9..12).and_then(|status| status.parse().ok()).unwrap_or(0);
    Answer { status, head, body: answer.get(end + 4..).unwrap_or_default().to_vec() }
}

async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < Duration::from_secs(10), "not within ten seconds: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Whether the process has ended: it does not exist, or is a zombie.
fn is_gone(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The process that adopted an orphan may reap it late.
    stat.is_empty() || stat.contains(") Z ")
}

/// All processes of the group that `leader` leads.
fn group(leader: i32) -> Vec<i32> {
    let processes =
        std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let in_group = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let group = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(2)?.parse().ok());
        group == Some(leader)
    };
    processes.filter(in_group).collect()
}

#[tokio::test]
async fn an_invocation_reaches_the_function_and_its_answer_the_caller() {
    let bench = bench(function("f", IDLE));
    let (answer, ()) = tokio::join!(bench.invoke_api("f", "RequestResponse", r#"{"n":1}"#), async {
        let work = bench.next(0).await;
        assert_eq!((work.status, work.json()), (200, json!({"n": 1})));
        assert_eq!(
            work.header("lambda-runtime-invoked-function-arn"),
            "arn:aws:lambda:eu-west-1:000000000000:function:f"
        );
        let deadline: i64 = work.header("lambda-runtime-deadline-ms").parse().unwrap();
        assert!((1_020_000..1_021_000).contains(&deadline), "a budget of 20 s after a clock near 1000 s: {deadline}");
        assert!(work.header("lambda-runtime-trace-id").starts_with("Root=1-"));
        let id = work.header("lambda-runtime-aws-request-id");
        assert_eq!(bench.tell(0, "invocation/another/response", "1").await.status, 400);
        assert_eq!(bench.tell(0, &format!("invocation/{id}/response"), r#"{"m":2}"#).await.status, 202);
        assert_eq!(
            bench.tell(0, &format!("invocation/{id}/response"), "3").await.status,
            400,
            "only one answer counts"
        );
    });
    assert_eq!((answer.status, answer.json()), (200, json!({"m": 2})));
    assert_eq!(answer.header("x-amz-function-error"), "");
    let stats = bench.stats();
    assert_eq!((stats.invocations, stats.errors, stats.cold_starts, stats.processes), (1, 0, 1, 1));
    assert_eq!(stats.last.unwrap().result, r#"{"m":2}"#);
}

#[tokio::test]
async fn a_functions_error_reaches_the_caller_unchanged() {
    let bench = bench(function("f", IDLE));
    bench.fake(|_| Err(json!({"errorType": "Broken", "errorMessage": "no luck", "stackTrace": ["here"]})));
    let answer = bench.invoke_api("f", "RequestResponse", "").await;
    assert_eq!((answer.status, answer.header("x-amz-function-error")), (200, "Unhandled"));
    assert_eq!(answer.json()["stackTrace"], json!(["here"]));
    let error = bench.lambda.invoke("f", &json!({})).await.unwrap_err();
    assert_eq!(error.to_string(), "Broken: no luck");
    assert_eq!(bench.stats().cold_starts, 1, "an error is no reason for a new process");
}

#[tokio::test]
async fn the_invoke_api_refuses_as_aws_does() {
    let bench = bench(function("f", IDLE));
    let unknown = bench.invoke_api("g", "RequestResponse", "{}").await;
    assert_eq!((unknown.status, unknown.header("x-amzn-errortype")), (404, "ResourceNotFoundException"));
    assert_eq!(bench.invoke_api("f", "RequestResponse", "{").await.status, 400);
    assert_eq!(bench.invoke_api("f", "Sometimes", "{}").await.status, 400);
    assert_eq!(bench.invoke_api("arn%3Aaws%3Alambda%3Ax%3A0%3Afunction%3Af", "DryRun", "{}").await.status, 204);
    let large = format!("\"{}\"", "a".repeat(MAX_PAYLOAD));
    assert_eq!(bench.invoke_api("f", "RequestResponse", &large).await.status, 413);
    let large = format!("\"{}\"", "a".repeat(1024 * 1024));
    assert_eq!(bench.invoke_api("f", "Event", &large).await.status, 413);
    assert_eq!(bench.stats().cold_starts, 0, "none of these calls starts a process");
}

#[tokio::test]
async fn a_busy_function_gets_more_processes_then_queues_then_refuses() {
    let bench = bench(FunctionConfig { max_concurrency: 2, max_waiting: 1, ..function("f", IDLE) });
    let address = bench.lambda.address();
    let invoke = |n: i32| bench.lambda.functions.get("f").unwrap().submit(n.to_string().into());
    let (_one, _two) = (invoke(1).unwrap(), invoke(2).unwrap());
    let (first, second) = (next(address, 0).await, next(address, 1).await);
    assert_eq!((first.json(), second.json()), (json!(1), json!(2)), "each process has one invocation");
    let three = invoke(3).unwrap();
    assert!(matches!(invoke(4), Err(InvokeError::TooManyRequests { waiting: 1, .. })));
    let refused = bench.invoke_api("f", "RequestResponse", "4").await;
    assert_eq!((refused.status, refused.header("x-amzn-errortype")), (429, "TooManyRequestsException"));
    assert_eq!(bench.http("GET", "/lambda-url/f", &[], b"").await.status, 429);
    let stats = bench.stats();
    assert_eq!((stats.processes, stats.running, stats.waiting, stats.throttles), (2, 2, 1, 3));

    drop(three);
    assert!(invoke(5).is_ok(), "a caller that hung up takes no place in the queue");
}

#[tokio::test]
async fn an_invocation_whose_caller_hung_up_is_not_run() {
    let bench = bench(function("f", IDLE));
    let submit = |n: i32| bench.lambda.functions.get("f").unwrap().submit(n.to_string().into()).unwrap();
    let (_one, two, _three) = (submit(1), submit(2), submit(3));
    let first = bench.next(0).await;
    drop(two);
    let id = first.header("lambda-runtime-aws-request-id");
    bench.tell(0, &format!("invocation/{id}/response"), "0").await;
    assert_eq!(bench.next(0).await.json(), json!(3));
}

#[tokio::test]
async fn a_process_that_just_answered_gets_the_next_invocation() {
    let bench = bench(FunctionConfig { max_concurrency: 2, ..function("f", IDLE) });
    bench.fake(Ok);
    for n in 0..20 {
        assert_eq!(bench.lambda.invoke("f", &json!(n)).await.unwrap(), json!(n));
    }
    assert_eq!(bench.stats().cold_starts, 1);
}

#[tokio::test]
async fn a_time_out_kills_the_process_group_before_the_caller_learns_of_it() {
    let bench = bench(FunctionConfig { timeout_ms: 600, ..function("f", IDLE) });
    let (error, (work, processes, took)) = tokio::join!(
        async {
            let error = bench.lambda.invoke("f", &json!({})).await.unwrap_err();
            assert!(is_gone(bench.pids()[0]), "the process is dead when the caller learns of the time-out");
            error
        },
        async {
            let started = || bench.pids().first().is_some_and(|pid| group(*pid).len() > 1);
            eventually("the shell and its sleep run", started).await;
            let (processes, handed) = (group(bench.pids()[0]), Instant::now());
            let work = bench.next(0).await;
            eventually("it is cut off", || bench.stats().timeouts == 1).await;
            (work, processes, handed.elapsed())
        }
    );
    assert!((Duration::from_millis(600)..Duration::from_secs(2)).contains(&took), "{took:?}");
    assert!(error.to_string().ends_with("Task timed out after 0.60 seconds"), "{error}");
    eventually("its children are dead", || processes.iter().all(|pid| is_gone(*pid))).await;
    let id = work.header("lambda-runtime-aws-request-id");
    assert_eq!(bench.tell(0, &format!("invocation/{id}/response"), "1").await.status, 400, "too late");
    let stats = bench.stats();
    assert_eq!((stats.timeouts, stats.errors, stats.processes), (1, 1, 0));

    let (answer, ()) = tokio::join!(async { bench.lambda.invoke("f", &json!({})).await }, async {
        let work = bench.next(1).await;
        let id = work.header("lambda-runtime-aws-request-id");
        bench.tell(1, &format!("invocation/{id}/response"), "\"fresh\"").await;
    });
    assert_eq!(answer.unwrap(), json!("fresh"));
}

#[tokio::test]
async fn a_crash_fails_its_invocation_and_the_next_gets_a_fresh_process() {
    let bench = bench(function("f", &format!("echo going down; {IDLE}")));
    let (error, ()) = tokio::join!(async { bench.lambda.invoke("f", &json!({})).await.unwrap_err() }, async {
        bench.next(0).await;
        eventually("the shell has spoken", || !bench.pids().is_empty()).await;
        kill(Pid::from_raw(bench.pids()[0]), Signal::SIGKILL).unwrap();
    });
    let InvokeError::Function(error) = error else { panic!("{error}") };
    assert_eq!(error.error_type, "Runtime.ExitError");
    assert!(error.message.contains("signal: 9"), "{error}");
    let _ticket = bench.lambda.functions.get("f").unwrap().submit(Bytes::from_static(b"2")).unwrap();
    assert_eq!(bench.next(1).await.json(), json!(2));
}

#[tokio::test]
async fn a_function_that_does_not_start_reports_why_and_is_retried_after_a_wait() {
    let bench = bench(function("f", "echo NODEKEEPER_CLUSTER is missing: set it; echo"));
    let started = Instant::now();
    let mut errors = Vec::new();
    for _ in 0..2 {
        errors.push(bench.lambda.invoke("f", &json!({})).await.unwrap_err().to_string());
    }
    assert!(errors[0].ends_with("its last line: NODEKEEPER_CLUSTER is missing: set it"), "{}", errors[0]);
    assert_eq!(errors[0], errors[1]);
    assert!(started.elapsed() >= Duration::from_millis(250));
    assert_eq!(bench.http("GET", "/lambda-url/f/", &[], b"").await.status, 502);

    let absent = FunctionConfig { program: "/nowhere/f".into(), ..function("f", "") };
    let error = bench_with(vec![absent], Vec::new()).lambda.invoke("f", &json!({})).await.unwrap_err();
    assert!(error.to_string().contains("/nowhere/f cannot be run: no such file exists"), "{error}");
}

#[tokio::test]
async fn an_init_error_reaches_the_caller() {
    let bench = bench(function("f", IDLE));
    let (error, ()) = tokio::join!(async { bench.lambda.invoke("f", &json!({})).await.unwrap_err() }, async {
        eventually("the shell has spoken", || !bench.pids().is_empty()).await;
        let body = r#"{"errorType": "Runtime.BadStart", "errorMessage": "no key"}"#;
        assert_eq!(bench.tell(0, "init/error", body).await.status, 202);
        kill(Pid::from_raw(bench.pids()[0]), Signal::SIGKILL).unwrap();
    });
    assert_eq!(error.to_string(), "Runtime.BadStart: no key");
}

#[tokio::test]
async fn an_event_is_answered_at_once_and_runs_once() {
    let bench = bench(function("f", IDLE));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    bench.fake(move |event| {
        log.lock().unwrap().push(event);
        Err(json!({"errorType": "E", "errorMessage": "again"}))
    });
    let answer = bench.invoke_api("f", "Event", "7").await;
    assert_eq!((answer.status, answer.body.len()), (202, 0));
    eventually("the attempt", || bench.stats().errors == 1).await;
    bench.lambda.invoke("f", &json!(8)).await.unwrap_err();
    assert_eq!(*seen.lock().unwrap(), [json!(7), json!(8)]);
}

#[tokio::test]
async fn at_most_one_scheduled_run_waits() {
    let schedule = Schedule { function: "f".to_owned(), first_after_ms: 1, every_ms: 1, payload: json!("tick") };
    let bench = bench_with(vec![function("f", IDLE)], vec![schedule]);
    let work = bench.next(0).await;
    assert_eq!(work.json(), json!("tick"));
    eventually("one more waits", || bench.stats().waiting == 1).await;
    let skipped = bench.stats().skipped;
    eventually("skipped runs are counted", || bench.stats().skipped > skipped + 5).await;
    let stats = bench.stats();
    assert_eq!((stats.running, stats.waiting), (1, 1), "the others were skipped");
}

#[tokio::test]
async fn a_function_url_turns_a_request_into_an_event_and_an_answer_into_a_response() {
    let bench = bench(function("f", IDLE));
    bench.fake(|event| {
        let headers = json!({"x-n": 5, "content-type": "text/plain"});
        let body = event.to_string();
        Ok(json!({"statusCode": 418, "headers": headers, "cookies": ["c=1"], "body": body, "isBase64Encoded": false}))
    });
    let headers = [("X-Two", "a"), ("X-Two", "b"), ("Cookie", "k=v; l=w"), ("User-Agent", "test")];
    let answer = bench.http("PATCH", "/lambda-url/f/v1/a%20b?x=1&x=%2F&y", &headers, "grün".as_bytes()).await;
    assert_eq!((answer.status, answer.header("content-type"), answer.header("x-n")), (418, "text/plain", "5"));
    assert_eq!(answer.header("set-cookie"), "c=1");
    let event = answer.json();
    assert_eq!(event["version"], "2.0");
    assert_eq!(event["routeKey"], "$default");
    assert_eq!(event["rawPath"], "/v1/a%20b");
    assert_eq!(event["rawQueryString"], "x=1&x=%2F&y");
    assert_eq!(event["queryStringParameters"], json!({"x": "1,/", "y": ""}));
    assert_eq!(event["cookies"], json!(["k=v", "l=w"]));
    assert_eq!(event["headers"]["x-two"], "a,b");
    assert_eq!((&event["body"], &event["isBase64Encoded"]), (&json!("grün"), &json!(false)));
    let context = &event["requestContext"];
    assert_eq!(context["http"]["method"], "PATCH");
    assert_eq!(context["http"]["path"], "/v1/a%20b");
    assert_eq!(context["http"]["sourceIp"], "127.0.0.1");
    assert_eq!(context["http"]["userAgent"], "test");
    assert!(context["time"].as_str().unwrap().starts_with("01/Jan/1970:00:16:4"), "{}", context["time"]);
    assert!(context["timeEpoch"].as_i64().unwrap() >= 1_000_000);
    assert_eq!(context["requestId"].as_str().unwrap().len(), 36);

    let binary = bench.http("POST", "/lambda-url/f", &[], &[0xff, 0]).await.json();
    assert_eq!((&binary["body"], &binary["isBase64Encoded"]), (&json!("/wA="), &json!(true)));
    assert_eq!((&binary["rawPath"], binary.get("queryStringParameters")), (&json!("/"), None));
    assert_eq!(bench.http("GET", "/lambda-url/g/", &[], b"").await.status, 404);
    assert_eq!(bench.http("POST", "/lambda-url/f/", &[], &vec![b'a'; MAX_PAYLOAD + 1]).await.status, 413);
}

#[tokio::test]
async fn a_function_url_answers_what_the_function_answers_or_502() {
    let bench = bench(function("f", IDLE));
    bench.fake(|event| {
        let wanted: Value = serde_json::from_str(event["body"].as_str().unwrap()).unwrap();
        if wanted == json!("fail") { Err(json!({})) } else { Ok(wanted) }
    });
    for (answer, status, body) in [
        (r#"{"plain":true}"#, 200, r#"{"plain":true}"#),
        (r#"[1]"#, 200, "[1]"),
        (r#"{"statusCode":204}"#, 204, ""),
        (r#"{"statusCode":200,"body":"aGk=","isBase64Encoded":true}"#, 200, "hi"),
        (r#"{"statusCode":200,"body":"!","isBase64Encoded":true}"#, 502, r#"{"Message":"Internal Server Error"}"#),
        (r#"{"statusCode":"odd"}"#, 502, r#"{"Message":"Internal Server Error"}"#),
        (r#""fail""#, 502, r#"{"Message":"Internal Server Error"}"#),
    ] {
        let got = bench.http("POST", "/lambda-url/f/", &[], answer.as_bytes()).await;
        assert_eq!((got.status, String::from_utf8_lossy(&got.body).as_ref()), (status, body), "{answer}");
        assert!(status == 204 || got.header("content-type") == "application/json", "{answer}");
    }
}

#[tokio::test]
async fn an_extension_registers_and_then_waits() {
    let bench = bench(function("f", IDLE));
    let _ticket = bench.lambda.functions.get("f").unwrap().submit(Bytes::new()).unwrap();
    let registered = bench.http("POST", "/.rt/f/0/2020-01-01/extension/register", &[], b"{}").await;
    assert_eq!((registered.status, registered.header("lambda-extension-identifier")), (200, "f-0"));
    assert_eq!(registered.json()["functionName"], "f");
    let event = bench.http("GET", "/.rt/f/0/2020-01-01/extension/event/next", &[], b"");
    assert!(tokio::time::timeout(Duration::from_millis(50), event).await.is_err());
    assert_eq!(bench.http("POST", "/.rt/f/9/2020-01-01/extension/register", &[], b"{}").await.status, 403);
}

#[tokio::test]
async fn a_function_sees_only_its_own_environment() {
    let mut config = function("f", "export -p | sed 's/^declare -x //'; sleep 1000");
    config.env.insert("NODEKEEPER_CLUSTER".to_owned(), "test".to_owned());
    config.env.insert("AWS_LAMBDA_FUNCTION_NAME".to_owned(), "no".to_owned());
    let bench = bench(config);
    let _ticket = bench.lambda.functions.get("f").unwrap().submit(Bytes::new()).unwrap();
    let has = |line: &str| bench.lines.lock().unwrap().iter().any(|seen| seen == line);
    eventually("all is printed", || has(r#"_HANDLER="bash""#)).await;
    assert!(has(r#"NODEKEEPER_CLUSTER="test""#));
    assert!(has(r#"AWS_LAMBDA_FUNCTION_NAME="f""#), "a reserved variable wins");
    assert!(has(r#"AWS_LAMBDA_FUNCTION_MEMORY_SIZE="256""#));
    assert!(has(&format!(r#"AWS_LAMBDA_RUNTIME_API="http://{}/.rt/f/0""#, bench.lambda.address())));
    assert!(
        !bench.lines.lock().unwrap().iter().any(|line| line.starts_with("CARGO")),
        "no variable of this test process"
    );
}

#[tokio::test]
async fn any_line_is_passed_on() {
    let script = r"printf 'caf\351\n\nlast'; head -c 20000 /dev/zero | tr '\0' x";
    let bench = bench(function("f", script));
    bench.lambda.invoke("f", &json!({})).await.unwrap_err();
    let lines = bench.lines.lock().unwrap().clone();
    assert_eq!(lines[..2], ["caf\u{fffd}", ""]);
    assert_eq!((lines[2].len(), lines[3].len()), (16 * 1024, 20_004 - 16 * 1024), "a long line comes in pieces");
}

#[tokio::test]
async fn a_shutdown_ends_every_process() {
    // The shell ignores SIGTERM; its child does not get it.
    let stubborn = FunctionConfig { max_concurrency: 2, ..function("f", &format!("trap '' TERM; {IDLE}")) };
    let schedule = Schedule { function: "f".to_owned(), first_after_ms: 0, every_ms: 1, payload: json!({}) };
    let bench = bench_with(vec![stubborn], vec![schedule]);
    let waiting = bench.lambda.functions.get("f").unwrap().submit(Bytes::new()).unwrap();
    bench.next(0).await;
    eventually("two processes run", || bench.pids().len() == 2).await;
    let (shells, processes) = (bench.pids(), bench.pids().into_iter().flat_map(group).collect::<Vec<_>>());
    bench.lambda.shutdown().await;
    assert!(shells.iter().all(|pid| is_gone(*pid)), "the shutdown has waited for them");
    // Their children are killed too, but this process cannot wait for them.
    eventually("the shells' children are dead", || processes.iter().all(|pid| is_gone(*pid))).await;
    assert!(matches!(waiting.wait().await, Err(InvokeError::ShuttingDown)));
    assert!(matches!(bench.lambda.invoke("f", &json!({})).await, Err(InvokeError::ShuttingDown)));
    assert_eq!(bench.stats().processes, 0);
    assert!(TcpStream::connect(bench.lambda.address()).await.is_err(), "nothing listens any more");
}

#[test]
fn processes_end_with_the_stand_in_even_without_a_shutdown() {
    for drop_runtime_first in [false, true] {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (bench, processes) = runtime.block_on(async {
            let bench = bench(function("f", IDLE));
            let _ticket = bench.lambda.functions.get("f").unwrap().submit(Bytes::new()).unwrap();
            let started = || bench.pids().first().is_some_and(|pid| group(*pid).len() > 2);
            eventually("the shell, its subshell and their sleep run", started).await;
            let processes = group(bench.pids()[0]);
            (bench, processes)
        });
        let all_gone = || eventually("all are dead", || processes.iter().all(|pid| is_gone(*pid)));
        if drop_runtime_first {
            drop(runtime);
            drop(bench);
            let other = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            other.block_on(all_gone());
        } else {
            runtime.block_on(async {
                drop(bench);
                all_gone().await;
            });
        }
    }
}

#[tokio::test]
async fn invalid_settings_are_refused() {
    let good = function("f", "");
    let refused = |functions: Vec<FunctionConfig>, schedules: Vec<Schedule>| {
        let settings = LambdaSettings {
            functions,
            schedules,
            region: String::new(),
            inherited_env: BTreeMap::new(),
            url_auth: None,
            invoke_auth: None,
        };
        settings.check().unwrap_err()
    };
    assert!(matches!(refused(vec![good.clone(), good.clone()], vec![]), SettingsError::Duplicate(_)));
    assert!(matches!(refused(vec![function("a/b", "")], vec![]), SettingsError::BadName(_)));
    let eager = FunctionConfig { timeout_ms: 0, ..good.clone() };
    assert!(matches!(refused(vec![eager], vec![]), SettingsError::Zero { field: "timeout_ms", .. }));
    let schedule = Schedule { function: "g".to_owned(), first_after_ms: 0, every_ms: 1, payload: json!({}) };
    assert!(matches!(refused(vec![good], vec![schedule]), SettingsError::UnknownFunction(_)));
}
