//! The ports of the local system.
//!
//! Guarantees: with the same `--port`, every part has the same address after each start, so that an environment, a context or
//! a bookmark of an earlier start still fits. A port that is taken is an error that names the part and the option.
//! Does not: look for other ports. A command that kept the old addresses would find no cluster, or another one.

use super::directory::Places;
use super::error::LocalError;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use tokio::net::TcpListener;

/// The page's port, and the first port of all. The port after it is the one of `nodekeeper web`.
pub(super) const FIRST: u16 = 7070;
/// From the first port to the last one.
const LAST: u16 = 6;
/// The highest first port.
pub(super) const HIGHEST_FIRST: u16 = u16::MAX - LAST;

/// The bound ports of all parts.
pub(super) struct Ports {
    pub(super) page: TcpListener,
    pub(super) dynamo: TcpListener,
    pub(super) ec2: TcpListener,
    /// Absent if the functions run elsewhere.
    pub(super) functions: Option<TcpListener>,
    pub(super) rights: TcpListener,
    /// Absent if something else stands for S3.
    pub(super) s3: Option<TcpListener>,
}

impl Ports {
    pub(super) async fn bind(first: u16, functions_url: Option<&str>, s3: Option<&str>) -> Result<Self, LocalError> {
        Ok(Self {
            page: listen("the page", first, 0).await?,
            dynamo: listen("DynamoDB", first, 2).await?,
            ec2: listen("EC2", first, 3).await?,
            functions: match functions_url {
                None => Some(listen("the functions", first, 4).await?),
                Some(_) => None,
            },
            rights: listen("STS and the secrets", first, 5).await?,
            s3: match s3 {
                None => Some(listen("S3", first, LAST).await?),
                Some(_) => None,
            },
        })
    }

    pub(super) fn places(
        &self,
        functions_url: Option<&str>,
        s3: Option<&str>,
        dir: PathBuf,
    ) -> Result<Places, LocalError> {
        let functions = match &self.functions {
            Some(listener) => format!("http://{}", address(listener)?),
            None => functions_url.unwrap_or_default().trim_end_matches('/').to_owned(),
        };
        Ok(Places {
            page: address(&self.page)?,
            dynamo: address(&self.dynamo)?,
            ec2: address(&self.ec2)?,
            rights: address(&self.rights)?,
            s3: match &self.s3 {
                Some(listener) => format!("http://{}", address(listener)?),
                None => s3.unwrap_or_default().to_owned(),
            },
            functions,
            env_file: dir.join("env"),
            logs: dir.join("logs"),
            dir,
        })
    }
}

/// Listens at the port that is so far from the first one, or at any free port if the first one is 0.
async fn listen(what: &'static str, first: u16, further: u16) -> Result<TcpListener, LocalError> {
    let port = if first == 0 { 0 } else { first.saturating_add(further) };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
    listener.map_err(|source| LocalError::Listen { what, port, source })
}

fn address(listener: &TcpListener) -> Result<SocketAddr, LocalError> {
    listener.local_addr().map_err(|source| LocalError::System { what: "read the address of a port", source })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A first port with free ports after it.
    async fn free() -> u16 {
        for first in (20_000..60_000).step_by(7) {
            let mut bound = Vec::new();
            for further in [0, 2, 3, 4, 5, 6] {
                bound.extend(listen("", first, further).await);
            }
            if bound.len() == 6 {
                return first;
            }
        }
        panic!("no free ports");
    }

    #[tokio::test]
    async fn parts_have_the_same_ports_after_each_start_and_a_port_that_is_taken_is_named() {
        let first = free().await;
        let ports = [listen("the page", first, 0).await.unwrap(), listen("DynamoDB", first, 2).await.unwrap()];
        assert_eq!(ports.each_ref().map(|p| address(p).unwrap().port()), [first, first + 2]);
        let error = listen("DynamoDB", first, 2).await.unwrap_err().to_string();
        assert!(error.contains("DynamoDB") && error.contains(&(first + 2).to_string()), "{error}");
        assert!(error.contains("--port"), "{error}");
        drop(ports);
        listen("DynamoDB", first, 2).await.unwrap();
        assert_ne!(address(&listen("EC2", 0, 3).await.unwrap()).unwrap().port(), 3);
    }
}
