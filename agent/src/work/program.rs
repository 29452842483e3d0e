//! Why a program could not be executed: tells apart the causes that share one error number of the kernel.
//!
//! Guarantees: a fault of the command is named (no such program, not executable, no such interpreter); an error of the machine is
//! never taken for a fault of the command.
//! Does not: execute anything.

use super::obstacle::is_of_the_machine;
use model::EndCause;
use nix::errno::Errno;
use nix::unistd::{AccessFlags, access};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// Where programs are looked for if the environment has no `PATH`.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// The architectures of machines in EC2, each with its number in the header of a program (ELF, `e_machine`).
const X86_64: (&str, u16) = ("x86_64", 62);
const ARM64: (&str, u16) = ("arm64", 183);

/// The handlers by which the kernel runs programs of other formats (`binfmt_misc`): a file for each, and two files of its own.
const HANDLERS: &str = "/proc/sys/fs/binfmt_misc";

/// The longest first line of a script that is read.
const LONGEST_LINE: u64 = 4096;

/// Why `program` could not be executed in the directory `cwd`, with this value of `PATH`, by the user of this process.
pub fn why_not(program: &str, path: Option<&str>, cwd: &Path, error: &io::Error) -> EndCause {
    let not_started = || EndCause::NotStarted { why: format!("cannot execute {program:?}: {error}") };
    let errno = error.raw_os_error().map(Errno::from_raw);
    match errno {
        Some(Errno::E2BIG) => {
            EndCause::Rejected { why: "its command and environment are too long for the node".to_owned() }
        }
        // Without its own directory no command can be executed.
        Some(Errno::ENOENT | Errno::EACCES | Errno::ENOTDIR) if access(cwd, AccessFlags::X_OK).is_err() => {
            not_started()
        }
        Some(Errno::EACCES | Errno::EPERM) => fault_of(program, path, cwd),
        Some(_) if is_of_the_machine(error) => not_started(),
        // The file is no program that the kernel takes, or the command has what no process can get.
        Some(_) | None => fault_of(program, path, cwd),
    }
}

/// The cause, if the program is for machines of another architecture. Executing it need not fail: the C library gives a file that
/// the kernel cannot execute to a shell, which fails at some line of it.
pub fn of_other_machine(program: &str, path: Option<&str>, cwd: &Path) -> Option<EndCause> {
    let file = places(program, path, cwd).into_iter().find(|place| is_executable(place))?;
    let ((ours, _), (theirs, number)) = if cfg!(target_arch = "aarch64") { (ARM64, X86_64) } else { (X86_64, ARM64) };
    let mut head = [0; 20];
    File::open(file).ok()?.read_exact(&mut head).ok()?;
    let is_theirs = head.starts_with(b"\x7fELF") && head.ends_with(&number.to_le_bytes());
    // A kernel with a handler may run any program.
    (is_theirs && !has_handlers()).then(|| EndCause::Rejected {
        why: format!("program {program:?} is for {theirs}, and the node is {ours}: see --arch"),
    })
}

fn has_handlers() -> bool {
    std::fs::read_dir(HANDLERS).is_ok_and(|all| all.count() > 2)
}

/// Where a program may be.
fn places(program: &str, path: Option<&str>, cwd: &Path) -> Vec<PathBuf> {
    if program.contains('/') {
        vec![cwd.join(program)]
    } else {
        path.unwrap_or(DEFAULT_PATH).split(':').map(|dir| cwd.join(dir).join(program)).collect()
    }
}

fn is_executable(place: &Path) -> bool {
    place.is_file() && access(place, AccessFlags::X_OK).is_ok()
}

/// Finds out what is wrong with the file of the program.
fn fault_of(program: &str, path: Option<&str>, cwd: &Path) -> EndCause {
    let (program, places) = (program.to_owned(), places(program, path, cwd));
    let mut there = places.iter().filter(|place| place.exists()).peekable();
    if program.is_empty() || there.peek().is_none() {
        return EndCause::NotFound { program };
    }
    let named = there.find(|place| is_executable(place)).and_then(|file| interpreter(file));
    match named.filter(|name| access(cwd.join(name).as_path(), AccessFlags::X_OK).is_err()) {
        Some(interpreter) => EndCause::NoInterpreter { program, interpreter },
        None => EndCause::NotExecutable { program },
    }
}

/// The interpreter that the first line of a script names.
fn interpreter(script: &Path) -> Option<String> {
    let mut line = Vec::new();
    BufReader::new(File::open(script).ok()?.take(LONGEST_LINE)).read_until(b'\n', &mut line).ok()?;
    let line = String::from_utf8_lossy(&line);
    // As the kernel reads it: the carriage return of a file from Windows belongs to the name.
    let blank = [' ', '\t', '\n'];
    line.strip_prefix("#!")?.trim_start_matches(blank).split(blank).next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    #[test]
    fn a_program_that_cannot_be_executed_is_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        // Another process writes the files. If this one did, a process that another test starts at that moment would inherit the open
        // file, and Linux executes no file that is open for writing.
        let file = |name: &str, content: &str, mode: u32| {
            let script = "printf %s \"$1\" > \"$0\" && chmod $2 \"$0\"";
            let mut shell = Command::new("sh");
            shell.args(["-c", script, name, content, &format!("{mode:o}")]).current_dir(dir.path());
            assert!(shell.status().unwrap().success());
        };
        file("plain", "echo", 0o644);
        file("lost", "#!/no/such/interpreter -x\necho", 0o755);
        file("bad", "#!plain\n", 0o755);
        file("dos", "#! /bin/sh\r\necho", 0o755);
        fs::create_dir(dir.path().join("folder")).unwrap();
        let path = dir.path().display().to_string();
        let text = |t: &str| t.to_owned();
        for (program, cause) in [
            ("./absent", EndCause::NotFound { program: text("./absent") }),
            ("absent", EndCause::NotFound { program: text("absent") }),
            ("", EndCause::NotFound { program: text("") }),
            ("./plain", EndCause::NotExecutable { program: text("./plain") }),
            ("plain", EndCause::NotExecutable { program: text("plain") }),
            ("./folder", EndCause::NotExecutable { program: text("./folder") }),
            ("plain/x", EndCause::NotFound { program: text("plain/x") }),
            ("lost", EndCause::NoInterpreter { program: text("lost"), interpreter: text("/no/such/interpreter") }),
            ("./dos", EndCause::NoInterpreter { program: text("./dos"), interpreter: text("/bin/sh\r") }),
            ("./bad", EndCause::NoInterpreter { program: text("./bad"), interpreter: text("plain") }),
        ] {
            let error =
                Command::new(program).env_clear().env("PATH", &path).current_dir(dir.path()).spawn().unwrap_err();
            assert_eq!(why_not(program, Some(&path), dir.path(), &error), cause, "{program:?}: {error}");
        }
    }

    #[test]
    fn a_program_for_another_architecture_is_told_before_a_shell_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        let own = fs::read(std::env::current_exe().unwrap()).unwrap()[..20].to_vec();
        let mut other = own.clone();
        // The numbers of x86-64 and arm64 in the header of a program.
        other[18] = if own[18] == 62 { 183 } else { 62 };
        for (name, content, is_other) in [
            ("other", other, true),
            ("own", own, false),
            ("script", b"echo a script without a first line".to_vec(), false),
            ("short", b"\x7fELF".to_vec(), false),
        ] {
            let file = dir.path().join(name);
            fs::write(&file, content).unwrap();
            assert_eq!(of_other_machine(name, dir.path().to_str(), dir.path()), None, "it is not executable");
            fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
            let found = of_other_machine(name, dir.path().to_str(), dir.path());
            assert_eq!(found.is_some(), is_other && !has_handlers(), "{name}: {found:?}");
        }
    }

    #[test]
    fn an_error_of_the_machine_is_not_one_of_the_command() {
        let is_started = |errno: Errno, cwd: &str| {
            let error = io::Error::from_raw_os_error(errno as i32);
            !matches!(why_not("/bin/sh", None, Path::new(cwd), &error), EndCause::NotStarted { .. })
        };
        for errno in [Errno::EAGAIN, Errno::ENOMEM, Errno::EMFILE, Errno::EIO, Errno::ETXTBSY] {
            assert!(!is_started(errno, "/"), "{errno}");
        }
        assert!(!is_started(Errno::ENOENT, "/no/such/directory"), "its directory is gone");
        assert!(is_started(Errno::E2BIG, "/"));
    }
}
