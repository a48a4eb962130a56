# SPDX-License-Identifier: Apache-2.0
"""Architectures of transformers that people use as frozen encoders, tiny and with random weights.

Each is called in six ways, as collators, processors and training scripts call it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import modcache
import torch
import transformers
from torch import Tensor

ROWS = 4
KEYS = [f"train/{row}" for row in range(ROWS)]
LENGTHS = [5, 9, 3, 7]  # of sentences; no size of a model is one of these
END = 59  # the token at which CLIP's text tower looks

_TEXT = {
    "vocab_size": 60,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": END,
}
_DECODER = {**_TEXT, "num_key_value_heads": 1}
_IMAGE = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 4,
}
_SEQ2SEQ = {
    "vocab_size": 60,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}


@dataclass(frozen=True)
class Architecture:
    kind: str  # what it takes: text, images, speech, spectrograms
    build: Callable[..., Any]
    # What the batch of a collator has besides, and what scripts give with it.
    more: Callable[[dict[str, Tensor]], dict[str, Any]] = field(default=lambda batch: {})


def _made(model: str, config: str, part: str = "", **settings: Any) -> Callable[..., Any]:
    def build(**more: Any) -> Any:
        made = getattr(transformers, model)(getattr(transformers, config)(**settings, **more))
        return made.get_submodule(part)

    return build


def _segments(batch: dict[str, Tensor]) -> dict[str, Any]:
    return {"token_type_ids": torch.zeros_like(batch["input_ids"])}


def _positions(batch: dict[str, Tensor]) -> dict[str, Any]:
    return {"position_ids": torch.arange(batch["input_ids"].shape[1])[None]}


def _decoding(batch: dict[str, Tensor]) -> dict[str, Any]:
    return {**_positions(batch), "use_cache": False}


def _unsized(batch: dict[str, Tensor]) -> dict[str, Any]:
    return {"interpolate_pos_encoding": True}


def _padded_sound(batch: dict[str, Tensor]) -> dict[str, Any]:
    return {"attention_mask": _sound()["attention_mask"]}


ARCHITECTURES = {
    "bert": Architecture("text", _made("BertModel", "BertConfig", **_TEXT), _segments),
    "roberta": Architecture("text", _made("RobertaModel", "RobertaConfig", **_TEXT), _segments),
    "distilbert": Architecture(
        "text",
        _made(
            "DistilBertModel", "DistilBertConfig",
            vocab_size=60, dim=16, n_layers=2, n_heads=2, hidden_dim=24,
        ),
    ),
    "deberta-v2": Architecture(
        "text",
        _made(
            "DebertaV2Model", "DebertaV2Config", **_TEXT,
            relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8,
            norm_rel_ebd="layer_norm", share_att_key=True,
        ),
        _segments,
    ),
    "mpnet": Architecture("text", _made("MPNetModel", "MPNetConfig", **_TEXT)),
    "modernbert": Architecture(
        "text",
        _made(
            "ModernBertModel", "ModernBertConfig", **_TEXT,
            cls_token_id=1, sep_token_id=END, local_attention=4,
        ),
        _positions,
    ),
    "t5-encoder": Architecture(
        "text",
        _made(
            "T5EncoderModel", "T5Config",
            vocab_size=60, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2,
        ),
        _positions,  # which it does not use
    ),
    "bart": Architecture("text", _made("BartModel", "BartConfig", **_SEQ2SEQ)),
    "gpt2": Architecture(
        "text",
        _made(
            "GPT2Model", "GPT2Config", vocab_size=60, n_embd=16, n_layer=2, n_head=2,
            n_positions=64, bos_token_id=0, eos_token_id=0,
        ),
        _decoding,
    ),
    "llama": Architecture("text", _made("LlamaModel", "LlamaConfig", **_DECODER), _decoding),
    "qwen2": Architecture("text", _made("Qwen2Model", "Qwen2Config", **_DECODER), _decoding),
    "clip-text": Architecture(
        "text", _made("CLIPTextModel", "CLIPTextConfig", **_TEXT, max_position_embeddings=32),
        _positions,
    ),
    "clip-vision": Architecture(
        "images", _made("CLIPVisionModel", "CLIPVisionConfig", **_IMAGE, intermediate_size=24),
        _unsized,
    ),
    "vit": Architecture(
        "images", _made("ViTModel", "ViTConfig", **_IMAGE, intermediate_size=24), _unsized
    ),
    "dinov2": Architecture("images", _made("Dinov2Model", "Dinov2Config", **_IMAGE)),
    "swin": Architecture(
        "images",
        _made(
            "SwinModel", "SwinConfig",
            image_size=16, patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[2, 2],
            window_size=4,
        ),
        _unsized,
    ),
    "wav2vec2": Architecture(
        "speech",
        _made(
            "Wav2Vec2Model", "Wav2Vec2Config",
            vocab_size=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=24, conv_dim=(8, 8), conv_stride=(4, 4), conv_kernel=(8, 8),
            num_feat_extract_layers=2, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
        ),
        _padded_sound,
    ),
    "whisper-encoder": Architecture(
        "spectrograms",
        _made(
            "WhisperModel", "WhisperConfig", "encoder", **_SEQ2SEQ,
            max_source_positions=20, num_mel_bins=8, max_target_positions=20,
        ),
    ),
}  # fmt: skip


@functools.cache
def model_of(name: str, attention: str | None = None) -> Any:
    """A frozen model, the same in each process."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = ARCHITECTURES[name].build(attn_implementation=attention)
    return model.requires_grad_(False).eval()


# --- Calls -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """The keywords of a call, of which tensors have a row for each key, or belong to all rows."""

    batch: dict[str, Any]
    attention: str | None = None  # the implementation that gives the model what is asked for
    mask: str | None = None

    def rows(self, chosen: list[int]) -> dict[str, Any]:
        """The keywords for some of the rows, padded no further than these need."""
        taken = {
            name: value[chosen] if isinstance(value, Tensor) and value.shape[0] == ROWS else value
            for name, value in self.batch.items()
        }
        if self.mask is None:
            return taken
        longest, mask = self.batch[self.mask].shape[1], taken[self.mask]
        kept = int(mask.sum(1).max())
        return {
            name: value[:, :kept]
            if isinstance(value, Tensor) and value.dim() > 1 and value.shape[1] == longest
            else value
            for name, value in taken.items()
        }


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def _sentences(lengths: list[int]) -> dict[str, Tensor]:
    tokens = torch.randint(3, END, (ROWS, max(lengths)), generator=_generator())
    ends = torch.tensor(lengths)[:, None]
    tokens.scatter_(1, ends - 1, END)
    mask = (torch.arange(max(lengths)) < ends).long()
    return {"input_ids": tokens * mask, "attention_mask": mask}


def _images() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(ROWS, 3, 16, 16, generator=_generator())}


def _sound() -> dict[str, Tensor]:
    mask = (torch.arange(400) < torch.tensor([[400], [300], [200], [360]])).long()
    return {
        "input_values": torch.randn(ROWS, 400, generator=_generator()) * mask,
        "attention_mask": mask,
    }


def _spectrograms() -> dict[str, Tensor]:
    return {"input_features": torch.randn(ROWS, 8, 40, generator=_generator())}


def _channels_last(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: x.contiguous(memory_format=torch.channels_last) for name, x in batch.items()}


def _transposed(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: x.transpose(1, 2).contiguous().transpose(1, 2) for name, x in batch.items()}


def _text_calls(more: Any) -> dict[str, Call]:
    alike, padded = _sentences([9] * ROWS), _sentences(LENGTHS)
    columns = transformers.BatchEncoding(
        {
            **padded,
            **more(padded),
            "labels": padded["input_ids"].masked_fill(padded["attention_mask"] == 0, -100),
            "special_tokens_mask": (padded["input_ids"] == END).long(),
        }
    )
    mask = "attention_mask"
    return {
        "keywords": Call(alike),
        "padded": Call(padded, mask=mask),
        "hidden-states": Call({**padded, "output_hidden_states": True}, mask=mask),
        "attentions": Call({**padded, "output_attentions": True}, "eager", mask),
        "tuple": Call({**alike, "return_dict": False}),
        "columns": Call(dict(**columns), mask=mask),
    }


def _other_calls(batch: dict[str, Tensor], second: dict[str, Call], more: Any) -> dict[str, Call]:
    columns = transformers.BatchFeature({**batch, **more(batch), "labels": torch.arange(ROWS)})
    return {
        "keywords": Call(batch),
        **second,
        "hidden-states": Call({**batch, "output_hidden_states": True}),
        "attentions": Call({**batch, "output_attentions": True}, "eager"),
        "tuple": Call({**batch, "return_dict": False}),
        "columns": Call(dict(**columns)),
    }


def _calls_of(architecture: Architecture) -> dict[str, Call]:
    if architecture.kind == "text":
        return _text_calls(architecture.more)
    if architecture.kind == "images":
        batch = _images()
        second = {"channels-last": Call(_channels_last(batch))}
    elif architecture.kind == "speech":
        batch = {"input_values": _sound()["input_values"]}
        second = {"padded": Call(_sound(), mask="attention_mask")}
    else:
        batch = _spectrograms()
        second = {"transposed": Call(_transposed(batch))}
    return _other_calls(batch, second, architecture.more)


CALLS = {
    (name, way): call
    for name, architecture in ARCHITECTURES.items()
    for way, call in _calls_of(architecture).items()
}


def cached_of(model: Any, call: Call) -> Any:
    options = {} if call.mask is None else {"mask": call.mask}
    return modcache.cached(model, key="cache_key", freeze=True, **options)


# --- Results ---------------------------------------------------------------------------------


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors of a result, those in caches of keys and values included."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, transformers.EncoderDecoderCache):
        return tensors_of((value.self_attention_cache, value.cross_attention_cache))
    if isinstance(value, transformers.DynamicCache):
        return [tensor for layer in value.layers for tensor in (layer.keys, layer.values)]
    if isinstance(value, dict):
        value = tuple(value.values())
    return [t for part in value for t in tensors_of(part)] if isinstance(value, tuple) else []


def form_of(value: Any) -> Any:
    """The classes and names of a result, without its numbers."""
    if isinstance(value, dict):
        return type(value), {name: form_of(part) for name, part in value.items()}
    if isinstance(value, tuple):
        return type(value), [form_of(part) for part in value]
    return (type(value), value.dtype) if isinstance(value, Tensor) else type(value)


def padded_with_zeros(tensor: Tensor, mask: Tensor | None) -> Tensor:
    """A tensor of a result with zeros after each row's true part, where it has the padded size."""
    if mask is None:
        return tensor
    for dimension in range(1, tensor.dim()):
        if tensor.shape[dimension] == mask.shape[1]:
            sizes = [1] * tensor.dim()
            sizes[0], sizes[dimension] = mask.shape
            tensor = tensor.masked_fill(mask.reshape(sizes) == 0, 0)
    return tensor


def assert_as(found: Any, want: Any, mask: Tensor | None, tolerance: float = 0.0) -> None:
    """Checks classes, names and tensors of a result; with a mask, zeros after each true part."""
    assert form_of(found) == form_of(want)
    ours, theirs = tensors_of(found), tensors_of(want)
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs, strict=True):
        expected = padded_with_zeros(other, mask)
        torch.testing.assert_close(one, expected, rtol=0, atol=tolerance)
