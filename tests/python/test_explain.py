# SPDX-License-Identifier: Apache-2.0
"""``modcache.explain``: what a call would find, and why, without making it."""

# No `from __future__ import annotations`: TorchScript reads the annotations of methods.

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import modcache
import pytest
import torch
from models import FACES_WITH_ATTRIBUTES, CountsCalls, Encoder, in_form, set_requires_grad
from torch import nn

X = torch.ones(1, 4)
FACES = FACES_WITH_ATTRIBUTES


def frozen(face: str = "eager") -> Any:
    torch.manual_seed(0)
    return in_form(Encoder().requires_grad_(False).eval(), face)


@pytest.mark.parametrize("face", FACES)
def test_a_hit_says_where_how_large_and_what_it_saves(
    face: str, reopen: Callable[[], None]
) -> None:
    encoder = frozen(face)
    modcache.lookup_or_run(encoder, X, "a")
    found = modcache.explain(encoder, X, "a")
    assert (found.status, found.tier, found.hits) == ("hit", "memory", 1)
    assert found.scope == modcache.fingerprint(encoder)
    assert found.keys == ["a"]
    reopen()
    found = modcache.explain(encoder, X, "a")
    assert (found.status, found.tier, found.size_bytes) == ("hit", "disk", 16)
    assert found.stored_at.startswith("20")
    assert found.run_us > 0
    assert "saves a run of" in found.reason


@pytest.mark.parametrize("face", FACES)
def test_it_counts_stores_and_runs_nothing(face: str, counted: Any, cache_dir: Path) -> None:
    encoder = frozen(face)
    modcache.explain(encoder, X, "a")
    modcache.explain(encoder, torch.ones(2, 4), ["a", "b"])
    assert counted() == {}
    assert not cache_dir.exists()
    modcache.lookup_or_run(encoder, X, "a")
    modcache.flush()
    counted()
    before = modcache.stats()
    modcache.explain(encoder, X, "a")
    modcache.explain(encoder, X, "b")
    assert modcache.stats() == before


@pytest.mark.parametrize("face", FACES)
def test_nothing_is_known_of_the_class(face: str) -> None:
    found = modcache.explain(frozen(face), X, "a")
    assert (found.status, found.changed) == ("miss", [])
    assert "nothing is known of Encoder.forward" in found.reason


@pytest.mark.parametrize("face", FACES)
def test_a_new_scope_names_the_changed_parameter(face: str) -> None:
    encoder = frozen(face)
    modcache.lookup_or_run(encoder, X, "a")
    before = modcache.fingerprint(encoder)
    with torch.no_grad():
        encoder.linear.weight.add_(1)
    found = modcache.explain(encoder, X, "a")
    assert found.status == "miss"
    assert found.changed == found.weights == ["linear.weight"]
    assert found.compared_with == before
    assert "weights that differ: linear.weight" in str(found)


@pytest.mark.parametrize("face", FACES)
def test_a_new_scope_names_the_changed_attribute(face: str) -> None:
    encoder = frozen(face)
    modcache.lookup_or_run(encoder, X, "a")
    encoder.scale = 3.0
    assert modcache.explain(encoder, X, "a").changed == ["scale"]
    encoder.scale = 2.0
    encoder.offsets = [0.0, 0.25]
    assert modcache.explain(encoder, X, "a").attributes == ["offsets"]


def test_of_several_scopes_the_one_that_differs_least() -> None:
    encoder = frozen()
    modcache.lookup_or_run(encoder, X, "a")
    first = modcache.fingerprint(encoder)
    other = Encoder().requires_grad_(False).eval()
    modcache.lookup_or_run(other, X, "a")
    encoder.mean += 1
    found = modcache.explain(encoder, X, "a")
    assert found.compared_with == first
    assert found.changed == ["mean"]


def test_another_layer_is_named() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).requires_grad_(False).eval()
    modcache.lookup_or_run(model, X, "a")
    model[1] = nn.GELU()
    (change,) = modcache.explain(model, X, "a").others
    assert change.startswith("1 torch.nn.modules.activation.ReLU -> ")


@pytest.mark.parametrize("face", FACES)
def test_a_new_key_in_a_known_scope(face: str) -> None:
    encoder = frozen(face)
    modcache.lookup_or_run(encoder, X, "a")
    found = modcache.explain(encoder, X, "b")
    assert (found.status, found.changed, found.first_missing) == ("miss", [], ["b"])
    assert "none under this key" in found.reason


@pytest.mark.parametrize("face", FACES)
def test_what_was_cleared_is_not_told_from_what_never_was(face: str) -> None:
    encoder = frozen(face)
    modcache.lookup_or_run(encoder, X, "a")
    assert modcache.clear(modcache.fingerprint(encoder)) == 1
    found = modcache.explain(encoder, X, "a")
    assert "never stored, or removed since" in found.reason


@pytest.mark.parametrize("face", FACES)
def test_another_shape_under_the_same_key(face: str) -> None:
    encoder = frozen(face)
    modcache.lookup_or_run(encoder, X, "a")
    found = modcache.explain(encoder, torch.ones(2, 4), "a")
    assert found.status == "miss"
    assert "was stored for an input float32[1,4], and this one is float32[2,4]" in found.reason


@pytest.mark.parametrize("face", FACES)
def test_rows(face: str) -> None:
    encoder = frozen(face)
    modcache.lookup_or_run(encoder, torch.ones(3, 4), [1, 2, 3])
    batch = torch.ones(4, 4)
    assert modcache.explain(encoder, torch.ones(3, 4), [1, 2, 3]).status == "hit"
    found = modcache.explain(encoder, batch, torch.tensor([2, 9, 3, 8]))
    assert (found.status, found.hits, found.first_missing) == ("partial", 2, ["9", "8"])
    assert "missing: 9, 8" in str(found)
    found = modcache.explain(encoder, batch, ["7", "7", "8", "9"])
    assert (found.status, found.keys, found.hits) == ("miss", ["7", "8", "9"], 0)


def test_an_empty_batch() -> None:
    assert modcache.explain(frozen(), torch.ones(0, 4), []).status == "bypassed"


@pytest.mark.parametrize("face", FACES)
def test_a_scope_that_is_given(face: str) -> None:
    encoder = frozen(face)
    found = modcache.explain(encoder, X, "a", scope="encoder@1")
    assert (found.status, found.scope) == ("miss", "encoder@1")
    modcache.lookup_or_run(encoder, X, "a", scope="encoder@1")
    assert modcache.explain(encoder, X, "a", scope="encoder@1").status == "hit"
    found = modcache.explain(encoder, X, "a", scope="encoder@2")
    assert found.compared_with == "encoder@1"
    assert "nothing was stored under the name 'encoder@2' yet" in found.reason


@pytest.mark.parametrize("face", FACES)
def test_unfrozen_parameters(face: str) -> None:
    encoder = frozen(face)
    set_requires_grad(encoder.linear, True)
    found = modcache.explain(encoder, X, "a")
    assert found.status == "miss"
    assert "to learn whether its result requires grad" in found.reason
    assert "2 parameters of Encoder require grad" in found.reason
    modcache.lookup_or_run(encoder, X, "a")
    found = modcache.explain(encoder, X, "a")
    assert found.status == "bypassed"
    assert "2 parameters of Encoder require grad" in found.reason
    with torch.no_grad():
        assert modcache.explain(encoder, X, "a").status == "miss"


def test_an_input_that_requires_grad() -> None:
    encoder, x = frozen(), torch.ones(1, 4, requires_grad=True)
    modcache.lookup_or_run(encoder, x, "a")
    found = modcache.explain(encoder, x, "a")
    assert (found.status, found.scope) == ("bypassed", "")
    assert "the input requires grad" in found.reason


@pytest.mark.parametrize("face", ["eager", "scripted"])
def test_dropout_in_training_mode(face: str) -> None:
    model: Any = nn.Sequential(nn.Linear(4, 4), nn.Dropout()).requires_grad_(False).train()
    model = torch.jit.script(model) if face == "scripted" else model
    assert modcache.explain(model, X, "a").status == "miss"
    modcache.lookup_or_run(model, X, "a")
    found = modcache.explain(model, X, "a")
    assert found.status == "bypassed"
    assert "random numbers" in found.reason
    model.eval()
    assert modcache.explain(model, X, "a").status == "miss"


@pytest.mark.parametrize("face", ["eager", "scripted"])
def test_the_culprit_is_named(face: str) -> None:
    model: Any = torch.jit.script(CountsCalls()) if face == "scripted" else CountsCalls()
    modcache.lookup_or_run(model, X, "a")
    found = modcache.explain(model, X, "a")
    assert found.status == "bypassed"
    assert "'calls'" in found.reason


def test_a_result_of_a_kind_that_is_never_stored() -> None:
    class Sparse(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.to_sparse()

    modcache.lookup_or_run(Sparse(), X, "a")
    found = modcache.explain(Sparse(), X, "a")
    assert found.status == "miss"  # of another instance nothing is known
    model = Sparse()
    modcache.lookup_or_run(model, X, "a")
    found = modcache.explain(model, X, "a")
    assert found.status == "bypassed"
    assert "sparse" in found.reason


def test_an_input_that_cannot_be_summarised() -> None:
    found = modcache.explain(frozen(), X.to_sparse(), "a")
    assert found.status == "bypassed"
    assert "sparse" in found.reason


class HoldsAGenerator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stream = iter([1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_an_attribute_that_cannot_be_hashed_is_named() -> None:
    found = modcache.explain(HoldsAGenerator(), X, "a")
    assert found.status == "bypassed"
    assert "attribute 'stream' of HoldsAGenerator" in found.reason
    assert modcache.explain(HoldsAGenerator(), X, "a", scope="mine@1").status == "miss"


def test_under_a_transform() -> None:
    encoder, seen = frozen(), []

    def one(x: torch.Tensor) -> torch.Tensor:
        seen.append(modcache.explain(encoder, x, "a"))
        return x

    torch.vmap(one)(torch.ones(2, 4))
    assert seen[0].status == "bypassed"
    assert "torch.func" in seen[0].reason


def test_at_which_level_the_mode_stands() -> None:
    encoder = frozen()
    modcache.lookup_or_run(encoder, X, "a")
    with modcache.mode("off"):
        found = modcache.explain(encoder, X, "a")
    assert found.status == "bypassed"
    assert "the mode of this thread is 'off'" in found.reason
    modcache.set_mode("off")
    assert "the mode of this process is 'off'" in modcache.explain(encoder, X, "a").reason
    modcache.set_mode("refresh")
    found = modcache.explain(encoder, X, "a")
    assert (found.status, "always run" in found.reason) == ("miss", True)
    modcache.set_mode("read")
    assert modcache.explain(encoder, X, "a").status == "hit"


def test_off_opens_no_file(cache_dir: Path) -> None:
    with modcache.mode("off"):
        modcache.explain(frozen(), X, "a")
    assert not cache_dir.exists()


def test_a_wrapper_is_explained_as_what_it_wraps() -> None:
    encoder = frozen()
    modcache.lookup_or_run(encoder, X, "a")
    assert modcache.explain(nn.DataParallel(encoder), X, "a").status == "hit"


def test_another_method() -> None:
    encoder = frozen()
    modcache.lookup_or_run(encoder, X, "a")
    with pytest.raises(AttributeError, match="no such method"):
        modcache.explain(encoder, X, "a", method="encode")


def test_mistakes_are_those_of_the_call() -> None:
    with pytest.raises(TypeError, match="explain: module must be"):
        modcache.explain(lambda x: x, X, "a")  # type: ignore[arg-type]
    with pytest.raises((ValueError, RuntimeError), match="key"):
        modcache.explain(frozen(), X, "")
    with pytest.raises((ValueError, RuntimeError), match=r"rows|keys"):
        modcache.explain(frozen(), torch.ones(2, 4), ["a"])


def test_for_programs() -> None:
    encoder = frozen()
    found = modcache.explain(encoder, X, "a")
    assert json.loads(json.dumps(found.as_dict()))["status"] == "miss"
    with pytest.raises(AttributeError):
        found.status = "hit"  # type: ignore[misc]


def test_a_lazy_module_is_explained_and_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "encoder.pt"
    frozen("scripted").save(str(path))

    def by_name() -> modcache.Lazy:
        return modcache.lazy(frozen, scope="encoder@1")

    assert "loaded once" in modcache.explain(modcache.lazy(path), X, "a").reason
    for make in (by_name, lambda: modcache.lazy(path)):
        lazy = make()
        assert modcache.explain(lazy, X, "a").status == "miss"
        with modcache.mode("off"):
            assert modcache.explain(lazy, X, "a").status == "bypassed"
        assert not lazy.loaded
        modcache.lookup_or_run(lazy, X, "a")
        assert modcache.explain(lazy, X, "a").status == "hit"  # by what was loaded
        again = make()
        assert modcache.explain(again, X, "a").status == "hit"
        assert modcache.explain(again, X, "b").status == "miss"
        found = modcache.explain(again, torch.ones(2, 4), ["a", "b"])
        assert (found.status, found.first_missing) == ("miss", ["a", "b"])
        assert not again.loaded


class Masked(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x * mask[:, :, None]


@pytest.mark.parametrize("way", [{"mask": "mask"}, {"scope": "masked@1"}, {}])
def test_what_cached_was_given_holds_here(way: Any) -> None:
    module = modcache.cached(Masked(), key="ids", **way)
    x, mask = torch.ones(2, 3, 4), torch.tensor([[1, 1, 0], [1, 1, 1]])
    assert modcache.explain(module, (x, mask), ["a", "b"]).status == "miss"
    module(x, mask, ids=["a", "b"])
    found = modcache.explain(module, (x, mask), ["a", "b"])
    assert (found.status, found.hits) == ("hit", 2)
    longer = (torch.ones(2, 5, 4), nn.functional.pad(mask, (0, 2)))
    status = modcache.explain(module, longer, ["a", "b"]).status
    assert status == ("hit" if "mask" in way else "miss")


def test_a_scope_that_was_named_says_nothing_of_what_changed() -> None:
    module = frozen()
    modcache.lookup_or_run(module, X, "a")
    modcache.lookup_or_run(module, X, "a", scope="encoder@1")
    changed = next(module.named_parameters())[0]
    with torch.no_grad():
        module.get_parameter(changed).add_(1)
    assert modcache.explain(module, X, "a").changed == [changed]


def test_a_key_may_have_been_evicted_where_memory_is_all_there_is() -> None:
    encoder = frozen()
    modcache.configure(disk=0, memory=4000, policy="lru")
    for key in ("a", "b", "c", "d"):
        modcache.lookup_or_run(encoder, torch.ones(100, 4), key)
    assert "evicted" in modcache.explain(encoder, torch.ones(100, 4), "a").reason
