# SPDX-License-Identifier: Apache-2.0
"""What the tests of lazy modules load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import modcache
import torch
from models import Encoder, EncoderOfTwoMethods, frozen
from torch import nn

X = torch.linspace(-1, 1, 8).reshape(2, 4)
SCOPE = "encoder@1"


class Counting(nn.Module):
    """Each forward makes another module of it; what ``counted`` reads is not what it was."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("runs", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.runs += 1
        return x + self.runs

    @torch.jit.export
    def counted(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.runs


def of_two_methods(path: Path) -> None:
    torch.jit.script(frozen(EncoderOfTwoMethods())).save(str(path))


def encoder() -> nn.Module:
    """The same one each time; its parameters require grad."""
    torch.manual_seed(0)
    return Encoder().eval()


def encoder_file(folder: Path) -> Path:
    torch.jit.script(encoder()).save(str(folder / "encoder.pt"))
    return folder / "encoder.pt"


KINDS = ["factory", "path", "path with scope"]


def lazy_encoder(kind: str, path: Path) -> modcache.Lazy:
    if kind == "factory":
        return modcache.lazy(encoder, scope=SCOPE)
    return modcache.lazy(path, scope=SCOPE if "scope" in kind else "")


def expected(x: torch.Tensor = X) -> torch.Tensor:
    return frozen(encoder())(x)


def saved(path: Path, module: nn.Module, seed: int = 0) -> Any:
    """Saves the module in a file of its own, with weights by seed. Returns it as it runs."""
    torch.manual_seed(seed)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    beside = path.with_suffix(".new")
    scripted = torch.jit.script(frozen(module))
    scripted.save(str(beside))
    beside.rename(path)
    return scripted


def by_file(path: Path, x: Any, key: Any, **more: Any) -> torch.Tensor:
    return torch.ops.cache.lookup_or_run_file(str(path), x, key, **more)  # type: ignore[no-any-return]


def ask_by_file(path: str, *methods: str) -> dict[str, int]:
    """For a process of its own: one call of each method, and its counters."""
    for method in methods:
        by_file(Path(path), X, "k", method=method)
    modcache.flush()
    return modcache.stats()


def ask_lazy(path: str, *methods: str) -> bool:
    """For a process of its own: one call of each method, and whether that loaded the module."""
    lazy = modcache.lazy(path)
    for method in methods:
        modcache.lookup_or_run(lazy, X, "k", method=method)
    modcache.flush()
    return lazy.loaded


def rows_by_file(path: str, keys: list[str], scope: str) -> dict[str, int]:
    """For a process of its own: runs rows of ones, and tells its counters."""
    by_file(Path(path), torch.ones(len(keys), 4), keys, scope=scope)
    modcache.flush()
    return modcache.stats()
