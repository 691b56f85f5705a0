"""Who may ask: hosts, the token, methods; and what browsers are told to refuse.

Pages of other sites can make a browser send requests to this machine, also under a name of their
own that resolves to it. So only names that are ours are answered, nothing can be written, and
off loopback every request needs a token.
"""

from __future__ import annotations

import hmac
import ipaddress
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


@dataclass(frozen=True)
class Guard:
    """The rules of one server."""

    address: str
    """What it is bound to."""
    port: int
    names: tuple[str, ...] = ()
    """Further host names that are ours."""
    token: str | None = None

    @property
    def cookie(self) -> str:
        """Cookies know no ports: two servers on a machine need two names."""
        return f"atoll_token_{self.port}"

    def refuses_host(self, host: str | None) -> bool:
        """Whether a Host header names somebody else."""
        if not host:
            return True
        name, port = split_host(host)
        if port not in (None, self.port):
            return True
        if name in (*LOOPBACK_NAMES, *self.names, self.address):
            return False
        host_address, bound_address = address_of(name), address_of(self.address)
        if host_address is None:
            return True
        # An address cannot be made to resolve elsewhere; bound to all, we cannot list our own.
        return not (host_address.is_loopback or (bound_address is not None and bound_address.is_unspecified))

    def admits(self, query: Mapping[str, Sequence[str]], headers: Mapping[str, str]) -> bool:
        """Whether the token is there, where one is needed."""
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
    """Name in lower case and port of a Host header."""
    name, port = host.strip().lower(), None
    head, colon, tail = name.rpartition(":")
    if colon and tail.isdigit() and not (":" in head and not head.startswith("[")):
        name, port = head, int(tail)
    return name.removeprefix("[").removesuffix("]").removesuffix("."), port


def is_loopback(address: str) -> bool:
    parsed = address_of(address)
    return address in LOOPBACK_NAMES or (parsed is not None and parsed.is_loopback)


def address_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The IP address that a text is, if it is one."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def make_guard(address: str, port: int, names: Sequence[str], token: str | None) -> Guard:
    """Off loopback there is always a token: the one given, or a new one."""
    if is_loopback(address):
        return Guard(address, port, tuple(name.lower() for name in names), token)
    hostname = socket.gethostname().lower()
    host_names = (*(name.lower() for name in names), hostname, hostname.partition(".")[0])
    return Guard(address, port, host_names, token or secrets.token_urlsafe(24))
