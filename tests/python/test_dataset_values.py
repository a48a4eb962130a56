# SPDX-License-Identifier: Apache-2.0
"""What a sample may hold: it comes back as it was; anything else is an error that helps."""

from __future__ import annotations

import collections
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import modcache
import numpy as np
import pytest
import torch
from made_samples import Made
from modcache._data.values import packed, unpacked


class Point(NamedTuple):
    x: Any
    y: Any


def same(a: Any, b: Any) -> bool:
    """Equal in type, dtype and value, all the way down; NaN equals itself."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and same(a.tolist(), b.tolist())
    if isinstance(a, (np.ndarray, np.generic)):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, (list, tuple, collections.deque)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return repr(a) == repr(b)


VALUES: dict[str, Callable[[], Any]] = {
    "tensor": lambda: torch.arange(6.0).reshape(2, 3),
    "strided tensor": lambda: torch.arange(6).reshape(2, 3).t(),
    "scalar tensor": lambda: torch.tensor(3, dtype=torch.uint16),
    "empty tensor": lambda: torch.empty(0, 4, dtype=torch.bool),
    "bfloat16": lambda: torch.ones(2, dtype=torch.bfloat16),
    "size": lambda: torch.Size([2, 3]),
    "plain": lambda: [1, -(2**62), 1.5, float("nan"), -0.0, 2j, "text ü", "", None, True, False],
    "bytes": lambda: (b"\x00\xffjpeg", b""),
    "dict": lambda: {"image": torch.ones(2), "label": 3, 7: [b"x"], "": {}},
    "nested": lambda: ([], (), [[(1,)], {"a": ({},)}]),
    "named tuple": lambda: Point(torch.ones(1), [np.ones(1)]),
    "ordered dict": lambda: collections.OrderedDict(b=np.arange(2), a=b"1"),
    "array": lambda: np.arange(6, dtype=np.uint8).reshape(2, 3),
    "read-only array": lambda: np.broadcast_to(np.float32(1), (2, 2)),
    "reversed array": lambda: np.arange(4)[::-1],
    "zero-dimensional array": lambda: np.array(2.5),
    "empty array": lambda: np.empty((0, 3), dtype="U4"),
    "strings": lambda: np.array(["a", "bü"]),
    "byte strings": lambda: np.array([b"a", b"bc"]),
    "dates": lambda: np.array(["2020-01-01", "NaT"], dtype="M8[ms]"),
    "big-endian": lambda: np.arange(3, dtype=">i4"),
    "long double": lambda: np.arange(3, dtype=np.longdouble),
    "structured": lambda: np.array([(1, [2.5, 3])], dtype=[("a", "i4"), ("b", "f8", (2,))]),
    "void": lambda: np.zeros(2, dtype="V3"),
    "half": lambda: np.arange(3, dtype=np.float16),
    "complex": lambda: np.arange(3, dtype=np.complex64),
    "scalars": lambda: [
        np.float64(1.5), np.int8(-3), np.bool_(True), np.str_("abc"), np.datetime64("2020-01-01")
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_a_value_comes_back_as_it_was(name: str, reopen: Callable[[], None]) -> None:
    one = Made(VALUES[name])
    dataset = modcache.CachedDataset(one, scope=name)
    assert same(dataset[0], VALUES[name]())
    assert same(dataset[0], VALUES[name]())
    reopen()
    assert same(dataset[0], VALUES[name]())
    assert one.runs == 1


def test_an_empty_tensor_is_read_before_it_is_written() -> None:
    modcache.configure(memory="0")
    dataset = modcache.CachedDataset(Made(lambda: torch.empty(0, 3)), scope="empty")
    assert dataset[0].shape == (0, 3)
    assert dataset[0].shape == (0, 3)


def test_a_miss_gives_what_a_hit_gives() -> None:
    """Memory of its own, the strides of the stored value, and nothing shared within it."""
    kept = torch.arange(6.0).reshape(2, 3).t()
    one = Made(lambda: (kept, kept, np.asfortranarray(np.ones((2, 2)))))
    dataset = modcache.CachedDataset(one, scope="s")
    for _ in range(2):
        first, second, array = dataset[0]
        assert first.stride() == second.stride() == (1, 3)
        assert array.flags.c_contiguous
        first.add_(1)
        assert torch.equal(second, torch.arange(6.0).reshape(2, 3).t())
    assert one.runs == 1
    assert kept[0, 0] == 0


ORDERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "row-major": lambda image: image.contiguous(),
    "channels last": lambda image: image.contiguous(memory_format=torch.channels_last),
    "transposed": lambda image: image.transpose(1, 3),
    "as a file has it": lambda image: image[0].permute(1, 2, 0).contiguous().permute(2, 0, 1),
    "conjugated": lambda image: torch.complex(image, image).transpose(0, 2).conj(),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("memory", ["64MB", "0"])
def test_a_tensor_comes_back_with_its_strides(
    order: str, memory: str, reopen: Callable[[], None]
) -> None:
    modcache.configure(memory=memory)
    given = ORDERS[order](torch.rand(2, 3, 4, 5))
    one = Made(lambda: given)
    dataset = modcache.CachedDataset(one, scope=order)
    for found in (dataset[0], dataset[0], *dataset.__getitems__([0, 0])):
        assert torch.equal(found, given)
        assert found.stride() == given.stride()
    reopen()
    assert dataset[0].stride() == given.stride()
    assert one.runs == 1


def test_a_tensor_with_gaps_or_shared_elements_comes_back_in_one_piece() -> None:
    for given in (torch.arange(24.0).view(4, 6)[:, ::2], torch.ones(3).expand(4, 3)):
        dataset = modcache.CachedDataset(Made(lambda given=given: given), scope=str(given.stride()))
        for _ in range(2):
            found = dataset[0]
            assert torch.equal(found, given)
            assert found.is_contiguous()


def test_arrays_from_the_cache_are_the_callers_own(reopen: Callable[[], None]) -> None:
    dataset = modcache.CachedDataset(Made(lambda: (np.ones(70_000), np.array(["a"]))), scope="s")
    for round_ in range(4):
        if round_ == 2:
            reopen()
        numbers, text = dataset[0]
        assert (numbers == 1).all()
        numbers[:] = 7
        assert text[0] == "a"
        text[:] = "z"


def test_a_none_is_a_value() -> None:
    one = Made(lambda: None)
    dataset = modcache.CachedDataset(one, scope="none")
    assert dataset[0] is None
    assert dataset[0] is None
    assert one.runs == 1


def test_how_bytes_and_arrays_are_named_on_disk_stays_as_it_is() -> None:
    name = "modcache._data.values"
    assert packed(b"x")[:3] == ("N", f"{name}.Bytes", ("data",))
    fields = ("dtype", "shape", "is_scalar", "data")
    tag, kind, names, items = packed(np.zeros(2, dtype="M8[s]"))
    assert (tag, kind, names) == ("N", f"{name}.Array", fields)
    assert items[:3] == ("'<M8[s]'", "2", False)


class Image:
    pass


class Text(str):
    pass


class Sub(torch.Tensor):
    pass


Image.__module__ = "PIL.Image"

REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "object": (
        lambda: (1, {"image": Image()}),
        r'sample\[1\]\["image"\] is a PIL\.Image\.Image, which .* Return numpy\.asarray\(image\)',
    ),
    "set": (lambda: [{1, 2}], r"sample\[0\] is a set, which cannot be cached"),
    "path": (lambda: Point(Path("a"), 0), r"sample\.x is a pathlib\.PosixPath"),
    "str subclass": (lambda: Text("a"), r"sample is a test_dataset_values\.Text"),
    "surrogate": (lambda: "\ud800", r"sample is text with lone surrogates, .*bytes"),
    "big int": (lambda: [2**63], r"sample\[0\] is an integer beyond 64 bits"),
    "key": (lambda: {(1, 2): 3}, r"sample is a dict with the key \(1, 2\) of type builtins\.tuple"),
    "grad": (lambda: [torch.ones(1, requires_grad=True)], r"requires grad.*detach\(\)"),
    "sparse": (lambda: torch.ones(2, 2).to_sparse(), r"a tensor of layout sparse_coo"),
    "meta": (lambda: torch.ones(2, device="meta"), r"a tensor on meta.*tensor\.cpu\(\)"),
    "parameter": (lambda: torch.nn.Parameter(torch.ones(1)), r"Parameter.*as_subclass"),
    "subclass": (lambda: torch.ones(1).as_subclass(Sub), r"Sub, .*as_subclass\(torch\.Tensor\)"),
    "object array": (lambda: np.array([None]), r"a NumPy array of dtype object"),
    "masked array": (lambda: np.ma.ones(2), r"MaskedArray.*numpy\.array\(value\)"),
    "default dict": (lambda: collections.defaultdict(list), "sample is a collections.defaultdict"),
    "deep": (
        lambda: collections.OrderedDict(a=(1, Image())),
        r"sample\[0\]\[1\] is a PIL\.Image\.Image",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_stored_is_an_error_that_names_it(name: str, cache_dir: Path) -> None:
    make, says = REFUSED[name]
    dataset = modcache.CachedDataset(Made(make), scope="s")
    with pytest.raises(TypeError, match=says) as error:
        dataset[0]
    assert str(error.value).startswith("CachedDataset(Made): sample")
    assert not modcache.contains("s", "0")


def test_a_named_tuple_that_cannot_be_found_by_name() -> None:
    class Hidden(NamedTuple):
        x: int

    with pytest.raises(TypeError, match=r"a named tuple of the class .*top of its module"):
        modcache.CachedDataset(Made(lambda: Hidden(1)), scope="s")[0]


def test_a_sample_that_holds_itself_is_an_error() -> None:
    sample: list[Any] = []
    sample.append(sample)
    with pytest.raises(TypeError, match=r"sample is nested too deeply, or holds itself"):
        modcache.CachedDataset(Made(lambda: sample), scope="s")[0]


def test_too_deep_a_sample_is_an_error() -> None:
    def make() -> Any:
        value: Any = 1
        for _ in range(80):
            value = [value]
        return value

    with pytest.raises(TypeError, match="nested too deeply"):
        modcache.CachedDataset(Made(make), scope="s")[0]


def test_a_class_that_is_gone_costs_a_run_and_not_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = Made(lambda: collections.OrderedDict(a=1))
    dataset = modcache.CachedDataset(one, scope="s")
    dataset[0]
    nodes = dict(torch.utils._pytree.SUPPORTED_NODES)
    monkeypatch.setattr(
        torch.utils._pytree,
        "SUPPORTED_NODES",
        {kind: node for kind, node in nodes.items() if kind is not collections.OrderedDict},
    )
    one.make = lambda: [1]
    assert dataset[0] == [1]
    assert one.runs == 2


def test_a_class_of_a_main_module_has_one_name_in_parent_and_spawned_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Sample(NamedTuple):
        x: int

    Sample.__qualname__ = "Sample"
    main = sys.modules["__main__"]  # a spawned worker has it under both names
    monkeypatch.setattr(main, "Sample", Sample, raising=False)
    for module in ("__main__", "__mp_main__"):
        Sample.__module__ = module
        assert packed(Sample(1))[1] == "__main__.Sample"
        assert type(unpacked(packed(Sample(1)))) is Sample
