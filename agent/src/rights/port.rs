//! The port on which the agent gives jobs their credentials.
//!
//! Guarantees: an agent that starts again takes the port of the last one, because running jobs know it. If another program has
//! taken it, the agent works with another port: only the jobs of the last agent cannot renew their credentials then.
//! Does not: answer anybody.

use crate::machine::atomic_file;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use tokio::net::TcpListener;

/// The file with the port, in the data directory.
const FILE: &str = "credentials-port";

/// Takes the port of the last agent of this data directory, or any free one.
pub async fn listen(data_dir: &Path) -> io::Result<TcpListener> {
    let file = data_dir.join(FILE);
    let known: Option<u16> = fs::read_to_string(&file).ok().and_then(|text| text.trim().parse().ok());
    if let Some(port) = known {
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await {
            Ok(listener) => return Ok(listener),
            Err(error) => tracing::warn!(
                port, %error, "the port of the last agent is taken: jobs that it started cannot renew their credentials"
            ),
        }
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    atomic_file::write(&file, listener.local_addr()?.port().to_string().as_bytes())?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_next_agent_takes_the_same_port_if_it_is_free() {
        let dir = tempfile::tempdir().unwrap();
        let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
        let first = listen(dir.path()).await.unwrap();
        let known = port(&first);
        drop(first);
        let second = listen(dir.path()).await.unwrap();
        assert_eq!(port(&second), known);
        let beside = listen(dir.path()).await.unwrap();
        assert_ne!(port(&beside), known);
    }
}
