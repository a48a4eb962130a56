# SPDX-License-Identifier: Apache-2.0
"""What docs/recipes/hugging-face-trainer.md takes from the reader."""

from __future__ import annotations

from typing import Any

import docstrings
import transformers

transformers.logging.disable_progress_bar()
LONGEST = 64


def given(large: bool = False) -> dict[str, object]:
    """A classifier of docstrings: on a pre-trained MiniLM, or on a small random BERT."""
    rows = docstrings.chosen(720 if large else 72)
    tokenizer = transformers.AutoTokenizer.from_pretrained(docstrings.minilm())
    samples = [
        {**tokenizer(row.text, truncation=True, max_length=LONGEST), "labels": row.label}
        for row in rows
    ]
    is_test = [row.is_test for row in rows]
    return {
        "model": classifier(large),
        "tokenizer": tokenizer,
        "train": [row for row, test in zip(samples, is_test, strict=True) if not test],
        "validation": [row for row, test in zip(samples, is_test, strict=True) if test],
        "args": arguments(),
    }


def classifier(large: bool = False, labels: int = len(docstrings.PACKAGES)) -> Any:
    """Its encoder has no dropout, and so is the same without ``freeze``."""
    small = {} if large else {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.AutoConfig.from_pretrained(
        docstrings.minilm(),
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        classifier_dropout=0.1,
        num_labels=labels,
        **small,
    )
    transformers.set_seed(0)
    kind = transformers.AutoModelForSequenceClassification
    if not large:
        return kind.from_config(config)
    transformers.logging.set_verbosity_error()  # the head is new, as it should be
    return kind.from_pretrained(docstrings.minilm(), config=config)


def arguments(**more: Any) -> transformers.TrainingArguments:
    chosen = {
        "output_dir": "checkpoints",
        "num_train_epochs": 2,
        "per_device_train_batch_size": 16,
        "per_device_eval_batch_size": 16,
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "logging_steps": 1,
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "seed": 1,
    }
    return transformers.TrainingArguments(**{**chosen, **more})
