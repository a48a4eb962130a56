# SPDX-License-Identifier: Apache-2.0
"""One key per row: only missing rows are run, each distinct key once, and all come in order."""

from __future__ import annotations

import sys
from typing import Any

import modcache
import pytest
import torch
from models import UpTo, in_form
from torch import nn

FORMS = ("eager", "scripted", "traced", "operator")
BATCH = 256


RAN: list[int] = []  # on how many rows, for each run of Rows in eager Python


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "test_rows.ran":
        RAN.append(arguments[0])


sys.addaudithook(_note)  # a side door: what a module reaches and changes makes it impure


class Rows(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.jit.is_scripting() and not torch.jit.is_tracing():
            sys.audit("test_rows.ran", x.shape[0])
        return x * 2 + 1


class Batched:
    """A module in one of its forms, called with one key per row."""

    def __init__(self, form: str) -> None:
        face = "scripted" if form == "operator" else form
        self.module = in_form(Rows(), face, torch.zeros(3, 4))
        self._call = torch.ops.cache.lookup_or_run if form == "operator" else modcache.lookup_or_run

    def __call__(self, x: torch.Tensor, keys: Any) -> torch.Tensor:
        return self._call(self.module, x, keys)  # type: ignore[no-any-return]


@pytest.fixture(params=FORMS)
def batched(request: Any) -> Batched:
    return Batched(request.param)


def batch(rows: range | list[int]) -> torch.Tensor:
    return torch.tensor([[float(row)] * 4 for row in rows])


def keys_of(rows: range | list[int]) -> list[str]:
    return [f"sample-{row:06}" for row in rows]


def expected(rows: range | list[int]) -> torch.Tensor:
    return batch(rows) * 2 + 1


def test_a_batch_that_is_known_runs_nothing(batched: Batched, counted: Any, reopen: Any) -> None:
    rows = range(BATCH)
    assert torch.equal(batched(batch(rows), keys_of(rows)), expected(rows))
    assert counted() == {"misses": BATCH, "stored": BATCH}
    assert torch.equal(batched(batch(rows), keys_of(rows)), expected(rows))
    assert counted() == {"hits_memory": BATCH}
    reopen()
    assert torch.equal(batched(batch(rows), keys_of(rows)), expected(rows))
    assert counted() == {"hits_disk": BATCH}


def test_one_missing_key_runs_exactly_one_row(batched: Batched, counted: Any) -> None:
    known = [row for row in range(BATCH) if row != 77]
    batched(batch(known), keys_of(known))
    counted()
    rows = range(BATCH)
    assert torch.equal(batched(batch(rows), keys_of(rows)), expected(rows))
    assert counted() == {"hits_memory": BATCH - 1, "misses": 1, "stored": 1}


def test_the_module_itself_sees_only_missing_rows(counted: Any) -> None:
    module = Rows()
    modcache.lookup_or_run(module, batch(range(BATCH - 1)), keys_of(range(BATCH - 1)), scope="s")
    RAN.clear()
    rows = range(BATCH)
    modcache.lookup_or_run(module, batch(rows), keys_of(rows), scope="s")
    assert RAN == [1]
    modcache.lookup_or_run(module, batch(rows), keys_of(rows), scope="s")
    assert RAN == [1]


def test_repeated_keys_are_run_once(batched: Batched, counted: Any) -> None:
    rows = [3, 1, 3, 3, 2, 1, 0]
    assert torch.equal(batched(batch(rows), keys_of(rows)), expected(rows))
    growth = counted()
    assert (growth["misses"], growth["stored"]) == (4, 4)
    assert sum(growth.get(name, 0) for name in ("misses", "hits_memory", "hits_disk")) == len(rows)
    assert torch.equal(batched(batch(rows), keys_of(rows)), expected(rows))
    assert counted() == {"hits_memory": len(rows)}


def test_rows_come_back_in_the_order_of_their_keys(batched: Batched) -> None:
    rows = list(range(40))
    batched(batch(rows), keys_of(rows))
    for shuffled in (rows[::-1], [*rows[7:], 99, 98, *rows[:7]], [5, 5, 41, 5]):
        assert torch.equal(batched(batch(shuffled), keys_of(shuffled)), expected(shuffled))


def test_an_id_is_its_decimal_text(batched: Batched, counted: Any) -> None:
    ids = torch.tensor([7, -3, 2**62, -(2**63), 0])
    x = batch(range(5))
    batched(x, ids)
    counted()
    assert torch.equal(batched(x, [str(int(i)) for i in ids]), expected(range(5)))
    assert counted() == {"hits_memory": 5}


def test_a_row_and_a_whole_value_are_different_entries(batched: Batched, counted: Any) -> None:
    x = batch(range(1))
    batched(x, ["k"])
    counted()
    assert torch.equal(batched(x, "k"), expected(range(1)))
    assert counted() == {"misses": 1, "stored": 1}


def test_an_empty_batch_gives_what_the_module_gives(batched: Batched, counted: Any) -> None:
    result = batched(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
    assert result.shape == (0, 4)
    assert "stored" not in counted()


@pytest.mark.parametrize(
    "keys",
    [["a"], ["a", "b", "c"], ["a", ""], torch.tensor([1.0, 2.0]), torch.tensor([[1, 2]]),
     torch.tensor([True, False])],
    ids=["too few", "too many", "empty key", "floats", "two dimensions", "booleans"],
)  # fmt: skip
def test_wrong_keys_are_errors_before_anything_runs(batched: Batched, keys: Any) -> None:
    RAN.clear()
    with pytest.raises((ValueError, TypeError, RuntimeError)):
        batched(batch(range(2)), keys)
    assert not RAN
    assert modcache.stats()["misses"] == 0


def test_the_error_says_which_shape_does_not_fit(batched: Batched) -> None:
    with pytest.raises(ValueError, match=r"3 keys .* \[2, 4\]"):
        batched(batch(range(2)), ["a", "b", "c"])


class Pooled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(0)


@pytest.mark.parametrize("face", ["eager", "scripted"])
def test_a_batch_whose_output_lacks_the_rows_runs_whole_and_uncached(
    face: str, counted: Any
) -> None:
    module, x = in_form(Pooled(), face), torch.randn(5, 4)
    for _ in range(2):
        assert torch.equal(modcache.lookup_or_run(module, x, list("abcde")), x.sum(0))
        assert counted() == {"bypassed_rows": 5}
    modcache.configure(strict=True)
    with pytest.raises(RuntimeError, match=r"shape \[4\] for 5 rows"):
        modcache.lookup_or_run(module, x, list("abcde"))


class Several(nn.Module):
    """A tuple of inputs: tensors of B rows, and a number that goes to every row."""

    def forward(self, x: torch.Tensor, y: torch.Tensor, times: int) -> torch.Tensor:
        return x * times - y


@pytest.mark.parametrize("face", ["eager", "scripted"])
def test_values_that_are_no_tensors_go_to_every_row(face: str, counted: Any) -> None:
    module = in_form(Several(), face)
    x, y = batch(range(4)), torch.ones(4, 1)
    modcache.lookup_or_run(module, (x[:2], y[:2], 3), ["a", "b"])
    counted()
    result = modcache.lookup_or_run(module, (x, y, 3), list("abcd"))
    assert torch.equal(result, x * 3 - y)
    assert counted() == {"hits_memory": 2, "misses": 2, "stored": 2}
    assert torch.equal(modcache.lookup_or_run(module, (x, y, 4), list("abcd")), x * 4 - y)
    assert counted() == {"misses": 4, "stored": 4}


def test_a_row_of_another_shape_is_a_conflict_that_replaces(batched: Batched, counted: Any) -> None:
    batched(torch.zeros(2, 4), ["a", "b"])
    counted()
    assert torch.equal(batched(torch.ones(2, 6), ["a", "b"]), torch.full((2, 6), 3.0))
    growth = counted()
    assert (growth["key_conflicts"], growth["misses"], growth["stored"]) == (2, 2, 2)
    assert torch.equal(batched(torch.ones(2, 6), ["a", "b"]), torch.full((2, 6), 3.0))
    assert counted() == {"hits_memory": 2}


@pytest.fixture(params=["eager", "scripted"])
def ragged(request: Any) -> nn.Module:
    module = in_form(UpTo(), request.param)
    modcache.lookup_or_run(module, torch.full((2, 8), 3.0), ["a", "b"], ragged="list")
    modcache.lookup_or_run(module, torch.full((2, 8), 5.0), ["c", "d"], ragged="list")
    return module


# Of keys "a", "c" and "b", as they are stored.
X = torch.tensor([3.0, 5.0, 3.0])[:, None].expand(3, 8)


def test_a_batch_whose_rows_do_not_fit_together_runs_whole(ragged: Any, counted: Any) -> None:
    whole = UpTo()(X)
    counted()
    assert torch.equal(modcache.lookup_or_run(ragged, X, ["a", "c", "b"]), whole)
    assert counted()["bypassed_rows"] == 3
    if isinstance(ragged, torch.jit.ScriptModule):
        seen = torch.ops.cache.lookup_or_run(ragged, X, ["a", "c", "b"])
        assert torch.equal(seen, whole)
    modcache.configure(strict=True)
    with pytest.raises(RuntimeError, match=r"row 0 is .*\[3\].*row 1 is .*\[5\].*ragged=\"list\""):
        modcache.lookup_or_run(ragged, X, ["a", "c", "b"])


def test_rows_that_do_not_fit_together_as_a_list(ragged: Any) -> None:
    for rows in (
        modcache.lookup_or_run_any(ragged, X, ["a", "c", "b"]),
        modcache.lookup_or_run(ragged, X, ["a", "c", "b"], ragged="list"),
    ):
        assert [row.tolist() for row in rows] == [[3.0] * 3, [5.0] * 5, [3.0] * 3]
    # The same form where they happen to fit.
    rows = modcache.lookup_or_run(ragged, X[[0, 2]], ["a", "b"], ragged="list")
    assert [row.tolist() for row in rows] == [[3.0] * 3] * 2


def test_rows_that_do_not_fit_together_padded(ragged: Any) -> None:
    padded, lengths = modcache.lookup_or_run(ragged, X, ["a", "c", "b"], ragged="pad")
    assert padded.tolist() == [[3.0] * 3 + [0.0] * 2, [5.0] * 5, [3.0] * 3 + [0.0] * 2]
    assert lengths.tolist() == [3, 5, 3]


def test_what_a_caller_writes_into_a_batch_changes_no_row(batched: Batched, reopen: Any) -> None:
    x = torch.ones(BATCH, 4)
    for _ in range(3):
        batched(x, keys_of(range(BATCH))).zero_()
        result = batched(x, keys_of(range(BATCH)))
        assert torch.equal(result, x * 2 + 1)
        result.numpy()[:] = -1
        result.data.add_(3)
        reopen()


def test_batches_that_live_at_once_share_no_memory() -> None:
    module = Rows()
    x = torch.arange(2000.0).repeat(200, 1)  # 1.6 MB: from the recycled blocks
    keys = keys_of(range(200))
    kept = [modcache.lookup_or_run(module, x, keys, scope="s") for _ in range(6)]
    assert len({result.data_ptr() for result in kept}) == 6
    for number, result in enumerate(kept):
        result.fill_(number)
    assert [float(result.sum()) / result.numel() for result in kept] == [0, 1, 2, 3, 4, 5]
    place = kept[5].data_ptr()
    del kept, result
    again = modcache.lookup_or_run(module, x, keys, scope="s")
    assert torch.equal(again, x * 2 + 1)
    view = again[3:5]
    del again
    other = modcache.lookup_or_run(module, x, keys, scope="s").zero_()
    assert torch.equal(view, (x * 2 + 1)[3:5]), "a view keeps its batch"
    assert other.data_ptr() != view.data_ptr() - 3 * 8000
    assert place  # where it lay says nothing about who has it now


def test_a_batch_that_was_handed_out_can_grow() -> None:
    x = torch.ones(300, 1000)
    keys = keys_of(range(300))
    modcache.lookup_or_run(Rows(), x, keys, scope="s")
    result = modcache.lookup_or_run(Rows(), x, keys, scope="s")
    result.resize_(900, 1000)
    assert torch.equal(result[:300], x * 2 + 1)


def test_requires_grad_is_learned_for_batches(counted: Any) -> None:
    module = nn.Linear(4, 2)
    x = batch(range(6))
    for _ in range(2):
        modcache.lookup_or_run(module, x, keys_of(range(6))).sum().backward()
    assert module.weight.grad is not None
    assert counted() == {"bypassed_grad": 12}
    with torch.no_grad():
        modcache.lookup_or_run(module, x, keys_of(range(6)))
        modcache.lookup_or_run(module, x, keys_of(range(6)))
    assert counted() == {"misses": 6, "stored": 6, "hits_memory": 6}


class FrozenInside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.linear(x)


@pytest.mark.parametrize("face", ["eager", "scripted"])
def test_no_grad_inside_forward_is_honoured_for_batches(face: str, counted: Any) -> None:
    module = in_form(FrozenInside(), face)
    x = batch(range(6))
    first = modcache.lookup_or_run(module, x, keys_of(range(6)))
    assert counted() == {"misses": 6, "stored": 6}
    assert torch.equal(modcache.lookup_or_run(module, x, keys_of(range(6))), first)
    assert counted() == {"hits_memory": 6}


class Drops(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5, True)


@pytest.mark.parametrize("face", ["eager", "scripted"])
def test_random_results_are_not_kept_and_each_row_counts(face: str, counted: Any) -> None:
    module = in_form(Drops(), face)
    modcache.lookup_or_run(module, batch(range(5)), keys_of(range(5)))
    growth = counted()
    assert growth["bypassed_impure"] == 5
    assert "stored" not in growth
