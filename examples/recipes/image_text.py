# SPDX-License-Identifier: Apache-2.0
"""Two encoders, each with a cache and a key function of its own, on pairs of image and text.

Pictures of letters are matched with the names of these letters. The picture's key is its code
point, the text's key is the text itself, so that a text which belongs to several pictures is
encoded once. Each encoder has its own fingerprint and with it its own entries: exchanging one
leaves the other's alone. Two small projections are trained on top until a picture finds its name.
"""

from __future__ import annotations

import modcache
import torch
from encoders import GaborEncoder, load_text_encoder, tokens_of
from glyphs import Letter, draw, letters
from options import folder_of
from torch import Tensor, nn
from torch.nn import functional


class Pairs(nn.Module):
    """Similarities of all pictures with all texts of a batch: float32 [B, B]."""

    def __init__(self) -> None:
        super().__init__()
        self.image_encoder = modcache.cached(GaborEncoder(), key="codes", freeze=True)
        self.text_encoder = modcache.cached(load_text_encoder(), key="texts", freeze=True)
        self.image_head = nn.Linear(GaborEncoder.FEATURES, 64)
        self.text_head = nn.Linear(384, 64)

    def forward(
        self, pictures: Tensor, texts: tuple[Tensor, Tensor], batch: list[Letter]
    ) -> Tensor:
        codes = [f"U+{ord(letter.character):04X}" for letter in batch]
        names = [letter.name for letter in batch]
        images = self.image_head(self.image_encoder(pictures, codes=codes))
        words = self.text_head(self.text_encoder(*texts, texts=names))
        return functional.normalize(images, dim=1) @ functional.normalize(words, dim=1).T / 0.07


def main() -> None:
    modcache.configure(dir=folder_of(__doc__))
    torch.manual_seed(0)
    model = Pairs().train()
    heads = [*model.image_head.parameters(), *model.text_head.parameters()]
    optimizer = torch.optim.Adam(heads, lr=0.003)
    chosen = letters()[::4]
    pictures = torch.stack([draw(letter.character) for letter in chosen])
    tokens = tokens_of([letter.name for letter in chosen])
    for epoch in range(8):
        modcache.reset_stats()
        correct = 0
        for rows in torch.randperm(len(chosen)).split(47):
            texts = (tokens[0][rows], tokens[1][rows])
            similarities = model(pictures[rows], texts, [chosen[row] for row in rows.tolist()])
            own = torch.arange(len(rows))
            loss = functional.cross_entropy(similarities, own)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            correct += int((similarities.argmax(1) == own).sum())
        counts = modcache.stats()
        hits = counts["hits_memory"] + counts["hits_disk"]
        print(
            f"epoch {epoch}: {hits} of {2 * len(chosen)} encodings from the cache, "
            f"{correct} of {len(chosen)} pictures find their name among 47"
        )


if __name__ == "__main__":
    main()
