//! Contexts: names for the clusters that a person works with, in a file.
//!
//! ```toml
//! current = "lab"
//!
//! [context.lab]
//! cluster = "lab"          # the name of the deployment
//! region = "eu-central-1"
//! profile = "lab-admin"    # of ~/.aws/config
//!
//! [context.here]
//! cluster = "local"
//! region = "us-east-1"
//! endpoint = "http://127.0.0.1:8000"
//! ```
//!
//! Guarantees: `--cluster` comes first, then the context of `--context`, then the environment, then the current context. A
//! file with a mistake is refused, and the error names the line.
//! Does not: hold credentials, or change the file.

use crate::console::{UsageError, bounded};
use anyhow::{Context as _, anyhow};
use model::ids::ClusterName;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct ContextFile {
    current: Option<String>,
    #[serde(default, rename = "context")]
    contexts: BTreeMap<String, Settings>,
}

/// A cluster, and how to reach it. The AWS SDK finds an absent value itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    pub cluster: Option<ClusterName>,
    pub region: Option<String>,
    pub profile: Option<String>,
    /// An endpoint for every service, in place of AWS.
    pub endpoint: Option<String>,
}

/// The variables that name an endpoint in place of AWS.
const ENDPOINTS: [&str; 3] = ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_DYNAMODB", "AWS_ENDPOINT_URL_EC2"];

/// The settings of the command line and of the environment.
#[derive(Clone, Debug, Default)]
pub struct Given {
    pub cluster: Option<ClusterName>,
    pub context: Option<String>,
    /// The environment. [`Given::var`] reads it.
    pub env: BTreeMap<String, String>,
}

impl Given {
    /// A variable of the environment. A variable without a value counts as absent.
    pub fn var(&self, name: &str) -> Option<&str> {
        self.env.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// The path of the file: `NODEKEEPER_CONFIG`, or a path below the person's configuration directory.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        let below = |dir: PathBuf| dir.join("nodekeeper").join("config.toml");
        self.var("NODEKEEPER_CONFIG")
            .map(PathBuf::from)
            .or_else(|| self.var("XDG_CONFIG_HOME").map(PathBuf::from).map(below))
            .or_else(|| self.var("HOME").map(|home| below(Path::new(home).join(".config"))))
    }

    /// Reads the file. It need not exist, unless `NODEKEEPER_CONFIG` names it.
    fn file(&self) -> anyhow::Result<ContextFile> {
        let Some(path) = self.path() else { return Ok(ContextFile::default()) };
        let is_absent = |e: &anyhow::Error| {
            e.downcast_ref().is_some_and(|e: &std::io::Error| e.kind() == std::io::ErrorKind::NotFound)
        };
        match bounded::file(&path) {
            Ok(text) => parse(&text, &path),
            Err(e) if is_absent(&e) && self.var("NODEKEEPER_CONFIG").is_none() => Ok(ContextFile::default()),
            Err(e) => Err(e),
        }
    }

    /// The settings that a command uses.
    pub fn settings(&self) -> anyhow::Result<Settings> {
        self.resolve().map(|(settings, _)| settings)
    }

    /// The settings that the SDK does not find itself. It reads the environment.
    pub fn for_sdk(&self) -> anyhow::Result<Settings> {
        self.resolve().map(|(_, for_sdk)| for_sdk)
    }

    /// Refuses a variable that the SDK cannot use. The SDK would otherwise fail at each call, with a message of its own.
    fn check_for_sdk(&self) -> Result<(), UsageError> {
        let is_url =
            |url: &str| ["http://", "https://"].iter().any(|begin| url.len() > begin.len() && url.starts_with(begin));
        for name in ENDPOINTS {
            if let Some(value) = self.var(name).filter(|value| !is_url(value)) {
                return Err(UsageError(format!(
                    "{name} is {value:?}, and no URL: it must begin with http:// or https://"
                )));
            }
        }
        for name in ["AWS_REGION", "AWS_DEFAULT_REGION"] {
            if self.env.get(name).is_some_and(String::is_empty) {
                return Err(UsageError(format!("{name} is empty: give it a region, or unset it")));
            }
        }
        Ok(())
    }

    fn resolve(&self) -> anyhow::Result<(Settings, Settings)> {
        let file = self.file()?;
        let context = |name: Option<&String>| name.map_or(Ok(Settings::default()), |name| file.named(name).cloned());
        let named = context(self.context.as_ref())?;
        let current = if self.context.is_some() { Settings::default() } else { context(file.current.as_ref())? };
        let pick = |of: fn(&Settings) -> &Option<String>, variables: &[&str]| {
            let from_env = variables.iter().find_map(|name| self.var(name)).map(str::to_owned);
            let from_env = from_env.filter(|_| of(&named).is_none());
            let told = of(&named).clone().or_else(|| of(&current).clone()).filter(|_| from_env.is_none());
            (from_env.or_else(|| told.clone()), told)
        };
        let cluster = match self.var("NODEKEEPER_CLUSTER").filter(|_| named.cluster.is_none()) {
            Some(name) => Some(name.parse().map_err(|e| UsageError(format!("NODEKEEPER_CLUSTER: {e}")))?),
            None => named.cluster.clone().or_else(|| current.cluster.clone()),
        };
        let cluster = self.cluster.clone().or(cluster);
        self.check_for_sdk()?;
        let (region, told_region) = pick(|s| &s.region, &["AWS_REGION", "AWS_DEFAULT_REGION"]);
        let (profile, told_profile) = pick(|s| &s.profile, &["AWS_PROFILE"]);
        let (endpoint, told_endpoint) = pick(|s| &s.endpoint, &ENDPOINTS);
        let told =
            Settings { cluster: cluster.clone(), region: told_region, profile: told_profile, endpoint: told_endpoint };
        Ok((Settings { cluster, region, profile, endpoint }, told))
    }
}

/// Parses the text of the file at `path`. An error is one line.
fn parse(text: &str, path: &Path) -> anyhow::Result<ContextFile> {
    let file: ContextFile = toml::from_str(text).map_err(|e| {
        let before = e.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let (line, why) = (before.matches('\n').count() + 1, e.message().replace('\n', ", "));
        anyhow!("{} is not usable: line {line}: {why}: correct this line", path.display())
    })?;
    if let Some(current) = &file.current {
        file.named(current).with_context(|| format!("{} is not usable: current", path.display()))?;
    }
    Ok(file)
}

impl ContextFile {
    fn named(&self, name: &str) -> Result<&Settings, UsageError> {
        self.contexts.get(name).ok_or_else(|| {
            let known: Vec<&str> = self.contexts.keys().map(String::as_str).collect();
            let known =
                if known.is_empty() { "there is none".to_owned() } else { format!("there are {}", known.join(", ")) };
            UsageError(format!("there is no context {name:?}: {known}"))
        })
    }
}

/// Lists the contexts of the file, and shows what commands use now.
pub fn show(given: &Given, out: &mut dyn Write) -> anyhow::Result<()> {
    let path = given.path().context("neither HOME nor NODEKEEPER_CONFIG is set, so there is no file of contexts")?;
    let file = given.file()?;
    if file.contexts.is_empty() {
        writeln!(out, "no contexts: write them to {}, such as\n\n{EXAMPLE}\n", path.display())?;
    }
    let current = given.context.as_ref().or(file.current.as_ref());
    for (name, settings) in &file.contexts {
        let mark = if current == Some(name) { '*' } else { ' ' };
        writeln!(out, "{mark} {name}  {}", settings.line())?;
    }
    let settings = given.settings()?;
    writeln!(out, "file     {}", path.display())?;
    writeln!(out, "cluster  {}", settings.cluster.as_ref().map_or("none", ClusterName::as_str))?;
    for (name, value) in [("region", settings.region), ("profile", settings.profile), ("endpoint", settings.endpoint)] {
        writeln!(out, "{name:<8} {}", value.as_deref().unwrap_or("as the AWS SDK finds it"))?;
    }
    Ok(())
}

const EXAMPLE: &str =
    "current = \"lab\"\n\n[context.lab]\ncluster = \"lab\"\nregion = \"eu-central-1\"\nprofile = \"lab-admin\"";

impl Settings {
    fn line(&self) -> String {
        let cluster = self.cluster.as_ref().map(|name| format!("cluster {name}"));
        let others = [("region", &self.region), ("profile", &self.profile), ("endpoint", &self.endpoint)];
        let others = others.into_iter().filter_map(|(what, value)| Some(format!("{what} {}", value.as_ref()?)));
        cluster.into_iter().chain(others).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# mine\n[context.a]\ncluster = \"a\"\nregion = \"eu-west-1\"\nprofile = \"admin\"\n\n[context.b]\ncluster = \"b\"\n";

    fn given(dir: &tempfile::TempDir, text: &str, env: &[(&str, &str)]) -> Given {
        let path = dir.path().join("nodekeeper").join("config.toml");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        let home = [("XDG_CONFIG_HOME", dir.path().to_str().unwrap())];
        let env = home.iter().chain(env).map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Given { env, ..Given::default() }
    }

    fn shown(given: &Given) -> String {
        let mut out = Vec::new();
        show(given, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn cluster(given: &Given) -> Option<String> {
        given.settings().unwrap().cluster.map(|name| name.to_string())
    }

    #[test]
    fn the_contexts_are_listed_with_what_commands_use() {
        let dir = tempfile::tempdir().unwrap();
        let mut given = given(&dir, FILE, &[]);
        assert_eq!(cluster(&given), None);
        let list = "  a  cluster a, region eu-west-1, profile admin\n  b  cluster b\nfile ";
        assert!(shown(&given).starts_with(list) && shown(&given).contains("cluster  none\n"));
        given.context = Some("a".into());
        assert!(shown(&given).starts_with("* a  ") && shown(&given).contains("region   eu-west-1\n"));
        given.context = Some("c".into());
        let none = show(&given, &mut Vec::new()).unwrap_err();
        assert!(none.is::<UsageError>() && none.to_string().ends_with("there are a, b"), "{none}");
    }

    #[test]
    fn the_command_line_comes_first_then_the_environment_then_the_current_context() {
        let dir = tempfile::tempdir().unwrap();
        let text = format!("current = \"a\"\n{FILE}");
        let env = given(&dir, &text, &[("NODEKEEPER_CLUSTER", "e"), ("AWS_REGION", "us-east-1"), ("AWS_PROFILE", "")]);
        let settings = env.settings().unwrap();
        assert_eq!(settings.cluster.unwrap().to_string(), "e");
        assert_eq!((settings.region.as_deref(), settings.profile.as_deref()), (Some("us-east-1"), Some("admin")));
        let named = Given { context: Some("a".into()), ..env.clone() };
        assert_eq!(
            (cluster(&named).as_deref(), named.settings().unwrap().region.as_deref()),
            (Some("a"), Some("eu-west-1"))
        );
        let flag = Given { cluster: Some("f".parse().unwrap()), ..named };
        assert_eq!(cluster(&flag).as_deref(), Some("f"));
        let told = env.for_sdk().unwrap();
        assert_eq!(
            (told.region, told.profile.as_deref()),
            (None, Some("admin")),
            "the SDK reads the environment itself"
        );
        let unknown = Given { context: Some("x".into()), ..env };
        assert!(unknown.settings().unwrap_err().is::<UsageError>());
    }

    #[test]
    fn what_the_sdk_cannot_use_is_refused_in_one_line() {
        let dir = tempfile::tempdir().unwrap();
        for (name, value, says) in [
            ("AWS_ENDPOINT_URL_DYNAMODB", "notaurl", "no URL: it must begin with http://"),
            ("AWS_ENDPOINT_URL", "http://", "no URL"),
            ("AWS_REGION", "", "AWS_REGION is empty: give it a region, or unset it"),
        ] {
            let error = given(&dir, FILE, &[(name, value)]).settings().unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        given(&dir, FILE, &[("AWS_ENDPOINT_URL", ""), ("AWS_ENDPOINT_URL_EC2", "https://ec2")]).settings().unwrap();
    }

    #[test]
    fn a_file_with_a_mistake_is_refused_and_none_is_fine() {
        let dir = tempfile::tempdir().unwrap();
        for bad in ["current = \"x\"", "[context.a]\nregoin = \"x\"", "[context.a]\ncluster = \"\"", "x"] {
            let error = format!("{:#}", given(&dir, bad, &[]).settings().unwrap_err());
            assert!(error.contains("config.toml is not usable: ") && !error.contains('\n'), "{error}");
        }
        let empty = Given { env: BTreeMap::from([("HOME".into(), "/nowhere".into())]), ..Given::default() };
        assert_eq!(empty.settings().unwrap(), Settings::default());
        assert!(shown(&empty).starts_with("no contexts: write them to /nowhere/.config/nodekeeper/"));
        let named =
            Given { env: BTreeMap::from([("NODEKEEPER_CONFIG".into(), "/nowhere".into())]), ..Given::default() };
        assert!(named.settings().is_err(), "a file that is named must be there");
    }
}
