# SPDX-License-Identifier: Apache-2.0
"""A C++ host that runs an exported program on the entries that training left."""

from __future__ import annotations

from pathlib import Path

import modcache
import pytest
import torch
from installed import output_of, torch_folder
from torch import nn

HOST = Path(__file__).parent / "exported_host"


class Model(nn.Module):
    def __init__(self, scope: str) -> None:
        super().__init__()
        layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.encoder = layers.requires_grad_(False).eval()
        self.head = nn.Linear(16, 2)
        self.scope = scope

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = modcache.lookup_or_run(self.encoder, x, ids, scope=self.scope)
        return self.head(features)  # type: ignore[no-any-return]


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    build = tmp_path_factory.mktemp("exported host")
    prefix = f"-DLibTorch_ROOT={torch_folder()}"
    output_of("cmake", "-S", HOST, "-B", build, prefix, "-GNinja", "-DCMAKE_BUILD_TYPE=Release")
    output_of("cmake", "--build", build)
    return build / "exported_host"


@pytest.mark.parametrize(
    "scope", [pytest.param("", marks=pytest.mark.scripts, id="scripted"), "encoder@1"]
)
def test_a_cpp_host_hits_what_training_stored(host: Path, tmp_path: Path, scope: str) -> None:
    directory = tmp_path / "cache"
    modcache.configure(dir=directory)
    modcache.reset_stats()
    model = Model(scope).requires_grad_(False)
    x, ids = torch.linspace(-1, 1, 64 * 8).reshape(64, 8), torch.arange(64)
    rows = torch.export.Dim("rows")
    shapes = ({0: rows}, {0: rows})
    program = torch.export.export(model, (x, ids), dynamic_shapes=shapes)
    package = torch._inductor.aoti_compile_and_package(
        program, package_path=str(tmp_path / "program.pt2")
    )
    # Without a scope a recorded program shares the entries of the scripted module.
    encoder = model.encoder if scope else torch.jit.script(model.encoder)
    modcache.lookup_or_run(encoder, x[:32], ids[:32], scope=scope)
    modcache.flush()
    printed = output_of(
        host, modcache.library_path(), package, "32", "48", "48", "0", MODCACHE_DIR=str(directory)
    )
    found = [line.split() for line in printed.splitlines()]
    for count, (total, _, _) in zip((32, 48, 48, 0), found, strict=True):
        want = float(model.head(model.encoder(x[:count])).sum())
        assert abs(float(total) - want) < 1e-2
    hits_and_misses = [tuple(map(int, line[1:])) for line in found]
    assert hits_and_misses == [(32, 0), (64, 16), (112, 16), (112, 16)]
