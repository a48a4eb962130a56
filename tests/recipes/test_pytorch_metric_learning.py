# SPDX-License-Identifier: Apache-2.0
"""docs/recipes/pytorch-metric-learning.md: the library's trainer and tester on cached features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fresh_process
import modcache
import numpy
import photos
import pytest
import recipe
import torch
from given_pytorch_metric_learning import given
from pytorch_metric_learning import losses, miners, samplers, testers, trainers
from pytorch_metric_learning.utils.inference import InferenceModel
from torchvision.datasets import ImageFolder

NAME = "pytorch-metric-learning"
VAL = 6
# A trunk may add the numbers of a row in another order where its batch is another one, and the
# features of an epoch come from batches of an earlier one.
SAME = {"rtol": 1e-3, "atol": 1e-5}


def run(**changed: Any) -> dict[str, Any]:
    modcache.reset_stats()
    names = {**given(), **changed}
    torch.manual_seed(0)
    numpy.random.seed(0)  # the library's sampler draws from it
    return recipe.run(NAME, **names)


def counts() -> tuple[int, int]:
    stats = modcache.stats()
    return stats["misses"], stats["hits_memory"] + stats["hits_disk"]


def encoded() -> int:
    """How many images the first start encoded; as many were decoded."""
    misses, _ = counts()
    assert misses % 2 == 0
    return misses // 2


def test_it_learns_what_it_learns_with_the_cache_off() -> None:
    cold = run()
    first = encoded()
    assert first <= 9 * 4 + VAL
    warm = run()
    assert counts()[0] == 0
    modcache.set_mode("off")
    plain = run()
    assert modcache.stats()["stored"] == 0
    assert warm["history"] == cold["history"]
    assert any(loss > 0 for loss in cold["history"])
    torch.testing.assert_close(
        torch.tensor(warm["history"]), torch.tensor(plain["history"]), **SAME
    )
    assert warm["accuracies"] == plain["accuracies"]


def test_it_learns_what_it_learns_without_modcache() -> None:
    """With a transform that is not random, since a sample's own draws are the cache's."""
    names = given()
    learned = run(augment=names["prepare"])
    names = given()
    trunk: Any = names["trunk"]
    trunk.requires_grad_(False)
    torch.manual_seed(0)
    numpy.random.seed(0)
    width, train = int(names["width"]), ImageFolder("train", names["prepare"])  # type: ignore[call-overload]
    embedder = torch.nn.Sequential(
        torch.nn.Linear(width, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32)
    )
    history: list[float] = []
    trainer = trainers.MetricLossOnly(
        models={"trunk": trunk, "embedder": embedder},
        optimizers={"embedder_optimizer": torch.optim.Adam(embedder.parameters(), lr=1e-3)},
        batch_size=names["batch_size"],
        loss_funcs={"metric_loss": losses.TripletMarginLoss(margin=0.2)},
        mining_funcs={"tuple_miner": miners.MultiSimilarityMiner()},
        dataset=train,
        sampler=samplers.MPerClassSampler(train.targets, 2, length_before_new_iter=len(train)),
        freeze_these=("trunk",),
        dataloader_num_workers=0,
        end_of_iteration_hook=lambda each: history.append(each.losses["total_loss"].item()),
    )
    trainer.train(num_epochs=names["epochs"])
    tester = testers.GlobalEmbeddingSpaceTester(
        accuracy_calculator=names["calculator"], dataloader_num_workers=0
    )
    val = ImageFolder("val", names["prepare"])
    accuracies = tester.test({"val": val}, names["epochs"], trunk, embedder)["val"]
    torch.testing.assert_close(torch.tensor(learned["history"]), torch.tensor(history), **SAME)
    assert learned["accuracies"] == accuracies


def test_an_edited_photo_is_encoded_anew_and_only_it() -> None:
    run()
    path = "train/squares/000004.png"
    place = next(i for i, (each, _) in enumerate(ImageFolder("train").samples) if each == path)
    before = encoded()
    run()
    photos.edit(Path(path))
    after = run()
    misses, hits = counts()
    assert 0 < misses <= 2 * 4
    assert hits + misses == counts_of_requests(after)
    assert misses % 2 == 0
    assert before > misses // 2
    assert after["train"].dataset.samples[place][0] == path


def counts_of_requests(names: dict[str, Any]) -> int:
    """Every image that was asked for is two look-ups: the sample and its features."""
    return 2 * (len(names["history"]) * 6 + VAL)


@pytest.mark.parametrize("mode", ["on", "off"])
def test_the_trainer_leaves_the_trunk_as_it_was(mode: str) -> None:
    modcache.set_mode(mode)
    names = run()
    trainer = names["trainer"]
    trainer.set_to_train()
    assert not any(module.training for module in names["trunk"].modules())
    before = given()["trunk"].state_dict()  # type: ignore[attr-defined]
    after = names["trunk"].state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_the_library_s_inference_uses_what_the_tester_stored() -> None:
    names = run()
    modcache.reset_stats()
    images = torch.stack([image for image, _ in names["val"]])
    model = InferenceModel(names["trunk"], names["embedder"], knn_func=names["calculator"].knn_func)
    found = model.get_embeddings(images)
    assert counts() == (0, 2 * VAL)
    plain = names["embedder"](given()["trunk"].eval()(images))  # type: ignore[attr-defined]
    want = torch.nn.functional.normalize(plain)
    torch.testing.assert_close(found, want.detach(), **SAME)


def test_the_second_start_encodes_nothing_that_the_first_did() -> None:
    first = fresh_process.stats_of(NAME, epochs=1)
    assert first["misses"] == 2 * (6 + VAL)
    second = fresh_process.stats_of(NAME, epochs=1)
    assert second["misses"] <= 2 * 6  # the library's sampler is not seeded, and draws others
    assert second["misses"] + second["hits_disk"] + second["hits_memory"] == 2 * (6 + VAL)
    assert second["hits_disk"] + second["hits_memory"] >= 2 * VAL
