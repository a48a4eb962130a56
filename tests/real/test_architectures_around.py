# SPDX-License-Identifier: Apache-2.0
"""Architectures of transformers in the surroundings that training scripts give them."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import modcache
import pytest
import torch
import transformers
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
from torch import nn

Growth = Callable[[], dict[str, int]]
ALL = list(range(ROWS))
ONCE, HIT = {"misses": ROWS, "stored": ROWS}, {"hits_memory": ROWS}
every_one = pytest.mark.parametrize("name", ARCHITECTURES)


def usual(name: str) -> Call:
    """A call with rows of their own length, where the architecture has any."""
    is_text = ARCHITECTURES[name].kind == "text"
    return CALLS[name, "padded" if is_text else "keywords"]


def of_its_own_class(name: str, kind: str) -> Any:
    """A frozen model of a class that was not warned about yet: that happens once for each."""
    plain = model_of(name)
    return type(kind, (type(plain),), {})(plain.config).requires_grad_(False).eval()


@every_one
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("how", ["weights", "autocast"])
def test_in_few_bits(
    name: str, how: str, dtype: torch.dtype, counted: Growth, reopen: Callable[[], None]
) -> None:
    call = usual(name)
    model, batch = copy.deepcopy(model_of(name)), call.batch
    around: Any = contextlib.nullcontext()
    if how == "weights":
        model.to(dtype)
        batch = {k: x.to(dtype) if x.is_floating_point() else x for k, x in batch.items()}
    else:
        around = torch.autocast("cpu", dtype=dtype)
    cached = cached_of(model, call)
    mask = batch.get(call.mask)
    with around:
        want = model(**batch)
        for expected in (ONCE, HIT):
            assert_as(cached(**batch, cache_key=KEYS), want, mask)
            assert counted() == expected
    reopen()
    counted()
    with around:
        assert_as(cached(**batch, cache_key=KEYS), want, mask)
    assert counted() == {"hits_disk": ROWS}
    if how == "autocast":
        cached(**batch, cache_key=KEYS)
        assert counted() == ONCE, "without autocast other numbers come out"


@every_one
def test_rows_that_were_stored_by_batches_of_several_sizes(name: str, counted: Growth) -> None:
    call = usual(name)
    model = model_of(name)
    cached = cached_of(model, call)
    for rows in ([1], [0, 2], [3, 1], [0, 1, 2, 3], [2], [3, 2, 1, 0]):
        batch = call.rows(rows)
        found = cached(**batch, cache_key=torch.tensor(rows))
        # Sums of floats come in another order in a batch of another size.
        assert_as(found, model(**batch), batch.get(call.mask), tolerance=1e-5)
    assert counted() == {"misses": ROWS, "stored": ROWS, "hits_memory": 10}


@pytest.mark.parametrize("name", ["bert", "deberta-v2", "modernbert", "t5-encoder", "llama"])
def test_embeddings_in_the_place_of_ids(name: str, counted: Growth) -> None:
    call, model = usual(name), model_of(name)
    batch = dict(call.batch)
    batch["inputs_embeds"] = model.get_input_embeddings()(batch.pop("input_ids"))
    cached = cached_of(model, call)
    for expected in (ONCE, HIT):
        found = cached(**batch, cache_key=KEYS)
        assert_as(found, model(**batch), batch[call.mask])
        assert counted() == expected


class Classifier(nn.Module):
    """Somebody's model, which knows no keys and calls its encoder by place."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(16, 2)

    def forward(self, *batch: torch.Tensor) -> torch.Tensor:
        states = self.encoder(*batch)[0]
        return self.head(states[:, 0])  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "name", ["bert", "roberta", "llama", "bart", "clip-text", "vit", "dinov2", "wav2vec2"]
)
def test_in_a_model_that_calls_it_by_place(name: str, counted: Growth) -> None:
    call = usual(name)
    torch.manual_seed(0)
    plain = Classifier(model_of(name))
    model = Classifier(
        modcache.cached(model_of(name), freeze=True, mask=None if call.mask is None else 1)
    )
    model.head = plain.head
    values = tuple(call.batch.values())
    for expected, rows in ((ONCE, ALL), (HIT, ALL), (HIT, ALL[::-1])):
        batch = [x[rows] for x in values]
        with modcache.keys([KEYS[row] for row in rows]):
            assert torch.allclose(model.train()(*batch), plain.eval()(*batch), atol=1e-6)
        assert counted() == expected


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen2"])
def test_a_cache_of_keys_and_values_that_is_given_to_be_filled(
    name: str, counted: Growth, capfd: Any
) -> None:
    batch = CALLS[name, "keywords"].batch
    model = of_its_own_class(name, f"{name}_given_a_cache")
    cached = cached_of(model, CALLS[name, "keywords"])
    for _ in range(2):
        ours, theirs = transformers.DynamicCache(), transformers.DynamicCache()
        found = cached(**batch, past_key_values=ours, cache_key=KEYS)
        assert_as(found, model(**batch, past_key_values=theirs), None)
        assert ours.get_seq_length() == 9
        assert counted() == {"bypassed_type": ROWS}
    modcache.flush()
    says = capfd.readouterr().err
    assert "DynamicCache, which a run fills and a hit would not; leave it out" in says
    for expected in (ONCE, HIT):
        found = cached(**batch, cache_key=KEYS)
        assert found.past_key_values.get_seq_length() == 9
        assert counted() == expected


@pytest.mark.parametrize("name", ["bert", "llama"])
@pytest.mark.parametrize("cure", ["off", "no_grad"])
def test_gradient_checkpointing_of_a_text_model_is_named_and_its_cure_helps(
    name: str, cure: str, counted: Growth, capfd: Any
) -> None:
    model = of_its_own_class(name, f"{name}_{cure}")
    model.gradient_checkpointing_enable()
    cached, batch = cached_of(model, usual(name)), usual(name).batch
    cached(**batch, cache_key=KEYS)
    assert counted() == {"bypassed_grad": ROWS}, "it makes the embeddings require grad"
    modcache.flush()
    says = capfd.readouterr().err
    assert "A frozen module needs no checkpoints" in says
    around: Any = contextlib.nullcontext()
    if cure == "off":
        assert "m.gradient_checkpointing_disable() and m.disable_input_require_grads()" in says
        model.gradient_checkpointing_disable()
        model.disable_input_require_grads()
        cached(**batch, cache_key=KEYS)  # shows that no result requires grad any more
        counted()
    else:
        assert "call it under torch.no_grad()" in says
        around = torch.no_grad()
    for expected in (ONCE, HIT):
        with around:
            assert_as(cached(**batch, cache_key=KEYS), model(**batch), batch["attention_mask"])
        assert counted() == expected


@pytest.mark.parametrize("name", ["vit", "wav2vec2"])
def test_gradient_checkpointing_of_a_frozen_tower_of_images_or_sound_changes_nothing(
    name: str, counted: Growth
) -> None:
    model = of_its_own_class(name, name)
    model.gradient_checkpointing_enable()
    cached, batch = cached_of(model, usual(name)), usual(name).batch
    for expected in (ONCE, HIT):
        assert_as(cached(**batch, cache_key=KEYS), model(**batch), None)
        assert counted() == expected
