//! Keeps requests away from what is not on the public internet.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use url::Url;

/// An address that nobody on the internet has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is, or leads to, an address that is not public; allow private addresses if it should be reached")]
pub(super) struct NotPublic(String);

impl NotPublic {
    pub(super) fn new(host: &str) -> Self {
        Self(host.to_owned())
    }
}

/// Whether the host of a URL is written as an address, for which no name is looked up, and as one that is not public.
pub(super) fn written_as_private(url: &Url) -> Option<NotPublic> {
    let host = url.host_str()?;
    let address: IpAddr = host.trim_start_matches('[').trim_end_matches(']').parse().ok()?;
    (!is_public(address)).then(|| NotPublic::new(host))
}

/// Whether that was why a request was not sent.
pub(super) fn not_public(error: &(dyn Error + 'static)) -> Option<NotPublic> {
    std::iter::successors(Some(error), |&error| error.source())
        .find_map(|cause| cause.downcast_ref::<NotPublic>())
        .cloned()
}

pub(super) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

/// By the registry of special addresses of IANA.
fn is_public_v4(address: Ipv4Addr) -> bool {
    !matches!(
        address.octets(),
        [0 | 10 | 127, ..] // this network, private, loopback
            | [100, 64..128, ..] // of providers
            | [168, 63, 129, 16] // what runs beside a machine in a cloud
            | [169, 254, ..] // link-local, and with it the metadata of clouds
            | [172, 16..32, ..] // private
            | [192, 0, 0 | 2, _] // protocols, documentation
            | [192, 88, 99, _] // relays
            | [192, 168, ..] // private
            | [198, 18 | 19, ..] // benchmarks
            | [198, 51, 100, _] // documentation
            | [203, 0, 113, _] // documentation
            | [224..=255, ..] // multicast, reserved, broadcast
    )
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let within = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match address.segments() {
        // An address of IPv4 in that of IPv6: mapped, or translated.
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => is_public_v4(within(high, low)),
        // The same with 6to4.
        [0x2002, high, low, ..] => is_public_v4(within(high, low)),
        // Tunnels and other protocols; documentation.
        [0x2001, 0..0x200, ..] | [0x2001, 0xdb8, ..] | [0x3fff, 0..0x1000, ..] => false,
        [first, ..] => (0x2000..0x4000).contains(&first),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_on_the_internet_is_not_public() {
        for address in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "127.0.0.1",
            "127.255.255.254",
            "168.63.129.16",
            "::ffff:168.63.129.16",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.1",
            "192.0.2.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.51.100.7",
            "203.0.113.9",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "64:ff9b::10.0.0.1",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::1",
            "2002:a9fe:a9fe::",
            "3fff::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "5f00::1",
        ] {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn what_is_on_the_internet_is_public() {
        for address in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.0.0.1",
            "128.0.0.1",
            "168.63.129.17",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.1",
            "192.167.0.1",
            "198.17.0.1",
            "198.20.0.1",
            "223.255.255.255",
            "::ffff:1.1.1.1",
            "64:ff9b::1.1.1.1",
            "2001:200::1",
            "2606:4700::1111",
            "2a00:1450::1",
            "2002:101:101::1",
        ] {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn every_way_to_write_an_address_is_seen_through() {
        for url in [
            "http://127.0.0.1/",
            "http://127.1/",
            "http://2130706433/",
            "http://0x7f.0.0.1/",
            "http://017700000001/",
            "http://[::1]:8080/",
            "http://[::ffff:127.0.0.1]/",
            "http://[::ffff:a9fe:a9fe]/",
            "http://user@10.0.0.1/",
        ] {
            assert!(written_as_private(&url.parse().unwrap()).is_some(), "{url}");
        }
        assert!(written_as_private(&"http://localhost/".parse().unwrap()).is_none(), "a name is for the resolver");
        assert!(written_as_private(&"https://1.1.1.1/".parse().unwrap()).is_none());
    }
}
