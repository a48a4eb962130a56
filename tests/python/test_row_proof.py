# SPDX-License-Identifier: Apache-2.0
"""Rows are proven, not assumed: what is not cached by row, in every form of a call."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import modcache
import pytest
import torch
from processes import ProcessRunner
from torch import nn

COUNT, LENGTH, SIZE = 4, 7, 4
Call = Callable[[torch.Tensor, torch.Tensor], Any]


class Rows(nn.Module):
    """Returns rows, in two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(SIZE, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.linear(x)
        return y, y.mean(1)


class BesideConstant(Rows):
    """Returns rows, a scalar and a constant whose first size is 1."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # type: ignore[override]
        scale = self.linear.weight.mean()
        return self.linear(x), scale, scale.reshape(1) * 2


class States(nn.Module):
    """Returns the states of a GRU, [layers, B, H], beside rows."""

    def __init__(self, bidirectional: bool = False) -> None:
        super().__init__()
        self.gru = nn.GRU(SIZE, 5, batch_first=True, bidirectional=bidirectional)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.gru(x)  # type: ignore[no-any-return]


class TimeFirst(nn.Module):
    """Takes the rows for steps in time: a row depends on those before it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(0)


class Codes(nn.Module):
    """Returns codes as EnCodec does, [codebooks, B, T]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x.sum(2), x.mean(2)]).round()


class Centered(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)


class Similarities(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.flatten(1)
        return y @ y.t()


class LossBesideRows(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, x.square().mean().reshape(1)


class BatchStatistics(nn.Module):
    """A BatchNorm that takes the statistics of its batch, as in training."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(LENGTH, track_running_stats=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)  # type: ignore[no-any-return]


class Squeezed(nn.Module):
    """Drops the dimension of the rows in a batch of one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(SIZE, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).mean(1).squeeze()


BY_ROW = (Rows, BesideConstant)
NOT_BY_ROW = (
    States, TimeFirst, Codes, Centered, Similarities, LossBesideRows, BatchStatistics, Squeezed,
)  # fmt: skip


def eager(module: nn.Module) -> Call:
    return lambda x, ids: modcache.lookup_or_run(module, x, ids)


def decorated(module: nn.Module) -> Call:
    cached = modcache.cached(module, key="ids")
    return lambda x, ids: cached(x, ids=ids)


class Scripted(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> Any:
        return torch.ops.cache.lookup_or_run_any(self.module, x, ids)


def scripted(module: nn.Module) -> Call:
    return torch.jit.script(Scripted(module).eval())  # type: ignore[no-any-return]


def frozen(module: nn.Module) -> Call:
    return modcache.freeze(torch.jit.script(Scripted(module).eval()))  # type: ignore[return-value]


class Exported(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> Any:
        return modcache.lookup_or_run(self.module, x, ids)


def exported(module: nn.Module) -> Call:
    rows = torch.export.Dim("rows", min=1, max=64)
    example = torch.randn(3, LENGTH, SIZE), torch.arange(3)
    program = torch.export.export(
        Exported(module).eval(), example, dynamic_shapes=({0: rows}, {0: rows}), strict=False
    )
    return program.module()  # type: ignore[no-any-return]


FORMS = (eager, decorated, scripted, frozen, exported)


def made(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(1)
    return kind().eval().requires_grad_(False)


def leaves_of(value: Any) -> list[torch.Tensor]:
    return list(torch.utils._pytree.tree_leaves(value))


def expect_same(seen: Any, expected: Any) -> None:
    for one, other in zip(leaves_of(seen), leaves_of(expected), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def batches() -> Iterator[list[int]]:
    """Fills one by one, and asks in batches of every other size, with a repeated key."""
    yield from ([row] for row in range(COUNT))
    yield from ([0, 1, 2, 3], [2, 0], [3], [1, 3, 1])


def batches_first() -> Iterator[list[int]]:
    yield from ([0, 1], [3, 2], [1], [2, 0, 3], [3, 2, 1, 0])


@pytest.fixture(params=[True, False], ids=["equal", "different"])
def data(request: pytest.FixtureRequest) -> torch.Tensor:
    """Four rows: all different, or two of them equal."""
    x = torch.randn(COUNT, LENGTH, SIZE, generator=torch.Generator().manual_seed(3))
    if request.param:
        x[1] = x[0]
    return x


@pytest.mark.parametrize("kind", [*BY_ROW, *NOT_BY_ROW])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("order", [batches, batches_first])
def test_every_batch_gets_what_the_module_returns(
    kind: type[nn.Module], form: Callable[[nn.Module], Call], order: Any, data: torch.Tensor
) -> None:
    if form is exported and kind in (Squeezed, States):
        pytest.skip("torch.export takes no such module with a variable number of rows")
    module = made(kind)
    call = form(module)
    for ids in [*order(), *order()]:
        expect_same(call(data[ids], torch.tensor(ids)), module(data[ids]))


@pytest.mark.parametrize("kind", BY_ROW)
@pytest.mark.parametrize("form", [eager, decorated, scripted, frozen])
def test_proven_rows_hit_in_every_batch(
    kind: type[nn.Module], form: Callable[[nn.Module], Call], counted: Any
) -> None:
    data = torch.randn(COUNT, LENGTH, SIZE)
    if form is frozen and kind is BesideConstant:
        pytest.skip("a frozen graph cannot tell a constant from what depends on the number of rows")
    call = form(made(kind))
    if form is frozen:  # its graph cannot try a batch of one
        call(data[:2], torch.tensor([0, 1]))
    for row in range(COUNT):
        call(data[[row]], torch.tensor([row]))
    counted()
    for ids in ([0, 1, 2, 3], [2, 0], [3]):
        call(data[ids], torch.tensor(ids))
    assert counted() == {"hits_memory": 7}


@pytest.mark.parametrize("kind", NOT_BY_ROW)
@pytest.mark.parametrize("form", FORMS)
def test_what_is_no_rows_is_counted_and_warned_about_once(
    kind: type[nn.Module],
    form: Callable[[nn.Module], Call],
    counted: Any,
    capfd: pytest.CaptureFixture[str],
    recwarn: pytest.WarningsRecorder,
) -> None:
    if form is exported and kind in (Squeezed, States):
        pytest.skip("torch.export takes no such module with a variable number of rows")
    if form is frozen and kind is Squeezed:
        pytest.skip("a frozen graph only sees that batches of several consist of rows")
    data = torch.randn(COUNT, LENGTH, SIZE)
    # Each class is warned about once.
    named = type(f"{kind.__name__}In{form.__name__.title()}", (kind,), {})
    call = form(made(named))
    for _ in range(3):
        call(data, torch.arange(COUNT))
    counts = counted()
    messages = capfd.readouterr().err + "".join(str(one.message) for one in recwarn.list)
    if form is exported:  # recorded without the cache
        assert not counts.get("stored")
        assert "recorded without the cache" in messages
        return
    assert counts == {"bypassed_rows": 3 * COUNT}
    assert messages.count("not caching") == 1
    assert "key" in messages
    assert kind.__name__ in messages


def test_a_message_names_the_output_its_shapes_and_a_cure(
    capfd: pytest.CaptureFixture[str],
) -> None:
    class StatesAlone(States):
        pass

    modcache.lookup_or_run(made(StatesAlone), torch.randn(3, LENGTH, SIZE), [1, 2, 3])
    message = capfd.readouterr().err
    assert "not caching StatesAlone.forward: output 1 has the shape [1, 3, 5] for 3 rows" in message
    assert "[1, 1, 5] for one row" in message
    assert 'key="content"' in message


@pytest.mark.parametrize("kind", NOT_BY_ROW)
def test_strict_raises(kind: type[nn.Module]) -> None:
    modcache.configure(strict=True)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"strict=true.*not caching"):
            modcache.lookup_or_run(made(kind), torch.randn(3, LENGTH, SIZE), [1, 2, 3])


class Audible(nn.Module):
    """Writes the number of its rows to a pipe, which no attribute of it shows."""

    def __init__(self) -> None:
        super().__init__()
        self.heard, self.pipe = os.pipe()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        os.write(self.pipe, bytes([len(x)]))
        return x * 2

    def sizes(self) -> list[int]:
        return list(os.read(self.heard, 64))


def test_a_check_run_is_made_once_and_counts_as_time_alone(counted: Any) -> None:
    module, x = Audible(), torch.randn(6, 3)
    modcache.lookup_or_run(module, x[:4], [0, 1, 2, 3])
    assert module.sizes() == [4, 1]
    assert counted() == {"misses": 4, "stored": 4}
    modcache.lookup_or_run(module, x, [0, 1, 2, 3, 4, 5])
    assert module.sizes() == [2]


def test_a_batch_of_one_is_checked_beside_a_second_row() -> None:
    module, x = Audible(), torch.randn(3, 3)
    for row in range(3):
        modcache.lookup_or_run(module, x[[row]], [row])
    assert module.sizes() == [1, 2, 1, 1]


def test_nothing_is_proven_by_rows_that_cannot_be_told_apart(counted: Any) -> None:
    """Rows of one number: a second row made from the first is the same."""
    x = torch.randn(3, 1)
    narrow = nn.Linear(1, 2).requires_grad_(False)
    for row in range(3):
        modcache.lookup_or_run(narrow, x[[row]], [row])
    assert counted() == {"misses": 3, "stored": 3}
    for row in range(3):  # they serve batches of one
        modcache.lookup_or_run(narrow, x[[row]], [row])
    assert counted() == {"hits_memory": 3}
    expect_same(modcache.lookup_or_run(narrow, x[:2], [0, 1]), narrow(x[:2]))


def test_a_batch_decides_for_the_entries_of_batches_of_one(counted: Any) -> None:
    narrow = nn.Linear(1, 2).requires_grad_(False)
    x = torch.randn(4, 1)
    for row in range(4):
        modcache.lookup_or_run(narrow, x[[row]], [row])
    counted()
    modcache.lookup_or_run(narrow, x[:2], [0, 1])  # a batch, whose rows are proven now
    assert counted() == {"misses": 2, "stored": 2}
    modcache.lookup_or_run(narrow, x, [0, 1, 2, 3])
    assert counted() == {"hits_memory": 4}


def test_constants_that_differ_revoke_the_proof(counted: Any) -> None:
    """Where rows meet that were stored with different scalars, these were no constants."""

    class Steps(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x * 2, (x.amax() > 10).float()

    module = Steps()
    small, large = torch.randn(2, 3), torch.randn(2, 3) + 100
    modcache.lookup_or_run(module, small, [0, 1])
    modcache.lookup_or_run(module, large, [2, 3])
    x = torch.cat([small, large])
    for _ in range(2):
        expect_same(modcache.lookup_or_run(module, x, [0, 1, 2, 3]), module(x))
    assert counted()["bypassed_rows"] == 8


def _in_another_process(directory: str, kind: str, mode: str) -> dict[str, int]:
    modcache.configure(dir=directory, mode=mode)
    module = made(globals()[kind])
    data = torch.randn(COUNT, LENGTH, SIZE, generator=torch.Generator().manual_seed(3))
    for ids in ([0, 1, 2, 3], [2, 0], [3], [1, 1]):
        expect_same(modcache.lookup_or_run(module, data[ids], ids), module(data[ids]))
    return dict(modcache.stats())


@pytest.mark.parametrize("mode", ["on", "read"])
@pytest.mark.parametrize("kind", [*BY_ROW, *NOT_BY_ROW])
def test_a_second_process_knows_it(
    kind: type[nn.Module], mode: str, cache_dir: Path, processes: ProcessRunner
) -> None:
    data = torch.randn(COUNT, LENGTH, SIZE, generator=torch.Generator().manual_seed(3))
    module = made(kind)
    for row in range(COUNT):
        modcache.lookup_or_run(module, data[[row]], [row])
    modcache.flush()
    counts = processes.run(_in_another_process, str(cache_dir), kind.__name__, mode).value
    if kind in BY_ROW:
        assert counts["misses"] == counts["bypassed_rows"] == 0
    else:
        assert counts["bypassed_rows"] == 9
        assert counts["run_us"] == 0, "no check run was made, as the directory knew"


def test_clear_forgets_what_a_scope_was() -> None:
    """A name may get another meaning after its entries were cleared."""
    x = torch.randn(3, LENGTH, SIZE)
    modcache.lookup_or_run(made(Rows), x, [0, 1, 2], scope="name")
    modcache.clear("name")
    module = made(Centered)
    for ids in ([0, 1, 2], [1, 0], [2, 1]):
        expect_same(modcache.lookup_or_run(module, x[ids], ids, scope="name"), module(x[ids]))


def test_a_check_run_leaves_the_global_random_state_alone() -> None:
    class DrawsForOne(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(x) == 1:
                torch.rand(1)
            return x * 2

    before = torch.get_rng_state()
    modcache.lookup_or_run(DrawsForOne(), torch.arange(12.0).reshape(4, 3), [0, 1, 2, 3])
    assert torch.equal(torch.get_rng_state(), before)


class DropsBesideConstant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(SIZE, 5)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.dropout(self.linear(x)), self.linear.bias[:3] * 2


@pytest.mark.parametrize("ids", [[7, 8, 9], [7, 8, 7], [0, 8, 9]])
def test_a_proven_result_with_constants_that_may_not_be_stored_passes(
    ids: list[int], counted: Any
) -> None:
    module = made(DropsBesideConstant)
    data = torch.randn(COUNT, LENGTH, SIZE)
    modcache.lookup_or_run(module, data, [0, 1, 2, 3], scope="s")
    module.train()
    rows = data[:3] if ids != [7, 8, 7] else data[[0, 1, 0]]
    _, constant = modcache.lookup_or_run(module, rows, ids, scope="s")
    assert torch.equal(constant, module.linear.bias[:3] * 2)
    growth = counted()
    assert growth["stored"] == 4
    assert "corrupt" not in growth


def test_a_revoked_constant_is_never_a_hit_again() -> None:
    class Largest(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x * 2, x.amax()

    module = Largest()
    low, high = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[5.0, 6.0], [7.0, 8.0]])
    modcache.lookup_or_run(module, low, [0, 1])
    modcache.lookup_or_run(module, high, [2, 3])
    both = torch.cat([low, high])
    for ids in ([0, 1, 2, 3], [0], [1, 0], [0, 1, 2, 3]):
        seen = modcache.lookup_or_run(module, both[ids], ids)
        expect_same(seen, module(both[ids]))
