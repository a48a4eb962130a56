# SPDX-License-Identifier: Apache-2.0
"""Keys that are tuples of text and integers, told apart from text."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import modcache
import numpy as np
import pytest
import torch
from models import Python
from torch import nn

X = torch.arange(12.0).reshape(3, 4)
DOUBLE = Python(lambda x: x * 2)


def found_in(scope: str, key: Any) -> bool:
    return modcache.contains(scope, key)


def test_a_tuple_of_text_and_integers_is_one_key(counted: Any) -> None:
    for _ in range(2):
        assert torch.equal(modcache.lookup_or_run(DOUBLE, X, ("video", 3), scope="s"), X * 2)
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 1}
    assert modcache.contains("s", ("video", 3))
    assert not modcache.contains("s", ("video", 4))


OTHERS = [
    ("video", 3), ("video", "3"), (3, "video"), ("video", 3, 0), ("video3",), ("video", -3),
    ("video,3",), ('video"', 3), ("video", 30), (3,), (33,), ("",), ("", ""), ("\\", 1), ("é", 1),
    ("video", 2**70), ("\n", 1), ("\x1f", 1),
]  # fmt: skip
TEXTS = ["video3", "3", "video", '["video",3]', "('video', 3)", "video,3"]


def test_no_two_tuples_and_texts_are_one_key() -> None:
    keys: list[Any] = [*OTHERS, *TEXTS]
    for number, key in enumerate(keys):
        assert not modcache.contains("s", key), key
        torch.ops.cache.store("s", _text(key), torch.tensor(number))
        assert modcache.contains("s", key)
    for number, key in enumerate(keys):
        assert torch.ops.cache.lookup("s", _text(key))[1].item() == number


def _text(key: Any) -> str:
    """The documented encoding, which a C++ host makes, too."""
    if isinstance(key, str):
        return key
    return "\x1f" + json.dumps(list(key), ensure_ascii=False, separators=(",", ":"))


def test_the_encoding_is_as_documented(counted: Any) -> None:
    """docs/keys-and-scopes.md promises these very characters."""
    texts = {
        ("video", 3): '\x1f["video",3]',
        ('a"\\/é', -1): '\x1f["a\\"\\\\/é",-1]',
        ("\n\t\r\b\f\x00\x1f\x7f", 0): '\x1f["\\n\\t\\r\\b\\f\\u0000\\u001f\x7f",0]',
    }
    for key, text in texts.items():
        modcache.lookup_or_run(DOUBLE, X, key, scope="s")
        modcache.lookup_or_run(DOUBLE, X, text, scope="s")
    assert counted() == {"misses": 3, "stored": 3, "hits_memory": 3}


def test_tuples_in_a_list_are_keys_of_rows(counted: Any, reopen: Callable[[], None]) -> None:
    keys = [("video", 0), ("video", 1), ("a", "b")]
    for round_ in range(2):
        for given in (keys, tuple(keys), [*keys[:2], ("a", "b")]):
            assert torch.equal(modcache.lookup_or_run(DOUBLE, X, given, scope="s"), X * 2)
        if not round_:
            reopen()
    assert counted() == {"misses": 3, "stored": 3, "hits_memory": 6, "hits_disk": 9}
    mixed = modcache.lookup_or_run(DOUBLE, X[[1, 0]], [("video", 1), "text"], scope="s")
    assert torch.equal(mixed, X[[1, 0]] * 2)
    assert counted() == {"misses": 1, "stored": 1, "hits_disk": 1}


def test_a_bare_tuple_of_one_kind_holds_keys_of_rows_as_ever(counted: Any) -> None:
    modcache.lookup_or_run(DOUBLE, X, ("a", "b", "c"), scope="s")
    modcache.lookup_or_run(DOUBLE, X, ["a", "b", "c"], scope="s")
    modcache.lookup_or_run(DOUBLE, X, (1, 2, 3), scope="s")
    modcache.lookup_or_run(DOUBLE, X, torch.tensor([1, 2, 3]), scope="s")
    assert counted() == {"misses": 6, "stored": 6, "hits_memory": 6}


class Frame(NamedTuple):
    video: str
    number: int


def test_integers_of_numpy_and_named_tuples_are_the_same_key(counted: Any) -> None:
    for key in (("video", 3), ("video", np.int64(3)), (np.str_("video"), 3), Frame("video", 3)):
        modcache.lookup_or_run(DOUBLE, X, key, scope="s")
    assert counted() == {"misses": 1, "stored": 1, "hits_memory": 3}


MISTAKES: dict[str, tuple[Any, type[Exception], str]] = {
    "a float": (("a", 1.5), TypeError, r"key\[1\] must be a str, but got float"),
    "a bool": (("a", True), TypeError, r"key\[1\] must be a str, but got bool"),
    "a float in a list": (
        [("a", 1.5)] * 3, TypeError, r"key\[0\]\[1\] must be a str or an int, but got float"
    ),
    "a bool in a list": ([("a", True)] * 3, TypeError, r"key\[0\]\[1\] must be a str or an int"),
    "nested": ([("a", ("b", 1))] * 3, TypeError, r"key\[0\]\[1\] .* but got tuple"),
    "empty": ([("a", 1), (), "b"], ValueError, r"key\[1\] is an empty tuple"),
    "surrogates": (("\udc80", 1), ValueError, r"key\[0\] must be valid Unicode"),
    "ids and tuples": ([1, ("a", 1), 2], TypeError, "either all str or all int"),
    "tuples and ids": ([("a", 1), 1, 2], TypeError, r"key\[1\] must be a str"),
    "columns": (
        torch.utils.data.default_collate([("a", 1), ("b", 2), ("c", 3)]), TypeError,
        r"a list of keys holds a tensor.*default collate_fn.*list\(zip\("
    ),
    "too few": ([("a", 1)], RuntimeError, "1 keys|number of keys|first size"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named(name: str) -> None:
    key, kind, says = MISTAKES[name]
    with pytest.raises((kind, ValueError) if kind is RuntimeError else kind, match=says):
        modcache.lookup_or_run(DOUBLE, X, key, scope="s")
    if kind is TypeError and isinstance(key, tuple):
        with pytest.raises(kind, match="must be a str or an int"):
            modcache.contains("s", key)


def test_whatever_takes_keys_takes_tuples(counted: Any) -> None:
    keys: Any = [("video", row) for row in range(3)]
    batches = [(X, keys)]
    assert modcache.fill(DOUBLE, batches, key=1, scope="s", progress=False).runs == 3
    assert modcache.fill(DOUBLE, [(X, ("v", 1))], key=1, scope="s", progress=False).rows == 1
    assert modcache.contains("s", ("v", 1))
    assert modcache.explain(DOUBLE, X, keys, scope="s").status == "hit"
    assert modcache.explain(DOUBLE, X, ("v", 1), scope="s").status == "hit"
    assert modcache.explain(DOUBLE, X, ("v", 2), scope="s").keys == ['\x1f["v",2]']
    assert modcache.prefetch("s", keys) == 3
    assert modcache.prefetch("s", ("v", 1)) == 1
    assert modcache.clear("s", prefix='\x1f["video",') == 3
    rows = modcache.lookup_or_run(DOUBLE, X, keys, scope="s", ragged="list")
    assert torch.equal(torch.stack(rows), X * 2)
    whole = modcache.lookup_or_run(DOUBLE, X, ("v", 1), scope="s", ragged="list")
    assert torch.equal(whole, X * 2)


def test_key_functions_and_arguments_of_cached_calls(counted: Any) -> None:
    class Double(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    def keys_of(x: torch.Tensor) -> list[Any]:
        return [("row", int(value)) for value in x[:, 0]]

    by_function = modcache.cached(Double(), key=keys_of, scope="s")
    by_name = modcache.cached(Double(), key="ids", scope="s")
    keys = [("row", 0), ("row", 4), ("row", 8)]
    assert torch.equal(by_function(X), X * 2)
    assert torch.equal(by_name(X, ids=keys), X * 2)
    assert counted() == {"misses": 3, "stored": 3, "hits_memory": 3}
    assert torch.equal(by_name(X, ids=("all", 1)), X * 2)
    assert modcache.contains("s", ("all", 1))

    @modcache.cached(key="name", scope="f")
    def size(x: torch.Tensor, name: Any) -> torch.Tensor:
        return x * len(name)

    assert torch.equal(size(X, ("video", 3)), X * 2)
    assert torch.equal(size(X, name=("video", 3)), X * 2)
    assert torch.equal(size(X, [("v", 1), ("v", 2), ("v", 3)]), X * 3)
    assert counted()["hits_memory"] == 1


def test_keys_of_samples(counted: Any) -> None:
    dataset: Any = modcache.CachedDataset(
        [1.5, 2.5], key=lambda i: ("sample", i, "train"), scope="s"
    )
    assert [dataset[0], dataset[1], dataset[0]] == [1.5, 2.5, 1.5]
    assert counted() == {"misses": 2, "stored": 2, "hits_memory": 1}
    stream: Any = modcache.CachedIterableDataset(
        [{"id": ("a", 1)}, {"id": ("a", 2)}], lambda raw: raw["id"][1], key="id", scope="t"
    )
    assert list(stream) == list(stream) == [1, 2]
    with pytest.raises(TypeError, match=r"CachedDataset: a key\[1\] must be a str or an int"):
        modcache.CachedDataset([1], key=lambda i: ("a", 1.5), scope="u")[0]


def test_scripted_modules_take_them() -> None:
    scripted = torch.jit.script(nn.ReLU())
    for _ in range(2):
        modcache.lookup_or_run(scripted, X, ("video", 3), scope="v")
        modcache.lookup_or_run(scripted, X, [("video", 3)] * 3, scope="v")
    assert modcache.contains("v", ("video", 3))
