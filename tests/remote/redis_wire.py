# SPDX-License-Identifier: Apache-2.0
"""The least client of Redis that tests need: it does nothing that a test did not ask for.

It neither follows redirections nor connects anew, so a test sees what a server really answered.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

Argument: TypeAlias = str | bytes | int | float
Reply: TypeAlias = "bytes | int | list[Reply] | None"
ANSWER_S = 10.0


class RedisError(Exception):
    """The error that a server answered, such as ``MOVED 5 127.0.0.1:7000``."""

    @property
    def code(self) -> str:
        return str(self).partition(" ")[0]


class RedisConnection:
    """One connection; every wait for an answer has an end."""

    def __init__(
        self,
        target: tuple[str, int] | Path,
        *,
        tls: ssl.SSLContext | None = None,
        login: Sequence[str] = (),
        timeout_s: float = ANSWER_S,
    ) -> None:
        """``login``: the arguments of AUTH, a password with or without a name before it."""
        self._socket = _connected(target, timeout_s)
        try:
            if tls is not None:
                self._socket = tls.wrap_socket(self._socket, server_hostname=_host(target))
            self._answers = self._socket.makefile("rb")
            if login:
                self.ask("AUTH", *login)
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> RedisConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._answers.close()
        self._socket.close()

    def ask(self, *command: Argument) -> Reply:
        self.send(command)
        return self.receive()

    def ask_all(self, commands: Sequence[Sequence[Argument]]) -> list[Reply]:
        """Sends all at once and then reads the answers."""
        self.send(*commands)
        return [self.receive() for _ in commands]

    def send(self, *commands: Sequence[Argument]) -> None:
        self._socket.sendall(b"".join(_encoded(command) for command in commands))

    def receive(self) -> Reply:
        line = self._answers.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError(f"the connection ended in an answer: {line!r}")
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest
        if kind == b"-":
            raise RedisError(rest.decode(errors="replace"))
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return self._bulk(int(rest))
        if kind == b"*":
            return None if int(rest) < 0 else [self.receive() for _ in range(int(rest))]
        raise ConnectionError(f"this is no answer of Redis: {line!r}")

    def _bulk(self, size: int) -> bytes | None:
        if size < 0:
            return None
        data = self._answers.read(size + 2)
        if len(data) < size + 2:
            raise ConnectionError("the connection ended in an answer")
        return data[:-2]


def text_of(reply: Reply) -> str:
    """As redis-cli writes it into a pipe: one line for each element, none for no value."""
    if isinstance(reply, list):
        return "\n".join(text_of(element) for element in reply)
    if isinstance(reply, bytes):
        return reply.decode(errors="replace")
    return "" if reply is None else str(reply)


def _connected(target: tuple[str, int] | Path, timeout_s: float) -> socket.socket:
    if not isinstance(target, Path):
        return socket.create_connection(target, timeout=timeout_s)
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(timeout_s)
    try:
        connection.connect(str(target))
    except BaseException:
        connection.close()
        raise
    return connection


def _host(target: tuple[str, int] | Path) -> str:
    return "localhost" if isinstance(target, Path) else target[0]


def _encoded(command: Sequence[Argument]) -> bytes:
    parts = [part if isinstance(part, bytes) else str(part).encode() for part in command]
    pieces = [b"*%d\r\n" % len(parts)]
    pieces += [b"$%d\r\n%b\r\n" % (len(part), part) for part in parts]
    return b"".join(pieces)
