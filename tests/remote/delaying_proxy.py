# SPDX-License-Identifier: Apache-2.0
"""A proxy on loopback that delays or spoils what it forwards.

python delaying_proxy.py HOST PORT BEHAVIOUR

It is a program of its own: a test that holds Python's lock while it waits for an answer would
otherwise wait for a proxy that waits for that lock. DelayedPort starts it and talks to it: it
prints its port, and then answers each line of its input, which is a Behaviour in JSON or null, with
a line that has the number of connections so far. It ends with its input.
"""

from __future__ import annotations

import asyncio
import json
import random
import selectors
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

PIECE_BYTES = 65536
# So many pieces of one direction can be under way at once.
PIECES = 256
HTTP = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Connection: close\r\n\r\n400 Bad Request"
)
GARBAGE_BYTES = 64


@dataclass(frozen=True)
class Behaviour:
    """``mode``: a name among those of DelayedPort's methods.

    ``after``: the bytes of answers that each connection still gets, where they are cut short.
    """

    mode: str = "forward"
    delay_s: float = 0.0
    every_s: float = 0.0
    after: int = 0
    then_silent: bool = False


class Link:
    """One client's connection, and the one to the target on its behalf."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.client = client
        self.server: asyncio.StreamWriter | None = None
        self.left: int | None = None

    def close(self, *, reset: bool = False) -> None:
        for writer in (self.client, self.server):
            if writer is None:
                continue
            if reset:
                on_without_wait = struct.pack("ii", 1, 0)
                with suppress(OSError):
                    writer.get_extra_info("socket").setsockopt(
                        socket.SOL_SOCKET, socket.SO_LINGER, on_without_wait
                    )
                writer.transport.abort()
            else:
                writer.close()


class Proxy:
    def __init__(self, host: str, port: int, behaviour: Behaviour) -> None:
        self._target = (host, port)
        self._behaviour = behaviour
        self._changed = asyncio.Event()
        self._links: set[Link] = set()
        self._random = random.Random(0)  # a failure shall happen again
        self.accepted = 0

    def behave(self, behaviour: Behaviour) -> None:
        """Connections that exist change as well."""
        self._behaviour = behaviour
        for link in list(self._links):
            link.left = None
            if behaviour.mode in ("close_at_once", "reset_at_once"):
                link.close(reset=behaviour.mode == "reset_at_once")
        self._changed.set()
        self._changed = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        link = Link(writer)
        with self._kept(link), suppress(OSError):
            if self._behaviour.mode in ("close_at_once", "reset_at_once"):
                link.close(reset=self._behaviour.mode == "reset_at_once")
                return
            await self._while_black()
            answers, link.server = await asyncio.open_connection(*self._target)
            await asyncio.gather(
                self._pump(reader, link.server, link, answers=False),
                self._pump(answers, writer, link, answers=True),
            )

    @contextmanager
    def _kept(self, link: Link) -> Iterator[None]:
        self._links.add(link)
        try:
            yield
        finally:
            self._links.discard(link)
            link.close()

    async def _pump(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        link: Link,
        *,
        answers: bool,
    ) -> None:
        """A piece leaves at its time, and others come in meanwhile, as on a long cable."""
        clock = asyncio.get_running_loop().time
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(PIECES)

        async def take() -> None:
            data = b"-"
            while data:
                try:
                    data = await source.read(PIECE_BYTES)
                except OSError:
                    data = b""
                await pieces.put((clock() + self._behaviour.delay_s, data))

        taking = asyncio.create_task(take())
        try:
            while True:
                due, data = await pieces.get()
                if (wait := due - clock()) > 0:
                    await asyncio.sleep(wait)
                await self._while_black()
                if not data:
                    break
                await (self._answer if answers else self._request)(data, sink, link)
            if sink.can_write_eof():
                sink.write_eof()
        finally:
            taking.cancel()

    async def _while_black(self) -> None:
        """What came meanwhile is not lost: TCP sends it once more when the cable is mended."""
        while self._behaviour.mode == "black_hole":
            await self._changed.wait()

    async def _request(self, data: bytes, server: asyncio.StreamWriter, link: Link) -> None:
        mode = self._behaviour.mode
        if mode == "answer_garbage":
            link.client.write(self._random.randbytes(GARBAGE_BYTES))
            await link.client.drain()
        elif mode == "answer_http":
            link.client.write(HTTP)
            link.close()
        else:
            server.write(data)
            await server.drain()

    async def _answer(self, data: bytes, client: asyncio.StreamWriter, link: Link) -> None:
        while data and self._behaviour.mode == "drip":
            client.write(data[:1])
            data = data[1:]
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), self._behaviour.every_s)
        if self._behaviour.mode == "cut_answers":
            if link.left is None:
                link.left = self._behaviour.after
            data = data[: link.left]
            link.left -= len(data)
        client.write(data)
        await client.drain()
        if link.left == 0 and not self._behaviour.then_silent:
            link.close()


async def main(host: str, port: int, behaviour: Behaviour) -> None:
    proxy = Proxy(host, port, behaviour)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    print(server.sockets[0].getsockname()[1], flush=True)
    while line := await lines.readline():
        if given := json.loads(line):
            proxy.behave(Behaviour(**given))
        print(proxy.accepted, flush=True)


if __name__ == "__main__":
    # The usual selector rounds each wait up to a millisecond.
    precise_loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    at_first = Behaviour(**json.loads(sys.argv[3]))
    precise_loop.run_until_complete(main(sys.argv[1], int(sys.argv[2]), at_first))
