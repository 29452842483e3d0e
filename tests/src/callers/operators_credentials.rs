//! An operator's credentials and region. If one is missing, `nodekeeper` says in one line what to do.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

const CONFIG: &str = "
[profile sso]
sso_session = dev
sso_account_id = 012345678901
sso_role_name = Operator
region = eu-west-1
[sso-session dev]
sso_region = us-east-1
sso_start_url = https://d-abc.awsapps.com/start
[profile login]
login_session = arn:aws:iam::0123456789012:user/username
region = eu-west-1
[profile empty]
region = eu-west-1
[profile process]
credential_process = sh -c 'echo the vault is sealed >&2; exit 1'
region = eu-west-1
";

/// A stand-in for version 2 of the AWS CLI that gives credentials.
const SIGNED_IN: &str = r#"#!/bin/sh
[ "$*" = "configure export-credentials --format process" ] || exit 9
echo '{"Version":1,"AccessKeyId":"AKIA","SecretAccessKey":"s","Expiration":"2099-01-01T00:00:00Z"}'
"#;
const SIGNED_OUT: &str = "#!/bin/sh\necho 'The SSO session has expired' >&2\nexit 255\n";
const VERSION_1: &str = "#!/bin/sh\necho 'usage: aws [options]' >&2\nexit 2\n";

/// The address of a port that accepts connections and closes them, as a database that does not answer.
fn nobody() -> &'static str {
    static URL: OnceLock<String> = OnceLock::new();
    URL.get_or_init(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || listener.incoming().for_each(drop));
        url
    })
}

/// The error that the command prints with these variables. `aws` is the script that stands in for the AWS CLI.
fn said(dir: &Path, aws: Option<&str>, variables: &[(&str, &str)]) -> String {
    let config = dir.join("config");
    std::fs::write(&config, CONFIG).unwrap();
    let path = dir.join("bin");
    std::fs::create_dir_all(&path).unwrap();
    // Only the shell is found on the path. It runs the script of the AWS CLI.
    let _ = std::os::unix::fs::symlink("/bin/sh", path.join("sh"));
    let _ = std::fs::remove_file(path.join("aws"));
    if let Some(aws) = aws {
        // Another process writes the script. If this one did, a process that another test starts at that moment would inherit the
        // open file, and Linux executes no file that is open for writing.
        let script = "printf %s \"$0\" > aws && chmod 755 aws";
        let written = Command::new("sh").args(["-c", script, aws]).current_dir(&path).status().unwrap();
        assert!(written.success());
    }
    let output = Command::new(crate::end_to_end::program("nodekeeper"))
        .args(["--cluster", "demo", "nodes"])
        .env_clear()
        .env("PATH", &path)
        .env("AWS_CONFIG_FILE", &config)
        .env("AWS_SHARED_CREDENTIALS_FILE", &config)
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .env("AWS_ENDPOINT_URL_DYNAMODB", nobody())
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    // What lacks something is a failure. With all that it needs, it finds that nobody answers: 75.
    assert!(matches!(output.status.code(), Some(1 | 75)) && output.stdout.is_empty(), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}

#[test]
fn what_an_operator_misses_is_said_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let expect = |aws: Option<&str>, variables: &[(&str, &str)], words: &[&str]| {
        let said = said(dir.path(), aws, variables);
        assert!(words.iter().all(|word| said.contains(word)), "{variables:?}: {said}");
    };
    let region = ("AWS_REGION", "eu-west-1");
    expect(None, &[], &["no region is set", "AWS_REGION"]);
    expect(None, &[("AWS_PROFILE", "unknown")], &["no region is set", "profile `unknown`"]);
    expect(None, &[region], &["no AWS credentials", "AWS_PROFILE", "AWS_ACCESS_KEY_ID"]);
    expect(None, &[region, ("AWS_PROFILE", "unknown")], &["no AWS credentials", "profile `unknown`", "does not exist"]);
    expect(None, &[("AWS_PROFILE", "empty")], &["no AWS credentials", "profile `empty`"]);
    expect(None, &[("AWS_PROFILE", "process")], &["profile `process`", "the vault is sealed"]);
}

#[test]
fn a_profile_that_signs_in_through_a_browser_gets_its_credentials_from_the_aws_cli() {
    let dir = tempfile::tempdir().unwrap();
    for profile in ["sso", "login"] {
        let said = |aws| said(dir.path(), aws, &[("AWS_PROFILE", profile)]);
        // The call was made, so there were credentials. It fails because no database answers.
        let signed_in = said(Some(SIGNED_IN));
        assert!(signed_in.contains("DynamoDB did not answer (Scan)"), "{signed_in}");
        let signed_out = said(Some(SIGNED_OUT));
        assert!(signed_out.contains("aws sso login") && signed_out.contains("session has expired"), "{signed_out}");
        for missing in [said(None), said(Some(VERSION_1))] {
            assert!(missing.contains("AWS CLI (version 2)") && missing.contains("install it"), "{missing}");
        }
    }
}
