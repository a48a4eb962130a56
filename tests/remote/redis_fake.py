# SPDX-License-Identifier: Apache-2.0
"""Servers that speak Redis's protocol and answer as a test says, as no real one would."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable
from typing import Self

# A command's arguments, the name first; the bytes of the answer.
Answer = Callable[[list[bytes]], bytes]
NOTHING = b"$-1\r\n"


def bulk(value: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(value), value)


def array(*elements: bytes) -> bytes:
    return b"*%d\r\n" % len(elements) + b"".join(elements)


def slots(*ports: int) -> bytes:
    """The answer to CLUSTER SLOTS where the nodes of these ports have as many slots each."""
    edges = [16384 * i // len(ports) for i in range(len(ports) + 1)]
    return array(
        *(
            array(
                b":%d\r\n" % first,
                b":%d\r\n" % (end - 1),
                array(bulk(b"127.0.0.1"), b":%d\r\n" % port, bulk(b"id-%d" % port)),
            )
            for port, first, end in zip(ports, edges, edges[1:], strict=False)
        )
    )


class FakeRedis:
    """A server that ``with`` starts and ends; each connection has a thread of its own."""

    def __init__(self, answer: Answer) -> None:
        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                while line := self.rfile.readline():
                    command = [self._argument() for _ in range(int(line[1:]))]
                    self.wfile.write(answer(command))

            def _argument(self) -> bytes:
                size = int(self.rfile.readline()[1:])
                return self.rfile.read(size + 2)[:-2]

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """A client that gave up is none."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
