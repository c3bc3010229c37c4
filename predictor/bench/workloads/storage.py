"""An object storage on loopback: it takes each upload at the rate of one network connection."""

import hashlib
import os
import socket
import threading
import time

ADDRESS = "BENCH_STORAGE"  # the environment variable with the port

_BYTES_PER_SECOND = 125_000_000  # 1 Gbit/s
_CHUNK = 256 << 10
_DIGEST_BYTES = 32


def put(part: memoryview) -> int:
    """Uploads a part with its signature; returns how many bytes the storage says it has."""
    with socket.create_connection(("127.0.0.1", int(os.environ[ADDRESS]))) as connection:
        connection.sendall(hashlib.sha256(part).digest())
        connection.sendall(part)
        connection.shutdown(socket.SHUT_WR)
        return int(connection.recv(32))


def serve() -> int:
    """Starts the storage in a process of its own, which ends with this one; returns its port."""
    listener = socket.create_server(("127.0.0.1", 0))
    port: int = listener.getsockname()[1]
    alive, held = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(held)
        threading.Thread(target=_accept, args=(listener,), daemon=True).start()
        os.read(alive, 1)
        os._exit(0)
    os.close(alive)
    listener.close()
    return port


def _accept(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_take, args=(connection,), daemon=True).start()


def _take(connection: socket.socket) -> None:
    began, taken = time.monotonic(), -_DIGEST_BYTES
    with connection:
        while received := len(connection.recv(_CHUNK)):
            taken += received
            ahead = taken / _BYTES_PER_SECOND - (time.monotonic() - began)
            if ahead > 0:
                time.sleep(ahead)
        connection.sendall(str(taken).encode())
