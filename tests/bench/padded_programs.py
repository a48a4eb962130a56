# SPDX-License-Identifier: Apache-2.0
"""The scripted program of padded_sentences.py, which a host in C++ runs, too."""

# No `from __future__ import annotations`: TorchScript reads the annotations of attributes.

import warnings
from typing import Any, List, Tuple  # noqa: UP035  (TorchScript reads these)

import torch
from torch import Tensor, nn


class Encoder(nn.Module):
    """The states of all tokens and the pooled output."""

    def __init__(self, bert: Any) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, tokens: Tensor, mask: Tensor) -> Tuple[Tensor, Tensor]:  # noqa: UP006
        output = self.bert(input_ids=tokens, attention_mask=mask)
        return output.last_hidden_state, output.pooler_output


class Epoch(nn.Module):
    """Encodes all rows in batches of this order, each padded to its longest."""

    def __init__(self, encoder: Any, batch: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.batch = batch

    def forward(self, tokens: Tensor, mask: Tensor, order: Tensor) -> Tensor:
        """Returns, row by row in this order, the true states and the pooled output."""
        found: List[Tensor] = []  # noqa: UP006
        for rows in order.split(self.batch):
            longest = int(mask[rows].sum(1).max())
            part = mask[rows, :longest]
            output = torch.ops.cache.lookup_or_run_any(
                self.encoder, (tokens[rows, :longest], part), rows, mask=part
            )
            assert isinstance(output, Tuple[Tensor, Tensor])  # noqa: UP006
            states, pooled = output
            for row in range(len(rows)):
                found.append(states[row, : int(part[row].sum())])
                found.append(pooled[row].unsqueeze(0))
        return torch.cat(found)


def program_of(bert: nn.Module, example: Tuple[Tensor, Tensor], batch: int) -> Any:  # noqa: UP006
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        encoder = torch.jit.trace(Encoder(bert).eval(), example, check_trace=False)
        return torch.jit.script(Epoch(encoder, batch).eval())
