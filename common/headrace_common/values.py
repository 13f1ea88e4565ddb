"""The values of configuration keys with their own notation: durations, sizes, addresses of servers."""

from __future__ import annotations

import re
from typing import Any

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(us|ms|s|m|h|d)")
_DURATION_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"([0-9]+)\s*(B|KiB|MiB|GiB|kB|MB|GB)?")
_SIZE_UNITS = {None: 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "kB": 10**3, "MB": 10**6, "GB": 10**9}


def parse_duration(value: Any) -> float:
    """Returns seconds from a number of seconds or a text such as "500ms". Raises ValueError."""
    if isinstance(value, str) and (found := _DURATION.fullmatch(value.strip())):
        return float(found[1]) * _DURATION_UNITS[found[2]]
    return parse_number(value, 'should be a duration such as "10s", "500ms" or "2m", or a number of seconds')


def parse_size(value: Any) -> int:
    """Returns bytes from a number or a text such as "64MiB". Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and (found := _SIZE.fullmatch(value.strip())):
        return int(found[1]) * _SIZE_UNITS[found[2]]
    raise ValueError('should be a size such as "64MiB" or "900KiB", or a number of bytes')


def parse_int(value: Any) -> int:
    """Returns an integer, also from a text of the environment; true and false are not accepted. Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,19}", value.strip()):
        return int(value)
    raise ValueError("should be a whole number")


def parse_number(value: Any, wanted: str = "should be a number") -> float:
    """Returns a number, also from a text of the environment; true and false are not accepted. Raises ValueError, with
    the text `wanted` for other values."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]+(?:\.[0-9]+)?", value.strip()):
        value = value.strip()
    elif not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(wanted)
    try:
        return float(value)
    except OverflowError:
        raise ValueError("is too large") from None


def check_host(host: str) -> str:
    """Returns the name or address of a host. Raises ValueError for an invalid one."""
    try:
        host.encode("idna")
    except UnicodeError:
        raise ValueError(f"should be the name or address of a host, and {host!r} can't be one") from None
    return host


def parse_host_port(text: str) -> tuple[str, int]:
    """Returns host and port from "host:port" or "[address]:port". Raises ValueError."""
    if "//" in text:
        raise ValueError('should be a host and a port without a scheme, as in "127.0.0.1:9180"')
    host, colon, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError('should have an IPv6 address in brackets, as in "[::1]:9180"')
    if not colon or not host or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise ValueError('should be a host and a port, as in "127.0.0.1:9180"')
    return check_host(host), int(port)


def split_hosts(value: Any) -> Any:
    """Returns addresses as a tuple, out of a list or of text with commas. Raises ValueError."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise ValueError('should be "host:port", several of them with commas between, or a list of them')
    hosts = tuple(part.strip() for part in parts if part.strip())
    if not hosts:
        raise ValueError("should name at least one server")
    for host in hosts:
        if not parse_host_port(host)[1]:
            raise ValueError(f"should have a port from 1 on, unlike {host}")
    return hosts
