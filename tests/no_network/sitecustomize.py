"""Closes the network for a Python process: put this folder on PYTHONPATH.

Only this machine can be reached, so that a test which would download something fails at once.
"""

import socket

_connect, _getaddrinfo = socket.socket.connect, socket.getaddrinfo


def _is_local(host: object) -> bool:
    return host in ("localhost", "::1", "", None) or str(host).startswith("127.") or host == socket.gethostname()


def connect(self: socket.socket, address: object) -> None:
    if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_local(address[0]):  # type: ignore[index]
        raise OSError(f"tests run without a network; something tried to reach {address}")
    return _connect(self, address)  # type: ignore[arg-type]


def getaddrinfo(host: object, *args: object, **kwargs: object) -> object:
    if not _is_local(host.decode() if isinstance(host, bytes) else host):
        raise OSError(f"tests run without a network; something looked up {host!r}")
    return _getaddrinfo(host, *args, **kwargs)  # type: ignore[arg-type]


socket.socket.connect = connect  # type: ignore[method-assign, assignment]
socket.getaddrinfo = getaddrinfo  # type: ignore[assignment]
