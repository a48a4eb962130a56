# SPDX-License-Identifier: Apache-2.0
"""One key per row: callers' mistakes are errors that say so, and failures hold nobody up."""

from __future__ import annotations

import threading
import time
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import modcache
import numpy as np
import pytest
import torch
from modcache._call import eager, ready_call
from modcache._call.rows import select_rows
from models import Python, UpTo
from torch import nn

X = torch.arange(12.0).reshape(3, 4)
KEYS = ["a", "b", "c"]


# ----- failures between the halves of a call


@pytest.mark.parametrize("name", ["select_rows", "tagged", "to_run", "_note_outcome"])
def test_a_kept_exception_holds_no_other_thread_up(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A thread waits for twenty times as long as a run takes: 5 s.
    module = Python(lambda x: time.sleep(0.25) or x + 1)
    modcache.lookup_or_run(module, X[:1], ["a"], scope="s")
    # The call still leads the rows after their first run, which is not stored.
    modcache.configure(admission="second")

    def fails(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    owner: Any = eager.Call if hasattr(eager.Call, name) else ready_call
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fails)
        with pytest.raises(KeyboardInterrupt) as kept:
            modcache.lookup_or_run(module, X, KEYS, scope="s")
    other = threading.Thread(
        target=lambda: modcache.lookup_or_run(module, X, KEYS, scope="s"), daemon=True
    )
    other.start()
    other.join(4)
    assert not other.is_alive(), "it waits for the call that raised"
    assert kept.tb is not None


# ----- inputs that the cache does not take


class Opaque:
    pass


REFUSED: dict[str, Callable[[Any], Any]] = {
    "refused": lambda keys: modcache.lookup_or_run(Python(_first), (X, Opaque()), keys),
    "traced": lambda keys: torch.jit.trace(
        lambda x: modcache.lookup_or_run(Python(_first), x, keys), X, check_trace=False
    ),
    "vmap": lambda keys: torch.vmap(
        lambda x: modcache.lookup_or_run(Python(_first), x, keys), in_dims=1
    )(X),
}
RAN: list[None] = []


def _first(x: torch.Tensor, *_: Any) -> torch.Tensor:
    RAN.append(None)
    return x * 2


@pytest.mark.parametrize("how", REFUSED)
@pytest.mark.parametrize(
    ("keys", "match"),
    [
        (["a"], r"1 keys were given, but .* \[3"),
        (["a", "b", ""], "empty"),
        (torch.tensor([1.0, 2.0, 3.0]), "int64"),
        (torch.tensor([[1, 2, 3]]), "one dimension"),
        ([], "0 keys"),
    ],
    ids=["too few", "empty key", "float32", "two dimensions", "none"],
)
def test_wrong_keys_are_errors_also_where_nothing_is_cached(
    how: str, keys: Any, match: str
) -> None:
    RAN.clear()
    with pytest.raises(ValueError, match=match):
        REFUSED[how](keys)
    assert not RAN


@pytest.mark.parametrize("how", REFUSED)
@pytest.mark.parametrize("keys", [KEYS, torch.arange(3), [7, 7, 7]], ids=str)
def test_every_row_that_goes_by_is_counted(how: str, keys: Any, counted: Any) -> None:
    REFUSED[how](keys)
    assert counted() == {"bypassed_type": 3}
    modcache.set_mode("off")
    REFUSED[how](keys)
    assert counted() == {"bypassed_off": 3}


# ----- inputs whose rows are taken apart


class Doubled(namedtuple("Doubled", "first second")):
    """Its constructor takes other arguments than it has fields."""

    __slots__ = ()

    def __new__(cls, first: Any) -> Doubled:
        return super().__new__(cls, first, first * 2)


@pytest.mark.parametrize("part", [torch.Size([3, 5]), Doubled(X)], ids=["Size", "named tuple"])
def test_a_part_of_the_rows_of_any_tuple(part: Any, counted: Any) -> None:
    def give(x: torch.Tensor, part: Any) -> torch.Tensor:
        return x + len(part) if isinstance(part, torch.Size) else x + part.second

    module = Python(give)
    few = Doubled(X[:1]) if isinstance(part, Doubled) else part
    modcache.lookup_or_run(module, (X[:1], few), ["a"], scope="s")
    found = modcache.lookup_or_run(module, (X, part), KEYS, scope="s")
    assert torch.equal(found, give(X, part))
    assert counted()["misses"] == 3


def test_containers_are_rebuilt_as_what_they_are() -> None:
    chosen = select_rows(torch.max(X, 1), [1], 3)
    assert isinstance(chosen, torch.return_types.max)
    assert chosen.values.tolist() == [7.0]


# ----- forms of the result


def test_no_rows_at_all() -> None:
    module = nn.Linear(4, 5)
    padded, lengths = modcache.lookup_or_run(module, X[:0, None], [], ragged="pad")
    assert (padded.shape, lengths.shape) == ((0, 0, 5), (0,))
    assert modcache.lookup_or_run(module, X[:0], [], ragged="list") == []
    with pytest.raises(ValueError, match="there are none"):
        modcache.lookup_or_run(Python(lambda x: x[:, 0]), X[:0], [], ragged="pad")


Pair = namedtuple("Pair", "first second")


def test_a_list_of_structured_rows_that_fit_together(counted: Any) -> None:
    module = Python(lambda x: {"x": x, "n": 1, "t": (x[:, 0], ["k"]), "p": Pair(x, None)})
    for _ in range(2):
        rows = modcache.lookup_or_run(module, X, KEYS, scope="s", ragged="list")
        assert [row["x"].tolist() for row in rows] == X.tolist()
        assert [row["t"][0].item() for row in rows] == [0.0, 4.0, 8.0]
        assert all(row["n"] == 1 and row["t"][1] == ["k"] for row in rows)
        assert all(type(row["p"]) is Pair and row["p"].first.shape == (4,) for row in rows)
    assert counted() == {"misses": 3, "stored": 3, "hits_memory": 3}


@pytest.mark.filterwarnings("ignore")
def test_a_list_of_what_has_no_rows_is_an_error() -> None:
    with pytest.raises(TypeError, match=r"Python\.forward returned a dict that cannot be taken"):
        modcache.lookup_or_run(
            Python(lambda x: {"x": x, "o": Opaque()}), X, KEYS, scope="s", ragged="list"
        )


DIFFERENCES = {
    "shape": (
        lambda x, n: {"y": [x[:, :n]]}, r"\['y'\]\[0\] of row 0 is \[1\], .* of row 1 is \[3\]"
    ),
    "value": (lambda x, n: (x, n), r"\[1\] of row 0 is 1, \[1\] of row 1 is 3"),
    "structure": (
        lambda x, n: {"y": x, "n": n} if n == 1 else {"y": x}, r"\['n'\].* is 1, .* is absent"
    ),
    "dtype": (lambda x, n: x if n == 1 else x.half(), r"float32.*float16"),
}  # fmt: skip


@pytest.mark.parametrize("difference", ["shape", "value"])
def test_rows_that_do_not_fit_together_are_named(difference: str) -> None:
    """They are of two meanings of one scope."""
    give, text = DIFFERENCES[difference]
    size = [1]
    module = Python(lambda x: give(x, size[0]))
    modcache.lookup_or_run(module, X[:1], ["a"], scope="s")
    size[0] = 3
    modcache.lookup_or_run(module, X[1:], ["b", "c"], scope="s")
    expect_same(modcache.lookup_or_run(module, X, KEYS, scope="s"), give(X, 3))
    modcache.configure(strict=True)
    with pytest.raises(RuntimeError, match=text):
        modcache.lookup_or_run(module, X, KEYS, scope="s")


def expect_same(seen: Any, expected: Any) -> None:
    for one, other in zip(
        torch.utils._pytree.tree_leaves(seen),
        torch.utils._pytree.tree_leaves(expected),
        strict=True,
    ):
        assert torch.equal(torch.as_tensor(one), torch.as_tensor(other))


@pytest.mark.parametrize("difference", ["structure", "dtype"])
def test_stored_rows_that_one_module_cannot_have_given_are_run_again(
    difference: str, counted: Any
) -> None:
    give, _ = DIFFERENCES[difference]
    size = [1]
    module = Python(lambda x: give(x, size[0]))
    modcache.lookup_or_run(module, X[:1], ["a"], scope="s")
    size[0] = 3
    right = modcache.lookup_or_run(module, X[1:], ["b", "c"], scope="s")
    counted()
    found = modcache.lookup_or_run(module, X, KEYS, scope="s")
    assert counted() == {"hits_memory": 2, "misses": 1, "stored": 1}
    found = found if isinstance(found, torch.Tensor) else found["y"]
    right = right if isinstance(right, torch.Tensor) else right["y"]
    assert found.dtype is right.dtype
    assert torch.equal(found[1:], right)
    assert torch.equal(found.float(), X)


def test_the_message_names_the_class_that_was_scripted() -> None:
    module = torch.jit.script(UpTo())
    modcache.configure(strict=True)
    with pytest.raises(RuntimeError, match=r"not caching UpTo\.forward"):
        modcache.lookup_or_run(module, torch.tensor([[1.0, 2.0], [2.0, 2.0]]), ["a", "b"])


# ----- keys of NumPy's types, and too large ones


def test_numpy_integers_are_ids(counted: Any) -> None:
    module = Python(lambda x: x + 1)
    ids: list[Any] = [[np.int64(1), np.int16(2), 3], np.array([1, 2, 3], dtype="uint64")]
    for keys in (*ids, np.array([1, 2, 3], dtype="uint8"), ["1", "2", "3"]):
        modcache.lookup_or_run(module, X, keys, scope="s")
    assert counted() == {"misses": 3, "stored": 3, "hits_memory": 9}


@pytest.mark.parametrize(
    ("key", "error", "text"),
    [
        (np.int64(3), TypeError, "must be a str, or one key per row.*got int64"),
        ([1, 2**63, 2], ValueError, r"key\[1\] is 9223372036854775808.*64 bits.*str"),
        (np.array([1, 2, 2**63], dtype="uint64"), ValueError, r"key\[2\] is .*64 bits"),
        ([np.int64(1), "a", "b"], TypeError, "either all str or all int"),
        ([True, False, True], TypeError, r"key\[0\] must be a str, but got bool"),
    ],
    ids=["scalar", "large", "large uint64", "mixed", "bool"],
)
def test_other_keys_are_errors_that_say_what_is_wanted(key: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        modcache.lookup_or_run(nn.ReLU(), X, key)


# ----- more rows than memory


def test_an_allocation_that_fails_is_an_error_and_no_crash() -> None:
    module = Python(lambda x: x * 2)
    x = torch.ones(1, 1 << 18)
    modcache.lookup_or_run(module, x, ["a"], scope="s")
    many = 1 << 22  # rows of 1 MiB: more memory than any machine of ours has
    with pytest.raises(RuntimeError):
        modcache.lookup_or_run(module, x.expand(many, -1), ["a"] * many, scope="s")
