# SPDX-License-Identifier: Apache-2.0
"""``verify_share``: a share of the hits is computed anew and compared, and a scope whose values are
wrong is switched off.

Wrong values with right checksums come from ``cache::store``, which keeps under a scope and a key
what it is given.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import modcache
import pytest
import torch
from models import frozen, in_form
from recorded_models import exported
from torch import nn

X = torch.linspace(-1, 1, 8).reshape(2, 4)
RIGHT, WRONG = X * 2, X * 2 + 1
SCOPE = "doubles@1"
Growth = Callable[[], dict[str, int]]


class Doubles(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Triples(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3


class Asks(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor, key: str) -> torch.Tensor:
        return torch.ops.cache.lookup_or_run(self.inner, x, key, scope="doubles@1")


@pytest.fixture(params=["eager", "scripted", "operator", "lowered"])
def ask(request: pytest.FixtureRequest) -> Any:
    """A call with one key."""
    face = request.param
    if face in ("eager", "scripted"):
        module = in_form(Doubles(), face)
        return lambda x, key: modcache.lookup_or_run(module, x, key, scope=SCOPE)
    model = torch.jit.script(Asks(Doubles()).eval())
    return modcache.freeze(model) if face == "lowered" else model


def store(key: str, value: torch.Tensor) -> None:
    torch.ops.cache.store(SCOPE, key, value)


def test_by_default_what_is_stored_is_what_hits_return(ask: Any, counted: Growth) -> None:
    store("k", WRONG)
    counted()
    assert torch.equal(ask(X, "k"), WRONG)
    assert counted() == {"hits_memory": 1}


def test_a_hit_that_agrees_is_counted_as_verified_and_stays(ask: Any, counted: Growth) -> None:
    store("k", RIGHT)
    modcache.configure(verify_share=1)
    counted()
    for _ in range(3):
        assert torch.equal(ask(X, "k"), RIGHT)
        assert counted() == {"verified": 1}
    modcache.configure(verify_share=0)
    assert torch.equal(ask(X, "k"), RIGHT)
    assert counted() == {"hits_memory": 1}


@pytest.mark.parametrize("tier", ["memory", "disk"])
def test_a_wrong_value_is_found_and_replaced(
    ask: Any, tier: str, counted: Growth, reopen: Any, capfd: Any
) -> None:
    store("k", WRONG)
    if tier == "disk":
        reopen()
    modcache.configure(verify_share=1)
    counted()
    assert torch.equal(ask(X, "k"), RIGHT)
    assert counted() == {"verified": 1, "verify_differences": 1, "stored": 1}
    modcache.configure(verify_share=0)
    reopen()
    assert torch.equal(ask(X, "k"), RIGHT)
    assert counted() == {"hits_disk": 1}


def test_misses_are_misses(ask: Any, counted: Growth) -> None:
    modcache.configure(verify_share=1)
    assert torch.equal(ask(X, "k"), RIGHT)
    assert counted() == {"misses": 1, "stored": 1}


@pytest.mark.parametrize("face", ["eager", "scripted"])
def test_rows_are_compared_one_by_one(face: str, counted: Growth) -> None:
    x = torch.arange(12.0).reshape(4, 3)
    good, bad = in_form(Doubles(), face), in_form(Triples(), face)
    modcache.lookup_or_run(good, x[:2], ["0", "1"], scope=SCOPE)
    modcache.lookup_or_run(bad, x[2:3], ["2"], scope=SCOPE)
    modcache.configure(verify_share=1)
    counted()
    keys = ["0", "1", "2", "3"]
    assert torch.equal(modcache.lookup_or_run(good, x, keys, scope=SCOPE), x * 2)
    assert counted() == {"verified": 3, "verify_differences": 1, "misses": 1, "stored": 2}
    modcache.configure(verify_share=0)
    assert torch.equal(modcache.lookup_or_run(good, x, keys, scope=SCOPE), x * 2)
    assert counted() == {"hits_memory": 4}


RAN: list[int] = []  # on how many rows, for each run


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "test_verify_share.ran":
        RAN.append(arguments[0])


sys.addaudithook(_note)


class Notes(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sys.audit("test_verify_share.ran", len(x))
        return x * 2


def test_only_the_chosen_rows_run(counted: Growth) -> None:
    module, x, ids = Notes(), torch.ones(200, 2), torch.arange(200)
    modcache.lookup_or_run(module, x, ids, scope=SCOPE)
    modcache.configure(verify_share=0.1)
    RAN.clear()
    counted()
    for _ in range(20):
        assert torch.equal(modcache.lookup_or_run(module, x, ids, scope=SCOPE), x * 2)
    growth = counted()
    assert growth["verified"] == sum(RAN)
    assert growth["verified"] + growth["hits_memory"] == 4000
    assert 250 < growth["verified"] < 550


def test_the_share_is_that_of_the_hits(ask: Any, counted: Growth) -> None:
    store("k", RIGHT)
    modcache.configure(verify_share=0.05)
    counted()
    for _ in range(4000):
        ask(X, "k")
    growth = counted()
    assert growth["verified"] + growth["hits_memory"] == 4000
    assert 120 < growth["verified"] < 290


def test_a_structured_value_is_compared_too(counted: Growth) -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"a": x, "b": x * 2}

    modcache.lookup_or_run(Two(), X, "k", scope=SCOPE)
    modcache.configure(verify_share=1)
    counted()
    modcache.lookup_or_run(Two(), X, "k", scope=SCOPE)
    assert counted() == {"verified": 1}


def test_roundings_are_no_difference(counted: Growth) -> None:
    store("k", RIGHT * (1 + 1e-5))
    store("far", RIGHT * (1 + 1e-3))
    modcache.configure(verify_share=1)
    counted()
    modcache.lookup_or_run(Doubles(), X, "k", scope=SCOPE)
    assert counted() == {"verified": 1}
    modcache.lookup_or_run(Doubles(), X, "far", scope=SCOPE)
    assert counted() == {"verified": 1, "verify_differences": 1, "stored": 1}


def test_an_exported_program_is_compared_too(counted: Growth) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = frozen(Doubles())

        def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            return modcache.lookup_or_run(self.encoder, x, ids, scope="doubles@1")

    ids = torch.tensor([5, 6])
    run = exported(Model(), X, ids).module()
    modcache.lookup_or_run(Triples(), X, ids, scope=SCOPE)
    modcache.configure(verify_share=1)
    counted()
    assert torch.equal(run(X, ids), RIGHT)
    assert counted() == {"verified": 2, "verify_differences": 2, "stored": 2}


def test_where_nothing_may_be_written_the_entry_stays(counted: Growth, reopen: Any) -> None:
    store("k", WRONG)
    reopen()
    modcache.configure(verify_share=1)
    with modcache.mode("read"):
        counted()
        for _ in range(2):
            assert torch.equal(modcache.lookup_or_run(Doubles(), X, "k", scope=SCOPE), RIGHT)
            assert counted() == {"verified": 1, "verify_differences": 1}


# ----- the scope is switched off


def test_after_three_differences_the_scope_is_switched_off_with_one_message(
    ask: Any, counted: Growth, capfd: Any
) -> None:
    for number in range(20):
        store(str(number), WRONG)
    store("other", RIGHT)
    modcache.configure(verify_share=0.5)
    asked = 0
    while modcache.stats()["verify_differences"] < 3:
        ask(X, str(asked % 20))
        asked += 1
    counted()
    capfd.readouterr()
    for number in range(20):
        assert torch.equal(ask(X, str(number)), RIGHT), "no wrong value is left to be found"
    assert counted() == {"bypassed_verify": 20}
    assert capfd.readouterr().err == ""
    torch.ops.cache.store("another@1", "k", WRONG)
    found = modcache.lookup_or_run(Doubles(), X, "k", scope="another@1")
    assert torch.equal(found, WRONG) or counted()["verified"] == 1, "other scopes go on"


def test_the_message_names_scope_count_key_and_cures(capfd: Any) -> None:
    scope = "told-of@1"  # a scope is told of once in a while, and others were before
    for number in range(3):
        torch.ops.cache.store(scope, f"wrong {number}", WRONG)
    modcache.configure(verify_share=1)
    capfd.readouterr()
    for number in range(3):
        modcache.lookup_or_run(Doubles(), X, f"wrong {number}", scope=scope)
    lines = [line for line in capfd.readouterr().err.splitlines() if "SWITCHED OFF" in line]
    assert len(lines) == 1
    for part in (
        "error", "3 of 3", scope, "Doubles.forward", "wrong 2", "modcache clear",
    ):  # fmt: skip
        assert part in lines[0]


def test_batches_of_a_scope_that_is_switched_off_run(counted: Growth) -> None:
    x = torch.arange(12.0).reshape(4, 3)
    ids = torch.arange(4)
    modcache.lookup_or_run(Triples(), x, ids, scope=SCOPE)
    modcache.configure(verify_share=1)
    assert torch.equal(modcache.lookup_or_run(Doubles(), x, ids, scope=SCOPE), x * 2)
    counted()
    for module in (Doubles(), torch.jit.script(Doubles())):
        assert torch.equal(modcache.lookup_or_run(module, x, ids, scope=SCOPE), x * 2)
        assert counted() == {"bypassed_verify": 4}


@pytest.mark.parametrize("cure", ["clear", "configure"])
def test_clearing_or_another_setting_switches_it_on_again(cure: str, counted: Growth) -> None:
    for number in range(3):
        store(str(number), WRONG)
    modcache.configure(verify_share=1)
    for number in range(4):
        modcache.lookup_or_run(Doubles(), X, str(number), scope=SCOPE)
    assert counted()["bypassed_verify"] == 1
    if cure == "clear":
        modcache.clear(SCOPE)
    else:
        modcache.configure(verify_share=1)
    modcache.lookup_or_run(Doubles(), X, "new", scope=SCOPE)
    assert counted() == {"misses": 1, "stored": 1}


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"scope": "other@1"},
        {"scope": SCOPE, "tier": "memory"},
        {"scope": SCOPE, "older_than": 3600},
    ],
    ids=["another scope", "memory alone", "old entries"],
)
def test_clearing_something_else_does_not(elsewhere: dict[str, Any], counted: Growth) -> None:
    for number in range(3):
        store(str(number), WRONG)
    modcache.configure(verify_share=1)
    for number in range(3):
        modcache.lookup_or_run(Doubles(), X, str(number), scope=SCOPE)
    modcache.clear(**elsewhere)
    counted()
    modcache.lookup_or_run(Doubles(), X, "new", scope=SCOPE)
    assert counted() == {"bypassed_verify": 1}


def test_explain_says_so() -> None:
    for number in range(3):
        store(str(number), WRONG)
    modcache.configure(verify_share=1)
    for number in range(3):
        modcache.lookup_or_run(Doubles(), X, str(number), scope=SCOPE)
    for module in (Doubles(), torch.jit.script(Doubles())):
        found = modcache.explain(module, X, "k", scope=SCOPE)
        assert found.status == "bypassed"
        assert "verify_share" in found.reason
    modcache.clear(SCOPE)
    assert modcache.explain(Doubles(), X, "k", scope=SCOPE).status == "miss"


def test_under_admission_it_is_the_same(counted: Growth) -> None:
    store("k", WRONG)
    modcache.configure(admission="second", verify_share=1)
    counted()
    assert torch.equal(modcache.lookup_or_run(Doubles(), X, "k", scope=SCOPE), RIGHT)
    assert counted() == {"verified": 1, "verify_differences": 1, "stored": 1}
