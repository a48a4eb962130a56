# SPDX-License-Identifier: Apache-2.0
"""modcache.place on every machine. test_accelerator.py is for those with an accelerator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import modcache
import pytest
import torch
from processes import ProcessRunner

Growth = Callable[[], dict[str, int]]

without_accelerator = pytest.mark.skipif(
    torch.accelerator.is_available(), reason="says what a machine without an accelerator does"
)


@pytest.fixture
def encoder() -> torch.nn.Module:
    return torch.nn.Linear(3, 2).requires_grad_(False).eval()


@pytest.mark.parametrize("place", ["host", "cpu", "pinned", "accelerator", torch.device("cpu")])
@pytest.mark.parametrize("names", ["scope", "module"])
def test_the_same_script_runs_wherever_it_says_its_values_lie(
    place: str | torch.device, names: str, encoder: torch.nn.Module, counted: Growth
) -> None:
    modcache.place("encoder@1" if names == "scope" else encoder, place)
    scope = "encoder@1" if names == "scope" else ""
    x, ids = torch.randn(4, 3), torch.arange(4)
    rows = modcache.lookup_or_run(encoder, x, ids, scope=scope)
    whole = modcache.lookup_or_run(encoder, x, "all", scope=scope)
    counted()
    for _ in range(2):
        hit = modcache.lookup_or_run(encoder, x, ids, scope=scope)
        assert hit.device.type == "cpu"
        assert torch.equal(hit, rows)
        hit.zero_()
        hit = modcache.lookup_or_run(encoder, x, "all", scope=scope)
        assert torch.equal(hit, whole)
        hit.zero_()
    assert counted() == {"hits_memory": 10}


@without_accelerator
def test_without_an_accelerator_the_host_stands_in() -> None:
    assert modcache.place("s", "pinned") == "host"
    assert modcache.place("s", "accelerator") == "host"
    assert modcache.place("s", "host") == "host"


def places_without_an_accelerator() -> None:
    for _ in range(3):
        modcache.place("s", "pinned")
        modcache.place("t", "accelerator")


@without_accelerator
def test_without_an_accelerator_one_message_says_so(processes: ProcessRunner) -> None:
    outcome = processes.run(places_without_an_accelerator)
    (line,) = outcome.log_lines
    assert "no accelerator, so these values stay in ordinary memory" in line


@without_accelerator
def test_a_device_that_torch_only_pretends_to_have_is_none() -> None:
    """As after torch.compile, where torch was built with CUDA."""
    torch._C._ensureCUDADeviceGuardSet()
    with pytest.raises(ValueError, match="has no accelerator"):
        modcache.place("s", "cuda:0")


@without_accelerator
@pytest.mark.parametrize("place", ["cuda", "cuda:0", torch.device("cuda", 1), "gpu", "", "meta"])
def test_a_device_that_is_not_there_is_an_error_that_names_what_is_valid(
    place: str | torch.device,
) -> None:
    with pytest.raises(ValueError, match="must be one of") as raised:
        modcache.place("s", place)
    for valid in ('"host"', '"pinned"', '"accelerator"', "has no accelerator", "needs one"):
        assert valid in str(raised.value)


@pytest.mark.parametrize(
    ("scope", "place", "error", "says"),
    [
        ("", "host", ValueError, "scope is an empty string"),
        (3, "host", TypeError, "scope must be a str"),
        ("s", None, TypeError, "place must be a str"),
    ],
)
def test_mistakes(scope: Any, place: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        modcache.place(scope, place)
