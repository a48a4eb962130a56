# SPDX-License-Identifier: Apache-2.0
"""libmodcache.so in the processes of Triton's Python backend, as models load it there.

The PyTorch backend, which calls triton_pytorch_model_init by itself, is in no package of PyPI:
here a model calls it in its place, by what its contract says (torchscript_ops/triton.h), and
tests/install/test_triton.py has the rest of that contract.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from served_models import write_model
from triton_server import BUILD, THEIR_CACHES, TritonServer, make_backends, tensor

LIBRARY = BUILD / "libmodcache.so"

MAKE_MODEL = """
import sys
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Linear(4, 2).requires_grad_(False).eval()
        torch.nn.init.constant_(self.encoder.weight, 0.5)
        torch.nn.init.constant_(self.encoder.bias, 1.0)

    def forward(self, x: torch.Tensor, key: str):
        return torch.ops.cache.lookup_or_run(self.encoder, x, key)

torch.ops.load_library(sys.argv[1])
torch.jit.script(Model().eval()).save(sys.argv[2])
"""

CODE = """
import ctypes
import os
import numpy
import torch
import triton_python_backend_utils as pb

class TritonPythonModel:
    def initialize(self, args):
        version = os.path.join(args["model_repository"], args["model_version"])
        if {entry_points}:
            self.library = ctypes.CDLL({library!r}, os.RTLD_NOW | os.RTLD_LOCAL)
            self.library.triton_pytorch_model_init.restype = ctypes.c_void_p
            self.library.triton_pytorch_model_fini.argtypes = [ctypes.c_void_p]
            self.handle = self.library.triton_pytorch_model_init(version.encode(), -1)
        elif not {is_preloaded}:
            torch.ops.load_library({library!r})
        self.model = torch.jit.load(os.path.join(version, "model.pt"))

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        x = pb.get_input_tensor_by_name(request, "x").as_numpy()
        key = pb.get_input_tensor_by_name(request, "key").as_numpy()[0].decode()
        with torch.inference_mode():
            y = self.model(torch.from_numpy(x), key)
        stats = torch.ops.cache.stats()
        hits = stats["hits_memory"] + stats["hits_disk"]
        facts = numpy.array([hits, stats["misses"], os.getpid()], dtype=numpy.int64)
        return pb.InferenceResponse([pb.Tensor("y", y.numpy()), pb.Tensor("facts", facts)])

    def finalize(self):
        if {entry_points}:
            self.library.triton_pytorch_model_fini(self.handle)
"""

CONFIG = """
backend: "python"
max_batch_size: 0
input [{{ name: "x", data_type: TYPE_FP32, dims: [ 4 ] }},
       {{ name: "key", data_type: TYPE_STRING, dims: [ 1 ] }}]
output [{{ name: "y", data_type: TYPE_FP32, dims: [ 2 ] }},
        {{ name: "facts", data_type: TYPE_INT64, dims: [ 3 ] }}]
instance_group [{{ count: {instances}, kind: KIND_CPU }}]
"""


class Encoder:
    """A server with the model `encoder`, which calls the operator."""

    def __init__(self, folder: Path, servers: list[TritonServer]) -> None:
        self.folder = folder
        self._servers = servers
        make_backends(folder / "backends")
        self._script = folder / "make_model.py"
        self._script.write_text(MAKE_MODEL, encoding="utf-8")

    def write(
        self, instances: int = 1, entry_points: bool = False, is_preloaded: bool = False
    ) -> Path:
        code = CODE.format(
            library=str(LIBRARY), entry_points=entry_points, is_preloaded=is_preloaded
        )
        packages = [path for path in sys.path if path.endswith("-packages")]
        version = write_model(
            self.folder / "models", "encoder", CONFIG.format(instances=instances), code, packages
        )
        subprocess.run(
            [sys.executable, "-W", "ignore", self._script, LIBRARY, version / "model.pt"],
            check=True,
        )
        return version

    def start(self, **environment: str) -> TritonServer:
        # Responses are not cached: the operator is asked each time.
        server = TritonServer(self.folder / "models", THEIR_CACHES, environment=environment)
        self._servers.append(server)
        return server.start()


@pytest.fixture
def encoder(tmp_path: Path, servers: list[TritonServer]) -> Encoder:
    return Encoder(tmp_path, servers)


def ask(server: TritonServer, key: str, value: float = 1) -> list[int]:
    """Hits and misses of the process that answered, and its number."""
    with server.connection() as connection:
        answer = connection.post("encoder", [tensor("x", [value] * 4), tensor("key", [key])])
    assert answer["y"] == [2 * value + 1] * 2
    return [int(str(fact)) for fact in answer["facts"]]


def test_the_operator_hits_across_requests_and_restarts_and_is_switched_off_from_outside(
    encoder: Encoder, directory: Path, modcache: Callable[..., str]
) -> None:
    encoder.write()
    server = encoder.start(MODCACHE_DIR=str(directory))
    assert ask(server, "a")[:2] == [0, 1]
    assert ask(server, "a")[:2] == [1, 1]
    assert ask(server, "b", 2)[:2] == [1, 2]
    server.stop()
    server = encoder.start(MODCACHE_DIR=str(directory))
    assert ask(server, "a")[:2] == [1, 0]
    modcache("mode", "off")
    assert ask(server, "b", 2)[:2] == [1, 0]
    modcache("mode", "on")
    assert ask(server, "b", 2)[:2] == [2, 0]


def test_instances_of_a_model_share_a_directory(
    encoder: Encoder, directory: Path, modcache: Callable[..., str]
) -> None:
    encoder.write(instances=3)
    server = encoder.start(MODCACHE_DIR=str(directory))
    keys = [f"key-{i}" for i in range(40)]
    with ThreadPoolExecutor(8) as clients:
        first = most_misses(list(clients.map(lambda key: ask(server, key), keys)))
        assert sum(first.values()) == len(keys)
        deadline = time.monotonic() + 30
        while json.loads(modcache("stats", "--json"))["entries"] < len(keys):
            assert time.monotonic() < deadline, "each process commits what it stored"
            time.sleep(0.05)
        answers: list[list[int]] = []
        deadline = time.monotonic() + 60
        # Triton may give an instance no request for a while.
        while len(answers) < 6 * len(keys) or len(most_misses(answers)) < 3:
            assert time.monotonic() < deadline, most_misses(answers)
            answers += clients.map(lambda key: ask(server, key), keys * 3)
    later = most_misses(answers)
    assert len(later) == 3
    assert later == {pid: first.get(pid, 0) for pid in later}, "nobody missed anything more"


def most_misses(answers: list[list[int]]) -> dict[int, int]:
    """The misses of each process in the end."""
    return {pid: misses for _, misses, pid in sorted(answers, key=lambda answer: answer[1])}


def test_the_entry_points_take_settings_from_the_models_directory(
    encoder: Encoder, tmp_path: Path
) -> None:
    version = encoder.write(entry_points=True)
    settings = {"dir": str(tmp_path / "of the model")}
    (version / "modcache.json").write_text(json.dumps(settings), encoding="utf-8")
    for hits_and_misses in ([0, 1], [1, 0]):
        server = encoder.start()
        assert ask(server, "a")[:2] == hits_and_misses
        server.stop()
    assert any((tmp_path / "of the model").rglob("*.seg"))


def test_a_preloaded_library_gives_torch_its_operators(encoder: Encoder, directory: Path) -> None:
    encoder.write(is_preloaded=True)
    server = encoder.start(LD_PRELOAD=str(LIBRARY), MODCACHE_DIR=str(directory))
    assert ask(server, "a")[:2] == [0, 1]
    assert ask(server, "a")[:2] == [1, 1]
