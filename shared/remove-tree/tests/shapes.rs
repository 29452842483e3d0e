//! Trees of every shape that a job can make. The process may open few files, and the stack is small.

#![allow(clippy::unwrap_used, clippy::panic, reason = "these are tests")]

use nix::fcntl::{OFlag, open, openat};
use nix::mount::{MsFlags, mount, umount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::{Mode, mkdirat};
use remove_tree::remove_tree;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

const NONE: Option<&str> = None;

/// A chain of directories with a file in each.
fn chain(top: &Path, levels: usize) {
    let mut fd = open(top, OFlag::O_DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..levels {
        mkdirat(&fd, "d", Mode::S_IRWXU).unwrap();
        let below = openat(&fd, "d", OFlag::O_DIRECTORY, Mode::empty()).unwrap();
        openat(&below, "file", OFlag::O_CREAT | OFlag::O_WRONLY, Mode::S_IRUSR).unwrap();
        fd = below;
    }
}

/// Directories in directories: `width` of them in each, on this many levels.
fn bush(top: &Path, width: usize, levels: usize) {
    for n in 0..width {
        let below = top.join(n.to_string());
        fs::create_dir(&below).unwrap();
        if levels > 1 {
            bush(&below, width, levels - 1);
        }
    }
}

fn close(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Removes the tree with few open files and a small stack.
fn removed(path: &Path) -> std::io::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 128, hard).unwrap();
    std::thread::scope(|scope| {
        let small = std::thread::Builder::new().stack_size(64 << 10);
        small.spawn_scoped(scope, || remove_tree(path)).unwrap().join().unwrap()
    })
}

#[test]
fn a_tree_of_any_shape_is_removed() {
    type Make = fn(&Path);
    let shapes: [(&str, Make); 8] = [
        ("nothing in it", |_| {}),
        ("deep", |top| chain(top, 4000)),
        ("deeper than one path can say, with names that the removal uses itself", |top| {
            chain(top, 2100);
            for n in 0..50 {
                fs::create_dir_all(top.join(format!(".moved-{n}/x"))).unwrap();
                fs::write(top.join(format!(".moved-{}", 50 + n)), "").unwrap();
            }
        }),
        ("wide", |top| (0..5000).for_each(|n| fs::write(top.join(n.to_string()), "").unwrap())),
        ("wide on every level, and deeper than is open at once", |top| {
            bush(top, 2, 9);
            chain(&top.join("0/1/0/1/0/1/0/1/0"), 100);
            bush(&top.join("0/1/0/1/0/1/0/1/0/d/d/d/d/d/d"), 3, 5);
        }),
        ("closed, as a cache of Go modules is", |top| {
            fs::create_dir_all(top.join("a/b/c")).unwrap();
            fs::write(top.join("a/b/c/file"), "").unwrap();
            ["a/b/c", "a/b", "a"].iter().for_each(|dir| close(&top.join(dir), 0o555));
        }),
        ("closed to its owner, deep below", |top| {
            chain(top, 40);
            let lowest = top.join("d/".repeat(40));
            (lowest.ancestors().take(30)).for_each(|dir| close(dir, 0));
        }),
        ("names with any byte, and a name that begins with a dash", |top| {
            use std::os::unix::ffi::OsStrExt;
            for name in [&b"\xff\n"[..], b"-rf", b"...", b" "] {
                fs::create_dir(top.join(std::ffi::OsStr::from_bytes(name))).unwrap();
            }
        }),
    ];
    for (shape, make) in shapes {
        // In memory: a disk takes seconds for the deep trees.
        let memory = Some(Path::new("/dev/shm")).filter(|dir| dir.is_dir());
        let dir = memory.map_or_else(tempfile::tempdir, tempfile::tempdir_in).unwrap();
        let top = dir.path().join("tree");
        fs::create_dir(&top).unwrap();
        make(&top);
        removed(&top).unwrap_or_else(|error| panic!("{shape}: {error}"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "{shape}");
        remove_tree(&top).unwrap();
    }
}

#[test]
fn what_links_lead_to_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (kept, top) = (dir.path().join("kept"), dir.path().join("tree"));
    fs::create_dir_all(kept.join("below")).unwrap();
    fs::create_dir_all(top.join("a")).unwrap();
    for link in ["to-directory", "a/to-directory", "a/to-file"] {
        symlink(kept.join(if link.ends_with("file") { "file" } else { "below" }), top.join(link)).unwrap();
    }
    removed(&top).unwrap();
    symlink(&kept, &top).unwrap();
    removed(&top).unwrap();
    assert!(fs::symlink_metadata(&top).is_err() && kept.join("below").exists());
    fs::write(&top, "").unwrap();
    removed(&top).unwrap();
    assert!(!top.exists());
}

#[test]
fn a_mount_is_not_entered_is_named_and_keeps_nothing_else() {
    if !nix::unistd::geteuid().is_root() {
        return eprintln!("skipped: only root can mount");
    }
    let dir = tempfile::tempdir().unwrap();
    let (kept, top) = (dir.path().join("kept"), dir.path().join("tree"));
    fs::create_dir_all(kept.join("below")).unwrap();
    fs::create_dir_all(top.join("a/mounted")).unwrap();
    fs::create_dir_all(top.join("b/c")).unwrap();
    // Only this thread sees the mount.
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NONE).unwrap();
    mount(Some(&kept), &top.join("a/mounted"), NONE, MsFlags::MS_BIND, NONE).unwrap();
    let error = remove_tree(&top).unwrap_err().to_string();
    assert!(error.contains("\"mounted\": something is mounted there"), "{error}");
    assert!(kept.join("below").exists() && !top.join("b").exists());
    umount(&top.join("a/mounted")).unwrap();
    remove_tree(&top).unwrap();
    assert!(!top.exists());
}
