"""``host:port`` of a process: taken apart, and listened at."""

from __future__ import annotations

import socket

from prototrain.errors import ClusterError


def host_and_port(address: str) -> tuple[str, int]:
    """An address taken apart, as sockets want it."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def listen(address: str) -> socket.socket:
    """A socket that listens at the port of an address, on all of this machine's networks.

    Raises:
        ClusterError: it cannot.
    """
    port = host_and_port(address)[1]
    try:
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
        return socket.create_server(("", port), backlog=1024)
    except OSError as error:
        raise ClusterError(
            f"cannot listen at {address}: {error.strerror}; is another run of this job there?"
        ) from error
