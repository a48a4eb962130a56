# SPDX-License-Identifier: Apache-2.0
"""Models that earlier versions saved load, and hit in directories that those versions filled."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import modcache
import pytest
import torch

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
# Of each the script that made it is tests/golden/make_model.py.
VERSIONS = sorted(path.name for path in GOLDEN.glob("model-*"))
ENTRIES = 15


@pytest.fixture(params=VERSIONS)
def model(request: Any, cache_dir: Path) -> Any:
    """The golden model, and today's cache on a copy of its directory."""
    shutil.copytree(GOLDEN / request.param / "cache", cache_dir)
    return torch.jit.load(str(GOLDEN / request.param / "model.pt"))


def test_there_is_a_golden_model() -> None:
    assert "model-0.1.0" in VERSIONS


@pytest.mark.parametrize("mode", ["on", "read"])
def test_every_call_hits_and_gives_the_bits_of_then(mode: str, model: Any, counted: Any) -> None:
    modcache.set_mode(mode)
    results = model.calls()
    assert counted() == {"hits_disk": ENTRIES}
    assert results.keys() == model.expected.keys()
    for name, expected in model.expected.items():
        assert results[name].dtype == expected.dtype, name
        assert torch.equal(results[name], expected), name


def test_what_0_2_0_froze_of_it_hits_too(cache_dir: Path, counted: Any) -> None:
    shutil.copytree(GOLDEN / "model-0.1.0" / "cache", cache_dir)
    expected = torch.jit.load(str(GOLDEN / "model-0.1.0" / "model.pt")).expected
    frozen = torch.jit.load(str(GOLDEN / "frozen-0.2.0.pt"))
    results = frozen.calls()
    assert counted() == {"hits_disk": ENTRIES}
    for name, value in expected.items():
        assert torch.equal(results[name], value), name
    frozen(expected["one_key"][:, :4].contiguous(), "new")
    assert counted() == {"misses": 1, "stored": 1}


def test_what_it_stores_today_joins_what_is_there(model: Any, counted: Any, reopen: Any) -> None:
    assert model(model.x, "batch").shape == (3, 2)
    assert counted() == {"hits_disk": 1}
    model(model.x, "new")
    assert counted() == {"misses": 1, "stored": 1}
    reopen()
    model(model.x, "new")
    model.calls()
    assert counted() == {"hits_disk": ENTRIES + 1}


def test_what_it_hits_is_what_its_encoder_computes_today(model: Any, counted: Any) -> None:
    """The golden values are no accident of an old mistake."""
    modcache.set_mode("verify")
    results = model.calls()
    assert counted().get("verify_differences", 0) == 0
    for name, expected in model.expected.items():
        torch.testing.assert_close(results[name], expected)
