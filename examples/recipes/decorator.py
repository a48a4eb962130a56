# SPDX-License-Identifier: Apache-2.0
"""One line: a decorated encoder, with a key that its forward does not have.

``@modcache.cached(key="text_ids")`` on the class is all there is to it. Callers name the samples
with an argument more, which ``forward`` never sees; a tensor of ids means one entry per row. In the
first epoch every row is run, and from the second on none is: the sentence encoder, nearly all of
the time, is gone from training. ``freeze=True`` switches gradients off and keeps the encoder in
evaluation mode, also when the whole model is put into training mode.
"""

from __future__ import annotations

import modcache
import torch
from encoders import load_text_encoder, tokens_of
from glyphs import SCRIPTS, letters
from options import folder_of
from torch import Tensor, nn
from torch.nn import functional


@modcache.cached(key="text_ids", freeze=True)
class TextEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sentence = load_text_encoder()

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.sentence(ids, mask)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = TextEncoder()
        self.head = nn.Linear(384, len(SCRIPTS))

    def forward(self, ids: Tensor, mask: Tensor, text_ids: Tensor) -> Tensor:
        return self.head(self.encoder(ids, mask, text_ids=text_ids))


def main() -> None:
    modcache.configure(dir=folder_of(__doc__))
    torch.manual_seed(0)
    names = letters()[::4]
    # What tells the scripts apart is left out: "LETTER ALPHA", "CAPITAL LETTER A WITH ACUTE".
    ids, mask = tokens_of([letter.name.split(" ", 1)[1] for letter in names])
    labels = torch.tensor([letter.label for letter in names])
    model = Classifier().train()
    optimizer = torch.optim.Adam(model.head.parameters(), lr=0.01)
    for epoch in range(5):
        modcache.reset_stats()
        for rows in torch.randperm(len(names)).split(64):
            logits = model(ids[rows], mask[rows], text_ids=rows)
            loss = functional.cross_entropy(logits, labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        counts = modcache.stats()
        hits = counts["hits_memory"] + counts["hits_disk"]
        print(f"epoch {epoch}: {hits} of {len(names)} rows from the cache, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
