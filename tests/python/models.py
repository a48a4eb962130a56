# SPDX-License-Identifier: Apache-2.0
"""The modules that tests cache, and the forms a module comes in."""

# No `from __future__ import annotations`: TorchScript reads the annotations of attributes.

import io
from collections.abc import Callable
from typing import Any, Dict, List  # noqa: UP035  (TorchScript reads these)

import modcache
import torch
from torch import nn

FACES = ("eager", "scripted", "loaded", "traced")
# Tracing bakes plain attributes in as constants.
FACES_WITH_ATTRIBUTES = ("eager", "scripted", "loaded")


class Encoder(nn.Module):
    """Uses every kind of attribute that code can read."""

    table: Dict[str, float]  # noqa: UP006
    offsets: List[float]  # noqa: UP006

    def __init__(self, size: int = 4) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)
        self.scale = 2.0
        self.table = {"gain": 1.0, "unused": 0.0}
        self.offsets = [0.5, 0.25]
        self.shift = torch.full((size,), 0.125)
        self.register_buffer("mean", torch.full((size,), 3.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.linear(x) + self.shift) * self.scale
        return y * self.table["gain"] + self.offsets[0] + self.mean


class EncoderOfTwoMethods(Encoder):
    """An Encoder with another method than forward; torch.jit.trace takes no such module."""

    @torch.jit.export
    def negated(self, x: torch.Tensor) -> torch.Tensor:
        return -self.forward(x)


class TwoInputs(nn.Module):
    """A method of several arguments, tensors and others."""

    def forward(self, x: torch.Tensor, y: torch.Tensor, times: int = 1) -> torch.Tensor:
        return (x - y) * times


class Outer(nn.Module):
    """A model that caches its encoder: one source line for eager and scripted."""

    def __init__(self, encoder: nn.Module, size: int = 4) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(size, 2)

    def forward(self, x: torch.Tensor, key: str) -> torch.Tensor:
        return self.head(modcache.lookup_or_run(self.encoder, x, key))


def frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False).eval()


def set_requires_grad(module: Any, requires_grad: bool) -> None:
    """As Module.requires_grad_, which ScriptModules lack."""
    for parameter in module.parameters():
        parameter.requires_grad_(requires_grad)


def in_form(module: nn.Module, face: str, example: Any = None) -> Any:
    """``module`` as it is, scripted, traced, or scripted, saved and loaded."""
    if face == "eager":
        return module
    if face == "traced":
        return torch.jit.trace(module, torch.randn(2, 4) if example is None else example)
    scripted = torch.jit.script(module)
    return scripted if face == "scripted" else reloaded(scripted)


def reloaded(scripted: Any) -> Any:
    buffer = io.BytesIO()
    torch.jit.save(scripted, buffer)
    buffer.seek(0)
    return torch.jit.load(buffer)


def scale_all_data(module: Any) -> None:
    for parameter in module.parameters():
        parameter.data.mul_(0.9)


class CountsCalls(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x + self.calls


class CountsInBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x + self.calls


class Doubles(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Scales(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.register_buffer("factor", torch.tensor(factor))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


class UpTo(nn.Module):
    """Rows as long as the first number of the batch says."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, : int(x[0, 0])]


class Python(nn.Module):
    """Gives what a function makes of its input; the tests name it through a scope."""

    def __init__(self, give: Callable[..., Any]) -> None:
        super().__init__()
        self.give = give

    def forward(self, *arguments: Any) -> Any:
        return self.give(*arguments)
