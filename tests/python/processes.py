# SPDX-License-Identifier: Apache-2.0
"""Fresh processes, quickly: importing torch takes seconds, so they are forked from one that has.

What is forked is a server that has imported torch and modcache and used neither, so a child is
as good as a new interpreter: its settings come from its own environment.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

# The command `modcache` of this build.
PROGRAM = Path(
    os.environ.get(
        "MODCACHE_PROGRAM", Path(__file__).resolve().parents[2] / "build/release/bin/modcache"
    )
)
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "modcache", "pytest", "numpy"])


@dataclass(frozen=True)
class Outcome:
    """How a child ended."""

    value: Any
    stderr: str
    exit_code: int | None

    @property
    def log_lines(self) -> list[str]:
        return [line for line in self.stderr.splitlines() if line.startswith("modcache: ")]


class Child:
    """A started process. ``receive`` waits for what its function sends through ``Child.send``."""

    def __init__(self, process: BaseProcess, pipe: Connection, stderr: Path) -> None:
        self.process = process
        self._pipe = pipe
        self._stderr = stderr

    def receive(self) -> Any:
        kind, value = self._pipe.recv()
        if kind == "error":
            raise AssertionError(f"the child failed:\n{value}\n{self._stderr.read_text()}")
        return value

    def send(self, value: Any) -> None:
        self._pipe.send(("value", value))

    def has_news(self, timeout_s: float = 0.0) -> bool:
        return self._pipe.poll(timeout_s)

    def last_news(self, before: Any) -> Any:
        """The last value that was sent so far; ``before``, where none was."""
        with contextlib.suppress(EOFError):
            while self.has_news():
                before = self.receive()
        return before

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def wait(self) -> Outcome:
        """Waits for the function's result and the end of the process."""
        value = self.receive()
        self.process.join(60)
        return Outcome(value, self._stderr.read_text(), self.process.exitcode)


class ProcessRunner:
    """Starts functions of test modules in processes of their own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._children: list[Child] = []

    def start(
        self, function: Callable[..., Any], *arguments: Any, env: dict[str, str] | None = None
    ) -> Child:
        """``function(*arguments)`` in a child. Functions that talk take ``pipe`` by keyword."""
        ours, theirs = _CONTEXT.Pipe()
        stderr = self._directory / f"stderr-{len(self._children)}"
        settings = {"MODCACHE_DIR": str(self._directory / "cache"), **(env or {})}
        process = _CONTEXT.Process(
            target=_child_main, args=(theirs, str(stderr), settings, function, arguments)
        )
        process._config.pop("modcache", None)  # type: ignore[attr-defined]  # no worker of ours
        process.start()
        theirs.close()
        child = Child(process, ours, stderr)
        self._children.append(child)
        return child

    def run(
        self, function: Callable[..., Any], *arguments: Any, env: dict[str, str] | None = None
    ) -> Outcome:
        return self.start(function, *arguments, env=env).wait()

    def kill_all(self) -> None:
        for child in self._children:
            if child.process.is_alive():
                child.kill()


_pipe_of_child: Connection | None = None


def tell(value: Any) -> None:
    """In a child: hands ``value`` to the parent's ``receive``."""
    assert _pipe_of_child is not None
    _pipe_of_child.send(("value", value))


def hear() -> Any:
    """In a child: waits for what the parent sends."""
    assert _pipe_of_child is not None
    return _pipe_of_child.recv()[1]


def _child_main(
    pipe: Connection,
    stderr: str,
    settings: dict[str, str],
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    global _pipe_of_child
    _pipe_of_child = pipe
    target = os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(target, 2)
    os.environ.update(settings)
    try:
        import torch

        torch.set_num_threads(1)
        pipe.send(("value", function(*arguments)))
    except BaseException:
        pipe.send(("error", traceback.format_exc()))
        sys.exit(1)


def python_environment(**settings: str) -> dict[str, str]:
    """For real new interpreters: they find the same packages and test modules."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        **settings,
    }
