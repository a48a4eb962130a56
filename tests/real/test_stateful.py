# SPDX-License-Identifier: Apache-2.0
"""A model that carries state from call to call: Silero's voice detector as its package ships it."""

# No `from __future__ import annotations`: TorchScript reads the annotations of attributes.

from typing import Any

import modcache
import pytest
import torch
from real_models import frozen, voice, voice_detector
from served import FORMS
from torch import Tensor, nn

RATE = 16000
CHUNK = 512


class Detector(nn.Module):
    """The detector in a model that asks the cache for each chunk."""

    def __init__(self, detector: Any) -> None:
        super().__init__()
        self.detector = detector

    def forward(self, chunk: Tensor, key: str) -> Tensor:
        return modcache.lookup_or_run(self.detector, (chunk, 16000), key)


@pytest.fixture
def chunks() -> list[Tensor]:
    sound = torch.cat([torch.zeros(4 * CHUNK), voice(seconds=0.256), torch.zeros(4 * CHUNK)])
    return list(sound.split(CHUNK))


@pytest.mark.parametrize("form", ["scripted", "loaded", "lowered", "frozen", "frozen, saved"])
def test_it_is_never_cached_and_right(form: str, chunks: list[Tensor], counted: Any) -> None:
    alone = frozen(voice_detector())
    served = FORMS[form](torch.jit.script(Detector(frozen(voice_detector())).eval()))
    counted()
    for chunk in chunks:
        # One key for all: what was stored under it would be wrong for the next chunk.
        assert torch.equal(served(chunk, "k"), alone(chunk, RATE))
    growth = counted()
    assert growth.pop("bypassed_impure") == len(chunks)
    assert set(growth) <= {"misses"}


def test_the_same_chunks_again_are_heard_anew(chunks: list[Tensor], counted: Any) -> None:
    alone, served = frozen(voice_detector()), frozen(voice_detector())
    for _ in range(2):
        for i, chunk in enumerate(chunks):
            found = modcache.lookup_or_run(served, (chunk, RATE), f"chunk {i}")
            assert torch.equal(found, alone(chunk, RATE))
    assert "stored" not in counted()


def test_a_whole_recording_is_a_function_of_the_sound_and_still_changes_the_model(
    chunks: list[Tensor], counted: Any
) -> None:
    detector = frozen(voice_detector())
    sound = torch.cat(chunks)[None]
    expected = detector.audio_forward(sound, RATE)
    for _ in range(2):
        found = modcache.lookup_or_run(detector, (sound, RATE), "k", method="audio_forward")
        assert torch.equal(found, expected)
    assert "stored" not in counted()
