# SPDX-License-Identifier: Apache-2.0
"""What makes up an entry's address besides the module: scope, method, key, input, arithmetic."""

from __future__ import annotations

from typing import Any

import modcache
import pytest
import torch
from models import (
    FACES_WITH_ATTRIBUTES,
    Encoder,
    EncoderOfTwoMethods,
    frozen,
    in_form,
    scale_all_data,
)
from torch import nn

X = torch.linspace(-1, 1, 8).reshape(2, 4)


@pytest.mark.parametrize("face", FACES_WITH_ATTRIBUTES)
def test_a_scope_replaces_the_fingerprint(face: str, counted: Any) -> None:
    module = in_form(frozen(Encoder()), face)
    before = modcache.lookup_or_run(module, X, "k", scope="mine@1")
    scale_all_data(module)
    assert torch.equal(modcache.lookup_or_run(module, X, "k", scope="mine@1"), before)
    assert counted() == {"hits_memory": 1, "misses": 1, "stored": 1}
    assert torch.equal(modcache.lookup_or_run(module, X, "k", scope="mine@2"), module(X))


def test_eager_and_scripted_share_under_one_scope(counted: Any) -> None:
    module = frozen(Encoder())
    modcache.lookup_or_run(module, X, "k", scope="shared")
    modcache.lookup_or_run(torch.jit.script(module), X, "k", scope="shared")
    assert counted()["hits_memory"] == 1


@pytest.mark.parametrize("face", FACES_WITH_ATTRIBUTES)
def test_methods_do_not_share(face: str) -> None:
    module = in_form(frozen(EncoderOfTwoMethods()), face)
    forward = modcache.lookup_or_run(module, X, "k")
    assert torch.equal(modcache.lookup_or_run(module, X, "k", method="negated"), -forward)
    assert torch.equal(modcache.lookup_or_run(module, X, "k", method="negated"), -forward)


def test_namespaces_do_not_share(counted: Any) -> None:
    module = frozen(Encoder())
    modcache.lookup_or_run(module, X, "k")
    modcache.configure(namespace="other")
    modcache.lookup_or_run(module, X, "k")
    assert counted() == {"misses": 2, "stored": 2}


@pytest.mark.parametrize("face", ["eager", "scripted"])
def test_autocast_does_not_share(face: str) -> None:
    module = in_form(frozen(Encoder()), face)
    plain = modcache.lookup_or_run(module, X, "k")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = module(X)
        for _ in range(2):
            assert torch.equal(modcache.lookup_or_run(module, X, "k"), expected)
    assert torch.equal(modcache.lookup_or_run(module, X, "k"), plain)


@pytest.mark.parametrize("key", ["a", "ß€😀", "a" * 100_000, "a/../b\n\0c"])
def test_any_text_is_a_key(key: str, reopen: Any) -> None:
    module = frozen(Encoder())
    expected = modcache.lookup_or_run(module, X, key)
    modcache.lookup_or_run(module, X + 1, key + "'")
    reopen()
    assert torch.equal(modcache.lookup_or_run(module, X, key), expected)
    assert modcache.stats()["hits_disk"] == 1


@pytest.mark.parametrize("other", [X[:1], X.double()], ids=["shape", "dtype"])
def test_a_hit_for_another_input_is_a_conflict(
    other: torch.Tensor, counted: Any, capfd: Any
) -> None:
    module = torch.jit.script(nn.ReLU())
    modcache.lookup_or_run(module, X, "k", scope=f"conflict-{other.dtype}")
    modcache.lookup_or_run(module, other, "k", scope=f"conflict-{other.dtype}")
    assert counted() == {"misses": 2, "stored": 2, "key_conflicts": 1}
    assert torch.equal(
        modcache.lookup_or_run(module, other, "k", scope=f"conflict-{other.dtype}"), other.relu()
    )
    assert counted() == {"hits_memory": 1}


@pytest.mark.parametrize(("match", "conflicts"), [("input", 3), ("none", 0)])
def test_match_says_what_of_the_input_must_agree(match: str, conflicts: int) -> None:
    modcache.configure(match=match)
    module = nn.ReLU()
    for value in (X, X[:1], X[:1].double(), X[:1].double() + 1):
        modcache.lookup_or_run(module, value, "k")
    assert modcache.stats()["key_conflicts"] == conflicts


@pytest.mark.parametrize("face", ["eager", "scripted"])
def test_arguments_that_are_no_tensors_count(face: str) -> None:
    from models import TwoInputs

    module = in_form(TwoInputs(), face)
    for times in (1, 2, 1, 2):
        result = modcache.lookup_or_run(module, (X, X * 3, times), "k")
        assert torch.equal(result, (X - X * 3) * times)
    assert modcache.stats()["hits_memory"] == 2


def test_a_key_too_long_for_the_directory_is_kept_in_memory(counted: Any, capfd: Any) -> None:
    module = frozen(nn.Linear(4, 4))
    longest = "k" * (16 << 20)
    for key in (longest, longest + "k"):
        assert torch.equal(modcache.lookup_or_run(module, X, key), module(X))
        assert torch.equal(modcache.lookup_or_run(module, X, key), module(X))
        modcache.flush()
        grown = counted()
        assert (grown["misses"], grown["hits_memory"]) == (1, 1)
        assert grown.get("errors", 0) == (key != longest)
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "modcache" in line]
    assert "a key has between 1 and 16777216 bytes, not 16777217" in line
    modcache.clear(tier="memory")
    assert torch.equal(modcache.lookup_or_run(module, X, longest + "k"), module(X))
    assert torch.equal(modcache.lookup_or_run(module, X, longest), module(X))
    grown = counted()
    assert (grown["misses"], grown["hits_disk"]) == (1, 1)


def test_a_clear_under_one_namespace_leaves_the_others_alone(reopen: Any) -> None:
    def store_all() -> None:
        for name in ("team a", "team b", ""):
            modcache.configure(namespace=name)
            torch.ops.cache.store("encoder@1", "train/1", X)

    def there() -> list[str]:
        found = []
        for name in ("", "team a", "team b"):
            modcache.configure(namespace=name)
            if modcache.contains("encoder@1", "train/1"):
                found.append(name)
        return found

    for arguments in ({"scope": "encoder@1"}, {"prefix": "train/"}, {"older_than": 1e-6}):
        for name in ("team a", ""):
            store_all()
            modcache.configure(namespace=name)
            assert modcache.clear(**arguments) == 1
            left = [other for other in ("", "team a", "team b") if other != name]
            assert there() == left
            reopen()
            assert there() == left
    store_all()
    modcache.configure(namespace="team a")
    assert modcache.clear() == 1
    assert there() == ["", "team b"]
    modcache.configure(namespace="")
    assert modcache.clear() == 2
    assert there() == []
