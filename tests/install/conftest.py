# SPDX-License-Identifier: Apache-2.0
"""The installed package, once for all tests of this folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from installed import BUILD, output_of

HOST = Path(__file__).parent / "torch_host"

MODEL = """
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


@pytest.fixture(scope="session")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert (BUILD / "libmodcache.so").exists(), "first: ./tests/run --only build"
    prefix = tmp_path_factory.mktemp("with a space and [brackets]")
    output_of("cmake", "--install", BUILD, "--prefix", prefix)
    return prefix


@pytest.fixture(scope="session")
def library(prefix: Path) -> Path:
    (library,) = prefix.glob("**/libmodcache.so")
    return library


@pytest.fixture(scope="session")
def model(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    script, model = folder / "model.py", folder / "model.pt"
    script.write_text(MODEL, encoding="utf-8")  # TorchScript reads the source from a file
    output_of(sys.executable, "-W", "ignore", script, library, model)
    return model


@pytest.fixture(scope="session")
def hosts(prefix: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    build = tmp_path_factory.mktemp("hosts")
    # The package knows the torch that it was built against.
    output_of("cmake", "-S", HOST, "-B", build, "-GNinja", f"-DCMAKE_PREFIX_PATH={prefix}")
    output_of("cmake", "--build", build)
    return build


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"
