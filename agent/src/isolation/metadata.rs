//! Whether a job reaches the instance metadata, which holds the node's credentials.
//!
//! Guarantees: the answer comes from an attempt with a job's own rights, not from the rules of a firewall. An attempt
//! that cannot be made is an error, never "out of reach".
//! Does not: set a rule (the boot script does), or use what it reaches.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

/// The addresses of the metadata service, which are the same on every instance.
const ADDRESSES: [&str; 2] = ["169.254.169.254:80", "[fd00:ec2::254]:80"];

/// How long an attempt to connect may take. The service is on the host of the instance, and answers in milliseconds.
const TIMEOUT: Duration = Duration::from_millis(1500);

/// Where the metadata service may be: at its fixed addresses, and at `url`.
pub fn addresses(url: &str) -> Vec<SocketAddr> {
    let mut found: Vec<SocketAddr> = ADDRESSES.iter().filter_map(|a| a.parse().ok()).collect();
    if let Ok(url) = reqwest::Url::parse(url)
        && let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default())
        && let Ok(more) = (host.trim_matches(['[', ']']), port).to_socket_addrs()
    {
        found.extend(more);
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// Tries to connect to each address, with the rights of this process. Returns those that accepted a connection.
pub fn reach(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let connects = |address: &SocketAddr| TcpStream::connect_timeout(address, TIMEOUT).is_ok();
    std::thread::scope(|scope| {
        let tries: Vec<_> = addresses.iter().map(|a| (a, scope.spawn(move || connects(a)))).collect();
        // An attempt that panicked counts as reached, because nothing is known.
        tries.into_iter().filter_map(|(a, t)| t.join().unwrap_or(true).then_some(*a)).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fixed_addresses_and_the_given_one_are_tried_once_each() {
        let text = |url: &str| addresses(url).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(text("http://169.254.169.254"), ["169.254.169.254:80", "[fd00:ec2::254]:80"]);
        assert_eq!(text("http://127.0.0.1:81/i-1"), ["127.0.0.1:81", "169.254.169.254:80", "[fd00:ec2::254]:80"]);
        assert_eq!(text("http://[::1]:81"), ["169.254.169.254:80", "[::1]:81", "[fd00:ec2::254]:80"]);
        assert_eq!(text("no url").len(), 2);
    }

    #[test]
    fn an_address_is_reached_if_it_accepts_a_connection() {
        let open = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert_eq!(reach(&[open]), [] as [SocketAddr; 0], "the listener is closed");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(reach(&[open, address]), [address]);
    }
}
