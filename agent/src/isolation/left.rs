//! What a user id leaves behind outside of the directory of its alloc.
//!
//! Guarantees: an alloc that gets the id later finds no file, shared memory, semaphore or queue of an earlier one, also where
//! the machine allows no private view of these places.
//! Does not: look at a place that the alloc had for itself, below directories of others, or elsewhere: only these places are
//! open to everybody.

use remove_tree::remove_tree;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// The directories that distributions open to everybody. An alloc sees its own ones in their place.
pub(super) const TEMPORARY: [&str; 4] = ["/tmp", "/var/tmp", "/run/lock", "/var/crash"];

/// Where everybody may leave files, beside the temporary directories.
const OPEN: [&str; 2] = ["/dev/shm", "/dev/mqueue"];

/// The lists of System V objects, and the option of `ipcrm` that removes one.
const SYSTEM_V: [(&str, &str); 3] = [("shm", "-m"), ("sem", "-s"), ("msg", "-q")];

/// Removes everything that the user of an alloc has left where others may leave something too. `view` is the directory of the alloc, if
/// it had its own view of the file system. Call this when no process of the user runs. What cannot be removed is logged.
pub(super) fn remove_of_user(uid: u32, view: Option<&Path>) {
    shared_with_others(view).for_each(|dir| remove_files(uid, dir));
    if view.is_none() {
        SYSTEM_V.into_iter().for_each(|(list, option)| remove_objects(uid, list, option));
    }
}

/// The directories that an alloc shared with others: with its own view, only the temporary directory that contains its own files.
fn shared_with_others(view: Option<&Path>) -> impl Iterator<Item = &'static str> {
    let temporary = TEMPORARY.into_iter().filter(move |t| view.is_none_or(|dir| dir.starts_with(t)));
    temporary.chain(OPEN.into_iter().filter(move |_| view.is_none()))
}

fn remove_files(uid: u32, dir: &str) {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    for entry in entries.filter(|e| fs::symlink_metadata(e.path()).is_ok_and(|found| found.uid() == uid)) {
        if let Err(error) = remove_tree(&entry.path()) {
            tracing::warn!(uid, %error, "a job left something that cannot be removed");
        }
    }
}

fn remove_objects(uid: u32, list: &str, option: &str) {
    let text = fs::read_to_string(Path::new("/proc/sysvipc").join(list)).unwrap_or_default();
    for id in ids_of(&text, uid) {
        let removed = Command::new("ipcrm").args([option, id]).stdin(Stdio::null()).status();
        if !removed.is_ok_and(|status| status.success()) {
            tracing::warn!(uid, list, id, "a job left a System V object that ipcrm cannot remove");
        }
    }
}

/// The ids in a list of System V objects that belong to this user. The first line names the columns; the second column is
/// the id.
fn ids_of(list: &str, uid: u32) -> Vec<&str> {
    let mut lines = list.lines().map(|line| line.split_ascii_whitespace());
    let Some(column) = lines.next().and_then(|mut names| names.position(|name| name == "uid")) else {
        return Vec::new();
    };
    let of_user = lines.filter(|fields| fields.clone().nth(column).is_some_and(|of| of.parse() == Ok(uid)));
    of_user.filter_map(|mut fields| fields.nth(1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::chown;

    #[test]
    fn an_alloc_with_its_own_view_shared_only_the_temporary_directory_with_its_files() {
        let shared = |view: Option<&str>| shared_with_others(view.map(Path::new)).collect::<Vec<_>>();
        assert_eq!(shared(Some("/var/lib/nodekeeper/allocs/a")), [] as [&str; 0]);
        assert_eq!(shared(Some("/var/tmp/data/allocs/a")), ["/var/tmp"]);
        assert_eq!(shared(None).len(), TEMPORARY.len() + OPEN.len());
    }

    #[test]
    fn what_a_user_left_is_removed_and_nothing_else() {
        if !nix::unistd::geteuid().is_root() {
            return eprintln!("skipped: only root has files of others");
        }
        let (uid, other) = (1_600_000_000 + std::process::id() % 10_000, 1_700_000_000);
        let place = |uid: u32| Path::new("/dev/shm").join(format!("nodekeeper-left-{uid}"));
        for uid in [uid, other] {
            fs::create_dir_all(place(uid).join("below")).unwrap();
            chown(place(uid), Some(uid), None).unwrap();
        }
        let ipcmk = Command::new("setpriv")
            .args(["--reuid", &uid.to_string(), "--clear-groups", "ipcmk", "-M", "1", "-S", "1", "-Q"])
            .stdout(Stdio::null())
            .status();
        let objects = || {
            let lists = SYSTEM_V.map(|(list, _)| fs::read_to_string(format!("/proc/sysvipc/{list}")).unwrap());
            lists.iter().map(|list| ids_of(list, uid).len()).sum::<usize>()
        };
        assert_eq!((ipcmk.unwrap().success(), objects()), (true, 3));
        remove_of_user(uid, None);
        assert_eq!((place(uid).exists(), place(other).exists(), objects()), (false, true, 0));
        remove_tree(&place(other)).unwrap();
    }
}
