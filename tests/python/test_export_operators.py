# SPDX-License-Identifier: Apache-2.0
"""The operators that an exported program calls, by themselves."""

from __future__ import annotations

import gc
import threading
from typing import Any

import modcache
import pytest
import torch
from recorded_models import IDS, X
from torch.library import opcheck

PROBE = torch.ops.cache._probe.default
FETCH = torch.ops.cache._fetch.default
PUT = torch.ops.cache._put.default
VALUES = torch.linspace(0, 1, 64).reshape(4, 16)
WEIGHTS = [torch.ones(3), torch.zeros(2, 2)]


def recorded_call(
    *, scope: str = "s", kind: str = "n", key: str = "", dtypes: str = "float32:2,"
) -> str:
    fields = (
        "modcache site 3",
        kind,
        scope,
        "",
        "forward",
        "Encoder",
        key,
        "%",
        "",
        "exported",
        "",
        dtypes,
        "",
        "rows",
    )
    return "".join(f"{len(field)}:{field}" for field in fields)


def probe(ids: torch.Tensor | None = IDS, text: str = "", weights: Any = ()) -> torch.Tensor:
    return PROBE(ids, [X, *weights], 1, [1, 4, 16], text or recorded_call())


def test_opcheck() -> None:
    arguments = (IDS, [X, *WEIGHTS], 1, [1, 4, 16], recorded_call())
    opcheck(PROBE, arguments)
    opcheck(PUT, (probe(), [VALUES]))
    found = probe()
    assert found >= 0
    opcheck(PROBE, arguments)
    opcheck(FETCH, (found, X, [1, 4, 16], "float32:2,"))
    opcheck(PROBE, (None, [X], 1, [1, 4, 16], recorded_call(key="k")))


def test_put_then_fetch(counted: Any) -> None:
    handle = probe()
    assert handle < 0
    put = PUT(handle, [VALUES])[0]
    assert torch.equal(put, VALUES)
    assert put.data_ptr() != VALUES.data_ptr()
    assert counted() == {"misses": 4, "stored": 4}
    assert torch.equal(FETCH(probe(), X, [1, 4, 16], "float32:2,")[0], VALUES)
    assert counted() == {"hits_memory": 4}


def test_a_handle_that_is_dropped_leaves_nothing(counted: Any) -> None:
    PUT(probe(), [VALUES])
    handle = probe()
    number = handle.clone()
    assert torch.equal(FETCH(number, X, [1, 4, 16], "float32:2,")[0], VALUES), "a copy of it serves"
    del handle
    gc.collect()
    with pytest.raises(RuntimeError, match="holds no result"):
        FETCH(number, X, [1, 4, 16], "float32:2,")


def test_a_handle_may_be_used_twice() -> None:
    """A compiler may merge equal questions."""
    handle = probe()
    for _ in range(2):
        assert torch.equal(PUT(handle, [VALUES])[0], VALUES)
    handle = probe()
    first, second = (FETCH(handle, X, [1, 4, 16], "float32:2,")[0] for _ in range(2))
    first.zero_()
    assert torch.equal(second, VALUES)


def test_a_question_before_the_answer_to_the_same(counted: Any) -> None:
    """Nobody waits for a program that asks twice before it runs the module."""
    first, second = probe(), probe()
    for handle in (first, second):
        assert torch.equal(PUT(handle, [VALUES])[0], VALUES)
    assert counted()["misses"] == 8


def test_weights_are_part_of_the_scope(counted: Any) -> None:
    text = recorded_call(kind="e")
    PUT(probe(text=text, weights=WEIGHTS), [VALUES])
    assert probe(text=text, weights=[tensor.clone() for tensor in WEIGHTS]) >= 0
    changed = [WEIGHTS[0] * 2, WEIGHTS[1]]
    assert probe(text=text, weights=changed) < 0
    changed[0].div_(2)
    assert probe(text=text, weights=changed) >= 0
    assert counted() == {"misses": 4, "stored": 4, "hits_memory": 8}


def test_weights_that_cannot_be_hashed(counted: Any) -> None:
    assert probe(text=recorded_call(kind="e"), weights=[torch.eye(3).to_sparse()]) < 0
    assert counted() == {"bypassed_identity": 4}


def test_a_result_of_another_shape_is_not_kept(counted: Any) -> None:
    assert torch.equal(PUT(probe(), [VALUES[:, :3]])[0], VALUES[:, :3])
    assert counted() == {"bypassed_type": 4}


def test_many_threads(counted: Any) -> None:
    def work() -> None:
        for _ in range(50):
            handle = probe()
            found = (
                FETCH(handle, X, [1, 4, 16], "float32:2,") if handle >= 0 else PUT(handle, [VALUES])
            )
            assert torch.equal(found[0], VALUES)
            results.append(True)

    results: list[bool] = []
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 200
    counts = counted()
    assert sum(counts.get(name, 0) for name in ("misses", "hits_memory", "hits_disk")) == 800


TITLE = "15:modcache site 3"


@pytest.mark.parametrize(
    "text",
    ["", "5:abc", "9", "99999999999999999999:", "1:n", "15:modcache site 4", TITLE, f"{TITLE}1:z",
     recorded_call() + "1:x"],
)  # fmt: skip
def test_a_recorded_call_of_another_version_runs_without_the_cache(text: str, counted: Any) -> None:
    handle = PROBE(IDS, [X], 1, [1, 4, 16], text)
    assert handle < 0
    assert torch.equal(PUT(handle, [VALUES])[0], VALUES)
    assert counted() == {"errors": 1}


def test_the_text_of_a_recorded_call() -> None:
    """Programs that were saved carry it."""
    assert recorded_call(scope="name@1", key="k") == (
        "15:modcache site 31:n6:name@10:7:forward7:Encoder1:k1:%0:8:exported0:10:float32:2,0:4:rows"
    )


def test_bad_ids() -> None:
    for ids, says in ((IDS.int(), "int64"), (IDS[:3], "3 keys"), (IDS[None], "one dimension")):
        with pytest.raises(ValueError, match=says):
            probe(ids)


def test_off_holds_nothing(counted: Any, cache_dir: Any) -> None:
    with modcache.mode("off"):
        handle = probe()
        assert handle == -1
        assert torch.equal(PUT(handle, [VALUES])[0], VALUES)
    assert counted() == {"bypassed_off": 4}
    assert not cache_dir.exists()
