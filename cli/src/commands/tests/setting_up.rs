//! `policy`, and commands that cannot reach their cluster.

use super::*;

#[tokio::test]
async fn a_cluster_without_tables_is_told_how_to_get_them() {
    let said = World::empty().await.run(&["jobs"]).await.error();
    assert!(said.contains("test-control") && said.contains("nodekeeper up"), "{said}");
}

#[tokio::test]
async fn commands_that_need_no_cluster_do_not_connect() {
    let dir = tempfile::tempdir().unwrap();
    let state = file(&dir, "state", "");
    for line in [&["contract"][..], &["policy", "show", "--defaults"], &["plan", "--state", &state]] {
        let mut context = Context {
            colours: false,
            err_screen: Screen::Pipe,
            in_screen: Screen::Pipe,
            screen: Screen::Pipe,
            connect: Box::new(|| panic!("it asked for a cluster")),
            clock: Arc::new(|| at(0)),
            input: &mut &b""[..],
            out: &mut Vec::new(),
            err: &mut Vec::new(),
        };
        assert_eq!(crate::command::run(parse(line).unwrap(), &mut context).await.unwrap(), Exit::Done, "{line:?}");
    }
}

#[tokio::test]
async fn a_wrong_policy_is_refused_with_every_mistake_and_nothing_is_stored() {
    let world = World::new().await;
    let dir = tempfile::tempdir().unwrap();
    let wrong = file(&dir, "wrong.toml", &POLICY.replace("max = 4", "max = -1\nmin = \"x\""));
    let (said, changed) = world.changes(&["policy", "set", &wrong]).await;
    let error = said.error();
    assert!(error.contains("wrong.toml") && error.contains("nodes.max") && error.contains("nodes.min"), "{error}");
    assert_eq!(changed, Vec::<String>::new());
    let error = world.run(&["policy", "show"]).await.error();
    assert!(error.contains("nodekeeper policy set FILE"), "{error}");
}

#[tokio::test]
async fn the_printed_defaults_are_a_file_that_is_checked_and_stored_as_it_is() {
    let world = World::new().await;
    let dir = tempfile::tempdir().unwrap();
    let printed = world.run(&["policy", "show", "--defaults"]).await.done();
    let written = file(&dir, "defaults.toml", &printed);
    let checked = world.run(&["policy", "check", &written]).await;
    assert!(checked.out.ends_with("is valid: 1 size, at most 64 nodes\n"), "{checked:?}");
    assert!(
        checked.err.starts_with("no agent is named for x86_64: ") && checked.err.contains("\nnot compared with"),
        "{checked:?}"
    );
    assert_eq!(world.run(&["policy", "set", &written]).await.done(), "stored as version 1\n");
    // The stored policy is the printed one.
    let checked = world.run(&["policy", "check", &written]).await;
    assert!(checked.out.ends_with("at most 64 nodes\n"), "it changes nothing: {checked:?}");
}

#[tokio::test]
async fn setting_a_policy_prints_the_difference_and_stores_it_once() {
    let world = World::new().await;
    let dir = tempfile::tempdir().unwrap();
    let (said, changed) = world.changes(&["policy", "set", &file(&dir, "p.toml", POLICY)]).await;
    assert_eq!(said.done(), "stored as version 1\n");
    assert_eq!(changed, ["control/policy", "events/cluster/policy_set"]);
    let (said, changed) = world.changes(&["policy", "set", &file(&dir, "same.toml", POLICY)]).await;
    assert_eq!((said.done().as_str(), changed.len()), ("nothing changed: version 1 is the same\n", 0));
    let other = file(&dir, "other.toml", &POLICY.replace("max = 4", "max = 8").replace("\"small\"", "\"tiny\""));
    let (checked, changed) = world.changes(&["policy", "check", &other]).await;
    assert!(checked.out.contains("\n~ nodes.max: 4 -> 8\n") && changed.is_empty(), "{checked:?}");
    let said = world.run(&["policy", "set", &other]).await.done();
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines.contains(&"~ nodes.max: 4 -> 8") && lines.contains(&"- size.small.vcpus: 2"), "{said}");
    assert!(lines.contains(&"+ size.tiny.name: \"tiny\"") && lines.ends_with(&["stored as version 2"]), "{said}");
    // The shown policy can be stored again without a change.
    let shown = world.run(&["policy", "show"]).await.done();
    assert!(shown.starts_with("# version 2\n"), "{shown}");
    let said = world.run(&["policy", "set", &file(&dir, "shown.toml", &shown)]).await.done();
    assert_eq!(said, "nothing changed: version 2 is the same\n");
    let json = world.run(&["policy", "show", "--json"]).await.done();
    let said = world.run(&["policy", "set", &file(&dir, "shown.json", &json)]).await.done();
    assert_eq!(said, "nothing changed: version 2 is the same\n");
}

#[tokio::test]
async fn a_policy_that_somebody_else_stored_is_not_overwritten() {
    let mut world = World::with_policy().await;
    let row = world.store().control().await.unwrap().policy.unwrap();
    let (theirs, _) = change(Some(&row), &row);
    world.cluster.store = Watched::rival(world.cluster.dynamo.clone(), vec![theirs]);
    let dir = tempfile::tempdir().unwrap();
    let other = file(&dir, "p.toml", &POLICY.replace("max = 4", "max = 8"));
    let error = world.run(&["policy", "set", &other]).await.error();
    assert!(error.contains("was not stored: someone else"), "{error}");
    assert_eq!(world.store().control().await.unwrap().checked_policy().unwrap().0.nodes.max, 4);
}

/// Such a file would take back what somebody else stored. The event of each policy says what changed.
#[tokio::test]
async fn a_policy_from_an_older_version_is_refused_until_its_first_line_is_taken_out() {
    let world = World::with_policy().await;
    let dir = tempfile::tempdir().unwrap();
    let shown = world.run(&["policy", "show"]).await.done();
    let (mine, theirs) = (shown.replace("max = 4", "max = 6"), POLICY.replace("max = 4", "max = 8"));
    let shares = "[[share]]\nname = \"a\"\ndefault = true\n";
    world.run(&["policy", "set", &file(&dir, "theirs.toml", &format!("{theirs}{shares}"))]).await.done();
    let history = world.run(&["history", "cluster"]).await.done();
    assert!(
        history.contains("by ann: version 2, ~ nodes.max: 4 -> 8; ") && history.contains("+ share.a.name: \"a\""),
        "{history}"
    );
    let (said, changed) = world.changes(&["policy", "set", &file(&dir, "mine.toml", &mine)]).await;
    let error = said.error();
    let why = "the file was made from version 1, and version 2 is stored: take out its first line";
    assert!(error.contains(why) && changed.is_empty(), "{error}");
    // It comes from standard input, too.
    let (_, mine) = mine.split_once('\n').unwrap();
    let said = world.run_with(&["policy", "set", "-"], mine).await.done();
    assert!(said.contains("~ nodes.max: 8 -> 6\n") && said.ends_with("stored as version 3\n"), "{said}");
    let json = world.run(&["policy", "show", "--json"]).await.done();
    let said = world.run_with(&["policy", "check", "-"], &json).await;
    assert!(said.out.starts_with("- is valid"), "{}", said.err);
}

/// DynamoDB stores no larger item, so a check says it before.
#[tokio::test]
async fn a_policy_that_cannot_be_stored_is_refused_with_its_size() {
    let dir = tempfile::tempdir().unwrap();
    let members: Vec<String> = (0..1000).map(|n| format!("\"{n:0200}\"")).collect();
    let share = |name: &str| format!("[[share]]\nname = \"{name}\"\nmembers = [{}]\n", members.join(","));
    let large = file(&dir, "large.toml", &format!("{POLICY}{}{}", share("a"), share("b")));
    let error = World::new().await.run(&["policy", "check", &large]).await.error();
    assert!(error.contains("bytes with its defaults, and at most 350000 can be stored"), "{error}");
}

#[tokio::test]
async fn an_unreachable_cluster_gives_one_line_that_says_what_to_do() {
    let mut world = World::empty().await;
    let config = aws_sdk_dynamodb::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .http_client(store::http_client())
        .region(Region::new("eu-west-1"))
        .credentials_provider(Credentials::new("local", "local", None, None, "test"))
        .endpoint_url("http://127.0.0.1:9")
        .retry_config(aws_sdk_dynamodb::config::retry::RetryConfig::disabled())
        .build();
    let dynamo = Dynamo::new(aws_sdk_dynamodb::Client::from_conf(config), "test".parse().unwrap());
    world.cluster.store = Store::new(Arc::new(dynamo));
    for line in [&["jobs"][..], &["nodes"], &["status"], &["submit", "--", "true"], &["history", "cluster"]] {
        let error = world.run(line).await.error();
        assert!(error.contains("check AWS_ENDPOINT_URL_DYNAMODB") && error.lines().count() == 1, "{line:?}: {error}");
    }
}

#[test]
fn ids_are_checked_before_the_cluster_is_called() {
    let command = parse(&["job", &JobId::new(model::rng::Rng::real().ulid(at(0))).to_string()]).unwrap();
    assert!(matches!(command, Command::Job(_)));
    <Line as clap::CommandFactory>::command().debug_assert();
}
