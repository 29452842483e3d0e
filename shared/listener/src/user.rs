//! The user at the other end of a connection on this machine, as the kernel knows it.
//!
//! Guarantees: one question is about one socket, so its cost does not grow with the sockets of the machine. A socket that its
//! program has closed has no user: the kernel would show root's number.
//! Does not: work for a socket of another machine or network namespace, or where the kernel has no `tcp_diag`; there, the user is
//! not known.
//! Source: sock_diag(7); `inet_diag_req_v2` and `inet_diag_msg` in `linux/inet_diag.h`.

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with};
use std::net::{SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

/// `SOCK_DIAG_BY_FAMILY`, the type of a question and of its answer.
const BY_FAMILY: u16 = 20;
/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;
/// `AF_INET` and `IPPROTO_TCP`.
const TCP_OF_IPV4: [u8; 2] = [2, 6];
/// The state of a connection whose both ends are open.
const ESTABLISHED: u8 = 1;
/// The bytes of a question: those of its `nlmsghdr` and of its `inet_diag_req_v2`.
const QUESTION_BYTES: u32 = 16 + 56;

/// Asks the kernel for users of sockets.
pub(crate) struct Users(Mutex<Kernel>);

struct Kernel {
    /// `None` if this process cannot ask.
    socket: Option<OwnedFd>,
    /// The number of the last question.
    number: u32,
}

impl Users {
    pub(crate) fn new() -> Self {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(netlink::SOCK_DIAG));
        if let Err(error) = &socket {
            tracing::error!(%error, "the kernel does not say who connects (sock_diag): callers count as unknown users");
        }
        Self(Mutex::new(Kernel { socket: socket.ok(), number: 0 }))
    }

    /// The user of the open socket at `from` that is connected to `to`. Takes microseconds: the kernel answers within the call.
    pub(crate) fn of(&self, from: SocketAddr, to: SocketAddr) -> Option<u32> {
        // The listeners have IPv4 addresses. An IPv6 socket that connects to them has an IPv4 address there.
        let (SocketAddr::V4(from), SocketAddr::V4(to)) = (from, to) else { return None };
        let mut kernel = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kernel.number = kernel.number.wrapping_add(1);
        let number = kernel.number;
        let socket = kernel.socket.as_ref()?;
        send(socket, &question(from, to, number), SendFlags::empty()).ok()?;
        let mut answer = [0; 512];
        loop {
            match recv(socket, &mut answer, RecvFlags::empty()) {
                // The answer to an earlier question, which nobody has read.
                Ok((length, _)) if word(answer.get(..length)?, 8)? != number => {}
                Ok((length, _)) => return user_in(answer.get(..length)?, from, to),
                Err(Errno::INTR) => {}
                Err(_) => return None,
            }
        }
    }
}

fn question(from: SocketAddrV4, to: SocketAddrV4, number: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(QUESTION_BYTES.to_ne_bytes());
    bytes.extend([BY_FAMILY, REQUEST].map(u16::to_ne_bytes).concat());
    bytes.extend([number, 0].map(u32::to_ne_bytes).concat());
    bytes.extend(TCP_OF_IPV4);
    bytes.extend([0, 0]);
    bytes.extend((1_u32 << ESTABLISHED).to_ne_bytes());
    bytes.extend(ports(from, to));
    for address in [from, to] {
        bytes.extend(address.ip().octets());
        bytes.extend([0; 12]);
    }
    // Any interface, and any cookie.
    bytes.extend([0; 4]);
    bytes.extend([0xff; 8]);
    bytes
}

fn ports(from: SocketAddrV4, to: SocketAddrV4) -> Vec<u8> {
    [from.port(), to.port()].map(u16::to_be_bytes).concat()
}

/// The user in an answer of the kernel, if it is about the open connection between these addresses.
fn user_in(answer: &[u8], from: SocketAddrV4, to: SocketAddrV4) -> Option<u32> {
    let (uid, inode) = (word(answer, 80)?, word(answer, 84)?);
    let is_it = answer.get(4..6)? == BY_FAMILY.to_ne_bytes() && answer.get(20..24)? == ports(from, to);
    // The kernel reads the state first, then the user, and the inode last. A socket without an inode may have lost its user
    // before, because its program closed it.
    (is_it && answer.get(17) == Some(&ESTABLISHED) && inode != 0).then_some(uid)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};

    #[test]
    fn only_an_open_socket_has_a_user() {
        let users = Users::new();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let to = listener.local_addr().unwrap();
        let own = Some(nix::unistd::geteuid().as_raw());
        let client = TcpStream::connect(to).unwrap();
        let (_server, from) = listener.accept().unwrap();
        assert_eq!(users.of(from, to), own);
        let mapped = (Ipv4Addr::LOCALHOST.to_ipv6_mapped(), to.port());
        let other = TcpStream::connect(mapped).unwrap();
        let (_other, of_other) = listener.accept().unwrap();
        assert_eq!(users.of(of_other, to), own, "through a socket of IPv6");
        drop(client);
        assert_eq!(users.of(from, to), None, "its program has closed it");
        drop(other);
        assert_eq!(users.of((Ipv4Addr::LOCALHOST, 1).into(), to), None, "nobody is there");
        assert_eq!(users.of(to, to), None, "the listener itself");
        assert_eq!(users.of((Ipv6Addr::LOCALHOST, 1).into(), to), None);
    }

    #[test]
    fn an_answer_counts_only_if_it_is_about_this_open_connection() {
        let at = |port| SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        let (from, to) = (at(58_970), at(2024));
        let mut answer = question(from, to, 7);
        answer.truncate(16);
        answer.extend([2, ESTABLISHED, 0, 0]);
        answer.extend(ports(from, to));
        answer.resize(80, 0);
        answer.extend([1_879_048_192_u32, 26_885].map(u32::to_ne_bytes).concat());
        assert_eq!(user_in(&answer, from, to), Some(1_879_048_192));
        assert_eq!(user_in(&answer, to, from), None, "our own end");
        let changed = |at: usize, to: u8| {
            let mut answer = answer.clone();
            answer[at] = to;
            answer
        };
        for state in [2, 4, 5, 6, 8, 10] {
            assert_eq!(user_in(&changed(17, state), from, to), None, "state {state}");
        }
        assert_eq!(user_in(&changed(4, 2), from, to), None, "an error");
        let mut orphan = answer.clone();
        orphan[84..].fill(0);
        assert_eq!(user_in(&orphan, from, to), None, "closed while the kernel answered");
        assert_eq!(user_in(&answer[..87], from, to), None, "cut");
        assert_eq!(user_in(&[], from, to), None);
    }

    #[test]
    fn the_answer_to_an_earlier_question_is_passed_over() {
        let users = Users::new();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let to = listener.local_addr().unwrap();
        let _client = TcpStream::connect(to).unwrap();
        let (_server, from) = listener.accept().unwrap();
        let SocketAddr::V4(nobody) = SocketAddr::from((Ipv4Addr::LOCALHOST, 1)) else { panic!() };
        let SocketAddr::V4(here) = to else { panic!() };
        let kernel = users.0.lock().unwrap();
        send(kernel.socket.as_ref().unwrap(), &question(nobody, here, 77), SendFlags::empty()).unwrap();
        drop(kernel);
        assert!(users.of(from, to).is_some());
    }
}
