# SPDX-License-Identifier: Apache-2.0
"""A server process, and the requests that tests send to it."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SERVER = Path(os.environ.get("MODCACHE_SERVER", ROOT / "build" / "server" / "modcache_server"))
INPUTS = 32
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def sample(number: float) -> list[list[float]]:
    """One row of input. Those of two numbers are far from each other, as those of two samples are:
    what differs by no more than a rounding to half precision is one input to the cache."""
    return [[round((number * 0.618034 + i * 0.377) % 2 - 1, 4) for i in range(INPUTS)]]


class Answer:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.text = response.read().decode("utf-8")

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def error(self) -> str:
        assert self.status >= 400, self.text
        return str(self.json["error"])


class RunningServer:
    def __init__(self, model: Path, directory: Path, *options: str) -> None:
        port = () if "--port" in options else ("--port", "0")
        self.directory = directory
        environment = {n: v for n, v in os.environ.items() if not n.startswith("MODCACHE_")}
        self.log = directory.parent / f"server-{os.urandom(4).hex()}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [SERVER, "--model", model, "--dir", directory, *port, *options],
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                text=True,
            )
        self.port = self._port()

    def _port(self) -> int:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if found := re.match(r"listening +http://.*:(\d+)", line):
                return int(found.group(1))
        raise AssertionError(f"the server did not start: {self.log.read_text()}")

    # --- Requests ---

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """``body``: bytes or text as they are, anything else as JSON."""
        given = {} if body is None else {"Content-Type": "application/json"}
        if not isinstance(body, bytes | str | None):
            body = json.dumps(body)
        connection = self.connection()
        try:
            connection.request(method, path, body, {**given, **(headers or {})})
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def predict(self, number: float, id: object = None, **headers: str) -> list[list[float]]:
        body: dict[str, object] = {"input": sample(number)}
        if id is not None:
            body["id"] = id
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = self.ask("POST", "/predict", body, named)
        assert answer.status == 200, answer.text
        output: list[list[float]] = answer.json["output"]
        return output

    def mode(self, mode: str | None = None) -> str:
        """The effective one, after it was set where one is given."""
        if mode is None:
            return str(self.ask("GET", "/cache/mode").json["mode"])
        answer = self.ask("PUT", "/cache/mode", {"mode": mode})
        assert answer.status == 200, answer.text
        return str(answer.json["mode"])

    def metrics(self) -> dict[str, float]:
        """By name with its labels, as the text has it."""
        lines = self.ask("GET", "/metrics").text.splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def counted(self) -> tuple[int, int, int]:
        """Hits, misses and bypassed calls."""
        totals = self.ask("GET", "/status").json["totals"]
        return totals["hits"], totals["misses"], totals["bypassed"]

    def answered(self) -> int:
        """Number of responses to POST /predict."""
        return int(self.ask("GET", "/status").json["totals"]["requests"])

    # --- Its process ---

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S

    def memory_bytes(self) -> int:
        """Anonymous memory, without mapped files."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"RssAnon:\s+(\d+) kB", status)
        assert found is not None
        return int(found.group(1)) * 1024

    def handles(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def stop(self, timeout_s: float = 30) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
