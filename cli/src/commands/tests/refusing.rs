//! What says nothing, or two things, is refused before anything is read: as an option and in a line of a file, by the same judge.

use super::*;
use crate::commands::submit::job_line::about_fields;

const DIGEST: &str = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072";

/// Options, the same as the fields of a line, and what the mistake is called. The options of some are refused by their own form.
fn cases() -> Vec<(Vec<&'static str>, String, &'static str)> {
    let plain: Vec<(&[&str], &str, &str)> = vec![
        (&["--name", ""], r#""name": """#, r#"--name "" must be 1 to 128 characters"#),
        (&["--name", " a"], r#""name": " a""#, r#"--name " a" must be"#),
        (&["--priority", "1001"], r#""priority": 1001"#, "--priority must be 0 to 1000"),
        (&["--vcpus", "0"], r#""vcpus": 0"#, "--vcpus must be at least 1"),
        (&["--nodes", "0"], r#""nodes": 0"#, "--nodes must be 1 to 256"),
        (&["--timeout", "999w"], r#""timeout": "999w""#, "time-outs and"),
        (&["--image", ""], r#""image": """#, r#"--image "" is not an image reference"#),
        (&["--role", ""], r#""role": """#, r#"--role "" must be the name of a role"#),
        (&["--instance-type", ""], r#""instance_type": """#, r#"--instance-type "" is not the name"#),
        (&["--require", ""], r#""require": [""]"#, r#"--require "" must be"#),
        (&["--gpu-type", "a10g"], r#""gpu_type": "a10g""#, "say nothing without GPUs"),
        (&["--gpu-memory", "8"], r#""gpu_memory_gib": 8"#, "say nothing without GPUs"),
        (
            &["--registry-login", "/x", "--role", "r"],
            r#""registry_login": "/x", "role": "r""#,
            "is for a job with --image",
        ),
        (&["--cache", ""], r#""caches": [""]"#, r#"cache name "" must be"#),
        (&["--cache", "a", "--cache", "a"], r#""caches": ["a", "a"]"#, "the cache a is named twice"),
        (
            &["--cache", "a-b", "--cache", "A_b"],
            r#""caches": ["a-b", "A_b"]"#,
            "the caches a-b and A_b would share the variable NODEKEEPER_CACHE_A_B",
        ),
        (&["--env", "1A=3"], r#""env": {"1A": "3"}"#, "cannot be the name of a variable"),
        (&["--env", "A-B=3"], r#""env": {"A-B": "3"}"#, "a shell sees only letters, digits and '_'"),
        (&["--env", "=3"], r#""env": {"": "3"}"#, "a variable has no name: give NAME=VALUE"),
        (&["--env", "NODEKEEPER_X=3"], r#""env": {"NODEKEEPER_X": "3"}"#, "nodekeeper sets the variable"),
        (&["--env", "A B=3"], r#""env": {"A B": "3"}"#, "cannot be the name of a variable"),
        (
            &["--env", "A=x", "--secret", "A=/x", "--role", "r"],
            r#""env": {"A": "x"}, "secrets": {"A": "/x"}, "role": "r""#,
            r#"the variable "A" is given twice"#,
        ),
        (
            &["--env", "NODEKEEPER_JOB_ID=x"],
            r#""env": {"NODEKEEPER_JOB_ID": "x"}"#,
            "nodekeeper sets the variable \"NODEKEEPER_JOB_ID\" itself",
        ),
        (
            &["--env", "CUDA_VISIBLE_DEVICES=0"],
            r#""env": {"CUDA_VISIBLE_DEVICES": "0"}"#,
            "nodekeeper sets the variable \"CUDA_VISIBLE_DEVICES\" itself",
        ),
        (
            &["--cache", "a", "--env", "NODEKEEPER_CACHE_A=x"],
            r#""caches": ["a"], "env": {"NODEKEEPER_CACHE_A": "x"}"#,
            "nodekeeper sets the variable \"NODEKEEPER_CACHE_A\" itself",
        ),
        (
            &["--secret", "1A=/x", "--role", "r"],
            r#""secrets": {"1A": "/x"}, "role": "r""#,
            "cannot be the name of a variable",
        ),
        (
            &["--secret", "A=", "--role", "r"],
            r#""secrets": {"A": ""}, "role": "r""#,
            r#"the place of the secret "A" must be"#,
        ),
        (&["--secret", "A=/x"], r#""secrets": {"A": "/x"}"#, "a secret is read with the role of the job"),
        (
            &["--secret", "A=/x", "--secret-file", "A=/y", "--role", "r"],
            r#""secrets": {"A": "/x"}, "secret_files": {"A": "/y"}, "role": "r""#,
            r#"the variable "A" is given twice"#,
        ),
        (&["--out", "a", "--out", "a"], r#""outputs": ["a", "a"]"#, r#"the output "a" is named twice"#),
        (
            &["--out", "a=s3://data/k", "--out", "c=s3://data/k", "--role", "r"],
            r#""outputs": ["a=s3://data/k", "c=s3://data/k"], "role": "r""#,
            r#"two outputs would be stored at "s3://data/k""#,
        ),
        (
            &["--stop-notice", "9", "--timeout", "9"],
            r#""stop_notice": 9, "timeout": 9"#,
            "--stop-notice (9 s) must be shorter than --timeout (9 s)",
        ),
        (&["--stop-signal", "KILL"], r#""stop_signal": "KILL""#, "ends or halts a command"),
        (
            &["--retry", "exit:1=fail", "--retry", "exit:1=again*3"],
            r#""retry": ["exit:1=fail", "exit:1=again*3"]"#,
            r#"the retry rule "exit:1=again*3" never decides"#,
        ),
    ];
    let mut cases: Vec<_> =
        plain.into_iter().map(|(options, line, says)| (options.to_vec(), line.to_owned(), says)).collect();
    let inside = format!(r#""inputs": {{"a": "file:{DIGEST}:1", "a/b": "file:{DIGEST}:1"}}"#);
    cases.push((
        vec!["--in", "s3://data/a", "--in", "s3://data/b=a/b", "--role", "r"],
        inside,
        "is inside of the input",
    ));
    cases
}

#[tokio::test]
async fn what_says_nothing_or_two_things_is_refused_as_an_option_and_in_a_line() {
    let (world, dir) = (World::with_policy().await, tempfile::tempdir().unwrap());
    let (mut as_options, mut in_lines) = (0, 0);
    for (options, line, says) in cases() {
        let submit: Vec<&str> = ["submit"].into_iter().chain(options.clone()).chain(["--", "true"]).collect();
        // clap asks the judge of a variable before there is a job.
        let error = match parse(&submit) {
            Err(error) => error.to_string(),
            Ok(_) => {
                let (said, changed) = world.changes(&submit).await;
                assert!(changed.is_empty(), "{options:?}");
                let error = said.result.unwrap_err();
                assert!(error.is::<UsageError>(), "{options:?}: {error}");
                error.to_string()
            }
        };
        assert!(error.contains(says), "{options:?}: {error}");
        as_options += 1;
        let path = file(&dir, "jobs", &format!("{{\"command\": [\"true\"], {line}}}\n"));
        let error = world.run(&["submit", "--file", &path]).await.result.unwrap_err();
        assert!(error.is::<UsageError>() && error.to_string().contains(&about_fields(says)), "{line}: {error}");
        in_lines += 1;
    }
    assert_eq!((as_options, in_lines), (35, 35));
}

/// Commands that do nothing, and options that only one of the two ways has.
#[tokio::test]
async fn an_empty_command_and_a_value_that_is_given_twice_are_refused() {
    let (world, dir) = (World::with_policy().await, tempfile::tempdir().unwrap());
    for (line, says) in [
        (r#"{"command": ""}"#, "the line of its command is empty"),
        (r#"{"command": "  \n"}"#, "the line of its command is empty"),
        (r#"{"command": ["sh", "-c", ""]}"#, "the line of its command is empty"),
        (r#"{"command": []}"#, "it has no command"),
        (r#"{"command": [""]}"#, "it has no command"),
        (r#"{"command": [" "]}"#, "it has no command"),
        (r#"{"command": ["true"], "env": {"A": "1", "A": "2"}}"#, "stands there twice"),
        (r#"{"command": ["true"], "name": "a", "name": "b"}"#, "stands there twice"),
        (r#"{"command": ["true"], "memory": "1G", "memory_mib": 5}"#, "memory_mib is given twice"),
        (r#"{"command": ["true"], "pack": {"elements": "0-3", "at_once": 0}}"#, "at_once must be 1 to"),
        (
            r#"{"command": ["true"], "pack": {"elements": "0-3", "at_once": 1}, "env": {"NODEKEEPER_ARRAY_INDEX": "1"}}"#,
            "nodekeeper sets the variable",
        ),
        (r#"{"command": ["true"], "array_limit": 0}"#, "array_limit"),
        (r#"{"command": ["true"], "timeout": "NaN"}"#, "timeout: it must be a number of seconds"),
        (r#"{"command": ["true"], "memory": -1}"#, "memory_mib: invalid value: integer `-1`"),
    ] {
        let path = file(&dir, "jobs", &format!("{line}\n"));
        let error = world.run(&["submit", "--file", &path]).await.error();
        assert!(error.contains(says), "{line}: {error}");
    }
    for (options, says) in [
        (&["--env", "A=1", "--env", "A=2"][..], "--env gives A twice"),
        (&["--secret", "A=/x", "--secret", "A=/y"], "--secret gives A twice"),
        (&["--secret-file", "A=/x", "--secret-file", "A=/y"], "--secret-file gives A twice"),
        (&["--in", "s3://data/a", "--in", "s3://more/a"], "two inputs have the name a"),
        (&["--env-file", "/dev/zero"], "/dev/zero has more than 4 MiB"),
    ] {
        let line: Vec<&str> = ["submit"].into_iter().chain(options.iter().copied()).chain(["--", "true"]).collect();
        let error = world.run(&line).await.result.unwrap_err();
        assert!(error.is::<UsageError>() && error.to_string().contains(says), "{options:?}: {error}");
    }
    for twice in [
        &["--name", "a", "--name", "b"][..],
        &["--vcpus", "1", "--vcpus", "2"],
        &["--memory", "NaN"],
        &["--timeout", "-1"],
    ] {
        let line: Vec<&str> = ["submit"].into_iter().chain(twice.iter().copied()).chain(["--", "true"]).collect();
        assert_eq!(parse(&line).unwrap_err().exit_code(), 2, "{twice:?}");
    }
}

#[tokio::test]
async fn an_endless_input_and_a_huge_mistake_make_a_short_error() {
    let (world, dir) = (World::with_policy().await, tempfile::tempdir().unwrap());
    let huge = "x".repeat(5 << 20);
    for line in [
        format!("{{\"{huge}\": 1}}"),
        format!("{{\"name\": \"{huge}\"}}"),
        huge.clone(),
        format!("{{\"arch\": \"{huge}\"}}"),
    ] {
        let path = file(&dir, "jobs", &line);
        let error = world.run(&["submit", "--file", &path]).await.error();
        assert!(error.len() < 2000 && error.contains("line 1: "), "{} bytes", error.len());
    }
    let policy = file(&dir, "p.toml", &format!("{POLICY}x = \"{}\"\n", "x".repeat(3 << 20)));
    let shown = crate::console::show::error(&world.run(&["policy", "set", &policy]).await.result.unwrap_err());
    assert!(shown.len() < 10_000, "{} bytes", shown.len());
    for line in
        [&["policy", "check", "/dev/zero"][..], &["plan", "--policy", "/dev/zero"], &["sizes", "--file", "/dev/zero"]]
    {
        assert_eq!(world.run(line).await.error(), "/dev/zero has more than 4 MiB: give less at once", "{line:?}");
    }
    let long = "y".repeat(5000);
    assert!(world.run_with(&["cancel", "--all"], &long).await.result.is_ok(), "no job is there");
    let states = world.run_with(&["plan", "--state", "-"], &format!("{{\"{}\": 1}}\n", "z".repeat(1 << 20))).await;
    assert!(states.err.len() < 2000, "{} bytes", states.err.len());
}
