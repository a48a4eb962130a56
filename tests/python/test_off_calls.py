# SPDX-License-Identifier: Apache-2.0
"""While the mode is off, a call of the operator is a call of the module's method."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import modcache
import pytest
import torch
from torch import nn

X = torch.linspace(-1, 1, 8).reshape(2, 4)
Script = Any


class Methods(nn.Module):
    """Forms of arguments and results that a method may have."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight

    @torch.jit.export
    def with_default(self, x: torch.Tensor, factor: int = 3) -> torch.Tensor:
        return x * factor

    @torch.jit.export
    def of_two(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    @torch.jit.export
    def of_optional(self, x: torch.Tensor | None) -> torch.Tensor:
        return self.weight if x is None else x

    @torch.jit.export
    def in_parts(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return x, 2

    @torch.jit.export
    def refusing(self, x: torch.Tensor) -> torch.Tensor:
        if x.numel() > 0:
            raise ValueError("too much")
        return x


@pytest.fixture(autouse=True)
def off() -> Iterator[None]:
    with modcache.mode("off"):
        yield


@pytest.fixture(scope="module")
def methods() -> Script:
    return torch.jit.script(Methods())


def call(module: Script, given: Any, method: str = "forward") -> torch.Tensor:
    result: torch.Tensor = torch.ops.cache.lookup_or_run(module, given, "k", method=method)
    return result


@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("forward", X),
        ("with_default", X),
        ("with_default", (X, 5)),
        ("of_two", (X, X + 1)),
        ("of_optional", X),
        ("of_optional", None),
    ],
)
def test_the_result_is_the_method_s(methods: Script, method: str, given: Any) -> None:
    arguments = given if isinstance(given, tuple) else (given,)
    expected = getattr(methods, method)(*arguments)
    # Often enough for the graph executor to have optimised it.
    for _ in range(4):
        assert torch.equal(call(methods, given, method), expected)
    assert modcache.stats()["bypassed_off"] == 4


def test_a_result_that_is_no_tensor_is_for_the_operator_for_any(methods: Script) -> None:
    value = torch.ops.cache.lookup_or_run_any(methods, X, "k", method="in_parts")
    assert torch.equal(value[0], X)
    assert value[1] == 2
    with pytest.raises(RuntimeError, match=r"in_parts.*lookup_or_run_any"):
        call(methods, X, "in_parts")


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (5, "type 'int'"),
        ([X], r"type 'List\[Tensor\]'"),
        ("text", "type 'str'"),
        (None, "type 'NoneType'"),
        ((X, X), "at most 2 argument.*received 3"),
    ],
)
def test_what_the_method_does_not_take_is_refused_by_its_schema(
    methods: Script, given: Any, found: str
) -> None:
    with pytest.raises(RuntimeError, match=found):
        call(methods, given)


def test_the_method_s_own_error_passes_and_later_calls_are_right(methods: Script) -> None:
    for _ in range(3):
        with pytest.raises(torch.jit.Error, match="too much"):
            call(methods, X, "refusing")
        assert torch.equal(call(methods, X), X)


def test_torchscript_s_own_hooks_run() -> None:
    class Doubled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    def double(self: Any, given: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        return (given[0] * 2,)

    module = Doubled()
    module.register_forward_pre_hook(double)
    assert torch.equal(call(torch.jit.script(module), X), X * 2)


class Between(nn.Module):
    """Other values of the caller wait while the operator is at work, in calls within calls."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.ops.cache.lookup_or_run(self.inner, x * 3, "in")
        return torch.stack([x + 1, y, x + 2]).sum(0)


def test_what_a_scripted_caller_has_at_hand_stays_as_it_is() -> None:
    caller = torch.jit.script(Between(Between(Methods())))
    of_inner = (X * 3 + 1) + X * 9 + (X * 3 + 2)
    for _ in range(4):
        assert torch.allclose(caller(X), (X + 1) + of_inner + (X + 2))
    assert modcache.stats()["bypassed_off"] == 8
