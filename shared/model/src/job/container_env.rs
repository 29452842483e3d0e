//! How a variable of a job reaches its container by the command of docker or of podman. Whoever submits a job does not know which
//! of them its node has.
//!
//! Guarantees: no variable of a job changes what that command does, which has the agent's rights; no value is on a command line.
//! Does not: call docker or podman.

/// How a variable is passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passing {
    /// As a line of a file that the command reads.
    Line,
    /// By its name: the command takes the value from its own environment.
    ByName,
    /// Not at all: it does not fit into a line, and in the environment of the command it would have another meaning.
    Impossible,
}

/// How the variable is passed on.
pub fn passing(name: &str, value: &str) -> Passing {
    // Both skip a line that begins with #, and take spaces and the last carriage return away. Podman takes a name that ends with
    // an asterisk for all variables that begin so.
    let fits = !name.starts_with(['#', '\u{feff}'])
        && !name.contains(char::is_whitespace)
        && !name.ends_with('*')
        && !value.contains('\n')
        && !value.ends_with('\r');
    match (fits, is_read_by_client(name)) {
        (true, _) => Passing::Line,
        (false, false) => Passing::ByName,
        (false, true) => Passing::Impossible,
    }
}

/// The variables that docker and podman read, their Go runtime, the C library and its loader, and the programs that they may start:
/// conmon and runc, ssh, plug-ins, and helpers for credentials, which are often scripts. A name with `*` at its end stands for all
/// that begin so. A space is between two names.
const READ_BY_CLIENT: &[&str] = &[
    // docker
    "ALL_PROXY BUILDKIT_* BUILDX_* CLICOLOR* COMPOSE_* DOCKER_* FTP_PROXY HTTPS_PROXY HTTP_PROXY MOBY_* NO_COLOR \
     NO_PROXY OTEL_* REQUEST_METHOD TERM",
    // podman, and what it starts
    "BUILDAH_* CONTAINERS_* CONTAINER_* CRUN_* LIBPOD_* LISTEN_* NETAVARK_* NOTIFY_SOCKET OCI_* PODMAN_* \
     REGISTRY_AUTH_FILE REGISTRIES_CONFIG_PATH RUNC_* STORAGE_* _CONMON_* _CONTAINERS_* _LIBCONTAINER_* _OCI_*",
    // the system
    "HOME LOGNAME PATH SHELL TMPDIR USER XDG_*",
    // Go
    "GOCOVERDIR GODEBUG GOGC GOMAXPROCS GOMEMLIMIT GORACE GOTRACEBACK SSL_CERT_DIR SSL_CERT_FILE",
    // the C library
    "GCONV_PATH GETCONF_DIR GLIBC_TUNABLES HOSTALIASES LANG LANGUAGE LC_* LD_* LOCALDOMAIN LOCPATH MALLOC_* NLSPATH \
     RESOLV_* RES_OPTIONS TZ TZDIR",
    // what either may start
    "AWS_* BASHOPTS BASH_* CLOUDSDK_* DBUS_* ENV GNUPGHOME GPG_AGENT_INFO GPG_TTY IFS NODE_OPTIONS PASSWORD_STORE_* \
     PERL5* PS4 PYTHON* RUBYLIB RUBYOPT SHELLOPTS SSH_ASKPASS* SSH_AUTH_SOCK SSH_SK_*",
];

fn is_read_by_client(name: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    READ_BY_CLIENT.iter().flat_map(|names| names.split(' ')).any(|read| match read.strip_suffix('*') {
        Some(begin) => upper.starts_with(begin),
        None => upper == read,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_command_would_read_itself_is_not_passed_on() {
        for (name, value, want) in [
            ("ONE", "#x = y ", Passing::Line),
            ("LD_PRELOAD", "/x.so", Passing::Line),
            ("KEY", "a\nb", Passing::ByName),
            ("CR", "x\r", Passing::ByName),
            ("#odd", "1", Passing::ByName),
            ("a b", "1", Passing::ByName),
            ("SSH_PRIVATE_KEY", "a\nb", Passing::ByName),
            ("SSL_CERT", "a\nb", Passing::ByName),
            ("GPG_PRIVATE_KEY", "a\nb", Passing::ByName),
            ("GOOGLE_CREDENTIALS", "a\nb", Passing::ByName),
            ("RESULT_QUERY", "a\nb", Passing::ByName),
            ("HOSTS", "a\nb", Passing::ByName),
            ("LOCATIONS", "a\nb", Passing::ByName),
            ("TMP_SCRIPT", "a\nb", Passing::ByName),
            ("LANGUAGES", "a\nb", Passing::ByName),
            ("ALL*", "1", Passing::ByName),
            ("LD_PRELOAD", "/x.so\n", Passing::Impossible),
            ("CONTAINERS_CONF", "a\nb", Passing::Impossible),
            ("CONTAINER_HOST", "a\nb", Passing::Impossible),
            ("docker_host", "a\nb", Passing::Impossible),
            ("https_proxy", "a\nb", Passing::Impossible),
            ("SSL_CERT_FILE", "a\nb", Passing::Impossible),
            ("BASH_FUNC_pass%%", "a\nb", Passing::Impossible),
        ] {
            assert_eq!(passing(name, value), want, "{name}");
        }
    }
}
