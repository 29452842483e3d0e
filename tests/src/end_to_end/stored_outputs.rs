//! The whole output in S3: real agents and commands, with moto as S3.

use super::{Local, json as as_json, text, until};
use crate::second_opinions::{Emulator, free_port};
use crate::world::{credentials, s3_client};
use model::S3Place;
use model::stored::{END, PIECE_BYTES};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const BUCKET: &str = "job-logs";

/// The local system with a policy that stores outputs in this S3.
fn start(s3: &str) -> Local {
    let local = Local::start_with(&["--tick-s", "1"], &[("AWS_ENDPOINT_URL_S3", s3)]);
    let mut policy = as_json(&local, &["policy", "show", "--json"]);
    policy["output"] = json!({"s3": format!("s3://{BUCKET}/out")});
    // When an instance ends, output that it has not stored is lost. So the instances of these tests stay.
    policy["idle"]["timeout_s"] = json!(600);
    let file = local.path().join("policy.json");
    std::fs::write(&file, policy.to_string()).unwrap();
    let set = local.nodekeeper(&["policy", "set", file.to_str().unwrap()]);
    assert!(set.status.success(), "{}", text(&set));
    local
}

/// Makes the bucket without a signature. Moto does not ask for one.
fn make_bucket(s3: &str) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let made = runtime.block_on(async { reqwest::Client::new().put(format!("{s3}/{BUCKET}")).send().await.unwrap() });
    assert!(made.status().is_success(), "{}", made.status());
}

/// The stored output of the job's only alloc; `None` if not all of it is there.
fn stored(s3: &str, job: &str) -> Option<Vec<u8>> {
    let place: S3Place = format!("s3://{BUCKET}/out/local/{job}/0-0").parse().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let (client, mut all) = (s3_client(s3, "us-east-1", credentials()), Vec::new());
        for no in 0.. {
            let (head, bytes) = client.get(&place.piece(no), PIECE_BYTES).await.ok()?;
            all.extend(bytes);
            if head.then.as_deref() == Some(END) {
                break;
            }
        }
        Some(all)
    })
}

fn numbers(to: u32) -> Vec<u8> {
    (1..=to).flat_map(|n| format!("{n}\n").into_bytes()).collect()
}

/// Submits a job that prints numbers, and waits for its end. Returns its id.
fn print_numbers(local: &Local, to: u32) -> String {
    let submitted = local.nodekeeper(&["submit", "--wait", "--", "seq", "1", &to.to_string()]);
    assert!(submitted.status.success(), "{}", text(&submitted));
    String::from_utf8_lossy(&submitted.stdout).split_whitespace().next().unwrap().to_owned()
}

/// Waits until the directory of the job's alloc is destroyed.
fn until_destroyed(local: &Local, job: &str) {
    until("the end of the directory", 90, || {
        let machines = std::fs::read_dir(local.path().join("machines")).unwrap();
        let there = machines.flatten().any(|m| m.path().join("data/allocs").join(format!("{job}.0.0")).exists());
        (!there).then_some(())
    });
}

#[test]
fn the_whole_output_is_in_s3_and_is_read_there() {
    let moto = Emulator::moto();
    make_bucket(&moto.url);
    let local = start(&moto.url);
    // 14 MB: two pieces.
    let (job, printed) = (print_numbers(&local, 2_000_000), numbers(2_000_000));
    let stored = until("the object", 60, || stored(&moto.url, &job));
    assert!(stored == printed, "{} bytes", stored.len());
    until_destroyed(&local, &job);
    let logs = local.nodekeeper(&["logs", &job]);
    assert!(logs.stdout == printed, "{} bytes, {}", logs.stdout.len(), String::from_utf8_lossy(&logs.stderr));
    let last = local.nodekeeper(&["logs", &job, "--tail", "2"]);
    assert_eq!(String::from_utf8_lossy(&last.stdout), "1999999\n2000000\n");
    let shown = text(&local.nodekeeper(&["job", &job]));
    assert!(shown.contains(&format!("s3://{BUCKET}/out/local/{job}/0-0")), "{shown}");
    // The place is the alloc's own: a later policy does not change it.
    let mut policy = as_json(&local, &["policy", "show", "--json"]);
    policy["output"] = json!({});
    let file = local.path().join("policy.json");
    std::fs::write(&file, policy.to_string()).unwrap();
    assert!(local.nodekeeper(&["policy", "set", file.to_str().unwrap()]).status.success());
    assert!(local.nodekeeper(&["logs", &job]).stdout == printed);
    let later = print_numbers(&local, 10);
    let rows = as_json(&local, &["job", &later, "--json"])["all_allocs"].clone();
    assert_eq!(rows[0].get("output_s3"), None::<&Value>, "{rows}");
}

#[test]
fn nightly_while_s3_is_away_jobs_end_in_time_and_their_output_comes_later() {
    let port = free_port();
    let url = format!("http://127.0.0.1:{port}");
    let local = start(&url);
    let began = Instant::now();
    let job = print_numbers(&local, 100_000);
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    until_destroyed(&local, &job);
    // The row has the end of the output.
    let logs = local.nodekeeper(&["logs", &job]);
    assert!(numbers(100_000).ends_with(&logs.stdout), "{}", String::from_utf8_lossy(&logs.stderr));
    assert_eq!((logs.status.code(), logs.stdout.len()), (Some(74), 8192));
    let moto = Emulator::moto_at(port);
    make_bucket(&moto.url);
    let stored = until("the object", 180, || stored(&url, &job));
    assert!(stored == numbers(100_000), "{} bytes", stored.len());
}
