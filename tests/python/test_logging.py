# SPDX-License-Identifier: Apache-2.0
"""The library's messages are records of Python's ``logging``, logger "modcache"."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import modcache
import pytest
import torch
from modcache._library import log

X = torch.ones(1, 4)


@pytest.fixture(autouse=True)
def into_logging() -> Iterator[None]:
    """Other tests read standard error."""
    log.read_log(modcache.library_path())
    yield
    log.stop()


def warned(name: str) -> None:
    """One warning, of a class that no other test warns of."""
    model = type(name, (torch.nn.Linear,), {})(4, 2)
    modcache.lookup_or_run(model, X, "a")
    modcache.flush()


def test_a_warning_is_a_record(caplog: Any) -> None:
    warned("WarnedOfOnce")
    (record,) = [r for r in caplog.records if "WarnedOfOnce" in r.getMessage()]
    assert (record.name, record.levelname) == ("modcache", "WARNING")
    assert record.getMessage().startswith(
        "not caching WarnedOfOnce.forward: its result requires grad"
    )


def test_the_setting_log_filters_before(caplog: Any) -> None:
    modcache.configure(log="error")
    warned("NeverWarnedOf")
    assert not caplog.records


def test_the_loggers_level_filters_after(caplog: Any) -> None:
    with caplog.at_level(logging.ERROR, logger="modcache"):
        warned("AlsoNeverWarnedOf")
    assert not caplog.records


def test_a_handler_may_call_the_cache(caplog: Any) -> None:
    class Calls(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            modcache.flush()
            modcache.stats()

    handler = Calls()
    log.logger.addHandler(handler)
    try:
        warned("HandledByACaller")
    finally:
        log.logger.removeHandler(handler)
    assert "HandledByACaller" in caplog.text


def test_a_handler_that_fails_fails_no_model() -> None:
    class Fails(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise ValueError("a handler's own")

    handler = Fails()
    log.logger.addHandler(handler)
    try:
        warned("HandledByAFailure")
    finally:
        log.logger.removeHandler(handler)


def test_from_a_native_thread_without_a_call_of_python(caplog: Any) -> None:
    """A TorchScript model's call on another thread: nobody asks for the message."""
    arrived = threading.Event()

    class Notices(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "ScriptedOnAThread" in record.getMessage():
                arrived.set()

    class ScriptedOnAThread(torch.nn.Linear):
        pass

    handler = Notices()
    log.logger.addHandler(handler)
    try:
        model = torch.jit.script(ScriptedOnAThread(4, 2))
        torch.jit.wait(torch.jit.fork(torch.ops.cache.lookup_or_run, model._c, X, "a"))
        assert arrived.wait(30)
    finally:
        log.logger.removeHandler(handler)


SCRIPT = """
import sys
{setup}
import modcache, torch
modcache.configure(dir={directory!r})
modcache.lookup_or_run(torch.nn.Linear(4, 2), torch.ones(1, 4), "a")
{end}
"""


def stderr_of(directory: Path, setup: str = "", end: str = "") -> str:
    script = SCRIPT.format(setup=setup, end=end, directory=str(directory))
    environment = {**os.environ, "MODCACHE_LIBRARY": modcache.library_path()}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_where_nobody_configured_logging_warnings_reach_stderr(tmp_path: Path) -> None:
    lines = [line for line in stderr_of(tmp_path).splitlines() if "modcache" in line]
    assert len(lines) == 1
    assert lines[0].startswith(
        "modcache: warning: not caching Linear.forward: its result requires grad"
    )


def test_a_configured_root_logger_formats_them(tmp_path: Path) -> None:
    setup = 'import logging; logging.basicConfig(format="%(levelname)s|%(name)s|%(message)s")'
    assert "WARNING|modcache|not caching Linear.forward" in stderr_of(tmp_path, setup)


def test_a_forked_child_logs_its_own_and_not_its_parents(tmp_path: Path) -> None:
    end = """
import os
class Childs(torch.nn.Linear): pass
child = os.fork()
if child == 0:
    modcache.lookup_or_run(Childs(4, 2), torch.ones(1, 4), "b")
    modcache.flush()
    sys.stderr.flush()
    os._exit(0)
os.waitpid(child, 0)
"""
    lines = [line for line in stderr_of(tmp_path, end=end).splitlines() if "modcache: " in line]
    assert sorted("Childs" in line for line in lines) == [False, True]
