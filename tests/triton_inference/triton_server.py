# SPDX-License-Identifier: Apache-2.0
"""Triton Inference Server as a process, and the requests that tests send it.

It is the one of PyPI's nvidia-pytriton, which starts on a CPU and brings no PyTorch backend; none
of that package's Python code is used.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "release"
PACKAGES = ROOT / "build" / "triton" / "site-packages"
TRITON = PACKAGES / "pytriton" / "tritonserver"
OUR_CACHES = BUILD / "triton_caches"
THEIR_CACHES = TRITON / "caches"
START_S = 120
# The server starts anew for these: its Python backend gives up where a machine is so busy that a
# process of it waits long for another, and somebody may have taken the port meanwhile.
STARTS = 3
CAUSES_OF_THE_MACHINE = ("boost::interprocess::lock_exception", "Address already in use")


class RequestError(Exception):
    """What the server answered in place of a result."""


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def stub() -> Path:
    """The program that runs a model of the Python backend in this version of Python."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return TRITON / "python_backend_stubs" / version / "triton_python_backend_stub"


def make_backends(folder: Path) -> Path:
    """The Python backend beside its stub, which the package keeps elsewhere."""
    python = folder / "python"
    python.mkdir(parents=True)
    for file in (*(TRITON / "backends" / "python").iterdir(), stub()):
        (python / file.name).symlink_to(file)
    return folder


def cache_options(directory: Path, **settings: str) -> list[str]:
    """The options of a server whose responses our cache keeps in `directory`."""
    settings = {"dir": str(directory), **settings}
    return [f"--cache-config=modcache,{name}={value}" for name, value in settings.items()]


def library_path() -> str:
    """Where the server finds its libraries, and its Python backend the one of this Python."""
    return f"{PACKAGES / 'nvidia_pytriton.libs'}:{sysconfig.get_config_var('LIBDIR')}"


class Connection:
    """One keep-alive connection."""

    def __init__(self, port: int) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def post(
        self, model: str, inputs: list[dict[str, object]], **more: object
    ) -> dict[str, list[object]]:
        """The data of each output. RequestError: the server refused, or the model failed."""
        body = json.dumps({"inputs": inputs, **more})
        self._http.request("POST", f"/v2/models/{model}/infer", body)
        answer = json.loads(self._http.getresponse().read())
        if "error" in answer:
            raise RequestError(answer["error"])
        return {output["name"]: output["data"] for output in answer["outputs"]}

    def double(self, *values: float) -> list[object]:
        """What the model `double` makes of these numbers."""
        return self.post("double", [tensor("x", list(values))])["y"]

    def close(self) -> None:
        self._http.close()


def tensor(
    name: str, data: Sequence[float | str], shape: list[int] | None = None
) -> dict[str, object]:
    datatype = "BYTES" if data and isinstance(data[0], str) else "FP32"
    return {"name": name, "shape": shape or [len(data)], "datatype": datatype, "data": list(data)}


class TritonServer:
    """A server, not started yet. `options`: as on the command line, but for ports and folders."""

    def __init__(
        self, models: Path, caches: Path, *options: str, environment: dict[str, str] | None = None
    ) -> None:
        self.models = models
        self._caches = caches
        self._options = options
        self._environment = environment or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._shared_memory = ""
        self.log = models.parent / f"triton-{free_port()}.log"
        self.port = 0
        self._metrics_port = 0

    def start(self) -> TritonServer:
        for _ in range(STARTS):
            self.launch()
            if self._becomes_ready():
                return self
            self.kill()
            if not any(cause in self.text_of_log() for cause in CAUSES_OF_THE_MACHINE):
                break
        raise AssertionError(f"Triton did not start:\n{self.text_of_log()}")

    def _becomes_ready(self) -> bool:
        until = time.monotonic() + START_S
        while not self._is_ready():
            if not self.is_running() or time.monotonic() > until:
                return False
            time.sleep(0.05)
        return True

    def launch(self) -> None:
        self.port, self._metrics_port = free_port(), free_port()
        self._shared_memory = f"modcache_test_{self.port}_"
        command = [
            str(TRITON / "bin" / "tritonserver"),
            f"--model-repository={self.models}",
            f"--backend-directory={self.models.parent / 'backends'}",
            f"--cache-directory={self._caches}",
            f"--backend-config=python,shm-region-prefix-name={self._shared_memory}",
            # Otherwise each model starts twice, the first time to be asked for its configuration.
            "--disable-auto-complete-config",
            "--http-address=127.0.0.1",
            f"--http-port={self.port}",
            "--allow-grpc=false",
            f"--metrics-port={self._metrics_port}",
            "--allow-gpu-metrics=false",
            *self._options,
        ]
        environment = {
            **{name: value for name, value in os.environ.items() if "MODCACHE_" not in name},
            "LD_LIBRARY_PATH": library_path(),
            **self._environment,
        }
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    def text_of_log(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _is_ready(self) -> bool:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == 200
        except OSError:
            return False

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(START_S)

    def stop(self) -> None:
        """Stops as for an operator: requests end, models are unloaded, the cache is finalized."""
        if self.is_running():
            os.kill(self.pid, signal.SIGTERM)
            try:
                self.wait()
            finally:
                self.kill()

    def kill(self) -> None:
        """With the processes that run its models, which it leaves behind."""
        if self._process is None:
            return
        if self.is_running():
            self._process.kill()
            self._process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for region in Path("/dev/shm").glob(f"{self._shared_memory}*"):
            region.unlink(missing_ok=True)

    @contextlib.contextmanager
    def connection(self) -> Iterator[Connection]:
        connection = Connection(self.port)
        try:
            yield connection
        finally:
            connection.close()

    def double(self, *values: float) -> list[object]:
        with self.connection() as connection:
            return connection.double(*values)

    def _metric(self, name: str, model: str) -> int:
        """Triton counts a request some moments after it has answered it."""
        before, now = -1, self._metric_now(name, model)
        for _ in range(10):  # while requests come it goes on growing
            if before == now:
                break
            time.sleep(0.1)
            before, now = now, self._metric_now(name, model)
        return now

    def _metric_now(self, name: str, model: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self._metrics_port, timeout=60)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        found = re.search(rf'^{name}{{model="{model}",version="1"}} (\d+)', text, re.MULTILINE)
        return int(found[1]) if found else 0

    def hits(self, model: str = "double") -> int:
        """The hits that Triton counted."""
        return self._metric("nv_cache_num_hits_per_model", model)

    def hit_us(self, model: str = "double") -> int:
        """What Triton spent on looking up hits, all together."""
        return self._metric("nv_cache_hit_duration_per_model", model)

    def runs(self, model: str = "double") -> int:
        return self._metric("nv_inference_count", model)


StartServer = Callable[..., TritonServer]
