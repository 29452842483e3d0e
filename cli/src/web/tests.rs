//! The page's API against an embedded DynamoDB, asked over HTTP.

use super::*;
use crate::commands::tests::Listed;
use crate::view::{EndedJobs, LiveView, Pace};
use aws_sdk_dynamodb::config::{BehaviorVersion, Credentials, Region};
use model::control::PolicyRow;
use model::fixtures::{self, at};
use model::{ActionName, Alloc, Ending, Event, Job, JobState, RunReport, Span, Subject};
use reqwest::StatusCode;
use serde_json::{Value, json};
use store::{Dynamo, Store};

struct Served {
    store: Store,
    url: String,
}

impl Served {
    /// A page, 1000 s after the beginning. `tables` says whether there are tables.
    async fn new(tables: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(dynoxide::server::serve_on(listener, dynoxide::Database::memory().unwrap()));
        let config = aws_sdk_dynamodb::Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .http_client(store::http_client())
            .region(Region::new("eu-west-1"))
            .credentials_provider(Credentials::new("local", "local", None, None, "test"))
            .endpoint_url(url)
            .build();
        let dynamo = Dynamo::new(aws_sdk_dynamodb::Client::from_conf(config), "test".parse().unwrap());
        if tables {
            crate::local::tables::make(&dynamo).await.unwrap();
        }
        let store = Store::new(Arc::new(dynamo));
        let source = ViewSource {
            cluster: "test".to_owned(),
            store: store.clone(),
            cloud: Arc::new(Listed::default()),
            outputs: crate::commands::tests::output_store::nothing(),
            clock: Arc::new(|| at(1000)),
            pace: Pace::AWS,
            extra: None,
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(serve(listener, router(source)));
        Self { store, url }
    }

    async fn answer(&self, path: &str) -> (StatusCode, String) {
        let answer = reqwest::get(format!("{}{path}", self.url)).await.unwrap();
        (answer.status(), answer.text().await.unwrap())
    }

    async fn json(&self, path: &str) -> Value {
        let (status, text) = self.answer(path).await;
        assert_eq!(status, StatusCode::OK, "{path}: {text}");
        serde_json::from_str(&text).unwrap()
    }

    async fn put(&self, n: u32, change: impl FnOnce(&mut Job)) -> Job {
        let mut job = fixtures::job(n);
        change(&mut job);
        self.store.write(None, &job, Vec::new()).await.unwrap()
    }

    /// Job 1 runs on slot 0, job 2 failed, job 3 and 4 wait, job 5 is complete.
    async fn some() -> Self {
        let served = Self::new(true).await;
        let job = served
            .put(1, |j| {
                j.summary.name = Some("Train".into());
                j.env = [("TOKEN".into(), "hunter2".into())].into();
            })
            .await;
        let node = fixtures::ready(0);
        let alloc = Alloc::place(fixtures::alloc_id(1), &job, &node, at(100)).unwrap();
        served.store.write(None, &node.with_alloc(alloc.id(), at(100)).unwrap(), Vec::new()).await.unwrap();
        let placed = job.with_placed(&[alloc.id()]).unwrap();
        served.store.write(Some(&job), &placed, Vec::new()).await.unwrap();
        served.store.write(None, &alloc, Vec::new()).await.unwrap();
        let end = |job: &mut Job, state, s| {
            job.summary.state = state;
            job.finished_at = Some(at(s));
            job.reason = Some("exit code 3".into());
        };
        served.put(2, |j| end(j, JobState::Failed, 900)).await;
        served.put(3, |_| ()).await;
        served.put(4, |j| j.summary.priority = 900).await;
        served.put(5, |j| end(j, JobState::Complete, 950)).await;
        served
    }
}

fn column(part: &Value, name: &str) -> Vec<String> {
    let text = |v: &Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned);
    part["rows"].as_array().unwrap().iter().map(|row| text(&row[name])).collect()
}

fn id(n: u32) -> String {
    fixtures::job_id(n).to_string()
}

#[tokio::test]
async fn another_name_than_this_machines_gets_nothing() {
    let served = Served::some().await;
    for path in ["/", "/api/jobs", "/page/main.js"] {
        let request = reqwest::Client::new().get(format!("{}{path}", served.url)).header("host", "evil.example:7071");
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::MISDIRECTED_REQUEST, "{path}");
        assert!(!answer.text().await.unwrap().contains("Train"));
        let answer = reqwest::get(format!("{}{path}", served.url)).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK, "{path}");
        let policy = answer.headers()["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        assert_eq!(answer.headers()["cross-origin-resource-policy"], "same-origin");
    }
}

#[tokio::test]
async fn a_refusal_is_json_that_says_why() {
    let served = Served::some().await;
    let none = id(99);
    for (path, status, says) in [
        ("/api/jobs?offset=x".to_owned(), StatusCode::BAD_REQUEST, "invalid digit"),
        // The place is of another list.
        ("/api/jobs?state=queued&after=1796088247820".to_owned(), StatusCode::BAD_REQUEST, "no place of this list"),
        ("/api/jobs?state=failed&after=0500%23x".to_owned(), StatusCode::BAD_REQUEST, "no place of this list"),
        ("/api/jobs?after=1796088247820".to_owned(), StatusCode::BAD_REQUEST, "no place of this list"),
        ("/api/jobs/nonsense".to_owned(), StatusCode::BAD_REQUEST, "nonsense"),
        (format!("/api/jobs/{none}"), StatusCode::NOT_FOUND, "there is no job"),
        ("/api/jobs/%ff".to_owned(), StatusCode::BAD_REQUEST, "UTF-8"),
        ("/api/nodes/7".to_owned(), StatusCode::NOT_FOUND, "slot 7 has never had a node"),
        ("/api/nodes/x".to_owned(), StatusCode::BAD_REQUEST, "is not a number"),
        (
            "/api/cost?by=colour".to_owned(),
            StatusCode::BAD_REQUEST,
            "by: it must be name, job, size, reason, person, share",
        ),
        ("/api/local".to_owned(), StatusCode::NOT_FOUND, "does not run on this machine"),
        ("/api/nodes/7/x".to_owned(), StatusCode::NOT_FOUND, "nothing at /api/nodes/7/x"),
    ] {
        let (answered, text) = served.answer(&path).await;
        let error = serde_json::from_str::<Value>(&text).unwrap()["error"].as_str().unwrap().to_owned();
        assert!(answered == status && error.contains(says), "{path}: {answered} {error}");
    }
    let answer = reqwest::Client::new().post(format!("{}/api/jobs", served.url)).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert!(answer.text().await.unwrap().contains(r#""error""#));
}

#[tokio::test]
async fn jobs_are_in_the_order_in_which_people_look_for_them() {
    let served = Served::some().await;
    let part = served.json("/api/jobs").await;
    assert_eq!(column(&part, "job_id"), [id(1), id(2), id(4), id(3), id(5)]);
    assert_eq!(part["counts"], json!({"placed": 1, "failed": 1, "queued": 2, "complete": 1}));
    assert_eq!((&part["total"], &part["all"], &part["now"]), (&json!(5), &json!(5), &json!(at(1000))));
    let running = &part["rows"][0];
    assert_eq!(
        (&running["slots"], &running["name"], &running["command"]),
        (&json!([0]), &json!("Train"), &json!("true"))
    );
    let found = served.json("/api/jobs?q=TRAIN").await;
    assert_eq!(column(&found, "job_id"), [id(1)]);
    let found = served.json("/api/jobs?state=queued,failed&offset=1&limit=1").await;
    assert_eq!((column(&found, "job_id"), &found["total"]), (vec![id(4)], &json!(3)));
}

#[tokio::test]
async fn an_array_is_one_row_with_the_states_of_its_elements() {
    let served = Served::some().await;
    for n in 10..13 {
        served
            .put(n, |job| {
                job.summary.job_id = model::array::Array::of(fixtures::job_id(10)).job(n);
                (job.summary.array_count, job.summary.name) = (Some(5), Some("sweep".into()));
                if n == 12 {
                    (job.summary.state, job.finished_at) = (JobState::Complete, Some(at(950)));
                }
            })
            .await;
    }
    let part = served.json("/api/jobs").await;
    let sweep: Vec<&Value> = part["rows"].as_array().unwrap().iter().filter(|row| row["name"] == "sweep").collect();
    assert_eq!(sweep.len(), 1, "{part}");
    assert_eq!(sweep[0]["array_states"], json!({"queued": 2, "complete": 1}));
    assert_eq!((&part["total"], &part["all"]), (&json!(6), &json!(8)));
    // An array can be opened.
    let opened = served.json(&format!("/api/jobs?state=complete&array={}", sweep[0]["job_id"].as_str().unwrap())).await;
    assert_eq!((&opened["total"], &opened["rows"][0]["array_index"]), (&json!(1), &json!(12)));
    let some = served.json("/api/jobs?state=complete&q=sweep").await;
    assert_eq!(some["rows"][0]["array_states"], json!({"complete": 1}));
}

#[tokio::test]
async fn jobs_are_shown_by_share_and_by_person() {
    let served = Served::some().await;
    for (n, share, by) in [(11, "lab", "ann"), (12, "lab", "bob"), (13, "night", "ann")] {
        let owner = |job: &mut Job| (job.summary.share, job.summary.by) = (Some(share.into()), Some(by.into()));
        served.put(n, owner).await;
    }
    // The stored policy names the queues of shares.
    let shares = json!({"share": [{"name": "lab"}, {"name": "night"}]});
    served.store.write(None, &PolicyRow::of_document(&shares, None, at(0)), Vec::new()).await.unwrap();
    let (one, two) = (json!({"queued": 1}), json!({"queued": 2}));
    let by_share = served.json("/api/jobs?group=share").await;
    let others = json!({"placed": 1, "failed": 1, "queued": 2, "complete": 1});
    assert_eq!(by_share["groups"], json!({"lab": two, "night": one, "": others}));
    let of_ann = served.json("/api/jobs?group=share&by=ann").await;
    assert_eq!(of_ann["groups"], json!({"lab": one, "night": one}));
    assert_eq!(served.json("/api/jobs?group=share&state=failed").await["groups"], json!({"": {"failed": 1}}));
    assert_eq!(column(&served.json("/api/jobs?share=lab&by=bob").await, "job_id"), [id(12)]);
    let people = served.json("/api/jobs?group=by&state=queued").await;
    assert_eq!(people["groups"], json!({"ann": two, "bob": one, "": two}));
}

#[tokio::test]
async fn a_long_list_goes_on_behind_what_is_known() {
    let served = Served::new(true).await;
    for n in 0..502 {
        let ended =
            |job: &mut Job| (job.summary.state, job.finished_at) = (JobState::Complete, Some(at(900 - i64::from(n))));
        served.put(n, ended).await;
    }
    let known = served.json("/api/jobs?state=complete").await;
    assert_eq!((&known["total"], &known["more"]), (&json!(500), &json!(["complete"])));
    let next = known["next"].as_str().unwrap();
    let later = served.json(&format!("/api/jobs?state=complete&after={next}")).await;
    assert_eq!(column(&later, "job_id"), [id(499), id(500), id(501)]);
    assert_eq!(later["next"], Value::Null);
    assert_eq!(
        served.json("/api/jobs?state=complete,queued").await["next"],
        Value::Null,
        "several lists have no place"
    );
    // Jobs that wait go on behind a rank.
    for n in 600..603 {
        served.put(n, |_| ()).await;
    }
    let behind = fixtures::job(600).summary.rank().replace('#', "%23");
    let later = served.json(&format!("/api/jobs?state=queued&after={behind}")).await;
    assert_eq!(column(&later, "job_id"), [id(601), id(602)]);
}

/// A run rejects a thousand jobs at once: no place tells them apart, so the list behind such a place has them all.
#[tokio::test]
async fn what_ended_at_one_moment_is_listed_whole() {
    let served = Served::new(true).await;
    for n in 0..1003 {
        let ended = |job: &mut Job| (job.summary.state, job.finished_at) = (JobState::Rejected, Some(at(900)));
        served.put(n, ended).await;
    }
    let known = served.json("/api/jobs?state=rejected").await;
    let next = known["next"].as_str().unwrap();
    let later = served.json(&format!("/api/jobs?state=rejected&after={next}")).await;
    assert_eq!((&later["total"], &later["next"]), (&json!(1003), &Value::Null));
}

/// The stored jobs are read seldom. The list of jobs that have just ended is newer.
#[tokio::test]
async fn a_job_that_has_ended_meanwhile_is_shown_as_ended() {
    let served = Served::some().await;
    assert_eq!(column(&served.json("/api/jobs?state=queued").await, "job_id"), [id(4), id(3)]);
    let stored = EndedJobs::read(&served.store).await.unwrap();
    let job = served.store.job(fixtures::job_id(3)).await.unwrap().unwrap();
    let cancelled = job.cancel("ann", Span::from_s(99_999), at(990)).unwrap();
    served.store.write(Some(&job), &cancelled, Vec::new()).await.unwrap();
    let live = LiveView::read(&served.store, &Listed::default(), at(1000)).await.unwrap();
    let rows = live.jobs(&stored);
    let state = rows.iter().map(|row| &row.summary).find(|job| job.job_id == fixtures::job_id(3)).map(|job| job.state);
    assert_eq!(state, Some(JobState::Cancelled));
}

#[tokio::test]
async fn a_job_is_told_whole_without_its_environment() {
    let served = Served::some().await;
    let alloc = served.store.alloc(fixtures::alloc_id(1)).await.unwrap().unwrap();
    let ending = Ending {
        run: RunReport { log_tail: Some("<b>done</b>\n".into()), ..RunReport::default() },
        ..Ending::lost("its node is gone")
    };
    served.store.write(Some(&alloc), &alloc.end(&ending, Span::from_s(99_999), at(800)), Vec::new()).await.unwrap();
    let (_, text) = served.answer(&format!("/api/jobs/{}", id(1))).await;
    assert!(!text.contains("hunter2"), "{text}");
    let job: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&job["env"], &job["whole_command"]), (&json!({"TOKEN": ""}), &json!("true")));
    assert_eq!(
        (&job["all_allocs"][0]["log_tail"], &job["all_allocs"][0]["client"]),
        (&json!("<b>done</b>\n"), &json!("lost"))
    );
    let story: Vec<_> = job["story"].as_array().unwrap().iter().map(|h| h["action"].as_str().unwrap()).collect();
    assert_eq!(story, ["submit", "place", "end_alloc"]);
}

#[tokio::test]
async fn nodes_are_told_with_their_lives() {
    let served = Served::some().await;
    let part = served.json("/api/nodes?q=train").await;
    assert_eq!((column(&part, "slot"), column(&part, "state")), (vec!["0".to_owned()], vec!["ready".to_owned()]));
    assert_eq!(part["rows"][0]["work"][0]["name"], "Train");
    let node = served.json("/api/nodes/0").await;
    let phases: Vec<_> =
        node["lives"][0]["phases"].as_array().unwrap().iter().map(|p| p["phase"].as_str().unwrap()).collect();
    assert_eq!(phases, ["booting", "idle", "working"]);
}

#[tokio::test]
async fn the_past_events_and_costs_are_told() {
    let served = Served::some().await;
    let tell = |s, action, reason: &str| {
        Event::new(&Subject::Job(fixtures::job_id(1)), action, reason, at(s), Span::from_s(99_999), served.store.rng())
    };
    served.store.record_events(&[tell(99, ActionName::Submit, "new"), tell(100, ActionName::Place, "it fits")]).await;
    let events = served.json("/api/events?q=train").await;
    assert_eq!(column(&events, "action"), ["place", "submit"]);
    assert_eq!(events["rows"][0]["housekeeping"], false);
    // Ends have no events: the rows of the jobs tell them.
    let ends = served.json("/api/events?q=end_job").await;
    assert_eq!(column(&ends, "reason"), ["complete", "failed"]);
    // The newest 500 may all be those of jobs.
    let policy = |s| {
        Event::new(&Subject::Cluster, ActionName::PolicySet, "by ann", at(s), Span::from_s(99_999), served.store.rng())
    };
    let other = |n: i64| tell(200 + n, ActionName::Wait, "so it is");
    let many: Vec<Event> = std::iter::once(policy(150)).chain((0..510).map(other)).collect();
    served.store.record_events(&many).await;
    assert_eq!(column(&served.json("/api/events?state=cluster").await, "action"), ["policy_set"]);
    let past = served.json("/api/history?minutes=10&parts=10").await;
    assert_eq!(past["nodes"][0], json!(["working", [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]]));
    assert_eq!(past["waiting"][9], 2.0);
    let cost = served.json("/api/cost?by=job&minutes=10").await;
    assert_eq!((&cost["lines"][0]["what"], &cost["lines"][0]["node_s"]), (&json!(id(1)), &json!(600)));
    assert!(cost["estimate"].as_str().unwrap().contains("not a bill"));
}

#[tokio::test]
async fn the_overview_says_what_status_says() {
    let served = Served::some().await;
    let overview = served.json("/api/overview").await;
    assert_eq!((&overview["cluster"], &overview["status"]["well"]), (&json!("test"), &json!(false)));
    let wrong: Vec<_> =
        overview["status"]["checks"].as_array().unwrap().iter().filter(|c| c["level"] == "wrong").collect();
    assert!(
        wrong.iter().any(|c| c["what"] == "policy" && c["text"].as_str().unwrap().contains("no policy is stored")),
        "{wrong:?}"
    );
}

#[tokio::test]
async fn without_tables_the_answer_says_why() {
    let served = Served::new(false).await;
    let (status, text) = served.answer("/api/jobs").await;
    assert!(status == StatusCode::SERVICE_UNAVAILABLE && text.contains("test-jobs"), "{text}");
}

/// A node that is gone reports no end of its alloc. The page shows the output that the node has stored.
#[tokio::test]
async fn the_stored_output_of_a_lost_alloc_is_read() {
    let served = Served::some().await;
    let alloc = served.store.alloc(fixtures::alloc_id(1)).await.unwrap().unwrap();
    let end = Ending::lost("its node is gone");
    let lost =
        Alloc { output_s3: Some("s3://logs/x".parse().unwrap()), ..alloc.end(&end, Span::from_s(99_999), at(800)) };
    served.store.write(Some(&alloc), &lost, Vec::new()).await.unwrap();
    let output = served.json(&format!("/api/jobs/{}/output", id(1))).await;
    let of_alloc = &output["allocs"][alloc.id().to_string()];
    // Here S3 does not answer, and no job printed that.
    assert!(of_alloc["text"] == "" && of_alloc["error"].as_str().unwrap().contains("cannot be read"), "{output}");
}

#[test]
fn every_command_that_the_page_names_is_one() {
    let mut named = 0;
    for (path, _, content) in assets::ASSETS.iter().filter(|(path, ..)| !path.contains("uplot")) {
        for rest in content.split("nodekeeper ").skip(1) {
            let verb = rest.split(|c: char| !c.is_ascii_lowercase()).next().unwrap();
            assert!(crate::commands::tests::is_command(verb), "{path}: nodekeeper {verb}");
            named += 1;
        }
    }
    assert!(named > 12, "{named}");
}

#[test]
fn the_page_never_turns_data_into_markup_and_loads_nothing_from_elsewhere() {
    let ours = assets::ASSETS.iter().filter(|(path, ..)| !path.contains("uplot"));
    for (path, _, content) in ours {
        for bad in
            ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "://", "@import", "style="]
        {
            assert!(!content.contains(bad), "{path}: {bad}");
        }
        // Every file that one of these files names exists.
        for part in content.split("from \"./").skip(1).chain(content.split("=\"/page/").skip(1)) {
            let file = part.split('"').next().unwrap();
            assert!(assets::ASSETS.iter().any(|(path, ..)| *path == format!("/page/{file}")), "{path} names {file}");
        }
    }
}
