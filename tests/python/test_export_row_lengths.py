# SPDX-License-Identifier: Apache-2.0
"""Rows of their own length in exported and compiled programs, seen by eager calls before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import modcache
import pytest
import torch
from padded_rows import (
    IDS,
    LENGTHS,
    Program,
    States,
    assert_padded,
    exported,
    padded_batch,
    seen,
    sentences,
)
from processes import ProcessRunner
from recorded_models import count_of
from torch import nn

FIRST_UNSEEN = 1000


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch._dynamo.reset()


def check(run: Callable[..., Any], encoder: nn.Module, batch: Any, ids: torch.Tensor) -> None:
    tokens, mask = batch
    assert_padded(run(tokens, mask, ids), encoder(tokens, mask), mask, 4.0)


@pytest.fixture
def encoder() -> nn.Module:
    return States().requires_grad_(False).eval()


@pytest.mark.parametrize(
    ("strict", "scope", "marks"),
    [
        (False, "", None),
        (True, "", {"mask": 1}),
        (False, "states@export", {"mask": "mask"}),
        (True, "states@export", None),
    ],
)
def test_an_exported_program_finds_rows_at_any_padding(
    encoder: nn.Module, strict: bool, scope: str, marks: Any, counted: Any
) -> None:
    rows = sentences()
    seen(encoder, padded_batch(rows), scope=scope)
    program = exported(Program(encoder, scope, marks), padded_batch(rows), strict=strict).module()
    counted()
    check(program, encoder, padded_batch(rows), IDS + FIRST_UNSEEN)
    assert counted() == {"misses": len(rows), "stored": len(rows)}
    for longest in (0, 11, 8):
        check(program, encoder, padded_batch(rows, longest), IDS + FIRST_UNSEEN)
        assert counted() == {"hits_memory": len(rows)}
    some = [0, 2, 5]  # another number of rows, which are shorter
    check(program, encoder, padded_batch([rows[i] for i in some]), IDS[some] + FIRST_UNSEEN)
    assert counted() == {"hits_memory": len(some)}


def test_some_rows_are_found_and_the_others_are_stored(encoder: nn.Module, counted: Any) -> None:
    rows = sentences()
    seen(encoder, padded_batch(rows), scope="some@export")
    program = exported(Program(encoder, "some@export"), padded_batch(rows)).module()
    counted()
    ids = torch.where(IDS < 3, IDS, IDS + FIRST_UNSEEN)
    check(program, encoder, padded_batch(rows, 9), ids)
    assert counted() == {"hits_memory": 3, "misses": 3, "stored": 3}
    # Eager calls share the rows, in both directions.
    modcache.lookup_or_run(encoder, padded_batch(rows), ids, mask=1, scope="some@export")
    assert counted() == {"hits_memory": 6}


def test_a_batch_that_is_padded_on_the_left_is_not_cached(encoder: nn.Module, counted: Any) -> None:
    tokens, mask = padded_batch(sentences())
    seen(encoder, (tokens, mask), scope="left@export")
    program = exported(Program(encoder, "left@export"), (tokens, mask)).module()
    counted()
    left = (tokens.flip(1), mask.flip(1))
    for _ in range(2):
        found = program(*left, IDS + FIRST_UNSEEN)
        assert torch.equal(found, encoder(*left))
        assert counted() == {"bypassed_type": len(IDS)}


def test_lengths_are_a_tensor_as_well(counted: Any) -> None:
    class Doubles(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    class OfLengths(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = Doubles()

        def forward(self, x: torch.Tensor, lengths: torch.Tensor, ids: torch.Tensor) -> Any:
            return modcache.lookup_or_run(self.encoder, x, ids, lengths=lengths, pad_value=-1)

    model, lengths = OfLengths(), torch.tensor(LENGTHS)
    seen(model.encoder, torch.randn(len(LENGTHS), 7, 3), lengths=lengths)
    x = torch.randn(len(LENGTHS), 9, 3)
    rows, longest = torch.export.Dim("rows"), torch.export.Dim("longest", min=4)
    shapes = ({0: rows, 1: longest}, {0: rows}, {0: rows})
    run = torch.export.export(model, (x, lengths, IDS), dynamic_shapes=shapes).module()
    counted()
    for end, counts in ((9, {"misses": 6, "stored": 6}), (7, {"hits_memory": 6})):
        found = run(x[:, :end], lengths, IDS + FIRST_UNSEEN)
        for row, length in enumerate(LENGTHS):
            assert torch.equal(found[row, :length], x[row, :length] * 2)
            assert (found[row, length:] == -1).all()
        assert counted() == counts
    with pytest.raises(ValueError, match="is 9, but must be from 0 to 7"):
        run(x[:, :7], lengths + 2, IDS)


def test_a_compiled_program_finds_rows_at_any_padding(encoder: nn.Module, counted: Any) -> None:
    rows = sentences()
    seen(encoder, padded_batch(rows))
    run = torch.compile(Program(encoder), fullgraph=True, backend="aot_eager")
    counted()
    for longest in (0, 11, 9):
        check(run, encoder, padded_batch(rows, longest), IDS)
        assert counted() == {"hits_memory": len(rows)}
    check(run, encoder, padded_batch(rows, 9), IDS + FIRST_UNSEEN)
    assert counted() == {"misses": len(rows), "stored": len(rows)}


def test_without_fullgraph_the_call_is_eager_and_needs_no_calls_before(encoder: nn.Module) -> None:
    rows = sentences()
    run = torch.compile(Program(encoder), backend="eager")
    for longest in (0, 9):
        check(run, encoder, padded_batch(rows, longest), IDS)
    assert modcache.stats()["misses"] == len(rows)


def run_loaded(program_file: str, batch_file: str, results_file: str) -> list[int]:
    program = torch.export.load(program_file).module()
    tokens, mask = torch.load(batch_file)
    first, second = program(tokens, mask, IDS), program(tokens, mask, IDS + FIRST_UNSEEN)
    shorter = program(tokens[:, :7], mask[:, :7], IDS + FIRST_UNSEEN)
    stats = modcache.stats()
    counts = [stats[name] for name in ("hits_disk", "hits_memory", "misses", "stored")]
    torch.save((first, second, shorter), results_file)
    return counts


def test_a_saved_program_does_so_in_a_new_process(
    encoder: nn.Module, tmp_path: Path, processes: ProcessRunner
) -> None:
    rows = sentences()
    modcache.configure(dir=str(tmp_path / "shared"))
    seen(encoder, padded_batch(rows), scope="saved@1")
    program = exported(Program(encoder, "saved@1"), padded_batch(rows))
    torch.export.save(program, tmp_path / "program.pt2")
    modcache.flush()
    batch = padded_batch(rows, 10)
    env = {"MODCACHE_DIR": str(tmp_path / "shared")}
    torch.save(batch, tmp_path / "batch.pt")
    files = [str(tmp_path / name) for name in ("program.pt2", "batch.pt", "results.pt")]
    assert processes.run(run_loaded, *files, env=env).value == [6, 6, 6, 6]
    first, second, shorter = torch.load(files[-1])
    check(lambda *_: first, encoder, batch, IDS)
    check(lambda *_: second, encoder, batch, IDS)
    assert torch.equal(shorter, second[:, :7])


@pytest.mark.parametrize("batches", [0, 7])
def test_too_few_eager_calls_leave_a_program_uncached(encoder: nn.Module, batches: int) -> None:
    batch = padded_batch(sentences())
    scope = f"seen {batches} times"
    seen(encoder, batch, batches, scope)
    with pytest.warns(UserWarning, match=f"only {batches} of 8 batches have shown that yet"):
        program = exported(Program(encoder, scope), batch)
    assert count_of(program, "cache.") == 0
    assert torch.allclose(program.module()(*batch, IDS), encoder(*batch), atol=1e-5)


class Averaging(nn.Module):
    """Pays no heed to its mask."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x.float().mean(1) + 1


def test_a_module_that_does_not_heed_its_mask_is_recorded_uncached() -> None:
    batch = padded_batch(sentences())
    seen(Averaging(), batch)
    with pytest.warns(UserWarning, match="the module does not heed its mask"):
        program = exported(Program(Averaging()), batch)
    assert count_of(program, "cache.") == 0


def test_off_gives_what_the_module_gives(encoder: nn.Module) -> None:
    batch = padded_batch(sentences())
    seen(encoder, batch, scope="off@1")
    program = exported(Program(encoder, "off@1"), batch).module()
    with modcache.mode("off"):
        assert torch.allclose(program(*batch, IDS), encoder(*batch), atol=1e-5)


def test_other_weights_than_the_seen_ones_are_not_cached(encoder: nn.Module, counted: Any) -> None:
    batch = padded_batch(sentences())
    seen(encoder, batch)
    program = exported(Program(encoder), batch).module()
    before = program(*batch, IDS)
    with torch.no_grad():  # the program shares them with the encoder
        for parameter in program.parameters():
            parameter.mul_(1.5)
    counted()
    again = program(*batch, IDS)
    assert counted() == {"bypassed_type": len(IDS)}
    assert torch.allclose(again, encoder(*batch), atol=1e-5)
    assert not torch.allclose(again[0, 0], before[0, 0], atol=1e-3)


def test_rows_that_do_not_begin_with_their_true_part_are_not_cached(
    encoder: nn.Module, counted: Any
) -> None:
    batch = padded_batch(sentences())
    seen(encoder, batch)
    program = exported(Program(encoder), batch).module()
    tokens, mask = (part.flip(1) for part in batch)
    counted()
    found, expected = program(tokens, mask, IDS), encoder(tokens, mask)
    assert torch.allclose(found[mask.bool()], expected[mask.bool()], atol=1e-5)
    assert counted() == {"bypassed_type": len(IDS)}


def test_mistakes_are_told_while_recording(encoder: nn.Module) -> None:
    batch = padded_batch(sentences())
    for marks, says in (
        ({"mask": "mask", "lengths": "mask"}, "say the same"),
        ({"mask": "other"}, "no such argument"),
        ({"lengths": "mask"}, "lengths are a tensor of integers"),
    ):
        with pytest.raises(ValueError, match=says):
            exported(Program(encoder, "mistakes@1", marks), batch)


def test_a_mask_for_another_number_of_rows_is_a_mistake(encoder: nn.Module) -> None:
    class Beside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder

        def forward(self, tokens: torch.Tensor, mask: torch.Tensor, other: torch.Tensor) -> Any:
            ids = torch.arange(len(LENGTHS))
            return modcache.lookup_or_run(
                self.encoder, (tokens, mask), ids, mask=other, scope="beside@1"
            )

    tokens, mask = padded_batch(sentences())
    with pytest.raises(ValueError, match="the first size of every tensor"):
        torch.export.export(Beside(), (tokens, mask, mask[:2]))
