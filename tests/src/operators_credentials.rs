//! The credentials and the region of an operator: what `nodekeeper` says if something is missing, in one line.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

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

/// Gives credentials, as version 2 of the AWS CLI does.
const SIGNED_IN: &str = r#"#!/bin/sh
[ "$*" = "configure export-credentials --format process" ] || exit 9
echo '{"Version":1,"AccessKeyId":"AKIA","SecretAccessKey":"s","Expiration":"2099-01-01T00:00:00Z"}'
"#;
const SIGNED_OUT: &str = "#!/bin/sh\necho 'The SSO session has expired' >&2\nexit 255\n";
const VERSION_1: &str = "#!/bin/sh\necho 'usage: aws [options]' >&2\nexit 2\n";

/// What the command says, with these variables. `aws` is the AWS CLI of this machine.
fn said(dir: &Path, aws: Option<&str>, variables: &[(&str, &str)]) -> String {
    let config = dir.join("config");
    std::fs::write(&config, CONFIG).unwrap();
    let path = dir.join("bin");
    std::fs::create_dir_all(&path).unwrap();
    // The shell that runs the AWS CLI is found, and nothing else is.
    let _ = std::os::unix::fs::symlink("/bin/sh", path.join("sh"));
    let cli = path.join("aws");
    let _ = std::fs::remove_file(&cli);
    if let Some(aws) = aws {
        std::fs::write(&cli, aws).unwrap();
        std::fs::set_permissions(&cli, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let output = Command::new(crate::end_to_end::program("nodekeeper"))
        .args(["--cluster", "demo", "nodes"])
        .env_clear()
        .env("PATH", &path)
        .env("AWS_CONFIG_FILE", &config)
        .env("AWS_SHARED_CREDENTIALS_FILE", &config)
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .env("AWS_ENDPOINT_URL_DYNAMODB", "http://127.0.0.1:9")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    assert_eq!((output.status.code(), String::from_utf8(output.stdout).unwrap()), (Some(1), String::new()));
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
        // The call is made, so there were credentials. No table is there.
        let signed_in = said(Some(SIGNED_IN));
        assert!(signed_in.contains("DynamoDB did not answer (Scan)"), "{signed_in}");
        let signed_out = said(Some(SIGNED_OUT));
        assert!(signed_out.contains("aws sso login") && signed_out.contains("session has expired"), "{signed_out}");
        for missing in [said(None), said(Some(VERSION_1))] {
            assert!(missing.contains("AWS CLI (version 2)") && missing.contains("install it"), "{missing}");
        }
    }
}
