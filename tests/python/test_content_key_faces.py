# SPDX-License-Identifier: Apache-2.0
"""Content keys from TorchScript, from NumPy, in threads, and of what has none."""

# No `from __future__ import annotations`: TorchScript reads the annotations of functions.

import sys
import threading
import time
import warnings
from typing import Any, Dict, List, NamedTuple, Optional  # noqa: UP035  (TorchScript)

import modcache
import numpy as np
import pytest
import torch
from content_layout import expected_key
from torch.utils._python_dispatch import TorchDispatchMode

X = torch.arange(6, dtype=torch.float32).reshape(2, 3)


class Pair(NamedTuple):
    x: torch.Tensor
    times: int


# ----- TorchScript


def of_tensor(x: torch.Tensor) -> str:
    return modcache.content_key(x)


def of_tuple(x: torch.Tensor, n: int, device: torch.device, z: complex) -> str:
    return modcache.content_key((x, n, 2.5, True, None, ("a", [1, 2]), device, z))


def of_list(x: List[Optional[torch.Tensor]]) -> str:  # noqa: UP006, UP045
    return modcache.content_key(x)


def of_dict(x: Dict[str, torch.Tensor]) -> str:  # noqa: UP006
    return modcache.content_key(x)


def of_named(x: Pair) -> str:
    return modcache.content_key(x)


def of_empty() -> str:
    return modcache.content_key(
        [torch.jit.annotate(list[int], []), torch.jit.annotate(list[int], [])]
    )


def of_rows(x: torch.Tensor, n: int) -> List[str]:  # noqa: UP006
    return modcache.content_keys((x, n))


def test_the_names_of_a_named_tuple_do_not_count() -> None:
    assert modcache.content_key(Pair(X, 1)) == modcache.content_key((X, 1))


SCRIPTED = {
    "tensor": (of_tensor, (X,)),
    "tuple": (of_tuple, (X, 3, torch.device("cuda:1"), 1 + 2j)),
    "list": (of_list, ([X, None],)),
    "dict": (of_dict, ({"b": X, "a": X.t()},)),
    "named tuple": (of_named, (Pair(X, 3),)),
    "empty lists": (of_empty, ()),
    "rows": (of_rows, (X, 3)),
}


@pytest.mark.parametrize("name", SCRIPTED)
def test_torchscript_gives_the_same_keys(name: str) -> None:
    function, arguments = SCRIPTED[name]
    scripted = torch.jit.script(function)
    assert "cache::content_key" in str(scripted.graph)
    assert scripted(*arguments) == function(*arguments)


# ----- NumPy


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint16", "int64", "uint64", "float16", "complex64"]
)
def test_arrays_count_as_tensors(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    frozen = array.copy()
    frozen.flags.writeable = False
    key = expected_key(torch.from_numpy(array))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for same in (array, frozen, array[::-1][::-1], array.astype(array.dtype.newbyteorder(">"))):
            assert modcache.content_key(same) == key
            assert modcache.content_keys([same]) == modcache.content_keys([torch.from_numpy(array)])
        assert modcache.content_key(array[::-1]) == expected_key(
            torch.from_numpy(array[::-1].copy())
        )
        assert modcache.content_key(array.T) == expected_key(torch.from_numpy(array).t())
        assert modcache.content_key(array[0, 0:1].reshape(())) == expected_key(
            torch.from_numpy(array)[0, 0]
        )


# ----- modes


def test_a_mode_that_replaces_operators_does_not_count() -> None:
    class AddsOne(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
            result = function(*args, **(kwargs or {}))
            return result + 1 if isinstance(result, torch.Tensor) else result

    scripted, turned = torch.jit.script(of_tensor), X.t()
    with AddsOne():
        key = scripted(turned)
    assert key == expected_key(turned)


# ----- mistakes


class Subclass(torch.Tensor):
    pass


def with_emptied_storage() -> torch.Tensor:
    x = torch.ones(5)
    x.untyped_storage().resize_(0)
    return x


MISTAKES: Dict[str, Any] = {  # noqa: UP006
    "bytes": (b"abc", TypeError, ["bytes", "key of your own"]),
    "an object": ([X, object()], TypeError, ["object", "key of your own"]),
    "a set": ({1, 2}, TypeError, ["set"]),
    "a dtype": (torch.float32, TypeError, ["torch.dtype"]),
    "a module": (torch.nn.ReLU(), TypeError, ["ReLU"]),
    "a NumPy scalar": ({"n": np.int64(3)}, TypeError, ["numpy.int64", "item()"]),
    "a NumPy float": (np.float64(3), TypeError, ["numpy.float64", "item()"]),
    "NumPy text": (np.array(["a"]), TypeError, ["<U1", "key of your own"]),
    "NumPy objects": (np.array([None]), TypeError, ["object"]),
    "NumPy void": (np.zeros(2, "V0"), TypeError, ["dtype"]),
    "a long double": (np.zeros(2, np.longdouble), TypeError, ["dtype"]),
    "a masked array": (np.ma.masked_array([1], [True]), TypeError, ["MaskedArray"]),
    "a subclass": (torch.ones(2).as_subclass(Subclass), TypeError, ["Subclass", "key of your own"]),
    "an int of 65 bits": ([2**64], ValueError, ["65 bits", "key of your own"]),
    "a lone surrogate": (["\udc80"], ValueError, ["Unicode", "surrogate"]),
    "sparse": (X.to_sparse(), ValueError, ["sparse", "key of your own"]),
    "sparse, nested": ([1, X.to_sparse()], ValueError, ["sparse", "key of your own"]),
    "meta": (X.to("meta"), ValueError, ["without data", "key of your own"]),
    "an emptied storage": (with_emptied_storage(), ValueError, ["without data"]),
    "bits": (torch.zeros(2, dtype=torch.uint8).view(torch.bits8), ValueError, ["dtype"]),
}


@pytest.mark.parametrize("name", MISTAKES)
@pytest.mark.parametrize("function", [modcache.content_key, modcache.content_keys])
def test_what_has_no_key_is_named(name: str, function: Any) -> None:
    value, error, words = MISTAKES[name]
    with pytest.raises(error) as caught:
        function(value)
    for word in words:
        assert word in str(caught.value), str(caught.value)


@pytest.mark.filterwarnings("ignore:.*quantize")
def test_a_quantized_tensor_has_no_key() -> None:
    with pytest.raises(ValueError, match=r"quantized.*key of your own"):
        modcache.content_key(torch.quantize_per_tensor(X, 1.0, 0, torch.qint8))


@pytest.mark.filterwarnings("ignore:.*nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_a_nested_tensor_has_no_key(layout: torch.layout) -> None:
    nested = torch.nested.nested_tensor([X, X], layout=layout)
    with pytest.raises((ValueError, TypeError), match=r"(?i)nested.*key of your own"):
        modcache.content_key(nested)


@pytest.mark.parametrize("transform", [torch.func.vmap, torch.func.grad, torch.func.functionalize])
def test_a_functorch_wrapper_has_no_key(transform: Any) -> None:
    def keyed(x: torch.Tensor) -> torch.Tensor:
        for value in (x, [x]):
            for function in (modcache.content_key, modcache.content_keys):
                with pytest.raises(TypeError, match=r"functorch.*key of your own"):
                    function(value)
        return x.sum()

    transform(keyed)(X)


def test_a_dual_tensor_has_no_key() -> None:
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(X, X)
        with pytest.raises(ValueError, match=r"dual tensor.*key of your own"):
            modcache.content_key(dual)


BAD_ROWS = {
    "no tensor": ([1, "a"], ["no tensor", "content_key"]),
    "nothing": ((), ["no tensor"]),
    "no dimension": ((X, torch.tensor(1.0)), ["0 dimensions", "rows"]),
    "other numbers of rows": ((X, [torch.ones(3)]), ["2", "3", "rows"]),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_an_input_without_rows_is_explained(name: str) -> None:
    value, words = BAD_ROWS[name]
    with pytest.raises(ValueError, match="content_keys") as caught:
        modcache.content_keys(value)
    for word in words:
        assert word in str(caught.value), str(caught.value)


# ----- threads


@pytest.mark.parametrize("function", [modcache.content_key, modcache.content_keys])
def test_other_threads_run_while_a_large_input_is_hashed(function: Any) -> None:
    large = torch.zeros(4, 16 << 20, dtype=torch.uint8)
    ticks, is_over = 0, False

    def tick() -> None:
        nonlocal ticks
        while not is_over:
            time.sleep(0.0005)
            ticks += 1

    ticker = threading.Thread(target=tick)
    ticker.start()
    interval = sys.getswitchinterval()
    try:
        # Nobody is made to hand the GIL over: the ticker gets on only if it is released.
        sys.setswitchinterval(1000)
        before = ticks
        function(large)
        during = ticks - before
    finally:
        sys.setswitchinterval(interval)
        is_over = True
        ticker.join()
    assert during > 0
