# SPDX-License-Identifier: Apache-2.0
"""modcache.prefetch: which keys are there, and reading ahead into memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import modcache
import pytest
import torch
from memory_tier import wait_until_held

Growth = Callable[[], dict[str, int]]
Reopen = Callable[[], None]


class Encoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)

    def pooled(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


@pytest.fixture(params=["eager", "scripted"])
def encoder(request: pytest.FixtureRequest) -> torch.nn.Module:
    module = Encoder().requires_grad_(False).eval()
    return torch.jit.script(module) if request.param == "scripted" else module


def test_rows_are_found_by_ids_and_texts(
    encoder: torch.nn.Module, reopen: Reopen, counted: Growth
) -> None:
    x, ids = torch.randn(4, 3), torch.arange(4)
    rows = modcache.lookup_or_run(encoder, x, ids)
    reopen()
    counted()
    assert modcache.prefetch(encoder, ids) == 4
    assert modcache.prefetch(encoder, [0, 7, 2]) == 2
    assert modcache.prefetch(encoder, ["0", "7", "0"]) == 1
    assert modcache.prefetch(encoder, "3") == 1
    wait_until_held(4)
    assert counted() == {}
    assert torch.equal(modcache.lookup_or_run(encoder, x, ids), rows)
    assert counted() == {"hits_memory": 4}


def test_whole_values_are_found(encoder: torch.nn.Module, reopen: Reopen, counted: Growth) -> None:
    x = torch.randn(5, 3)
    value = modcache.lookup_or_run(encoder, x, "all", scope="encoder@1")
    torch.ops.cache.store("encoder@1", "stored", torch.ones(2))
    reopen()
    counted()
    assert modcache.prefetch("encoder@1", ["all", "stored", "other"]) == 2
    wait_until_held(2)
    assert torch.equal(modcache.lookup_or_run(encoder, x, "all", scope="encoder@1"), value)
    assert torch.ops.cache.lookup("encoder@1", "stored")[0]
    assert counted() == {"hits_memory": 2}


def test_structured_rows_come_back_as_they_were(reopen: Reopen, counted: Growth) -> None:
    class Two(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, Any]:
            return {"sum": x.sum(1), "half": (x / 2).to(torch.bfloat16), "name": "two"}

    x, ids = torch.randn(4, 3), torch.arange(4)
    first = modcache.lookup_or_run(Two(), x, ids, scope="two")
    reopen()
    modcache.prefetch("two", ids)
    wait_until_held(4)
    counted()
    again = modcache.lookup_or_run(Two(), x, ids, scope="two")
    assert counted() == {"hits_memory": 4}
    assert again["name"] == "two"
    for name in ("sum", "half"):
        assert torch.equal(first[name], again[name])


@pytest.mark.parametrize("options", [{"codec": "zstd"}, {"dtype": "float16"}, {"io": "pread"}])
def test_settings_of_the_directory(
    options: dict[str, str], encoder: torch.nn.Module, reopen: Reopen, counted: Growth
) -> None:
    modcache.configure(**options)
    x, ids = torch.randn(4, 3), torch.arange(4)
    modcache.lookup_or_run(encoder, x, ids)
    reopen()
    from_disk = modcache.lookup_or_run(encoder, x, ids)
    modcache.prefetch(encoder, ids)
    wait_until_held(4)
    counted()
    assert torch.equal(modcache.lookup_or_run(encoder, x, ids), from_disk)
    assert counted() == {"hits_memory": 4}


def test_other_methods_autocast_and_namespaces_are_other_entries(
    encoder: torch.nn.Module,
) -> None:
    x, ids = torch.randn(4, 3), torch.arange(4)
    modcache.lookup_or_run(encoder, x, ids, scope="s", method="forward")
    assert modcache.prefetch("s", ids) == 4
    assert modcache.prefetch("s", ids, method="pooled") == 0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert modcache.prefetch("s", ids) == 0
    modcache.configure(namespace="other")
    assert modcache.prefetch("s", ids) == 0


def test_a_module_whose_weights_changed_has_nothing_to_bring(encoder: torch.nn.Module) -> None:
    ids = torch.arange(4)
    modcache.lookup_or_run(encoder, torch.randn(4, 3), ids)
    assert modcache.prefetch(encoder, ids) == 4
    with torch.no_grad():
        next(encoder.parameters()).add_(1)
    assert modcache.prefetch(encoder, ids) == 0


def test_an_operator_in_a_scripted_function() -> None:
    @torch.jit.script
    def count(keys: list[str]) -> int:
        return torch.ops.cache.prefetch("s", keys)

    torch.ops.cache.store("s", "a", torch.ones(1))
    assert count(["a", "b"]) == 1
    assert count([]) == 0


@pytest.mark.parametrize(
    ("mode", "found"), [("off", 0), ("refresh", 0), ("read", 1), ("on", 1), ("verify", 1)]
)
def test_modes(mode: str, found: int) -> None:
    torch.ops.cache.store("s", "a", torch.ones(1))
    modcache.set_mode(mode)
    assert modcache.prefetch("s", ["a"]) == found
    modcache.set_mode("on")
    with modcache.mode(mode):
        assert modcache.prefetch("s", ["a"]) == found


def test_a_value_replaced_while_it_was_in_memory_is_not_returned(reopen: Reopen) -> None:
    torch.ops.cache.store("s", "a", torch.zeros(2))
    reopen()
    modcache.prefetch("s", ["a"])
    torch.ops.cache.store("s", "a", torch.ones(2))
    modcache.prefetch("s", ["a"])
    assert torch.ops.cache.lookup("s", "a")[1].tolist() == [1, 1]
    modcache.clear("s")
    assert modcache.prefetch("s", ["a"]) == 0


@pytest.mark.parametrize(
    ("scope", "keys", "error", "says"),
    [
        ("", ["a"], ValueError, "scope is an empty string"),
        ("s", [""], ValueError, "key is an empty string"),
        ("s", [1, "a"], TypeError, "either all str or all int"),
        ("s", None, TypeError, "but got NoneType"),
        (3, ["a"], TypeError, "scope must be a str"),
        ("s", torch.ones(2), ValueError, "ids must be an int64 tensor"),
    ],
)
def test_mistakes(scope: Any, keys: Any, error: type[Exception], says: str) -> None:
    with pytest.raises((error, RuntimeError), match=says):
        modcache.prefetch(scope, keys)


class Masked(torch.nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x * mask[..., None]


@pytest.mark.parametrize("is_left", [False, True])
def test_rows_of_their_own_length_are_found(is_left: bool, reopen: Reopen) -> None:
    module = Masked()
    mask = torch.tensor([[1.0, 1, 0, 0], [1, 1, 1, 0]])
    mask = mask.flip(1) if is_left else mask
    modcache.lookup_or_run(module, (torch.randn(2, 4, 3), mask), [1, 2], mask=1)
    reopen()
    assert modcache.prefetch(module, [1, 2, 3]) == 2
