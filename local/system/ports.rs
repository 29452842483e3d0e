//! The ports of the local system.
//!
//! Guarantees: with the same `--port`, every part has the same address after each start, so that an environment, a context or
//! a bookmark of an earlier start still fits. A port that is taken is an error that names the part and the option.
//! Does not: look for other ports. A command that kept the old addresses would find no cluster, or another one.

use super::directory::Layout;
use anyhow::Context as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use tokio::net::TcpListener;

/// The first port, which is the page's. The port after it is left to `nodekeeper web`.
pub(super) const FIRST: u16 = 7070;
/// How far the last port is from the first one.
const LAST: u16 = 6;
pub(super) const HIGHEST_FIRST: u16 = u16::MAX - LAST;

pub(super) struct Ports {
    pub(super) page: TcpListener,
    pub(super) dynamo: TcpListener,
    pub(super) ec2: TcpListener,
    /// Absent if the functions run elsewhere.
    pub(super) functions: Option<TcpListener>,
    pub(super) rights: TcpListener,
    /// Absent if another service stands for S3.
    pub(super) s3: Option<TcpListener>,
}

impl Ports {
    pub(super) async fn bind(first: u16, functions_url: Option<&str>, s3: Option<&str>) -> anyhow::Result<Self> {
        Ok(Self {
            page: listen("the page", first, 0).await?,
            dynamo: listen("DynamoDB", first, 2).await?,
            ec2: listen("EC2", first, 3).await?,
            functions: if functions_url.is_some() { None } else { Some(listen("the functions", first, 4).await?) },
            rights: listen("STS and the secrets", first, 5).await?,
            s3: if s3.is_some() { None } else { Some(listen("S3", first, LAST).await?) },
        })
    }

    pub(super) fn places(&self, functions_url: Option<&str>, s3: Option<&str>, dir: PathBuf) -> anyhow::Result<Layout> {
        let url = |listener: &Option<TcpListener>, elsewhere: Option<&str>| match listener {
            Some(listener) => anyhow::Ok(format!("http://{}", address(listener)?)),
            None => Ok(elsewhere.unwrap_or_default().to_owned()),
        };
        Ok(Layout {
            page: address(&self.page)?,
            dynamo: address(&self.dynamo)?,
            ec2: address(&self.ec2)?,
            rights: address(&self.rights)?,
            s3: url(&self.s3, s3)?,
            functions: url(&self.functions, functions_url.map(|url| url.trim_end_matches('/')))?,
            env_file: dir.join("env"),
            logs: dir.join("logs"),
            dir,
        })
    }
}

/// The URL of another service for S3, if the environment names one. The own URL of a stack with this first port does not count:
/// the environment file of an earlier start names it.
pub(super) fn other_s3(first: u16, named: Option<&str>) -> Option<&str> {
    let own = format!("http://{}:{}", Ipv4Addr::LOCALHOST, first.saturating_add(LAST));
    named.filter(|url| url.trim_end_matches('/') != own)
}

/// Listens at the port that is `further` after the first one, or at any free port if the first one is 0.
async fn listen(what: &'static str, first: u16, further: u16) -> anyhow::Result<TcpListener> {
    let port = if first == 0 { 0 } else { first.saturating_add(further) };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
    listener.with_context(|| {
        format!(
            "{what} cannot listen on port {port} of this machine (another `nodekeeper local` may run: end it, or give another \
             --port; 0 for any free ports)"
        )
    })
}

fn address(listener: &TcpListener) -> anyhow::Result<SocketAddr> {
    listener.local_addr().context("cannot read the address of a port")
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
