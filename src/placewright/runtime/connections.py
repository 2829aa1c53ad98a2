"""Connections between processes: messages as data, callers who prove that they know the secret.

`multiprocessing.connection.Connection` frames them: four bytes of length, or twelve of a long
message, then the message. Its own ``recv`` would unpickle, and is never called.

A message is data: numbers, text, bytes, arrays, sequences, mappings, and listed dataclasses. On the
wire a message is msgpack. Sequences of any kind arrive as tuples. Two extensions are known:

    ExtType(1, msgpack(["TensorSpec", [2, 3], "float32", [3, 1]]))    a dataclass: name, its fields
    ExtType(2, msgpack(["<f8", [2, 3], b"..."]))                      an array: dtype, shape, bytes

Of dataclasses only the ones that the reader has listed are made, by their constructor, from nothing
but data; arrays hold numbers only. Unlike a pickle, a message names no function to call.

A `FrameReader` reads messages in whatever pieces they arrive, without waiting:
`multiprocessing.connection.Connection.recv_bytes` waits for the rest of a message that has begun,
for ever where its sender is stopped or a link is cut in the middle of it. An event loop cannot.

    4 bytes, signed, big endian     length, or -1: 8 bytes of length follow
    length bytes                    the message

**Proof.** Any user of the machine, and on a network any machine, may connect to a port. So nothing
is read from a caller but the proof, which is the standard library's challenge and response
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

**Between two nodes of a testbed** both ends of a TCP connection are made here: a socket stays in
the network namespace in which it was made, whichever process uses it later. So a worker on one node
can take its orders over emulated links from another node, with the same frames as through a pipe.

A cut link sends no error. TCP finds it out: the kernel of the other end acknowledges what arrives
even while its process computes or is stopped, and with keep-alive it does so at least once a
second. `unheard_s` reads how long ago the last acknowledgement was.
"""

from __future__ import annotations

import hmac
import multiprocessing.connection
import os
import re
import select
import socket
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Self

import msgpack
import numpy as np

from placewright.errors import RunError
from placewright.testbed.namespaces import join
from placewright.testbed.record import NodeHandle

_DATACLASS, _ARRAY, _COMPLEX = 1, 2, 3
"""Types of extensions."""

_PARTS = struct.Struct("<dd")
"""Of a complex number."""

_NUMBERS = "biuf"
"""Kinds of arrays: truth values, integers with and without sign, floating-point numbers."""


class Codec:
    """Packs messages and unpacks them.

    `kinds`: dataclasses that messages may hold; no two of one name.
    """

    def __init__(self, *kinds: type) -> None:
        self._kinds = {kind.__name__: kind for kind in kinds}
        self._fields = {kind: tuple(f.name for f in fields(kind)) for kind in kinds}

    def pack(self, message: Any) -> bytes:
        """The message as bytes.

        Raises `TypeError`: it holds something that is neither plain data nor one of `kinds`.
        """
        packed: bytes = msgpack.packb(message, default=self._extension, use_bin_type=True)
        return packed

    def unpack(self, data: bytes) -> Any:
        """The message that `pack` packed.

        Raises `RunError`: these bytes are no message that this version of Placewright knows.
        """
        try:
            return self._unpacked(data)
        except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
            raise RunError(
                "a message from another process cannot be read",
                by=f"{type(error).__name__}: {error}"[:200],
                hint="install the same version of Placewright on every machine",
            ) from None

    def _unpacked(self, data: bytes) -> Any:
        # Tuples, so that sequences can be keys of mappings; `_made` unpacks what is in an
        # extension.
        return msgpack.unpackb(
            data, use_list=False, raw=False, strict_map_key=False, ext_hook=self._made
        )

    def _extension(self, value: Any) -> msgpack.ExtType:
        if isinstance(value, np.ndarray) and value.dtype.kind in _NUMBERS:
            return msgpack.ExtType(
                _ARRAY, msgpack.packb([value.dtype.str, value.shape, value.tobytes()])
            )
        if type(value) is complex:
            return msgpack.ExtType(_COMPLEX, _PARTS.pack(value.real, value.imag))
        names = self._fields.get(type(value))
        if names is None:
            what = "dataclass" if is_dataclass(value) else "value"
            raise TypeError(f"a {what} of type {type(value).__name__} cannot be sent")
        entry = [type(value).__name__, *(getattr(value, name) for name in names)]
        return msgpack.ExtType(_DATACLASS, self.pack(entry))

    def _made(self, code: int, data: bytes) -> Any:
        if code == _ARRAY:
            return _array(*self._unpacked(data))
        if code == _COMPLEX:
            return complex(*_unpacked_parts(data))
        if code != _DATACLASS:
            raise ValueError(f"extension {code} is unknown")
        name, *values = self._unpacked(data)
        return self._kinds[name](*values)


def _unpacked_parts(data: bytes) -> tuple[float, float]:
    if len(data) != _PARTS.size:
        raise ValueError(f"a complex number of {len(data)} bytes")
    real, imaginary = _PARTS.unpack(data)
    return real, imaginary


def _array(dtype: str, shape: tuple[int, ...], data: bytes) -> np.ndarray[Any, Any]:
    if not re.fullmatch(rf"[<>|][{_NUMBERS}]\d\d?", dtype):
        raise ValueError(f"arrays of {dtype!r} are no data")
    # Reads no more than `data`, whatever shape is said: a larger one is a `TypeError`.
    found = np.ndarray(shape, dtype, buffer=data)
    if found.nbytes != len(data):
        raise ValueError(f"an array of {found.nbytes} bytes has {len(data)}")
    # What msgpack gives is read-only, and the whole message would live as long as the array.
    return found.copy()


PLAIN = Codec()
"""Data without dataclasses."""


def wait(ends: Iterable[Any], timeout: float | None = None) -> list[Any]:
    """Channels, sentinels and pipes of `ends` that are ready, like the standard library's."""
    return multiprocessing.connection.wait(ends, timeout)


@dataclass(frozen=True, slots=True, eq=False)
class Channel:
    """One end of a connection; it can be given to a process.

    `codec`: what messages may hold.
    """

    connection: Connection
    codec: Codec = PLAIN

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def send(self, message: Any) -> None:
        """Send a message; waits while the other end reads nothing."""
        self.send_packed(self.codec.pack(message))

    def send_packed(self, data: bytes) -> None:
        """Send a message that is packed already."""
        self.connection.send_bytes(data)

    def recv(self, most_bytes: int | None = None) -> Any:
        """The next message.

        `most_bytes`: a longer one is an error, found before any of it is read.

        Raises `EOFError`: the other end is closed.
        Raises `OSError`: the connection is broken, or the message too long.
        Raises `RunError`: it is none that this codec knows.
        """
        return self.codec.unpack(self.connection.recv_bytes(most_bytes))

    def poll(self, limit_s: float = 0.0) -> bool:
        """Whether there is something to receive, or the end, before so long."""
        return self.connection.poll(limit_s)

    def fileno(self) -> int:
        """File descriptor, for `wait`."""
        return self.connection.fileno()

    def duplicate(self) -> Channel:
        """The same end once more, which stays open when this one is closed."""
        return Channel(Connection(os.dup(self.fileno())), self.codec)

    def close(self) -> None:
        """Close this end; twice is fine."""
        self.connection.close()


_AT_ONCE_S = 0.05
"""Waited for the other end to read a message before the rest of it is left to a thread."""


def send(connection: Channel, message: Any) -> bool:
    """Send a message; what the other end does not read at once is sent on a thread.

    To one that has died, nothing: that is for others to notice.

    `connection`: a stream socket, on which no thread is sending.
    Returns whether all is sent.
    """
    data = connection.codec.pack(message)
    short = len(data) <= _MOST_SHORT
    head = _SHORT.pack(len(data)) if short else _SHORT.pack(-1) + _LONG.pack(len(data))
    with suppress(OSError):
        left = _sent_at_once(connection.fileno(), [memoryview(head), memoryview(data)])
        if left:
            # A duplicate: the caller may close the connection meanwhile. Two threads must not send
            # on one, as their frames would mix: hence the condition on `connection`.
            other = _socket_on(os.dup(connection.fileno()))
            Thread(target=_send_and_close, args=(other, left), daemon=True).start()
            return False
    return True


def _sent_at_once(fd: int, parts: list[memoryview]) -> list[memoryview]:
    """Send what a socket takes in `_AT_ONCE_S`; what is left."""
    until_s, reader = time.monotonic() + _AT_ONCE_S, select.poll()
    reader.register(fd, select.POLLOUT)
    end = _socket_on(fd)
    try:
        while parts:
            try:
                # For this call alone: see `FrameReader.read`.
                sent = end.sendmsg(parts, [], socket.MSG_DONTWAIT)
            except BlockingIOError:
                left_s = until_s - time.monotonic()
                if left_s <= 0 or not reader.poll(1e3 * left_s):
                    break
                continue
            while parts and sent >= len(parts[0]):
                sent -= len(parts.pop(0))
            parts[:1] = [part[sent:] for part in parts[:1]]
    finally:
        end.detach()
    return parts


def _socket_on(fd: int) -> socket.socket:
    """A socket object; the program's default timeout would count for all who share the socket."""
    end = socket.socket(fileno=fd)
    if end.gettimeout() is not None:
        end.settimeout(None)
    return end


def _send_and_close(end: socket.socket, parts: list[memoryview]) -> None:
    with suppress(OSError), end:
        for part in parts:
            end.sendall(part)


_PIECE_BYTES = 1 << 18
_SHORT, _LONG = struct.Struct("!i"), struct.Struct("!Q")
_MOST_SHORT = 0x7FFFFFFF


class FrameReader:
    """Reads the frames of one connection.

    `fd`: a connected stream socket, which may be a blocking one; it stays the caller's.
    """

    def __init__(self, fd: int) -> None:
        self._socket = _socket_on(os.dup(fd))
        self._data = bytearray()

    def read(self) -> bytes | None:
        """The next message; ``None`` where it is not complete yet.

        Raises `EOFError`: the other end is closed.
        Raises `OSError`: the connection is broken.
        """
        while (size := self._frame_size()) is None or len(self._data) < size[0] + size[1]:
            try:
                # For this call alone: the file descriptor's own blocking mode, which both
                # duplicates share, is that of the sender on the same connection.
                piece = self._socket.recv(_PIECE_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            if not piece:
                raise EOFError
            self._data += piece
        head, length = size
        message = bytes(memoryview(self._data)[head : head + length])
        del self._data[: head + length]
        return message

    def _frame_size(self) -> tuple[int, int] | None:
        """Bytes of the header and of the message, once they are known."""
        if len(self._data) < _SHORT.size:
            return None
        (length,) = _SHORT.unpack_from(self._data)
        if length >= 0:
            return _SHORT.size, length
        head = _SHORT.size + _LONG.size
        return (
            (head, _LONG.unpack_from(self._data, _SHORT.size)[0])
            if len(self._data) >= head
            else None
        )

    def close(self) -> None:
        """Close the duplicate."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


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


CONNECT_S = 2.0
"""In which a connection is made; a link that is cut makes none."""

PROBE_S = 1
"""Between two keep-alive probes of an idle connection; the kernel's least."""

UNHEARD_S = 2.5
"""Without an acknowledgement: two probes were lost."""

PENDING_S = 1.0
"""The same while something that was sent is not acknowledged."""

_INFO_BYTES = 104
_UNACKED, _DATA_RECEIVED, _ACK_RECEIVED, _ROUND_TRIP = 4, 11, 12, 15
"""Positions among the 32-bit fields of ``struct tcp_info``, after eight of 8 bits; milliseconds,
the last one microseconds."""


def connection_between(source: NodeHandle, target: NodeHandle) -> tuple[Connection, Connection]:
    """The two ends of a new connection over the links between two nodes of one testbed.

    Raises `RunError`: no link joins them, it is cut, or the testbed is not up.
    """
    found: list[socket.socket] = []
    failed: list[Exception] = []

    def work() -> None:  # a thread of its own: a thread stays in the namespace that it has joined
        try:
            found.extend(_ends(source, target))
        except (OSError, RunError) as error:
            failed.append(error)

    thread = threading.Thread(target=work, name="placewright-connect")
    thread.start()
    thread.join()
    if failed:
        raise RunError(
            "no connection over the testbed's links",
            where=f"from {source.device!r} to {target.device!r}",
            by=str(failed[0]),
            hint="is the link cut? `placewright testbed status` shows it",
        )
    for end in found:
        _watch(end)
    ours, theirs = (Connection(end.detach()) for end in found)
    return ours, theirs


def _ends(source: NodeHandle, target: NodeHandle) -> tuple[socket.socket, socket.socket]:
    # A socket belongs to the namespace of its thread when it is made: first the listening end is
    # made on the target, then the calling one on the source; `accept` works from anywhere.
    join(target.namespace)
    with socket.create_server((target.address, 0)) as listening:
        listening.settimeout(CONNECT_S)
        join(source.namespace)
        ours = socket.create_connection(listening.getsockname(), timeout=CONNECT_S)
        try:
            while True:
                theirs, peer = listening.accept()
                if peer == ours.getsockname():
                    return ours, theirs
                theirs.close()  # somebody else's
        except BaseException:
            ours.close()
            raise


def _watch(end: socket.socket) -> None:
    end.setblocking(True)
    tcp = socket.IPPROTO_TCP
    end.setsockopt(tcp, socket.TCP_NODELAY, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    end.setsockopt(tcp, socket.TCP_KEEPIDLE, PROBE_S)
    end.setsockopt(tcp, socket.TCP_KEEPINTVL, PROBE_S)
    end.setsockopt(tcp, socket.TCP_USER_TIMEOUT, int(2e3 * UNHEARD_S))


def unheard_s(end: Connection) -> float:
    """Seconds for which the other end's kernel owes an answer too long; 0 while it answers."""
    with socket.socket(fileno=os.dup(end.fileno())) as link:
        info = link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    # Of an older kernel the structure is shorter; newer ones cut it to what was asked for.
    fields = struct.unpack_from(f"8x{(len(info) - 8) // 4}I", info)
    # Whichever was last: of data that is received in sequence the kernel need not note the
    # acknowledgement that is in it.
    silent_s = 1e-3 * min(fields[_DATA_RECEIVED], fields[_ACK_RECEIVED])
    # Four round trips beside it, for a link that is slow and not cut.
    limit_s = PENDING_S + 4e-6 * fields[_ROUND_TRIP] if fields[_UNACKED] else UNHEARD_S
    return silent_s if silent_s > limit_s else 0.0
