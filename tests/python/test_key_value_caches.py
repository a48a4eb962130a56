# SPDX-License-Identifier: Apache-2.0
"""The caches of keys and values that Hugging Face's decoders return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import modcache
import pytest
import torch
from models import Python

transformers = pytest.importorskip("transformers")
IDS = torch.arange(12).reshape(3, 4)
KEYS = ["a", "b", "c"]


def decoder() -> Any:
    config = transformers.GPT2Config(
        vocab_size=30, n_embd=8, n_layer=2, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0
    )
    torch.manual_seed(0)
    return transformers.GPT2Model(config).requires_grad_(False).eval()


def test_a_decoders_cache_comes_back_and_can_be_continued(
    reopen: Callable[[], None], counted: Any
) -> None:
    model = decoder()
    expected = model(IDS, use_cache=True)
    more = torch.full((3, 1), 5)
    continued = model(more, past_key_values=expected.past_key_values).last_hidden_state
    cached = modcache.cached(model, key="keys", freeze=True)
    for round_ in range(3):
        if round_ == 2:
            reopen()
        found = cached(IDS, use_cache=True, keys=KEYS)
        assert torch.allclose(found.last_hidden_state, expected.last_hidden_state, atol=1e-5)
        past = found.past_key_values
        assert type(past) is transformers.DynamicCache
        assert past.get_seq_length() == 4
        again = model(more, past_key_values=past).last_hidden_state
        assert torch.allclose(again, continued, atol=1e-5)
    assert counted() == {"misses": 3, "stored": 3, "hits_memory": 3, "hits_disk": 3}


@pytest.mark.parametrize("key", ["k", KEYS], ids=["whole", "rows"])
def test_an_empty_cache_in_a_result(key: Any, counted: Any) -> None:
    config = decoder().config

    def give(x: torch.Tensor) -> Any:
        return x, transformers.DynamicCache(), transformers.DynamicCache(config=config)

    module = Python(give)
    for _ in range(2):
        _, empty, configured = modcache.lookup_or_run(module, IDS, key, scope="s")
        assert type(empty) is type(configured) is transformers.DynamicCache
        assert empty.get_seq_length() == configured.get_seq_length() == 0
        assert (len(empty.layers), len(configured.layers)) == (0, 2)
        empty.update(torch.ones(3, 2, 1, 4), torch.ones(3, 2, 1, 4), 0)
        assert empty.get_seq_length() == 1
    count = 1 if key == "k" else 3
    assert counted() == {"misses": count, "stored": count, "hits_memory": count}


def test_an_encoder_decoder_cache_comes_back(counted: Any) -> None:
    config = transformers.T5Config(
        vocab_size=30, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2,
        decoder_start_token_id=0,
    )  # fmt: skip
    model = transformers.T5Model(config).requires_grad_(False).eval()
    cached = modcache.cached(model, key="keys", freeze=True)
    expected = model(input_ids=IDS, decoder_input_ids=IDS, use_cache=True)
    for _ in range(2):
        found = cached(input_ids=IDS, decoder_input_ids=IDS, use_cache=True, keys=KEYS)
        past = found.past_key_values
        assert type(past) is transformers.EncoderDecoderCache
        assert past.is_updated == expected.past_key_values.is_updated
        for name in ("self_attention_cache", "cross_attention_cache"):
            ours, theirs = getattr(past, name).layers[0], getattr(expected.past_key_values, name)
            assert torch.allclose(ours.keys, theirs.layers[0].keys, atol=1e-5)
    assert counted() == {"misses": 3, "stored": 3, "hits_memory": 3}


def test_a_cache_as_an_argument_is_filled_by_each_call(counted: Any, capfd: Any) -> None:
    cached = modcache.cached(decoder(), key="keys", freeze=True)
    for _ in range(2):
        past = transformers.DynamicCache()
        cached(IDS, past_key_values=past, keys=KEYS)
        assert past.get_seq_length() == 4
    assert counted() == {"bypassed_type": 6}
    modcache.flush()
    assert "DynamicCache, which a run fills and a hit would not" in capfd.readouterr().err


@pytest.mark.parametrize("key", ["keys", None])
def test_a_cached_decoder_generates_as_ever(key: str | None, counted: Any) -> None:
    model = transformers.GPT2LMHeadModel(decoder().config).requires_grad_(False).eval()
    settings = {"max_new_tokens": 3, "do_sample": False, "attention_mask": torch.ones_like(IDS)}
    expected = model.generate(IDS, **settings)
    if key is None:
        model.transformer = modcache.cached(model.transformer, freeze=True)
        with modcache.keys(KEYS):
            generated = model.generate(IDS, **settings)
        assert counted() == {"bypassed_type": 9}
    else:
        generated = modcache.cached(model, key=key, freeze=True).generate(IDS, **settings)
        assert not counted()
    assert torch.equal(generated, expected)


def test_a_cache_with_other_layers_is_not_stored(counted: Any) -> None:
    def give(x: torch.Tensor) -> Any:
        past = transformers.DynamicCache()
        past.more = 1
        return x, past

    modcache.lookup_or_run(Python(give), IDS, KEYS, scope="s")
    assert counted() == {"bypassed_type": 3}
