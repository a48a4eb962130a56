# SPDX-License-Identifier: Apache-2.0
"""The server, as ./examples/serve builds it, and models that take a known time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from running import ROOT, SERVER, RunningServer

MAKE_MODEL = ROOT / "examples" / "server" / "make_model.py"


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes a model of a form, once for all tests."""
    folder = tmp_path_factory.mktemp("models")

    def make(form: str, run_ms: float = 1) -> Path:
        if form == "exported":
            run_ms = 0.05  # a compiler takes a second for each layer
        path = folder / f"{form}-{run_ms}.{'pt2' if form == 'exported' else 'pt'}"
        if not path.exists():
            options = [str(path), "--form", form, "--run-ms", str(run_ms)]
            subprocess.run([sys.executable, "-W", "ignore", MAKE_MODEL, *options], check=True)
        return path

    return make


@pytest.fixture
def start(
    make_model: Callable[..., Path], tmp_path: Path
) -> Iterator[Callable[..., RunningServer]]:
    """Starts servers, which share a directory; they are gone when the test ends."""
    assert SERVER.exists(), "first: ./examples/serve --build-only"
    running: list[RunningServer] = []

    def begin(
        *options: str,
        form: str = "scripted",
        run_ms: float = 1,
        dir: Path | None = None,
        shape: str = "?x32",
    ) -> RunningServer:
        shaped = ("--shape", shape) if shape else ()
        model = make_model(form, run_ms)
        server = RunningServer(model, dir or tmp_path / "cache", *options, *shaped)
        running.append(server)
        return server

    yield begin
    for server in running:
        server.kill()


@pytest.fixture(scope="module")
def shared(
    make_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """One server for all tests of a file that do not change its state."""
    directory = tmp_path_factory.mktemp("shared") / "cache"
    server = RunningServer(make_model("scripted"), directory, "--shape", "?x32")
    yield server
    server.kill()


@pytest.fixture
def server(start: Callable[..., RunningServer]) -> RunningServer:
    return start()
