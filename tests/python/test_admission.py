# SPDX-License-Identifier: Apache-2.0
"""``admission``: which results are stored."""

from __future__ import annotations

import random
from collections.abc import Callable

import modcache
import pytest
import torch
from models import Encoder, frozen, in_form
from recorded_models import exported
from test_threads import together
from torch import nn

X = torch.linspace(-1, 1, 8).reshape(2, 4)
Growth = Callable[[], dict[str, int]]


class Doubles(nn.Module):
    """Plain code, which torch.jit.script takes as well."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Asks(nn.Module):
    """The operator inside a scripted model."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor, key: str) -> torch.Tensor:
        return torch.ops.cache.lookup_or_run(self.inner, x, key)


def asking(face: str) -> Callable[[torch.Tensor, str], torch.Tensor]:
    """A call with one key, of a module that doubles."""
    if face in ("eager", "scripted"):
        module = in_form(Doubles(), face)
        return lambda x, key: modcache.lookup_or_run(module, x, key)
    model = torch.jit.script(Asks(Doubles()).eval())
    if face == "lowered":
        model = modcache.freeze(model)
    return model


@pytest.fixture(params=["eager", "scripted", "operator", "lowered"])
def face(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def second() -> None:
    modcache.configure(admission="second")


def test_a_result_is_stored_at_the_second_run_of_its_key(
    face: str, second: None, counted: Growth
) -> None:
    ask = asking(face)
    for growth in (
        {"misses": 1},
        {"misses": 1, "stored": 1},
        {"hits_memory": 1},
        {"hits_memory": 1},
    ):
        assert torch.equal(ask(X, "k"), X * 2)
        assert counted() == growth


@pytest.mark.parametrize("form", ["eager", "scripted"])
def test_each_row_of_a_batch_is_a_key(form: str, second: None, counted: Growth) -> None:
    module = in_form(Doubles(), form)
    x = torch.arange(12.0).reshape(4, 3)

    def ask(rows: list[int]) -> dict[str, int]:
        ids = torch.tensor(rows)
        assert torch.equal(modcache.lookup_or_run(module, x[ids], ids), x[ids] * 2)
        return counted()

    assert ask([0, 1]) == {"misses": 2}
    assert ask([1, 2]) == {"misses": 2, "stored": 1}
    assert ask([1, 2]) == {"hits_memory": 1, "misses": 1, "stored": 1}
    assert ask([0, 1, 2, 3]) == {"hits_memory": 2, "misses": 2, "stored": 1}


def test_keys_that_never_repeat_miss_and_store_nothing(
    face: str, second: None, counted: Growth
) -> None:
    ask = asking(face)
    for number in range(1000):
        assert torch.equal(ask(X, f"key/{number}"), X * 2)
    assert counted() == {"misses": 1000}
    assert modcache.stats()["entries_disk"] == 0
    assert modcache.stats()["entries_memory"] == 0


def test_what_is_stored_already_is_found_at_the_first_lookup(face: str, counted: Growth) -> None:
    ask = asking(face)
    ask(X, "k")
    modcache.configure(admission="second")
    counted()
    assert torch.equal(ask(X, "k"), X * 2)
    assert counted() == {"hits_memory": 1}


def test_setting_admission_forgets_the_keys_of_before(second: None, counted: Growth) -> None:
    modcache.lookup_or_run(Doubles(), X, "k")
    modcache.configure(admission="second")
    counted()
    modcache.lookup_or_run(Doubles(), X, "k")
    assert counted() == {"misses": 1}
    modcache.configure(admission="all")
    modcache.lookup_or_run(Doubles(), X, "k")
    assert counted() == {"misses": 1, "stored": 1}


def test_an_exported_program_obeys(second: None, counted: Growth) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = frozen(Encoder())

        def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            return modcache.lookup_or_run(self.encoder, x, ids)

    model = Model()
    ids = torch.tensor([5, 6])
    run = exported(model, X, ids).module()
    want = model.encoder(X)
    for growth in ({"misses": 2}, {"misses": 2, "stored": 2}, {"hits_memory": 2}):
        counted()
        assert torch.allclose(run(X, ids), want, atol=1e-6)
        assert counted() == growth


def test_explain_says_why_an_entry_may_be_missing(second: None) -> None:
    module = Doubles()
    for _ in range(2):
        modcache.lookup_or_run(module, X, "k")
    found = modcache.explain(module, X, "once")
    assert found.status == "miss"
    assert "admission='second'" in found.reason


# ----- what is stored all the same


def test_fill_stores_at_once(second: None, counted: Growth) -> None:
    module = Doubles()
    batches = [(torch.ones(4, 2), torch.arange(start, start + 4)) for start in (0, 4)]
    summary = modcache.fill(module, batches, key=1, progress=False)
    assert (summary.runs, summary.stored) == (8, 8)
    counted()
    modcache.lookup_or_run(module, *batches[0])
    assert counted() == {"hits_memory": 4}
    modcache.lookup_or_run(module, torch.ones(1, 2), torch.tensor([99]))
    assert counted() == {"misses": 1}, "the calls after it are as before"


def test_datasets_and_store_store_at_once(second: None, counted: Growth) -> None:
    dataset = modcache.CachedDataset([torch.ones(2)] * 3, scope="ones@1")
    assert torch.equal(dataset[0], torch.ones(2))
    assert counted() == {"misses": 1, "stored": 1}
    torch.ops.cache.store("s", "k", X)
    assert counted() == {"stored": 1}
    assert torch.ops.cache.lookup("s", "k")[0]


def test_refresh_stores_at_once(second: None, counted: Growth) -> None:
    with modcache.mode("refresh"):
        modcache.lookup_or_run(Doubles(), X, "k")
    assert counted() == {"misses": 1, "stored": 1}


def test_a_result_for_another_input_replaces_the_entry_at_once(counted: Growth) -> None:
    modcache.lookup_or_run(Doubles(), X, "k")
    modcache.configure(admission="second")
    counted()
    assert torch.equal(modcache.lookup_or_run(Doubles(), X + 1, "k"), X * 2 + 2)
    assert counted() == {"key_conflicts": 1, "misses": 1, "stored": 1}


def test_strict_accepts_a_result_that_is_not_stored_yet(
    face: str, second: None, counted: Growth
) -> None:
    modcache.configure(strict=True)
    ask = asking(face)
    for growth in ({"misses": 1}, {"misses": 1, "stored": 1}, {"hits_memory": 1}):
        assert torch.equal(ask(X, "k"), X * 2)
        assert counted() == growth


def test_strict_refuses_at_the_first_call(second: None) -> None:
    modcache.configure(strict=True)
    with pytest.raises(RuntimeError, match="strict=true"):
        modcache.lookup_or_run(nn.Dropout(), X, "k")


def test_where_nothing_may_be_stored_misses_are_misses(second: None, counted: Growth) -> None:
    with modcache.mode("read"):
        for _ in range(3):
            modcache.lookup_or_run(Doubles(), X, "k")
    assert counted() == {"misses": 3}


# ----- threads


class Slow(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.eye(100)
        for _ in range(100):
            y = (y @ y).tanh()
        return x * 2 + y.sum() * 0


def test_a_burst_of_one_new_key_runs_once_and_is_stored(second: None, counted: Growth) -> None:
    module = torch.jit.script(Slow())
    counted()
    for result in together(50, lambda _: modcache.lookup_or_run(module, X, "k")):
        assert torch.equal(result, X * 2)
    growth = counted()
    # Should the first one end before the second has come, that one runs, too.
    assert growth["stored"] == 1
    assert growth["misses"] <= 2
    assert sum(growth.get(f"hits_{tier}", 0) for tier in ("memory", "disk")) >= 48


def test_no_traffic_makes_a_value_wrong() -> None:
    modcache.configure(admission="second", memory="20kB")
    module = torch.jit.script(Doubles())

    def work(index: int) -> bool:
        draw = random.Random(index)
        for step in range(3000):
            number = draw.randrange(50) if draw.random() < 0.3 else index * 10_000 + step
            x = torch.full((2, 4), float(number))
            if not torch.equal(modcache.lookup_or_run(module, x, str(number)), x * 2):
                return False
        return True

    assert together(4, work) == [True] * 4
    stats = modcache.stats()
    calls = ("hits_memory", "hits_disk", "misses")
    assert sum(stats[name] for name in calls) == 12_000
