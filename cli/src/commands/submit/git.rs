//! What git ignores in a folder, as git itself says it.
//!
//! Guarantees: the index counts (a tracked file is never ignored), and so do the settings of the repository, its submodules and the
//! repositories in it.
//! Does not: read rules. Where git is not there or does not answer, the caller does.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// All that git ignores in a folder, as the text of a `.gitignore` of this folder; `None` if git says nothing of the folder, or that
/// all of it is ignored: then whoever named the folder wants what is in it.
pub(super) fn ignored(folder: &Path) -> Option<String> {
    let (mut rules, mut repositories) = (String::new(), vec![PathBuf::new()]);
    while let Some(within) = repositories.pop() {
        let here = folder.join(&within);
        for path in listed(&here, &["--others", "--ignored", "--directory"])? {
            if path == Path::new("./") {
                return None;
            }
            add_rule(&mut rules, within.join(path).as_os_str());
        }
        let inner =
            listed(&here, &["--cached", "--others"])?.into_iter().filter(|path| here.join(path).join(".git").exists());
        repositories.extend(inner.map(|path| within.join(path)));
    }
    Some(rules)
}

/// Paths of a repository, relative to this folder of it.
fn listed(folder: &Path, which: &[&str]) -> Option<Vec<PathBuf>> {
    let mut git = Command::new("git");
    // Set inside of a hook: they name another repository.
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"] {
        git.env_remove(name);
    }
    let git = git.arg("-C").arg(folder).args(["ls-files", "-z", "--exclude-standard"]).args(which).output().ok()?;
    let paths = git.stdout.split(|byte| *byte == 0).filter(|path| !path.is_empty());
    git.status.success().then(|| paths.map(|path| PathBuf::from(OsStr::from_bytes(path))).collect())
}

/// A rule that names this path alone. What no rule can spell, `?` stands for.
fn add_rule(rules: &mut String, path: &OsStr) {
    rules.push('/');
    for part in path.as_bytes().utf8_chunks() {
        for c in part.valid().chars() {
            match c {
                '\n' | '\r' => rules.push('?'),
                '\\' | '*' | '?' | '[' | ']' | '{' | '}' | ' ' | '!' | '#' => _ = write!(rules, "\\{c}"),
                c => rules.push(c),
            }
        }
        part.invalid().iter().for_each(|_| rules.push('?'));
    }
    rules.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::submit::job_files::tests::packed;
    use std::collections::BTreeSet;
    use std::fs;

    fn git(folder: &Path, args: &[&str]) -> Vec<String> {
        let settings = ["-c", "protocol.file.allow=always", "-c", "user.name=a", "-c", "user.email=a@b"];
        let git = Command::new("git").arg("-C").arg(folder).args(settings).args(args).output().unwrap();
        assert!(git.status.success(), "{args:?}: {}", String::from_utf8_lossy(&git.stderr));
        String::from_utf8(git.stdout).unwrap().split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect()
    }

    fn write(folder: &Path, names: &[&str]) {
        for name in names {
            fs::create_dir_all(folder.join(name).parent().unwrap()).unwrap();
            fs::write(folder.join(name), "*.csv\n").unwrap();
        }
    }

    /// A plain repository, one whose own folder is elsewhere, and a worktree: each with forced files, rules of every kind, names that
    /// look like patterns, a submodule and a repository in it.
    #[test]
    fn a_work_directory_is_packed_as_git_lists_it() {
        let dir = tempfile::tempdir().unwrap();
        let (plain, apart, worktree) =
            (dir.path().join("plain"), dir.path().join("apart"), dir.path().join("worktree"));
        let (library, elsewhere) = (dir.path().join("library"), dir.path().join("elsewhere"));
        for folder in [&plain, &apart, &library] {
            fs::create_dir(folder).unwrap();
        }
        git(&library, &["init", "-q"]);
        write(&library, &["lib.py"]);
        git(&library, &["add", "."]);
        git(&library, &["commit", "-qm", "x"]);
        git(&plain, &["init", "-q"]);
        git(&apart, &["init", "-q", "--separate-git-dir", elsewhere.to_str().unwrap()]);
        for folder in [&plain, &apart, &worktree] {
            if folder == &worktree {
                git(&plain, &["worktree", "add", "-q", worktree.to_str().unwrap()]);
                git(&worktree, &["submodule", "update", "-q", "--init"]);
            } else {
                git(folder, &["submodule", "add", "-q", library.to_str().unwrap(), "sub"]);
            }
            fs::write(dir.path().join("excludes"), ".env\n").unwrap();
            git(folder, &["config", "core.excludesFile", dir.path().join("excludes").to_str().unwrap()]);
            write(folder, &["main.py", ".env", "build/config.h", "build/x.o", "build/sub/y", "truth.csv", "other.csv"]);
            write(
                folder,
                &[
                    "a b.tmp",
                    "[x].tmp",
                    "x.tmp.py",
                    "*.tmp",
                    "ä.tmp",
                    "ö",
                    "new\nline.tmp",
                    "new_line",
                    "#.tmp",
                    "!.tmp",
                ],
            );
            fs::write(folder.join(".gitignore"), "build/\n*.csv\n*.tmp\n").unwrap();
            git(folder, &["add", "."]);
            git(folder, &["add", "-f", "build/config.h", "truth.csv"]);
            git(folder, &["commit", "-qm", "x", "--allow-empty"]);
            write(folder, &["sub/token", "inner/.env", "inner/kept.csv"]);
            git(&folder.join("inner"), &["init", "-q"]);
            for inner in [&folder.join("inner"), &folder.join("sub")] {
                let own = &git(inner, &["rev-parse", "--path-format=absolute", "--git-path", "info/exclude"])[0];
                fs::create_dir_all(Path::new(own.trim()).parent().unwrap()).unwrap();
                fs::write(own.trim(), "token\n.env\n").unwrap();
            }
            let list = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
            let mut whole = Vec::new();
            for inner in ["", "inner/", "sub/"] {
                whole.extend(git(&folder.join(inner), &list).iter().map(|name| format!("{inner}{name}")));
            }
            let expected: BTreeSet<String> =
                whole.into_iter().filter(|name| !name.ends_with('/') && !folder.join(name).is_dir()).collect();
            assert!(expected.contains("truth.csv") && !expected.contains(".env"), "{expected:?}");
            assert_eq!(BTreeSet::from_iter(packed(folder)), expected, "{}", folder.display());
            // Whoever names a folder that is ignored wants it.
            assert_eq!(packed(&folder.join("build/sub")), ["y"]);
        }
    }
}
