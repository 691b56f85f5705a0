"""Access rules: host names, token, methods, and security headers for browsers.

Pages of other sites can make a browser send requests to this machine, also under a name of their
own that resolves to it. So only names that are ours are answered, nothing can be written, and
off loopback every request needs a token.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie

HEADERS = (
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)
LOOPBACK_NAMES = ("localhost",)
PORT = re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True)
class Guard:
    """Access rules of one server."""

    address: str
    """Address that the server is bound to."""
    port: int
    names: tuple[str, ...] = ()
    """Further accepted host names."""
    token: str | None = None

    @property
    def cookie(self) -> str:
        """Name of the cookie: with the port, as cookies are shared by all ports of a host."""
        return f"atoll_token_{self.port}"

    def refuses_host(self, host: str | None) -> bool:
        """Return whether a Host header names another host."""
        if not host:
            return True
        name, port = split_host(host)
        if port not in (None, self.port):
            return True
        if name in (*LOOPBACK_NAMES, *self.names, self.address):
            return False
        host_ip, bound = parse_address(name), parse_address(self.address)
        if host_ip is None:
            return True
        # IP addresses cannot be rebound by DNS; bound to all interfaces, any address may be ours.
        return not (host_ip.is_loopback or (bound is not None and bound.is_unspecified))

    def admits(self, query: Mapping[str, Sequence[str]], headers: Mapping[str, str]) -> bool:
        """Return whether the request has the token, if one is required."""
        if self.token is None:
            return True
        tokens = list(query.get("token", ()))
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            tokens.append(bearer.strip())
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            morsel = None
        if morsel is not None:
            tokens.append(morsel.value)
        return any(hmac.compare_digest(text.encode(), self.token.encode()) for text in tokens)


def split_host(host: str) -> tuple[str, int | None]:
    """Split a Host header into the name in lower case and the port."""
    name, port = host.strip().lower(), None
    head, colon, tail = name.rpartition(":")
    if colon and PORT.fullmatch(tail) and not (":" in head and not head.startswith("[")):
        name, port = head, int(tail)
    return name.removeprefix("[").removesuffix("]").removesuffix("."), port


def is_loopback(address: str) -> bool:
    parsed = parse_address(address)
    return address in LOOPBACK_NAMES or (parsed is not None and parsed.is_loopback)


def parse_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse an IP address; None if the text is not one."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def make_guard(address: str, port: int, names: Sequence[str], token: str | None) -> Guard:
    """Build the rules; off loopback a token is always required, by default a new one."""
    if is_loopback(address):
        return Guard(address, port, tuple(name.lower() for name in names), token)
    hostname = socket.gethostname().lower()
    host_names = (*(name.lower() for name in names), hostname, hostname.partition(".")[0])
    return Guard(address, port, host_names, token or secrets.token_urlsafe(24))
