# SPDX-License-Identifier: Apache-2.0
"""Mappings of the standard library's and of frameworks' classes, as arguments and as results."""

from __future__ import annotations

import copy
import re
import types
from collections import UserDict, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import modcache
import pytest
import torch
from models import Python
from torch import nn

X = torch.arange(12.0).reshape(3, 4)
KEYS = ["a", "b", "c"]


class Encoding(UserDict):  # type: ignore[type-arg]
    """What Hugging Face's BatchEncoding is: data, a tokenizer's objects, a number, attributes."""

    def __init__(self, data: Any, encodings: Any = None, n_sequences: int | None = None) -> None:
        super().__init__(data)
        self._encodings = encodings
        self._n_sequences = n_sequences

    def __getattr__(self, name: str) -> Any:
        try:
            return self.data[name]
        except KeyError:
            raise AttributeError(name) from None


class Tokens:
    """What a fast tokenizer keeps of one text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


Tokens.__module__ = "tokenizers"
FIRST, SECOND, THIRD = map(Tokens, ("first", "second", "third"))


def batch_encoding(data: Any) -> Any:
    return pytest.importorskip("transformers").BatchEncoding(data)


CLASSES: dict[str, Callable[[Any], Any]] = {
    "UserDict": UserDict,
    "stand-in": Encoding,
    "BatchEncoding": batch_encoding,
    "BatchFeature": lambda data: pytest.importorskip("transformers").BatchFeature(data),
}


class Scores(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2).requires_grad_(False)

    def forward(self, batch: Any) -> torch.Tensor:
        return self.linear(batch["x"]) + batch["y"].sum(1, keepdim=True)


@pytest.mark.parametrize("name", CLASSES)
def test_a_mapping_is_one_argument_whose_rows_are_taken(name: str, counted: Any) -> None:
    module, y = Scores(), torch.arange(6).reshape(3, 2)
    made = CLASSES[name]
    expected = module(made({"x": X, "y": y}))
    found = modcache.lookup_or_run(module, made({"x": X[:1], "y": y[:1]}), KEYS[:1])
    assert torch.equal(found, expected[:1])
    assert counted() == {"misses": 1, "stored": 1}
    for _ in range(2):
        found = modcache.lookup_or_run(module, made({"x": X, "y": y}), KEYS)
        assert torch.equal(found, expected)
    assert counted() == {"misses": 2, "stored": 2, "hits_memory": 4}
    whole = modcache.lookup_or_run(module, made({"x": X, "y": y}), "k")
    assert torch.equal(whole, expected)
    assert counted() == {"misses": 1, "stored": 1}


def test_a_module_gets_the_rows_in_an_object_of_the_same_class(capsys: Any) -> None:
    def look(batch: Encoding) -> torch.Tensor:
        print(type(batch).__name__, batch._encodings, batch._n_sequences, batch.x.shape[0])
        return batch.x * 2

    module = Python(look)
    batch = Encoding({"x": X}, [FIRST, SECOND, THIRD], 1)
    modcache.lookup_or_run(module, Encoding({"x": X[1:2]}, [SECOND], 1), ["b"], scope="s")
    found = modcache.lookup_or_run(module, batch, KEYS, scope="s")
    assert torch.equal(found, X * 2)
    seen = capsys.readouterr().out.splitlines()
    assert seen == [
        "Encoding [second] 1 1",
        "Encoding [second, second] 1 2",  # a check run
        "Encoding [first, third] 1 2",
    ]
    assert batch._encodings == [FIRST, SECOND, THIRD]
    assert torch.equal(batch.x, X)


def test_class_order_names_and_attributes_tell_mappings_apart(counted: Any) -> None:
    module = Python(lambda batch: torch.tensor([float(len(repr(batch)))]))
    inputs = [
        {"x": X, "y": X},
        UserDict({"x": X, "y": X}),
        UserDict({"y": X, "x": X}),
        UserDict({"x": X, "z": X}),
        UserDict({"x": X, "y": X, "n": 1}),
        UserDict({"x": X, "y": X, "n": 1.0}),
        Encoding({"x": X, "y": X}),
        Encoding({"x": X, "y": X}, n_sequences=1),
        Encoding({"x": X, "y": X}, n_sequences=2),
        Encoding({"x": X, "y": X}, ["no tokens"]),
        deque([X, X]),
        UserDict({"x": UserDict({"x": X})}),
    ]
    for _ in range(2):
        for given in inputs:
            modcache.lookup_or_run(module, given, "k", scope="s")
    count = len(inputs)
    assert counted() == {"misses": count, "stored": count, "hits_memory": count}


def test_methods_of_ones_own_mapping_are_part_of_the_address(counted: Any) -> None:
    class Reads(nn.Module):
        def forward(self, batch: Any) -> torch.Tensor:
            return batch.x * 2

    module = Reads()
    for _ in range(2):
        assert torch.equal(modcache.lookup_or_run(module, Encoding({"x": X}), KEYS), X * 2)
    assert counted() == {"misses": 3, "stored": 3, "hits_memory": 3}
    own = Encoding.__getattr__
    try:
        Encoding.__getattr__ = lambda self, name: self.data[name] + 1  # type: ignore[method-assign]
        assert torch.equal(modcache.lookup_or_run(module, Encoding({"x": X}), KEYS), (X + 1) * 2)
    finally:
        Encoding.__getattr__ = own  # type: ignore[method-assign]
    assert torch.equal(modcache.lookup_or_run(module, Encoding({"x": X}), KEYS), X * 2)


def test_a_result_with_a_tokenizers_encodings_is_not_stored(counted: Any, capfd: Any) -> None:
    class Encodes(Python):
        """Tells its warning from those of other tests."""

    module = Encodes(lambda x: Encoding({"x": x}, [FIRST, SECOND, THIRD]))
    for _ in range(2):
        assert modcache.lookup_or_run(module, X, KEYS, scope="s")._encodings is not None
    assert counted() == {"bypassed_type": 6}
    modcache.flush()
    assert "return dict(batch)" in capfd.readouterr().err


def test_a_sample_is_without_a_tokenizers_encodings_from_the_first_time_on() -> None:
    dataset: Any = modcache.CachedDataset([Encoding({"x": X}, [FIRST], 1)], scope="s")
    for _ in range(2):
        sample = dataset[0]
        assert (type(sample), sample._encodings, sample._n_sequences) == (Encoding, None, 1)


def test_a_model_output_as_an_argument(counted: Any) -> None:
    outputs = pytest.importorskip("transformers.modeling_outputs")

    def give(output: Any) -> torch.Tensor:
        return output.last_hidden_state + output["hidden_states"][0]

    module = Python(give)
    few = outputs.BaseModelOutput(last_hidden_state=X[:1], hidden_states=(X[:1], X[:1]))
    whole = outputs.BaseModelOutput(last_hidden_state=X, hidden_states=(X, X))
    modcache.lookup_or_run(module, few, KEYS[:1], scope="s")
    for _ in range(2):
        assert torch.equal(modcache.lookup_or_run(module, whole, KEYS, scope="s"), X * 2)
    assert counted() == {"misses": 3, "stored": 3, "hits_memory": 4}


def test_another_value_in_a_mapping_is_another_input(counted: Any) -> None:
    module = Python(lambda batch: batch["x"] * 2)
    modcache.lookup_or_run(module, UserDict(x=X), "k", scope="s")
    found = modcache.lookup_or_run(module, UserDict(x=X + 1), "k", scope="s")
    assert torch.equal(found, (X + 1) * 2)
    assert counted()["key_conflicts"] == 1


class Frozen(Mapping[str, Any]):
    def __init__(self, items: dict[str, Any]) -> None:
        self.items_ = items

    def __getitem__(self, name: str) -> Any:
        return self.items_[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.items_)

    def __len__(self) -> int:
        return len(self.items_)


class UnfinishedDict(UserDict):  # type: ignore[type-arg]
    def __init__(self) -> None:
        pass

    def __getitem__(self, name: str) -> Any:
        return X


class Opaque:
    pass


def with_attribute(value: Any) -> Any:
    batch = Encoding({"x": X})
    batch.extra = value
    return batch


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        (Frozen({"x": X}), r"a test_mappings\.Frozen; pass dict\(batch\)"),
        (types.MappingProxyType({"x": X}), r"a mappingproxy; pass dict\(batch\).*\*\*batch"),
        (with_attribute(Opaque()), r"Encoding; pass dict\(batch\).*Opaque beside its items"),
        (UnfinishedDict(), r"UnfinishedDict; pass dict\(batch\)"),
        (with_attribute(X), r"Encoding; pass dict\(batch\).*a tensor beside its items"),
    ],
    ids=["Mapping", "proxy", "object", "unfinished", "tensor"],
)
def test_a_mapping_that_nobody_can_rebuild_runs_uncached(
    batch: Any, says: str, counted: Any, capfd: Any
) -> None:
    module = Python(lambda batch: batch["x"] * 2)
    assert torch.equal(modcache.lookup_or_run(module, batch, KEYS, scope="s"), X * 2)
    assert counted() == {"bypassed_type": 3}
    modcache.flush()
    message = capfd.readouterr().err
    assert re.search(says, message), message


def test_wrong_numbers_of_rows_in_a_mapping_are_an_error() -> None:
    module = Python(lambda batch: batch["x"])
    with pytest.raises((ValueError, RuntimeError), match=r"2 keys|first size"):
        modcache.lookup_or_run(module, UserDict(x=X), KEYS[:2], scope="s")
    bad = with_attribute(Opaque())
    with pytest.raises(ValueError, match=r"2 keys were given, but .* \[3, 4\]"):
        modcache.lookup_or_run(module, bad, KEYS[:2], scope="s")


def test_grad_of_a_tensor_in_a_mapping_is_seen(counted: Any) -> None:
    module = Python(lambda batch: batch["x"] * 2)
    modcache.lookup_or_run(module, UserDict(x=X), KEYS, scope="s")
    trained = X.clone().requires_grad_()
    for _ in range(2):
        assert modcache.lookup_or_run(module, UserDict(x=trained), KEYS, scope="s").requires_grad
    assert counted()["bypassed_grad"] > 0
    assert not modcache.lookup_or_run(module, UserDict(x=X), KEYS, scope="s").requires_grad


def test_a_transform_of_a_tensor_in_a_mapping_is_seen(counted: Any) -> None:
    module = Python(lambda batch: batch["x"] * 2)

    def run(x: torch.Tensor) -> torch.Tensor:
        return modcache.lookup_or_run(module, UserDict(x=x), "k", scope="s")

    assert torch.equal(torch.vmap(run)(X), X * 2)
    assert "stored" not in counted()


def test_content_keys_of_a_mapping_are_those_of_the_dict() -> None:
    for made in (UserDict, Encoding, types.MappingProxyType, Frozen):
        batch: Any = made({"x": X, "n": 3})
        assert modcache.content_key(batch) == modcache.content_key({"x": X, "n": 3})
        assert modcache.content_keys(batch) == modcache.content_keys({"x": X, "n": 3})


def test_a_cached_module_takes_a_mapping_as_it_is_and_unpacked(counted: Any) -> None:
    class Encoder(nn.Module):
        def forward(self, x: Any, y: Any = None) -> torch.Tensor:
            return (x["x"] if y is None else x + y) * 2

    encoder = modcache.cached(Encoder(), key="ids", freeze=True)
    for _ in range(2):
        assert torch.equal(encoder(UserDict(x=X), ids=KEYS), X * 2)
        assert torch.equal(encoder(**UserDict(x=X, y=X), ids=KEYS), X * 4)
    assert counted() == {"misses": 6, "stored": 6, "hits_memory": 6}
    keyed = modcache.cached(Encoder(), key="content", freeze=True)
    keyed(UserDict(x=X))
    assert torch.equal(keyed(UserDict(x=X)), X * 2)
    assert counted()["hits_memory"] == 1


@pytest.mark.parametrize("name", CLASSES)
def test_a_result_comes_back_as_the_same_class(
    name: str, reopen: Callable[[], None], counted: Any
) -> None:
    made = CLASSES[name]
    module = Python(lambda x: made({"x": x, "n": 1, "deep": {"y": (x * 2, None)}}))
    module(X)
    for round_ in range(3):
        if round_ == 2:
            reopen()
        found = modcache.lookup_or_run(module, X, KEYS, scope="s")
        assert type(found) is type(made({}))
        assert list(found.data) == ["x", "n", "deep"]
        assert torch.equal(found["x"], X)
        assert torch.equal(found["deep"]["y"][0], X * 2)
        assert copy.copy(found)["n"] == 1
    assert counted() == {"misses": 3, "stored": 3, "hits_memory": 3, "hits_disk": 3}


def test_a_fill_counts_the_bytes_in_a_mapping() -> None:
    module = Python(lambda batch: UserDict(x=batch["x"] * 2, y=batch["x"].numpy()))
    done = modcache.fill(module, [(UserDict(x=X), KEYS)], key=1, input=0, scope="s", progress=False)
    assert (done.rows, done.runs, done.stored, done.bytes) == (3, 3, 3, 2 * X.nbytes)
    by_name = [UserDict(batch=UserDict(x=X), ids=KEYS)]
    done = modcache.fill(module, by_name, key="ids", input="batch", scope="s", progress=False)
    assert (done.rows, done.hits) == (3, 3)


@pytest.mark.parametrize("name", CLASSES)
def test_a_sample_comes_back_as_the_same_class(name: str, counted: Any) -> None:
    made = CLASSES[name]

    class Samples:
        def __getitem__(self, index: int) -> Any:
            return made({"x": X[index], "name": "a", "raw": b"1"})

    dataset: Any = modcache.CachedDataset(Samples(), scope="s")
    for _ in range(2):
        sample = dataset[1]
        assert type(sample) is type(made({}))
        assert torch.equal(sample["x"], X[1])
        assert sample["raw"] == b"1"
    assert counted()["hits_memory"] == 1
