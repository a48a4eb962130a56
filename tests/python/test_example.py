# SPDX-License-Identifier: Apache-2.0
"""examples/python_script on a few texts: what it promises, except for speed.

Whether it is fast is said by the example itself, which fails when it is not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import modcache  # noqa: F401 - the saved model calls its operator
import pytest
import torch

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "python_script"
sys.path.insert(0, str(EXAMPLE))

import encoder  # noqa: E402
import report  # noqa: E402
import texts  # noqa: E402

FEW_TEXTS = 60
EPOCHS = 2


@dataclass(frozen=True)
class Start:
    """One start of the command."""

    code: int
    output: str
    measured: dict[str, Any]


def start(folder: Path, *more: str) -> Start:
    command = [sys.executable, str(EXAMPLE / "train_head.py"), f"--texts={FEW_TEXTS}"]
    options = [f"--epochs={EPOCHS}", f"--output={folder}", f"--json={folder / 'measured.json'}"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [*command, *options, "--no-speed-claims", *more],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return Start(done.returncode, done.stdout, json.loads((folder / "measured.json").read_text()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("example")


@pytest.fixture(scope="module")
def first(folder: Path) -> Start:
    return start(folder)


@pytest.fixture(scope="module")
def second(folder: Path, first: Start) -> Start:
    return start(folder)


def test_the_first_start_finds_nothing_and_fills_the_cache(first: Start) -> None:
    assert first.measured["found_at_start"] == 0
    assert first.measured["first_epoch_hits"] == 0
    assert first.measured["warm_epoch_hits"] == first.measured["train_texts"]
    assert f"cold: 0 of {FEW_TEXTS} texts found" in first.output


def test_the_second_start_finds_everything_without_running_the_encoder(second: Start) -> None:
    assert second.measured["found_at_start"] == FEW_TEXTS
    assert second.measured["first_epoch_hits"] == second.measured["train_texts"]
    assert second.measured["uncached_from_earlier_start"]
    assert f"warm: {FEW_TEXTS} of {FEW_TEXTS} texts found" in second.output


@pytest.mark.parametrize("which", ["first", "second"])
def test_cached_and_uncached_training_end_with_the_same_bits(
    which: str, request: pytest.FixtureRequest
) -> None:
    measured = request.getfixturevalue(which).measured
    assert measured["uncached_bits_equal"]
    assert measured["tensor_bits_equal"]


def test_the_picture_and_the_files_for_the_host_are_written(folder: Path, first: Start) -> None:
    assert (folder / "training.png").read_bytes().startswith(b"\x89PNG")
    inputs = torch.jit.load(str(folder / "inputs.pt"))
    model = torch.jit.load(str(folder / "classifier.pt"))
    with torch.no_grad():
        logits = model(inputs.ids[:1], inputs.mask[:1], inputs.keys[:1])
    assert len(inputs.keys) == FEW_TEXTS
    torch.testing.assert_close(logits, inputs.logits[:1])


def test_the_texts_are_distinct_balanced_and_split() -> None:
    chosen = texts.load_texts(600)
    per_label = Counter(text.label for text in chosen)
    assert len({text.key for text in chosen}) == 600
    assert set(per_label.values()) == {600 // len(texts.PACKAGES)}
    assert sum(text.is_test for text in chosen) == 600 // texts.TEST_EVERY


@pytest.mark.parametrize("count", [5, 10**6])
def test_an_impossible_number_of_texts_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match=str(count)):
        texts.load_texts(count)


def test_the_traced_encoder_computes_what_the_eager_one_does() -> None:
    eager, traced = encoder.load_encoder()
    ids, mask = encoder.tokenize(["a short text", "another one, " * 40])
    with torch.no_grad():
        features = traced(ids, mask)
        torch.testing.assert_close(features, eager(ids, mask))
    assert features.shape == (2, encoder.FEATURES)
    assert not any(parameter.requires_grad for parameter in traced.parameters())


@pytest.mark.parametrize(
    ("change", "number"),
    [
        ({"warm_encoder_ms": 0.1}, "200 x"),
        ({"warm_epoch_s": [0.4]}, "4.00 x"),
        ({"warm_epoch_hits": 99}, "99 of 100"),
        ({"uncached_bits_equal": False}, "bit for bit"),
        ({"tensor_bits_equal": False}, "bit for bit"),
    ],
)
def test_a_claim_that_does_not_hold_is_told_with_its_number(
    change: dict[str, Any], number: str
) -> None:
    good = {
        "texts": 125,
        "train_texts": 100,
        "found_at_start": 0,
        "uncached_epoch_s": [2.0],
        "uncached_from_earlier_start": False,
        "first_epoch_s": 2.0,
        "first_epoch_hits": 0,
        "warm_epoch_s": [0.2],
        "warm_epoch_hits": 100,
        "tensor_epoch_s": [0.1],
        "uncached_encoder_ms": 20.0,
        "warm_encoder_ms": 0.02,
        "uncached_accuracy": 0.5,
        "cached_accuracy_early": 0.5,
        "cached_accuracy": 0.5,
        "tensor_accuracy": 0.5,
        "uncached_bits_equal": True,
        "tensor_bits_equal": True,
    }
    assert all(claim.holds for claim in report.claims_of(report.Measured(**good)))
    claims = report.claims_of(report.Measured(**{**good, **change}))
    (broken,) = [claim for claim in claims if not claim.holds]
    assert number in str(broken)
