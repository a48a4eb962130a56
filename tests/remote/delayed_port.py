# SPDX-License-Identifier: Apache-2.0
"""Ports on loopback that stand for a slow, broken or strange network."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

from bound_process import end, start_bound
from delaying_proxy import Behaviour

PROGRAM = Path(__file__).with_name("delaying_proxy.py")


class DelayedPort:
    """A proxy that ``with`` starts and kills.

    A method that changes how it behaves returns once it does; connections that exist change too.
    ``delay_ms``: what a round trip takes longer, half of it in each direction.
    """

    def __init__(self, target_host: str, target_port: int, delay_ms: float = 0.0) -> None:
        self._target = (target_host, str(target_port))
        self._behaviour = Behaviour(delay_s=delay_ms / 2000)
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def __enter__(self) -> DelayedPort:
        at_first = json.dumps(asdict(self._behaviour))
        self._process = start_bound(
            [sys.executable, "-I", "-S", PROGRAM, *self._target, at_first],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.port = self._answer()
        return self

    def __exit__(self, *_: object) -> None:
        end(self._process)
        self._process = None

    def _answer(self) -> int:
        assert self._process is not None, "it does not run"
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the proxy ended"
        return int(line)

    def _tell(self, behaviour: Behaviour | None) -> int:
        assert self._process is not None, "it does not run"
        assert self._process.stdin is not None
        line = json.dumps(behaviour and asdict(behaviour))
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()
        return self._answer()

    def _behave(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self._tell(behaviour)

    @property
    def accepted(self) -> int:
        """How many connections clients have made so far."""
        return self._tell(None)

    # --- How it behaves ---

    @property
    def delay_ms(self) -> float:
        return self._behaviour.delay_s * 2000

    @delay_ms.setter
    def delay_ms(self, delay_ms: float) -> None:
        self._behave(replace(self._behaviour, delay_s=delay_ms / 2000))

    def forward(self) -> None:
        """As at the start. A connection goes on where it was held."""
        self._behave(Behaviour(delay_s=self._behaviour.delay_s))

    def black_hole(self) -> None:
        """It accepts and takes what is sent, and nothing comes back until it forwards again."""
        self._behave(replace(self._behaviour, mode="black_hole"))

    def drip(self, every_ms: float = 50.0) -> None:
        """Answers come a byte at a time."""
        self._behave(replace(self._behaviour, mode="drip", every_s=every_ms / 1000))

    def answer_garbage(self) -> None:
        """The same random bytes in each run, in place of the target's answers."""
        self._behave(replace(self._behaviour, mode="answer_garbage"))

    def answer_http(self) -> None:
        """As a web server answers what it does not understand; then it closes."""
        self._behave(replace(self._behaviour, mode="answer_http"))

    def close_at_once(self) -> None:
        """New connections, and those that exist."""
        self._behave(replace(self._behaviour, mode="close_at_once"))

    def reset_at_once(self) -> None:
        """As ``close_at_once``; the client sees ECONNRESET and no end."""
        self._behave(replace(self._behaviour, mode="reset_at_once"))

    def cut_answers(self, after: int, *, then_silent: bool = False) -> None:
        """Each connection gets ``after`` more bytes; then it is closed, or nothing comes."""
        self._behave(
            replace(self._behaviour, mode="cut_answers", after=after, then_silent=then_silent)
        )


class UnansweredPort:
    """A port at which connecting itself hangs, as with a machine that is off.

    The queue of the port is full, so the kernel drops whatever asks to connect.
    """

    def __init__(self) -> None:
        self._listener = socket.socket()
        self._waiting: list[socket.socket] = []
        self.port = 0

    def __enter__(self) -> UnansweredPort:
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(0)
        self.port = self._listener.getsockname()[1]
        for _ in range(4):
            waiting = socket.socket()
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(("127.0.0.1", self.port))
            self._waiting.append(waiting)
        return self

    def __exit__(self, *_: object) -> None:
        for open_socket in (self._listener, *self._waiting):
            open_socket.close()
