"""Which addresses of the internet are inside a private network."""

from __future__ import annotations

import ipaddress

_NAT64 = ipaddress.ip_network("64:ff9b::/96")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_public(address: str) -> bool:
    """Return whether an address is outside of every private network. One that stands for an IPv4 address is like it."""
    ip: Address = ipaddress.ip_address(address)
    if embedded := _embedded(ip):
        return is_public(str(embedded))
    is_local = isinstance(ip, ipaddress.IPv6Address) and ip.is_site_local  # which Python takes for global
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or is_local)


def _embedded(ip: Address) -> ipaddress.IPv4Address | None:
    if isinstance(ip, ipaddress.IPv4Address):
        return None
    if ip in _NAT64:
        return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip.ipv4_mapped or ip.sixtofour
