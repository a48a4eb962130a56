# SPDX-License-Identifier: Apache-2.0
"""18 architectures of transformers in six ways each: with the cache as without it, and hits."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import modcache
import pytest
from architectures import (
    ARCHITECTURES,
    CALLS,
    KEYS,
    ROWS,
    Call,
    assert_as,
    cached_of,
    model_of,
)

Growth = Callable[[], dict[str, int]]
# What cannot be cached so, and the message that says why, and what to do instead.
WARNED = {
    ("wav2vec2", "padded"): (
        "not caching Wav2Vec2Model.forward: its result has sizes that "
        "neither stay nor follow the length that a batch is padded to; pad all batches to one "
        "length instead, without mask"
    ),
    # It declares token_type_ids, and this configuration has no types of tokens.
    ("deberta-v2", "columns"): (
        "not caching DebertaV2Model.forward: it takes tensors of several "
        "lengths, which were padded to one by chance; pad those that the mask is not for to "
        "another, or name them in ignore= if they change no result"
    ),
}
RAISED = {
    ("swin", "attentions"): "not caching SwinModel.forward: output",
}


def cells(chosen: Any) -> Any:
    return pytest.mark.parametrize(("name", "way"), [cell for cell in CALLS if cell in chosen])


def test_the_table_has_18_architectures_in_six_ways_and_few_exceptions() -> None:
    assert len(ARCHITECTURES) == 18
    assert len(CALLS) == 108
    assert CALLS.keys() >= WARNED.keys() | RAISED.keys()
    assert len(WARNED) + len(RAISED) <= 10


def cached(name: str, call: Call) -> Any:
    return cached_of(copy.deepcopy(model_of(name, call.attention)), call)


def plain(name: str, call: Call, rows: list[int]) -> Any:
    return model_of(name, call.attention)(**call.rows(rows))


@cells(CALLS.keys() - WARNED.keys() - RAISED.keys())
def test_results_are_those_of_the_module_and_every_later_call_hits(
    name: str, way: str, counted: Growth, reopen: Callable[[], None]
) -> None:
    call = CALLS[name, way]
    tower = cached(name, call)
    everything = list(range(ROWS))
    mask = call.batch.get(call.mask)
    want = plain(name, call, everything)

    first = tower(**call.batch, cache_key=KEYS)
    assert counted() == {"misses": ROWS, "stored": ROWS}
    assert_as(first, want, mask)

    assert_as(tower(**call.batch, cache_key=KEYS), want, mask)
    assert counted() == {"hits_memory": ROWS}

    reopen()
    counted()
    other_object = cached(name, call)  # the same model, as another process makes it
    assert_as(other_object(**call.batch, cache_key=KEYS), want, mask)
    assert counted() == {"hits_disk": ROWS}

    for rows in ([2, 0, 3, 1], [3, 2], [0, 2]):
        keywords = call.rows(rows)
        found = tower(**keywords, cache_key=[KEYS[row] for row in rows])
        growth = counted()
        assert growth.pop("hits_memory", 0) + growth.pop("hits_disk", 0) == len(rows)
        assert not growth
        # Sums of floats come in another order in a batch of another size.
        assert_as(found, plain(name, call, rows), keywords.get(call.mask), tolerance=1e-5)


@cells(WARNED)
def test_what_is_not_cached_gives_the_module_s_own_result_and_says_why(
    name: str, way: str, counted: Growth, capfd: Any
) -> None:
    call = CALLS[name, way]
    tower = cached(name, call)
    want = plain(name, call, list(range(ROWS)))
    for _ in range(2):
        assert_as(tower(**call.batch, cache_key=KEYS), want, None)
        growth = counted()
        assert set(growth) <= {"bypassed_impure", "bypassed_rows"}
        assert sum(growth.values()) == ROWS
    modcache.flush()
    assert WARNED[name, way] in capfd.readouterr().err


@cells(RAISED)
def test_what_has_no_rows_runs_whole_and_its_cure_helps(
    name: str, way: str, counted: Growth
) -> None:
    call = CALLS[name, way]
    tower = cached(name, call)
    want = plain(name, call, list(range(ROWS)))
    assert_as(tower(**call.batch, cache_key=KEYS), want, None)
    assert counted() == {"bypassed_rows": ROWS}
    modcache.configure(strict=True)
    with pytest.raises(RuntimeError, match=re.escape(RAISED[name, way])):
        tower(**call.batch, cache_key=KEYS)
    modcache.configure(strict=False)
    counted()
    for expected in ({"misses": 1, "stored": 1}, {"hits_memory": 1}):
        assert_as(tower(**call.batch, cache_key="train/batch/0"), want, None)
        assert counted() == expected
