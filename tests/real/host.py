# SPDX-License-Identifier: Apache-2.0
"""A C++ host that knows nothing of modcache but the path of its library."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import tempfile
from pathlib import Path

import modcache
import torch

SOURCE = Path(__file__).parent / "torch_host"


@functools.cache
def _host() -> Path:
    build = Path(tempfile.mkdtemp(prefix="modcache-torch-host-"))
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    torch_folder = spec.submodule_search_locations[0]
    options = ("-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", f"-DLibTorch_ROOT={torch_folder}")
    for command in (
        ["cmake", "-S", str(SOURCE), "-B", str(build), *options],
        ["cmake", "--build", str(build)],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return build / "serve"


def serve(
    model: Path, inputs: tuple[torch.Tensor, ...], cache: Path
) -> tuple[torch.Tensor, dict[str, int]]:
    """What the model says to `inputs` in a process of C++, and the counters of its cache."""
    with tempfile.TemporaryDirectory() as folder:
        given, answer = Path(folder) / "inputs.pt", Path(folder) / "answer.pt"
        torch.save(inputs, given)
        command = [_host(), modcache.library_path(), model, given, answer]
        environment = {**os.environ, "MODCACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, (done.returncode, done.stderr)
        stats = json.loads(done.stdout)
        return torch.load(answer), {name: count for name, count in stats.items() if count}
