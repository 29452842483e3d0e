//! The machine's podman, with a storage of its own and an image that has only busybox.
//!
//! It is configured as by an operator: by two files that the environment names. The agent knows nothing of them.

use std::path::PathBuf;
use std::process::Command;

pub const IMAGE: &str = "localhost/nodekeeper-test:1";

/// A program that needs no library.
const BUSYBOX: &str = "/bin/busybox";

/// A podman of one test. Its containers and its storage are removed at the end.
pub struct Podman {
    dir: tempfile::TempDir,
}

impl Podman {
    /// `None`, after a message, if this machine cannot run containers.
    pub fn new() -> Option<Self> {
        let there =
            |program: &str| Command::new(program).arg("--version").output().is_ok_and(|out| out.status.success());
        if let Some(missing) = ["podman", "runc", "catatonit"].into_iter().find(|program| !there(program)) {
            eprintln!("skipped: there is no {missing}: apt-get install podman runc catatonit busybox-static");
            return None;
        }
        if !std::path::Path::new(BUSYBOX).exists() {
            eprintln!("skipped: there is no {BUSYBOX}: apt-get install busybox-static");
            return None;
        }
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: only root has a storage for podman without a set-up");
            return None;
        }
        let podman = Self { dir: tempfile::Builder::new().prefix("nodekeeper-podman-").tempdir().unwrap() };
        let at = |name: &str| podman.dir.path().join(name).display().to_string();
        let storage = format!(
            "[storage]\ndriver = \"vfs\"\ngraphroot = \"{}\"\nrunroot = \"{}\"\n",
            at("storage"),
            at("run-storage")
        );
        // This machine may have version 1 of control groups, and a limit for open files below podman's default.
        let containers = format!(
            "[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=1000:1000\"]\n[engine]\nruntime = \"runc\"\n\
             cgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\ntmp_dir = \"{}\"\n",
            at("run")
        );
        std::fs::write(at("storage.conf"), storage).unwrap();
        std::fs::write(at("containers.conf"), containers).unwrap();
        podman.make_image();
        Some(podman)
    }

    /// The variables by which podman finds its files.
    pub fn env(&self) -> Vec<(String, String)> {
        [("CONTAINERS_CONF", "containers.conf"), ("CONTAINERS_STORAGE_CONF", "storage.conf")]
            .map(|(name, file)| (name.to_owned(), self.dir.path().join(file).display().to_string()))
            .into()
    }

    fn make_image(&self) {
        let root = self.dir.path().join("image");
        for dir in ["bin", "tmp", "etc"] {
            std::fs::create_dir_all(root.join(dir)).unwrap();
        }
        super::copy_program(BUSYBOX, &root.join("bin/busybox"));
        for name in ["sh", "sleep", "id", "cat", "ls", "grep", "readlink", "wc", "stat", "df", "setsid"] {
            std::os::unix::fs::symlink("busybox", root.join("bin").join(name)).unwrap();
        }
        std::fs::write(root.join("etc/image"), "the image of the test\n").unwrap();
        let tar = self.dir.path().join("image.tar");
        let mut make = Command::new("tar");
        make.arg("--create").arg("--file").arg(&tar).arg("--directory").arg(&root).arg(".");
        assert!(make.status().unwrap().success());
        self.run(&["import", &tar.display().to_string(), IMAGE]);
    }

    pub fn run(&self, args: &[&str]) -> String {
        let out = Command::new("podman").args(args).envs(self.env()).output().unwrap();
        assert!(out.status.success(), "podman {args:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    /// The names of all containers, running or not.
    pub fn containers(&self) -> Vec<String> {
        let mut names: Vec<_> =
            self.run(&["ps", "--all", "--format", "{{.Names}}"]).lines().map(str::to_owned).collect();
        names.sort();
        names
    }

    /// Makes a `podman` in a directory of its own that calls this one, except that `rm` of these two containers does not end.
    pub fn that_hangs(&self, first: &str, second: &str) -> PathBuf {
        let bin = self.dir.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        let script = "#!/bin/sh\ncase \"$*\" in *volumes*FIRST | *volumes*SECOND) echo \"$*\" >> DIR/tried; exec sleep 1000 ;; \
                      esac\nexec REAL \"$@\"\n";
        let path = std::env::var_os("PATH").unwrap();
        let real = std::env::split_paths(&path).map(|dir| dir.join("podman")).find(|file| file.exists()).unwrap();
        let script = script.replace("DIR", &bin.display().to_string()).replace("REAL", &real.display().to_string());
        let script = script.replace("FIRST", first).replace("SECOND", second);
        let written = bin.join("script");
        std::fs::write(&written, script).unwrap();
        std::fs::set_permissions(&written, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        super::copy_program(&written, &bin.join("podman"));
        bin
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        let _ = Command::new("podman").args(["rm", "--all", "--force", "--time", "0"]).envs(self.env()).output();
    }
}
