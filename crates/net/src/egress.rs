//! Settings of outgoing sockets: interface, own address, mark.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};

use adit_model::Egress;
use adit_sys::handle::AsFd;
use socket2::{Domain, SockRef, Socket, Type};

use crate::listen::ENODEV;
use crate::options::{Warning, bind_interface};

/// Prepares a socket that is not bound yet.
///
/// # Errors
/// The system's error: `ENODEV` for an interface that does not exist, `EPERM` without the right to set a mark.
pub(crate) fn apply(socket: &impl AsFd, egress: &Egress) -> io::Result<()> {
    if let Some(interface) = &egress.interface {
        bind_interface(socket, interface)?;
    }
    if let Some(mark) = egress.mark.or_else(common_mark) {
        set_mark(socket, mark)?;
    }
    Ok(())
}

/// The mark of sockets that have none of their own; 0 for none.
static COMMON_MARK: AtomicU32 = AtomicU32::new(0);

/// From now on every outgoing socket of the process that has no mark of its own gets this one, by which the rules of a
/// capture tell adit's traffic from that of others.
pub fn set_common_mark(mark: Option<u32>) {
    COMMON_MARK.store(mark.unwrap_or(0), Ordering::Relaxed);
}

/// Whether this process may mark its sockets.
///
/// # Errors
/// `PermissionDenied` without `CAP_NET_ADMIN`; as socket(2).
pub fn check_mark(mark: u32) -> io::Result<()> {
    set_mark(&Socket::new(Domain::IPV4, Type::DGRAM, None)?, mark)
}

/// The mark of sockets that have none of their own.
pub fn common_mark() -> Option<u32> {
    Some(COMMON_MARK.load(Ordering::Relaxed)).filter(|mark| *mark != 0)
}

/// Gives a socket that connects to `peer` its own address, if one is wished for; the system picks the port when it
/// knows the peer, so that many connections to different peers may share it.
///
/// # Errors
/// The system's error: `EADDRNOTAVAIL` for an address that this machine does not have.
pub(crate) fn bind(socket: &impl AsFd, egress: &Egress, peer: IpAddr) -> io::Result<()> {
    let Some(source) = egress.source(peer) else { return Ok(()) };
    // Older systems pick the port at once, which works until there are some ten thousand connections.
    adit_sys::tcp::set_bind_address_no_port(socket).ok();
    SockRef::from(socket).bind(&SocketAddr::new(source, 0).into())
}

/// Settings that the system cannot fulfil now. It may be able to later.
pub(crate) fn warnings(egress: &Egress) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let socket = |ip: IpAddr| Socket::new(Domain::for_address((ip, 0).into()), Type::STREAM, None);
    let any = socket(IpAddr::from([0, 0, 0, 0]));
    if let (Some(interface), Ok(socket)) = (&egress.interface, &any)
        && let Err(error) = bind_interface(socket, interface)
    {
        let is_absent = error.raw_os_error() == Some(ENODEV);
        let kind = if is_absent { io::ErrorKind::NotFound } else { error.kind() };
        warnings.push(Warning::Interface(interface.clone(), kind));
    }
    if let (Some(mark), Ok(socket)) = (egress.mark, &any)
        && let Err(error) = set_mark(socket, mark)
    {
        warnings.push(Warning::Mark(mark, error.kind()));
    }
    for source in egress.sources() {
        let bound = socket(source).and_then(|socket| socket.bind(&SocketAddr::new(source, 0).into()));
        if let Err(error) = bound {
            warnings.push(Warning::Source(source, error.kind()));
        }
    }
    warnings
}

fn set_mark(socket: &impl AsFd, mark: u32) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    return SockRef::from(socket).set_mark(mark);
    #[cfg(not(target_os = "linux"))]
    {
        let _unused = (socket, mark);
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};

    use super::*;

    const OWN: Ipv4Addr = Ipv4Addr::new(127, 9, 9, 9);

    fn own() -> Egress {
        Egress { v4: Some(OWN), ..Egress::default() }
    }

    #[test]
    fn connections_come_from_the_address() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        apply(&socket, &own()).unwrap();
        bind(&socket, &own(), to.ip()).unwrap();
        socket.connect(&to.into()).unwrap();
        assert_eq!(listener.accept().unwrap().1.ip(), OWN);
    }

    #[test]
    fn the_other_family_is_left_alone() {
        let socket = Socket::new(Domain::IPV6, Type::STREAM, None).unwrap();
        bind(&socket, &own(), Ipv6Addr::LOCALHOST.into()).unwrap();
        assert_eq!(socket.local_addr().unwrap().as_socket().unwrap().port(), 0);
    }

    #[test]
    fn what_is_not_to_be_had_is_told() {
        assert_eq!(warnings(&own()), []);
        let elsewhere = Ipv4Addr::new(192, 0, 2, 1);
        let egress =
            Egress { interface: Some("no-such-if0".into()), v4: Some(elsewhere), ..Egress::default() };
        let warnings = warnings(&egress);
        let [Warning::Interface(name, why), Warning::Source(source, kind)] = &*warnings else {
            panic!("{warnings:?}")
        };
        if cfg!(target_os = "linux") {
            assert_eq!(*why, io::ErrorKind::NotFound);
        }
        assert_eq!((&**name, *source), ("no-such-if0", IpAddr::from(elsewhere)));
        assert_eq!(*kind, io::ErrorKind::AddrNotAvailable);
    }
}
