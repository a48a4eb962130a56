# SPDX-License-Identifier: Apache-2.0
"""A program that AOTInductor compiled. Compiling takes long: one package serves all tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import modcache
import pytest
import torch
from padded_rows import LENGTHS, Program, States, assert_padded, padded_batch, seen, sentences
from padded_rows import exported as exported_padded
from recorded_models import IDS, Classifier, Scripted, X, exported
from torch import nn


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return Classifier().requires_grad_(False)


@pytest.fixture(scope="module")
def package(model: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("package") / "program.pt2"
    program = exported(model, X, IDS)
    return str(torch._inductor.aoti_compile_and_package(program, package_path=str(path)))


@pytest.fixture
def run(package: str) -> Any:
    return torch._inductor.aoti_load_package(package)


def check(run: Any, model: Any, x: torch.Tensor, ids: torch.Tensor) -> None:
    assert torch.allclose(run(x, ids), model.head(model.encoder(x)), atol=1e-5)


def test_rows(run: Any, model: Any, counted: Any) -> None:
    check(run, model, X, IDS)
    assert counted() == {"misses": 4, "stored": 4}
    check(run, model, X, IDS)
    assert counted() == {"hits_memory": 4}
    more = torch.cat([X, X + 1])
    check(run, model, more, torch.arange(8))
    assert counted() == {"hits_memory": 4, "misses": 4, "stored": 4}
    for rows in (0, 1):
        check(run, model, X[:rows], IDS[:rows])
    assert counted() == {"hits_memory": 1}


def test_a_hit_is_not_computed(run: Any, model: Any, counted: Any) -> None:
    modcache.configure(match="none")
    stored = torch.full((4, 16), 3.0)
    run(X, IDS)
    with modcache.mode("refresh"):
        run(X * 0 + 100, IDS)  # the same keys and shapes
    counted()
    found = run(X, IDS)
    assert counted() == {"hits_memory": 4}
    assert torch.allclose(found, model.head(model.encoder(X * 0 + 100)), atol=1e-4)
    assert not torch.allclose(found, model.head(stored))


def test_it_shares_with_the_scripted_and_the_exported_form(
    run: Any, model: Any, counted: Any, reopen: Any
) -> None:
    scripted = torch.jit.script(Scripted(model.encoder, model.head))
    scripted(X, IDS)
    reopen()
    counted()
    check(run, model, X, IDS)
    exported(model, X, IDS).module()(X, IDS)
    assert counted() == {"hits_disk": 8}


def test_modes(run: Any, model: Any, counted: Any, cache_dir: Path) -> None:
    modcache.set_mode("off")
    check(run, model, X, IDS)
    assert counted() == {"bypassed_off": 4}
    assert not cache_dir.exists()
    for mode, growth in {
        "read": {"misses": 4}, "on": {"misses": 4, "stored": 4},
        "refresh": {"misses": 4, "stored": 4}, "verify": {},
    }.items():  # fmt: skip
        modcache.set_mode(mode)
        check(run, model, X, IDS)
        assert counted() == growth, mode


def test_constants_that_are_updated_give_no_old_output(run: Any, model: Any, counted: Any) -> None:
    check(run, model, X, IDS)
    counted()
    weight = model.encoder.get_submodule("0").weight
    run.load_constants({"encoder.0.weight": weight * 2}, check_full_update=False)
    found = run(X, IDS)
    assert counted() == {"misses": 4, "stored": 4}
    linear = nn.functional.linear(X, weight * 2, model.encoder.get_submodule("0").bias)
    assert torch.allclose(found, model.head(torch.relu(linear)), atol=1e-5)
    assert torch.allclose(run(X, IDS), found)
    assert counted() == {"hits_memory": 4}


def test_bad_ids(run: Any) -> None:
    with pytest.raises(RuntimeError):
        run(X, IDS[:3])


class Total(nn.Module):
    """Has no weights, and returns one number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum()


class NamedTotal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = Total()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        named = modcache.lookup_or_run(self.encoder, x, "k", scope="total@1")
        return named + modcache.lookup_or_run(self.encoder, x, "k")


def test_a_named_scope_no_weights_and_no_sizes(tmp_path: Path, counted: Any) -> None:
    program = torch.export.export(NamedTotal(), (X,))
    path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "a.pt2"))
    run = torch._inductor.aoti_load_package(path)
    assert torch.allclose(run(X), X.sum() * 2)
    assert counted() == {"misses": 2, "stored": 2}
    assert torch.allclose(run(X), X.sum() * 2)
    assert counted() == {"hits_memory": 2}
    # Nothing is run: the stored number is returned for another input where that was asked for.
    modcache.configure(match="none")
    assert torch.allclose(run(X + 1), X.sum() * 2)
    assert counted() == {"hits_memory": 2}
    modcache.configure(match="input")
    assert torch.allclose(run(X + 1), (X + 1).sum() * 2)
    assert counted() == {"key_conflicts": 2, "misses": 2, "stored": 2}
    assert modcache.contains("total@1", "k")


def test_rows_of_their_own_length(tmp_path: Path, counted: Any) -> None:
    encoder = States().requires_grad_(False).eval()
    batch = padded_batch(sentences())
    seen(encoder, batch, scope="aoti@states")
    program = exported_padded(Program(encoder, scope="aoti@states"), batch)
    path = str(tmp_path / "padded.pt2")
    package = str(torch._inductor.aoti_compile_and_package(program, package_path=path))
    run: Any = torch._inductor.aoti_load_package(package)
    counted()
    unseen = torch.arange(len(LENGTHS)) + 1000
    for more, expected in ((2, {"misses": 6, "stored": 6}), (0, {"hits_memory": 6})):
        tokens, mask = (nn.functional.pad(part, (0, more)) for part in batch)
        assert_padded(run(tokens, mask, unseen), encoder(tokens, mask), mask, 4.0)
        assert counted() == expected
