# SPDX-License-Identifier: Apache-2.0
"""Train a classifier's head on features of a frozen encoder, without and with modcache.

The encoder runs inside a TorchScript model. Without the cache it runs for every text in every
epoch; with it, once per text, ever: a second start of this command finds all of them. The command
fails when a claim that it makes about speed or equal results does not hold.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

# torch.jit says at each call that it is deprecated; of interest elsewhere, not in this output.
for _category in (DeprecationWarning, FutureWarning):
    warnings.filterwarnings("ignore", message=r".*torch\.jit", category=_category)

import modcache  # noqa: E402
import torch  # noqa: E402
from classifier import TextClassifier  # noqa: E402
from encoder import FEATURES, load_encoder, tokenize  # noqa: E402
from host_files import save_for_host  # noqa: E402
from report import Measured, claims_of, draw, table_of, write_json  # noqa: E402
from texts import PACKAGES, Text, load_texts  # noqa: E402
from torch import Tensor  # noqa: E402
from training import (  # noqa: E402
    SEED,
    Run,
    Samples,
    Weights,
    accuracy,
    features_of_all,
    same_bits,
    seconds_per_text,
)

OUTPUT = Path(__file__).resolve().parent.parent / "output"
TEXTS = 480
EPOCHS = 20
UNCACHED_EPOCHS = 2
ENCODER_SAMPLE = 16
ENCODER_ROUNDS = 5
# One thread: comparable on every machine, and the same arithmetic in every run and in the C++ host.
THREADS = 1


@dataclass(frozen=True)
class UncachedTraining:
    """The reference: the head after UNCACHED_EPOCHS epochs without the cache."""

    weights: Weights
    epoch_s: list[float]
    from_earlier_start: bool


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    torch.set_num_threads(THREADS)
    options.output.mkdir(parents=True, exist_ok=True)
    modcache.configure(dir=str(options.cache_dir))
    modcache.set_mode("on")
    if options.clear:
        print(f"cleared: {modcache.clear()} entries")
        (options.output / "uncached.pt").unlink(missing_ok=True)

    say(f"reading {options.texts} docstrings of {len(PACKAGES)} packages")
    texts = load_texts(options.texts)
    say("loading the sentence encoder")
    _, encoder = load_encoder()
    samples = samples_of(texts)
    measured, model = train_and_measure(encoder, texts, samples, options)

    print(f"\n{table_of(measured)}\n")
    claims = claims_of(measured)
    for claim in claims:
        print(claim)
    draw(measured, options.output / "training.png")
    if options.json is not None:
        write_json(measured, claims, options.json)
    save_for_host(model, samples, options.output)
    modcache.flush()
    say(f"written to {options.output}: classifier.pt, inputs.pt, training.png")

    broken = [c for c in claims if not c.holds and not (c.is_speed and options.no_speed_claims)]
    if broken:
        print(f"\n{len(broken)} of {len(claims)} claims do not hold:", file=sys.stderr)
        for claim in broken:
            print(claim, file=sys.stderr)
    return 1 if broken else 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="train_head.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--texts", type=int, default=TEXTS, help="default: %(default)s")
    parser.add_argument(
        "--epochs",
        type=int,
        default=EPOCHS,
        help=f"with the cache (default: %(default)s); without it: {UNCACHED_EPOCHS}",
    )
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder for what is written")
    parser.add_argument("--cache-dir", type=Path, help="default: the output folder's cache/")
    parser.add_argument("--clear", action="store_true", help="forget all earlier starts first")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured there")
    parser.add_argument(
        "--no-speed-claims",
        action="store_true",
        help="show speed claims that do not hold without failing (few texts, a busy machine)",
    )
    options = parser.parse_args(arguments)
    if options.epochs < UNCACHED_EPOCHS:
        parser.error(f"--epochs {options.epochs}: at least {UNCACHED_EPOCHS} are needed")
    if options.cache_dir is None:
        options.cache_dir = options.output / "cache"
    return options


def samples_of(texts: list[Text]) -> Samples:
    ids, mask = tokenize([text.text for text in texts])
    labels = torch.tensor([text.label for text in texts])
    return Samples(ids, mask, [text.key for text in texts], labels)


def new_classifier(encoder: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    """Scripted; every call starts from the same head."""
    torch.manual_seed(SEED)
    return torch.jit.script(TextClassifier(encoder, FEATURES, len(PACKAGES)))


def train_and_measure(
    encoder: torch.jit.ScriptModule,
    texts: list[Text],
    samples: Samples,
    options: argparse.Namespace,
) -> tuple[Measured, torch.jit.ScriptModule]:
    """All trainings and measurements; also the model that was trained with the cache."""
    is_test = torch.tensor([text.is_test for text in texts])
    train, test = (samples.take(rows.nonzero().flatten()) for rows in (~is_test, is_test))
    found = count_found(encoder, samples)
    say(
        f"the cache is {'warm' if found == len(samples) else 'cold'}: "
        f"{found} of {len(samples)} texts found in {options.cache_dir}"
    )
    uncached = train_uncached(encoder, train, options.output / "uncached.pt")

    model = new_classifier(encoder)
    cached = Run("with the cache", model.head, lambda batch, _: model(*inputs_of(batch)))
    cached.train_epoch(train, progress=found < len(samples))
    features = features_of_all(model, train, "features into one tensor")
    tensor_head = new_classifier(encoder).head
    tensor = Run("one tensor", tensor_head, lambda _, rows: tensor_head(features[rows]))
    # Taking turns, so that a busy spell of the machine meets both.
    tensor.train_epoch(train)
    early: Weights = {}
    for epoch in range(2, options.epochs + 1):
        cached.train_epoch(train)
        tensor.train_epoch(train)
        if epoch == UNCACHED_EPOCHS:
            early = cached.weights()

    test_features = features_of_all(model, test, "features of the test texts")

    def accuracy_with(weights: Weights) -> float:
        head = new_classifier(encoder).head
        head.load_state_dict(weights)
        return accuracy(head, test_features, test.labels)

    uncached_encoder_s, warm_encoder_s = time_encoder(model, train)
    measured = Measured(
        texts=len(samples),
        train_texts=len(train),
        found_at_start=found,
        uncached_epoch_s=uncached.epoch_s,
        uncached_from_earlier_start=uncached.from_earlier_start,
        first_epoch_s=cached.epochs[0].seconds,
        first_epoch_hits=cached.epochs[0].hits,
        warm_epoch_s=[epoch.seconds for epoch in cached.epochs[1:]],
        warm_epoch_hits=min(epoch.hits for epoch in cached.epochs[1:]),
        tensor_epoch_s=[epoch.seconds for epoch in tensor.epochs],
        uncached_encoder_ms=uncached_encoder_s * 1e3,
        warm_encoder_ms=warm_encoder_s * 1e3,
        uncached_accuracy=accuracy_with(uncached.weights),
        cached_accuracy_early=accuracy_with(early),
        cached_accuracy=accuracy_with(cached.weights()),
        tensor_accuracy=accuracy_with(tensor.weights()),
        uncached_bits_equal=same_bits(uncached.weights, early),
        tensor_bits_equal=same_bits(cached.weights(), tensor.weights()),
    )
    return measured, model


def train_uncached(
    encoder: torch.jit.ScriptModule, train: Samples, record: Path
) -> UncachedTraining:
    """Trains with the same model, switched off at run time; or recalls an earlier start's result.

    What an earlier start trained is taken only if texts, encoder, settings and torch are the same.
    """
    identity = identity_of(encoder, train)
    if record.exists():
        known = torch.load(record, weights_only=True)
        if known["identity"] == identity:
            say("training without the cache: done by an earlier start (--clear to do it again)")
            return UncachedTraining(known["weights"], known["epoch_s"], from_earlier_start=True)
    say(f"training without the cache, {UNCACHED_EPOCHS} epochs")
    model = new_classifier(encoder)
    run = Run("without the cache", model.head, lambda batch, _: model(*inputs_of(batch)))
    modcache.set_mode("off")
    try:
        for _ in range(UNCACHED_EPOCHS):
            run.train_epoch(train, progress=True)
    finally:
        modcache.set_mode("on")
    epoch_s = [epoch.seconds for epoch in run.epochs]
    torch.save({"identity": identity, "weights": run.weights(), "epoch_s": epoch_s}, record)
    return UncachedTraining(run.weights(), epoch_s, from_earlier_start=False)


def identity_of(encoder: torch.jit.ScriptModule, train: Samples) -> str:
    digest = hashlib.sha256()
    for tensor in (train.ids, train.mask, train.labels):
        digest.update(tensor.numpy().tobytes())
    sources = sorted(Path(__file__).parent.glob("*.py"))
    for part in (
        modcache.fingerprint(encoder),
        torch.__version__,
        *train.keys,
        *(source.read_text(encoding="utf-8") for source in sources),
    ):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()


def time_encoder(model: torch.jit.ScriptModule, train: Samples) -> tuple[float, float]:
    """Seconds per text of the encoder's part alone, medians: cache switched off, and warm.

    Off, a few texts are enough, as each takes the same; warm, it is whole epochs. They take turns,
    so that a busy spell of the machine meets both.
    """
    few = train.take(torch.arange(ENCODER_SAMPLE))
    epoch = train.batches()

    def features_of(batch: Samples) -> Tensor:
        features: Tensor = model.features(*inputs_of(batch))
        return features

    off_s, warm_s = [], []
    for _ in range(ENCODER_ROUNDS):
        modcache.set_mode("off")
        try:
            off_s.append(seconds_per_text(features_of, [few]))
        finally:
            modcache.set_mode("on")
        warm_s.append(seconds_per_text(features_of, epoch))
    return statistics.median(off_s), statistics.median(warm_s)


def count_found(encoder: torch.jit.ScriptModule, samples: Samples) -> int:
    scope = modcache.fingerprint(encoder)
    return sum(modcache.contains(scope, key) for key in samples.keys)


def inputs_of(batch: Samples) -> tuple[Tensor, Tensor, list[str]]:
    return batch.ids, batch.mask, batch.keys


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
