# SPDX-License-Identifier: Apache-2.0
"""Each page of docs/recipes: its lines, its time with the cache and without, and equal results.

    PYTHONPATH=python_shim:build/recipes/site-packages python tests/bench/recipes.py [NAME ...]

A recipe runs three times, each in a Python of its own: with the mode off, with an empty directory
(*cold*), and with the directory that this left (*warm*). What tests/recipes/given_NAME.py gives it
is made before, and what it imports is imported before; the time is that of the rest. *runs*: rows
that the warm start ran. *difference*: the largest between what the start without the cache and the
warm one left in tensors, arrays, numbers and weights of modules, as a share of the largest number
there; where a recipe leaves a `mask`, at its true positions.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import pickle
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import modcache
import numpy
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "recipes"))

import recipe
import torchvision_operators

RECIPES = Path(recipe.__file__).parent
PHASES = {"off": "off", "cold": "on", "warm": "on"}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="recipes; without: all")
    parser.add_argument("--small", action="store_true", help="as small as in the tests")
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0: its own choice")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--phase", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.phase:
        phase(options.names[0], Path(options.phase), not options.small, options.threads)
        return 0
    names = options.names or sorted(
        page.stem for page in recipe.FOLDER.glob("*.md") if given_of(page.stem).exists()
    )
    print(f"{'recipe':24} lines    off s   cold s   warm s speed-up  runs  difference")
    figures = {}
    for name in names:
        found = figures[name] = measured(name, options)
        print(
            f"{name:24} {found['lines']:5} {found['off_s']:8.2f} {found['cold_s']:8.2f} "
            f"{found['warm_s']:8.2f} {found['speed_up']:7.1f}x {found['runs']:5} "
            f"{found['difference']:11.1e}",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))
    return 0 if all(found["difference"] < 1e-3 for found in figures.values()) else 1


def given_of(name: str) -> Path:
    return RECIPES / f"given_{name.replace('-', '_')}.py"


def measured(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of one recipe. Each phase is a process, and all work in one folder."""
    with tempfile.TemporaryDirectory() as folder:
        found = {}
        for each, mode in PHASES.items():
            answer = Path(folder) / each
            more = [f"--threads={options.threads}", *(["--small"] if options.small else [])]
            subprocess.run(
                [sys.executable, __file__, name, f"--phase={answer}", *more],
                cwd=folder,
                env={**os.environ, "MODCACHE_MODE": mode, "MODCACHE_DIR": f"{folder}/cache"},
                stdout=subprocess.DEVNULL,
                check=True,
            )
            found[each] = pickle.loads(answer.read_bytes())
    off, cold, warm = found.values()
    return {
        "lines": len(recipe.code(name).splitlines()),
        "off_s": off["seconds"],
        "cold_s": cold["seconds"],
        "warm_s": warm["seconds"],
        "speed_up": off["seconds"] / warm["seconds"],
        "runs": warm["runs"],
        "difference": difference(off["left"], warm["left"]),
    }


def phase(name: str, answer: Path, large: bool, threads: int) -> None:
    """One start of a recipe."""
    if threads:
        torch.set_num_threads(threads)
    torchvision_operators.declare_missing()
    torch.manual_seed(0)
    given = __import__(given_of(name).stem).given(large=large)
    imports = [node for node in ast.parse(recipe.code(name)).body if is_import(node)]
    exec(compile(ast.Module(imports, []), "imports", "exec"), {})
    torch.manual_seed(0)
    numpy.random.seed(0)  # samplers of some libraries draw from it
    random.seed(0)
    started = time.perf_counter()
    names = recipe.run(name, **given)
    seconds = time.perf_counter() - started
    modcache.flush()
    left = {
        name: value
        for name, value in names.items()
        if not name.startswith("_") and value is not given.get(name) and name != "modcache"
    }
    counts = modcache.stats()
    left = {name: without_padding(value, left.get("mask")) for name, value in left.items()}
    found = {"seconds": seconds, "runs": counts["misses"], "left": list(numbers_in(left))}
    answer.write_bytes(pickle.dumps(found))


def without_padding(value: Any, mask: Any) -> Any:
    """The values at true positions: a module gives its padding other values than a hit does."""
    are_tensors = isinstance(value, torch.Tensor) and isinstance(mask, torch.Tensor)
    return value[mask != 0] if are_tensors and value.shape[:2] == mask.shape else value


def is_import(node: ast.stmt) -> bool:
    return isinstance(node, (ast.Import, ast.ImportFrom))


def numbers_in(value: Any) -> Any:
    """Every tensor, array and number in a value, as tensors, in order."""
    if isinstance(value, torch.Tensor) or hasattr(value, "__array_interface__"):
        yield torch.as_tensor(value).detach().to("cpu", torch.float64)
    elif isinstance(value, (int, float)):
        yield torch.tensor(float(value), dtype=torch.float64)
    elif isinstance(value, torch.nn.Module):
        yield from numbers_in(value.state_dict())
    elif isinstance(value, dict):
        for item in value.values():
            yield from numbers_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from numbers_in(item)


def difference(before: list[torch.Tensor], now: list[torch.Tensor]) -> float:
    if not before or [each.shape for each in before] != [each.shape for each in now]:
        return float("inf")
    shares = [
        ((a - b).abs().max() / a.abs().max().clamp(min=1e-6)).item()
        for a, b in zip(before, now, strict=True)
        if a.numel()
    ]
    return max(shares)


if __name__ == "__main__":
    sys.exit(main())
