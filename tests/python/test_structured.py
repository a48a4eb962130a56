# SPDX-License-Identifier: Apache-2.0
"""Structured values: what a module returned comes back as it was, for one key and per row."""

# No `from __future__ import annotations`: TorchScript reads the annotations.

import collections
import importlib
import sys
from dataclasses import dataclass
from typing import Any, Dict, List, NamedTuple, Optional, Tuple  # noqa: UP035

import modcache
import pytest
import torch
from modcache._call import tagged
from models import Python, in_form
from processes import ProcessRunner
from torch import nn
from torch.utils import _pytree as pytree

X = torch.arange(12.0).reshape(3, 4)
KEYS = ["a", "b", "c"]


class Point(NamedTuple):
    x: torch.Tensor
    y: Optional[torch.Tensor]  # noqa: UP045


class Structured(nn.Module):
    """One of everything that TorchScript can return, with empty and missing parts."""

    def forward(
        self, x: torch.Tensor
    ) -> Tuple[Dict[str, torch.Tensor], List[torch.Tensor], Point, Optional[int], str]:  # noqa: UP006, UP045
        empty: List[torch.Tensor] = []  # noqa: UP006
        return {"sum": x.sum(1), "x": x}, empty, Point(x + 1, None), None, "text"


class AsAny(nn.Module):
    """Asks of what it got from the cache what TorchScript can ask."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Structured()

    def forward(self, x: torch.Tensor, key: str) -> List[str]:  # noqa: UP006
        r = torch.ops.cache.lookup_or_run_any(self.inner, x, key)
        return answers(r)


class RowsAsAny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Structured()

    def forward(self, x: torch.Tensor, keys: List[str]) -> List[str]:  # noqa: UP006
        r = torch.ops.cache.lookup_or_run_any(self.inner, x, keys)
        return answers(r)


def answers(r: Any) -> List[str]:  # noqa: UP006
    out: List[str] = []  # noqa: UP006
    if isinstance(
        r,
        Tuple[Dict[str, torch.Tensor], List[torch.Tensor], Point, Optional[int], str],  # noqa: UP006, UP045
    ):
        out.append("tuple")
        d, empty, point, none, text = r
        out.append(str(len(d)) + str(len(empty)) + text)
        y = point.y
        if y is None and none is None:
            out.append("both none")
        out.append(str(int(point.x.sum())))
    return out


def test_types_answer_the_same_on_a_miss_and_on_a_hit(counted: Any, reopen: Any) -> None:
    for module, key in ((AsAny(), "k"), (RowsAsAny(), KEYS)):
        scripted = torch.jit.script(module)
        on_miss = scripted(X, key)
        assert on_miss == ["tuple", "20text", "both none", str(int((X + 1).sum()))]
        assert "stored" in counted()
        assert scripted(X, key) == on_miss
        assert set(counted()) == {"hits_memory"}
        reopen()
        assert scripted(X, key) == on_miss
        assert set(counted()) == {"hits_disk"}


class GivesDict(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return {"x": x}


class AsksForDict(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = GivesDict()

    def forward(self, x: torch.Tensor, key: str) -> Tuple[bool, bool]:  # noqa: UP006
        r = torch.ops.cache.lookup_or_run_any(self.inner, x, key)
        return isinstance(r, Dict[str, torch.Tensor]), isinstance(r, Dict[str, int])  # noqa: UP006


def test_a_method_that_declares_any_keeps_its_types_too(reopen: Any) -> None:
    scripted = torch.jit.script(AsksForDict())
    for _ in range(2):
        assert scripted(X, "k") == (True, False)
        reopen()


def leaves_equal(a: Any, b: Any) -> bool:
    flat_a, spec_a = pytree.tree_flatten(a)
    flat_b, spec_b = pytree.tree_flatten(b)
    return spec_a == spec_b and all(
        torch.equal(x, y) if isinstance(x, torch.Tensor) else type(x) is type(y) and x == y
        for x, y in zip(flat_a, flat_b, strict=True)
    )


Pair = collections.namedtuple("Pair", "first second")


class Swapping(Pair):
    """A named tuple that is not made of its fields as they come."""

    __slots__ = ()

    def __new__(cls, first: Any, second: Any) -> "Swapping":
        return super().__new__(cls, second, first)


class Items(tuple):
    """No named tuple, and unknown to the pytree registry."""

    __slots__ = ()


GIFTS = {
    "tuple": lambda x: (x, x + 1),
    "empty tuple beside": lambda x: (x, ()),
    "list": lambda x: [x, 2, "three", None, True, 4.5, 6 + 7j],
    "empty list": lambda x: {"none": [], "x": x},
    "dict": lambda x: {"b": x, "a": 1, 7: [x]},
    "named tuple": lambda x: Pair(x, Point(x, None)),
    "named tuple with a constructor": lambda x: Swapping(x, [x + 1]),
    "what torch returns": lambda x: {"max": x.max(dim=1), "topk": x.topk(2)},
    "shape": lambda x: (x, x.shape[1:]),
    "ordered dict": lambda x: collections.OrderedDict(z=x, a=x + 1),
    "nested": lambda x: {"a": [(x, {"b": [x * 2, None]})]},
    "floats of all kinds": lambda x: [x, float("inf"), -0.0, 1e-320],
}


@pytest.mark.parametrize("gift", GIFTS)
@pytest.mark.parametrize("key", ["k", KEYS], ids=["one key", "per row"])
def test_eager_values_come_back_as_they_were(
    gift: str, key: Any, counted: Any, reopen: Any
) -> None:
    module = Python(GIFTS[gift])
    given = module(X)
    assert leaves_equal(modcache.lookup_or_run(module, X, key, scope="s"), given)
    counted()
    assert leaves_equal(modcache.lookup_or_run(module, X, key, scope="s"), given)
    assert set(counted()) == {"hits_memory"}
    reopen()
    assert leaves_equal(modcache.lookup_or_run(module, X, key, scope="s"), given)
    assert set(counted()) == {"hits_disk"}


def test_a_missing_row_is_run_alone_and_put_between_the_others(counted: Any) -> None:
    module = Python(GIFTS["nested"])
    modcache.lookup_or_run(module, X[[0, 2]], ["a", "c"], scope="s")
    counted()
    assert leaves_equal(modcache.lookup_or_run(module, X, KEYS, scope="s"), module(X))
    assert counted() == {"hits_memory": 2, "misses": 1, "stored": 1}


def test_a_model_output_comes_back_as_that_class() -> None:
    outputs = importlib.import_module("transformers.modeling_outputs")
    kind = outputs.BaseModelOutputWithPooling
    module = Python(lambda x: kind(last_hidden_state=x, pooler_output=x[:, 0]))
    for key in ("k", KEYS):
        for _ in range(2):
            result = modcache.lookup_or_run(module, X, key, scope="s")
            assert type(result) is kind
            assert torch.equal(result.pooler_output, X[:, 0])
            assert result.attentions is None
    assert modcache.stats()["hits_memory"] == 4


@dataclass
class Unregistered:
    x: torch.Tensor


@pytest.mark.parametrize(
    ("give", "named"),
    [
        (Unregistered, "Unregistered"),
        (lambda x: {1.5: x}, "neither str nor int"),
        (lambda x: [x, 2**70], "64 bits"),
        (lambda x: [x, b"bytes"], "bytes"),
        (lambda x: Items([[x]]), "Items"),
        (lambda x: (x, x.to_sparse()), "sparse"),
    ],
    ids=["class", "float key", "big int", "bytes", "tuple class", "sparse inside"],
)
@pytest.mark.parametrize("key", ["k", KEYS], ids=["one key", "per row"])
def test_what_cannot_be_stored_passes_through_and_is_counted(
    give: Any, named: str, key: Any, counted: Any, capfd: Any
) -> None:
    module = Python(give)
    for _ in range(2):
        modcache.lookup_or_run(module, X, key, scope="s")
    rows = 1 if key == "k" else 3
    assert counted() == {"bypassed_type": 2 * rows}


def test_what_python_stored_torchscript_reads_and_the_other_way_round(counted: Any) -> None:
    eager, scripted = Structured(), torch.jit.script(Structured())
    for first, second, scope in ((eager, scripted, "one"), (scripted, eager, "two")):
        for key in ("k", KEYS):
            stored = modcache.lookup_or_run(first, X, key, scope=scope)
            counted()
            read = modcache.lookup_or_run(second, X, key, scope=scope)
            assert set(counted()) == {"hits_memory"}
            for value in (stored, read):
                assert torch.equal(value[0]["sum"], X.sum(1))
                assert value[1] == []
                assert value[2].y is None
                assert value[3:] == (None, "text")
                assert torch.equal(value[2].x, X + 1)


def read_in_another_process(directory: str) -> Any:
    modcache.configure(dir=directory)
    values = [
        modcache.lookup_or_run(in_form(Structured(), face), X, key, scope="shared")
        for face in ("eager", "scripted")
        for key in ("k", KEYS)
    ]
    growth = modcache.stats()
    sums = [float(value[0]["sum"].sum()) for value in values]
    return growth["misses"], growth["hits_disk"] + growth["hits_memory"], sums


def test_another_process_reads_them(cache_dir: Any, processes: ProcessRunner) -> None:
    for key in ("k", KEYS):
        modcache.lookup_or_run(Structured(), X, key, scope="shared")
    modcache.flush()
    misses, hits, sums = processes.run(read_in_another_process, str(cache_dir)).value
    assert (misses, hits) == (0, 2 * (1 + len(KEYS)))
    assert sums == [float(X.sum())] * 4


@pytest.mark.parametrize("face", ["eager", "scripted"])
def test_the_tensor_form_names_the_other(face: str) -> None:
    module = in_form(Structured(), "scripted")
    for key in ("k", KEYS):
        for _ in range(2):
            with pytest.raises(RuntimeError, match="lookup_or_run_any"):
                torch.ops.cache.lookup_or_run(module, X, key)
        modcache.lookup_or_run(module, X, key)
        with pytest.raises(RuntimeError, match="lookup_or_run_any"):
            torch.ops.cache.lookup_or_run(module, X, key)


def test_writing_into_a_structured_result_changes_no_later_one(reopen: Any) -> None:
    module = Python(GIFTS["nested"])
    for key in ("k", KEYS):
        for _ in range(3):
            x = X.clone()  # which the module gives back
            result = modcache.lookup_or_run(module, x, key, scope="s")
            assert leaves_equal(result, module(X))
            result["a"][0][0].zero_()
            result["a"].append("more")
            reopen()


class Renamed(list):
    """A class whose registered way back leads to another class."""


pytree.register_pytree_node(Renamed, lambda value: (list(value), None), lambda items, _: items)


def test_a_class_that_the_registry_does_not_give_back_passes_through(counted: Any) -> None:
    for _ in range(2):
        result = modcache.lookup_or_run(Python(lambda x: Renamed([x])), X, "k", scope="s")
        assert type(result) is Renamed
    assert counted() == {"bypassed_type": 2}


# ----- what a cache says about classes


def test_looking_a_class_up_imports_nothing() -> None:
    before = set(sys.modules)
    for name in ("torch.onnx.Nothing", "torch._inductor.Nothing", "torch.nn.Module.no.such"):
        assert tagged._class_named(name) is None
    assert set(sys.modules) == before
    assert tagged._class_named("torch.return_types.max") is torch.return_types.max


def test_a_class_that_cannot_be_made_is_an_unknown_one() -> None:
    for stored in (("N", "gone.Point", ("class",), (1,)), ("o", "torch.Size", "{", (1,))):
        with pytest.raises(tagged.UnknownClassError):
            tagged.untagged(stored)


class Refuses:
    """Of the registry, and refuses to be rebuilt when `IS_REFUSING`."""

    IS_REFUSING = False

    def __init__(self, x: torch.Tensor) -> None:
        if self.IS_REFUSING:
            raise RuntimeError("not today")
        self.x = x


class GivesRefuses(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        result = Refuses.__new__(Refuses)
        result.x = x
        return result


@pytest.mark.parametrize("key", ["k", KEYS], ids=["whole", "rows"])
def test_a_class_that_refuses_what_is_stored_has_the_module_run(
    key: Any, monkeypatch: pytest.MonkeyPatch, counted: Any
) -> None:
    if Refuses not in pytree.SUPPORTED_NODES:
        pytree.register_pytree_node(
            Refuses, lambda r: ([r.x], None), lambda items, _: Refuses(*items)
        )
    modcache.lookup_or_run(GivesRefuses(), X, key, scope="s")
    assert "stored" in counted()
    monkeypatch.setattr(Refuses, "IS_REFUSING", True)
    assert torch.equal(modcache.lookup_or_run(GivesRefuses(), X, key, scope="s").x, X)
    assert counted()["bypassed_type"] == (1 if key == "k" else 3)


def test_a_named_tuple_whose_fields_were_renamed_is_given_back_as_it_is() -> None:
    local = collections.namedtuple("local", "x class", rename=True)

    class GivesLocal(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return local(x, 1)

    assert type(modcache.lookup_or_run(GivesLocal(), X, "k", scope="s")) is local
