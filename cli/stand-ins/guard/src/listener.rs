//! Accepts connections of one user only.
//!
//! The kernel knows the user of the socket at the other end of a connection on this machine, and shows it in `/proc/net/tcp`.
//!
//! Guarantees: a connection whose user is not known is closed.
//! Does not: work where there is no `/proc`; there, no connection is accepted.

use nix::unistd::{Uid, geteuid};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use tokio::net::{TcpListener, TcpStream};

/// The state of a connection whose both ends are open. The kernel forgets the user of a socket that its program closed, and
/// then shows root's number.
const ESTABLISHED: &str = "01";

/// The users whose programs may connect.
#[derive(Clone, Debug)]
pub struct Owner(BTreeSet<u32>);

impl Owner {
    /// The user of this program, and root, who can do everything anyway. `sudo_uid` is the user who became root by `sudo`: the
    /// value of `SUDO_UID`.
    pub fn of_this_program(sudo_uid: Option<&str>) -> Self {
        let sudo = sudo_uid.filter(|_| geteuid().is_root()).and_then(|uid| uid.parse().ok());
        Self([Uid::from_raw(0), geteuid()].map(Uid::as_raw).into_iter().chain(sudo).collect())
    }
}

/// Accepts connections of the owner, and closes all others at once.
#[derive(Debug)]
pub struct Listener {
    inner: TcpListener,
    owner: Owner,
    /// The users that were refused: each is logged once.
    refused: BTreeSet<Option<u32>>,
}

impl Listener {
    pub const fn new(inner: TcpListener, owner: Owner) -> Self {
        Self { inner, owner, refused: BTreeSet::new() }
    }
}

impl axum::serve::Listener for Listener {
    type Io = TcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        loop {
            let (stream, peer) = axum::serve::Listener::accept(&mut self.inner).await;
            let uid = stream.local_addr().ok().and_then(|ours| user_of(peer, ours));
            if uid.is_some_and(|uid| self.owner.0.contains(&uid)) {
                // Answers are small, and a client waits for each, so they are sent at once.
                let _ = stream.set_nodelay(true);
                return (stream, peer);
            }
            if self.refused.insert(uid) {
                tracing::warn!(uid, port = peer.port(), "a connection of another user is closed");
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }
}

/// The user of the socket at `from` that is connected to `to`.
fn user_of(from: SocketAddr, to: SocketAddr) -> Option<u32> {
    // A program may reach an IPv4 address also through an IPv6 socket.
    ["/proc/net/tcp", "/proc/net/tcp6"].into_iter().find_map(|table| {
        let table = fs::read_to_string(table).ok()?;
        let wanted = [hex(from, false), hex(to, false)];
        let mapped = [hex(from, true), hex(to, true)];
        table.lines().find_map(|line| user_in(line, &wanted).or_else(|| user_in(line, &mapped)))
    })
}

/// The user of a line of the table, if it is the connection between these addresses.
fn user_in(line: &str, [from, to]: &[String; 2]) -> Option<u32> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let is_it = fields.next()? == from && fields.next()? == to && fields.next()? == ESTABLISHED;
    is_it.then(|| fields.nth(3)?.parse().ok()).flatten()
}

/// An address as the tables write it: each four bytes as one number of this machine.
fn hex(address: SocketAddr, is_mapped: bool) -> String {
    let bytes = match (address.ip(), is_mapped) {
        (IpAddr::V4(ip), false) => ip.octets().to_vec(),
        (IpAddr::V4(ip), true) => ip.to_ipv6_mapped().octets().to_vec(),
        (IpAddr::V6(ip), _) => ip.octets().to_vec(),
    };
    let word = |word: &[u8]| word.try_into().map_or(0, u32::from_ne_bytes);
    let words: String = bytes.chunks(4).map(|four| format!("{:08X}", word(four))).collect();
    format!("{words}:{:04X}", address.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[test]
    fn a_user_is_read_from_an_open_connection_only() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let pair = |mapped| [hex(at("127.0.0.1:58970"), mapped), hex(at("127.0.0.1:2024"), mapped)];
        let line = |state: &str| {
            format!("   1: 0100007F:E65A 0100007F:07E8 {state} 00000000:00000000 02:00000000 00000000  1879048192  0 1")
        };
        assert_eq!(user_in(&line("01"), &pair(false)), Some(1_879_048_192));
        for state in ["04", "05", "06", "08"] {
            assert_eq!(user_in(&line(state), &pair(false)), None, "a closed socket is root's: {state}");
        }
        let [from, to] = pair(false);
        assert_eq!(user_in(&line("01"), &[to, from]), None, "our own end");
        assert_eq!(user_in("  sl  local_address rem_address   st", &pair(false)), None);
        assert_eq!(hex(at("127.0.0.1:2024"), true), "0000000000000000FFFF00000100007F:07E8");
    }

    #[tokio::test]
    async fn the_owner_is_accepted_and_nobody_else() {
        for (owner, answered) in [(Owner::of_this_program(None), true), (Owner(BTreeSet::from([4_000_000])), false)] {
            let inner = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = inner.local_addr().unwrap();
            let router = axum::Router::new().route("/", axum::routing::get(|| async { "hello" }));
            tokio::spawn(async move { axum::serve(Listener::new(inner, owner), router).await });
            let mut stream = TcpStream::connect(address).await.unwrap();
            let _ = stream.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await;
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer).await;
            assert_eq!(!answer.is_empty(), answered, "{}", String::from_utf8_lossy(&answer));
        }
    }
}
