//! The environment of a job, as options: `--env NAME=VALUE`, `--env NAME` and `--env-file`.
//!
//! Guarantees: a variable without a value takes the submitter's value, or is an error. A mistake in a file is an error that
//! names the line. `--env` overrides a file.
//! Does not: understand quotes or escapes in a file: a value is the rest of its line, as with docker.

use crate::console::{UsageError, bounded, show};
use model::{Environment, variable_fault};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The name of a variable, and its value if it was given.
pub(crate) type Variable = (String, Option<String>);

/// Parses `NAME=VALUE` or `NAME`.
pub(crate) fn variable(text: &str) -> Result<Variable, String> {
    let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value.to_owned())));
    variable_fault(name).map_or_else(|| Ok((name.to_owned(), value)), Err)
}

pub(crate) fn environment(given: &[Variable], files: &[PathBuf]) -> anyhow::Result<Environment> {
    let mut env = Environment::new();
    once("--env", given.iter().map(|(name, _)| name))?;
    for file in files {
        let text = bounded::file(file)?;
        let variables = variables(&text, file)?;
        once(&file.display().to_string(), variables.iter().map(|(name, _)| name))?;
        for (name, value) in variables {
            env.insert(name.clone(), value.map_or_else(|| here(&name), Ok)?);
        }
    }
    for (name, value) in given {
        env.insert(name.clone(), value.clone().map_or_else(|| here(name), Ok)?);
    }
    Ok(env)
}

/// Refuses a name that is given twice in one place. Which of its values is meant cannot be known.
pub(crate) fn once<'a>(place: &str, names: impl Iterator<Item = &'a String>) -> Result<(), UsageError> {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(UsageError(format!("{place} gives {} twice: give it once", show::brief(name))));
        }
    }
    Ok(())
}

fn variables(text: &str, file: &Path) -> Result<Vec<Variable>, UsageError> {
    let lines = text.lines().enumerate().map(|(n, line)| (n + 1, line.trim_start()));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let read = |(n, line): (usize, &str)| {
        variable(line.strip_prefix("export ").unwrap_or(line).trim_start())
            .map_err(|e| UsageError(format!("{}:{n}: {e}", file.display())))
    };
    lines.map(read).collect()
}

/// The value of a variable in the submitter's environment.
#[allow(clippy::disallowed_methods, reason = "the person names the variable whose value the job gets")]
fn here(name: &str) -> Result<String, UsageError> {
    std::env::var(name)
        .map_err(|e| UsageError(format!("--env {name}: the variable has no value here ({e}): give {name}=VALUE")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_has_a_name_and_perhaps_a_value() {
        assert_eq!(variable("A=b=c"), Ok(("A".into(), Some("b=c".into()))));
        assert_eq!(variable("A"), Ok(("A".into(), None)));
        for bad in [
            "",
            "=b",
            "1A=3",
            "A =1",
            " A=1",
            "A B",
            "A\0=1",
            "é=1",
            "BASH_FUNC_x%%=() { :; }",
            "A-B=1",
            "A.B",
            "NODEKEEPER_X=1",
        ] {
            assert!(variable(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_file_has_one_variable_in_each_line_and_what_is_said_elsewhere_comes_before_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("env");
        std::fs::write(&file, "# a comment\n\nA=1 # not a comment\nexport B='x'\nPATH\n").unwrap();
        let env = environment(&[("A".into(), Some("2".into()))], std::slice::from_ref(&file)).unwrap();
        assert_eq!((env["A"].as_str(), env["B"].as_str()), ("2", "'x'"));
        assert!(env["PATH"].contains("bin"));
        for (text, says) in [
            ("A=1\nA B=2\n", "env:2: \"A B\" cannot be the name of a variable"),
            ("A=1\nB=2\nexport A=3\n", "env gives A twice: give it once"),
        ] {
            std::fs::write(&file, text).unwrap();
            let error = environment(&[], std::slice::from_ref(&file)).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        let endless = environment(&[], &["/dev/zero".into()]).unwrap_err().to_string();
        assert_eq!(endless, "/dev/zero has more than 4 MiB: give less at once");
        let twice = [("A".to_owned(), Some("1".to_owned())), ("A".to_owned(), None)];
        assert_eq!(environment(&twice, &[]).unwrap_err().to_string(), "--env gives A twice: give it once");
        std::fs::write(&file, "A=1\n=2\n").unwrap();
        let error = environment(&[], std::slice::from_ref(&file)).unwrap_err().to_string();
        assert!(error.ends_with("env:2: a variable has no name: give NAME=VALUE"), "{error}");
        let error = environment(&[("NOT_SET_ANYWHERE".into(), None)], &[]).unwrap_err().to_string();
        assert!(error.contains("--env NOT_SET_ANYWHERE: the variable has no value here"), "{error}");
        assert!(environment(&[], &[dir.path().join("absent")]).is_err());
    }
}
