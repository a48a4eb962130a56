# SPDX-License-Identifier: Apache-2.0
"""examples/recipes: each does what its paragraph promises, on the real data that it comes with."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

RECIPES = Path(__file__).resolve().parents[2] / "examples" / "recipes"


def run(recipe: str, folder: Path) -> list[str]:
    """The lines that it prints."""
    done = subprocess.run(
        [sys.executable, str(RECIPES / f"{recipe}.py"), f"--dir={folder}"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def share_of_hits(line: str) -> float:
    hits, of = re.findall(r"(\d+) of (\d+) (?:rows|encodings) from the cache", line)[0]
    return int(hits) / int(of)


@pytest.mark.thorough
@pytest.mark.parametrize("recipe", ["decorator", "image_text"])
def test_only_the_first_epoch_runs_the_encoders(recipe: str, tmp_path: Path) -> None:
    first, *others = [share_of_hits(line) for line in run(recipe, tmp_path)]
    assert first == 0
    assert set(others) == {1.0}
    assert share_of_hits(run(recipe, tmp_path)[0]) == 1


@pytest.mark.thorough
def test_the_pictures_learn_to_find_their_names(tmp_path: Path) -> None:
    found = [
        int(re.findall(r"(\d+) of \d+ pictures", line)[0]) for line in run("image_text", tmp_path)
    ]
    assert found[-1] > 4 * found[0]


def test_a_warm_training_augments_and_learns_as_a_cold_one(tmp_path: Path) -> None:
    cold, warm, verdict, variants = run("augmentation", tmp_path)
    assert cold.split(":")[1].strip() == warm.split(":")[1].strip()
    assert verdict == "the same: True; drawn in the second training: 0"
    assert variants == "8 epochs of 4 variants: 1410 of 3760 samples were drawn"


def test_half_precision_takes_fewer_bytes_and_keeps_the_dtype(tmp_path: Path) -> None:
    dtype, size_bytes, _ = run("half_precision", tmp_path)
    in_full, in_half = map(int, re.findall(r"(\d+) in", size_bytes))
    assert dtype.endswith("torch.float32")
    assert in_half < 0.65 * in_full


def test_the_lazy_model_is_loaded_at_the_first_start_alone(tmp_path: Path) -> None:
    assert run("lazy_model", tmp_path)[-1].endswith("the encoder was loaded")
    assert run("lazy_model", tmp_path)[-1].endswith("the encoder was not loaded")


def test_a_fill_that_was_interrupted_runs_what_is_missing(tmp_path: Path) -> None:
    lines = run("fill_resumes", tmp_path)
    runs = [int(number) for line in lines for number in re.findall(r", (\d+) run,", line)]
    assert "interrupted" in lines
    assert runs[-2:] == [235 - 128, 0]
