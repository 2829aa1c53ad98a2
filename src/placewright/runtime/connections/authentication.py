"""Connections whose ends prove to each other that they know the run's secret.

Any user of the machine, and on a network any machine, may connect to a port. So nothing is read
from a caller but the proof, which is the standard library's challenge and response
(`multiprocessing.connection.deliver_challenge`), once in either direction:

    connecting end                                   listening end
                     <--- challenge: random bytes ---
                      --- HMAC(k_c, challenge) ----->   closes unless it is right
                      --- challenge: random bytes -->
    closes unless    <--- HMAC(k_l, challenge) ------
                      --- hello (data) ------------->   gives the connection to `accept`

The keys are made from the secret, the end's role and the port, k = HMAC(secret, role|port).
With a key for each role an answer is worth nothing in the other direction (reflection), and with
one for each port, an attacker whose port we call cannot pass our proof on to the real one (relay).
The secret itself is never sent. What follows the proof is neither encrypted nor signed.

A listening end serves each caller on a thread of its own, a limited number of them for a limited
time, so that strangers who send little or nothing keep no worker out.
"""

from __future__ import annotations

import hmac
import os
import socket
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from queue import Empty, SimpleQueue
from typing import Any

from placewright.runtime.connections.channel import PLAIN, Channel, Codec

LOOPBACK = "127.0.0.1"

PROOF_S = 10.0
"""Seconds that a caller has for the proof and its hello."""

MOST_CALLERS = 64
"""Callers without proof at a time; another one takes the place of the oldest."""

HELLO_BYTES = 1 << 16
"""The longest hello."""

_AGAIN_S = 0.1
"""Until the next caller where one could not be taken, for want of file descriptors for example."""

BROKEN = (OSError, EOFError, AuthenticationError)
"""What a lost connection and a stranger look like."""


def connect(
    address: tuple[str, int],
    secret: bytes,
    hello: Any = None,
    *,
    codec: Codec = PLAIN,
    limit_s: float = PROOF_S,
) -> Channel:
    """Connect to a listener that knows the secret and send it `hello`.

    Raises `OSError`, `EOFError`: nothing listens there, the end that does is none of ours, or it
    takes longer than `limit_s`.
    Raises `AuthenticationError`: it does not know the secret.
    """
    with socket.create_connection(address, timeout=limit_s) as end:
        _send_at_once(end)
        connection = Connection(os.dup(end.fileno()))
        # A limit of the whole proof: a timeout of the socket would count anew with every byte. It
        # needs `end` beside the duplicate: a shutdown ends the connection for both.
        late = threading.Timer(limit_s, _hang_up, (end,))
        late.daemon = True
        late.start()
        try:
            _answer(connection, _key(secret, "connect", address[1]))
            # In this order: who calls answers first, so that a listener tells strangers nothing to
            # try secrets on.
            deliver_challenge(connection, _key(secret, "listen", address[1]))
            channel = Channel(connection, codec)
            channel.send(hello)
        except BaseException:
            connection.close()
            raise
        finally:
            late.cancel()
    return channel


class AuthenticatedListener:
    """Accepts connections whose other end proves that it knows the secret.

    `listening`: a TCP socket that listens.
    `codec`: what messages may hold.
    """

    def __init__(self, listening: socket.socket, secret: bytes, codec: Codec = PLAIN) -> None:
        self._socket, self._secret, self._codec = listening, secret, codec
        self.port: int = listening.getsockname()[1]
        self._known: SimpleQueue[tuple[bytes, Channel]] = SimpleQueue()
        self._callers: OrderedDict[socket.socket, float] = OrderedDict()
        self._lock = threading.Lock()
        threading.Thread(target=self._take_calls, daemon=True).start()

    def accept(self, limit_s: float = float("inf")) -> tuple[Any, Channel] | None:
        """Hello and channel of the next that proved itself; ``None`` if none does in time.

        Raises `RunError`: its hello is none that the codec knows.
        """
        try:
            hello, channel = self._known.get(timeout=min(max(0.0, limit_s), threading.TIMEOUT_MAX))
        except Empty:
            return None
        return self._codec.unpack(hello), channel

    def close(self) -> None:
        """Take no more calls."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for calls
        self._socket.close()

    def _take_calls(self) -> None:
        while self._socket.fileno() >= 0:
            try:
                self._socket.settimeout(self._drop_late())
                caller, _ = self._socket.accept()
            except TimeoutError:
                continue
            except OSError:
                # Closed, or out of file descriptors: at once the same again would take a core.
                time.sleep(_AGAIN_S)
                continue
            with self._lock:
                self._callers[caller] = time.monotonic() + PROOF_S
            threading.Thread(target=self._admit, args=(caller,), daemon=True).start()

    def _drop_late(self) -> float | None:
        """Drop callers who took too long or are too many; seconds until the next one is late."""
        now = time.monotonic()
        with self._lock:
            while self._callers:
                caller, deadline = next(iter(self._callers.items()))
                # All have the same time, so the first to come is the first to be late.
                if deadline > now and len(self._callers) < MOST_CALLERS:
                    return deadline - now
                del self._callers[caller]
                _hang_up(caller)  # its thread finds the end
        return None

    def _admit(self, caller: socket.socket) -> None:
        """Accept a caller that proves to know the secret, and read its hello."""
        with caller, suppress(*BROKEN, ValueError):
            _send_at_once(caller)
            # A duplicate: `caller` stays a socket, which `_drop_late` can shut down from another
            # thread.
            connection = Connection(os.dup(caller.fileno()))
            deliver_challenge(connection, _key(self._secret, "connect", self.port))
            _answer(connection, _key(self._secret, "listen", self.port))
            hello = connection.recv_bytes(HELLO_BYTES)
            with self._lock:
                # Dropped meanwhile, maybe between the last byte and here: its connection is shut
                # down already.
                in_time = self._callers.pop(caller, None) is not None
            if in_time:
                self._known.put((hello, Channel(connection, self._codec)))
        with self._lock:
            self._callers.pop(caller, None)


def _key(secret: bytes, role: str, port: int) -> bytes:
    """What an end of this role at this port proves with."""
    return hmac.digest(secret, f"placewright connection|{role}|{port}".encode(), "sha256")


def _answer(connection: Connection, key: bytes) -> None:
    """Answer a challenge; Python 3.11 asserts that it is one."""
    try:
        answer_challenge(connection, key)
    except AssertionError:
        raise AuthenticationError("the other end sends no challenge") from None


def _send_at_once(end: socket.socket) -> None:
    """Small messages are not kept back to be sent together; a connection knows no timeout."""
    end.setblocking(True)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _hang_up(end: socket.socket) -> None:
    """End a connection for those that read from it."""
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
