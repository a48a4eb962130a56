# SPDX-License-Identifier: Apache-2.0
"""The response cache while many clients ask: kill -9, budgets, switching."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from served_models import write_double
from triton_server import StartServer, TritonServer


class Load:
    """Clients that ask `double` for the same keys over and over, and check what comes."""

    def __init__(self, server: TritonServer, clients: int = 8, keys: int = 200) -> None:
        self.answers = 0
        self.errors: list[str] = []
        self._server = server
        self._keys = keys
        self._end = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._ask, args=(i,)) for i in range(clients)]

    def _ask(self, client: int) -> None:
        turn = client * 37
        try:
            with self._server.connection() as connection:
                while not self._end.is_set():
                    turn += 1
                    key = turn % self._keys
                    assert connection.double(key, 7) == [2 * key, 14]
                    with self._lock:
                        self.answers += 1
        except Exception as error:
            self.errors.append(repr(error))

    def wait_for_answers(self, more: int) -> None:
        until = self.answers + more
        deadline = time.monotonic() + 60
        while self.answers < until and not self.errors:
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()


def test_kill_9_under_load_leaves_a_whole_directory(
    start: StartServer, modcache: Callable[..., str]
) -> None:
    for _ in range(3):
        server = start()
        with Load(server, keys=5000) as load:
            load.wait_for_answers(300)
            server.kill()
        assert not any("Assertion" in error for error in load.errors), "a wrong answer"
        modcache("verify")
    server = start()
    with Load(server, keys=5000) as load:
        load.wait_for_answers(300)
    assert load.errors == []
    assert server.hits() > 200


def test_switching_under_load_loses_no_request(
    start: StartServer, modcache: Callable[..., str]
) -> None:
    server = start()
    with Load(server, keys=20) as load:
        load.wait_for_answers(200)
        for _ in range(3):
            modcache("mode", "off")
            load.wait_for_answers(16)  # those that were on their way
            hits = server.hits()
            load.wait_for_answers(50)
            assert server.hits() == hits
            modcache("mode", "on")
            load.wait_for_answers(50)
            assert server.hits() > hits
    assert load.errors == []


def test_budgets_hold(start: StartServer, models: Path, directory: Path) -> None:
    write_double(models, delay_s=0)
    server = start(memory="8MB", disk="20MB")
    server.double(0)
    before_kb = anonymous_kb(server)
    numbers = [0.5] * 50_000
    with server.connection() as connection:
        for i in range(300):  # 60 MB of responses
            connection.double(i, *numbers)
    on_disk = sum(file.stat().st_blocks * 512 for file in directory.iterdir())
    assert on_disk <= 20_000_000
    # Beside the 8 MB: what Triton keeps for requests and responses of this size.
    assert anonymous_kb(server) - before_kb < 40_000
    server.stop()


def anonymous_kb(server: TritonServer) -> int:
    status = Path(f"/proc/{server.pid}/status").read_text(encoding="utf-8")
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1])
