"""Natural-looking JPEG files for demos and tests on machines without real pictures.

python -m examples.pictures demo-data --count 300
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm


def picture(generator: np.random.Generator, width: int, height: int) -> Image.Image:
    """Noise with the 1/f spectrum of natural scenes, with flat shapes in front that give it edges."""
    fy = np.fft.fftfreq(height)[:, None]
    fx = np.fft.rfftfreq(width)[None, :]
    falloff = 1.0 / np.maximum(np.hypot(fy, fx), 1.0 / max(width, height)) ** generator.uniform(0.9, 1.4)
    channels = []
    for _ in range(3):
        noise = generator.normal(size=falloff.shape) + 1j * generator.normal(size=falloff.shape)
        plane = np.fft.irfft2(noise * falloff, s=(height, width))
        channels.append((plane - plane.mean()) / plane.std())
    # Channels of real pictures mostly move together.
    grey = channels[0]
    planes = np.stack([128 + 45 * (0.85 * grey + 0.25 * channel) for channel in channels], axis=-1)
    for _ in range(int(generator.integers(2, 6))):
        _paint_shape(generator, planes)
    return Image.fromarray(planes.clip(0, 255).astype(np.uint8))


def _paint_shape(generator: np.random.Generator, planes: np.ndarray) -> None:
    height, width, _ = planes.shape
    y, x = np.ogrid[:height, :width]
    cy, cx = generator.uniform(0, height), generator.uniform(0, width)
    ry, rx = generator.uniform(0.05, 0.4, size=2) * (height, width)
    inside = ((y - cy) / ry) ** 2 + ((x - cx) / rx) ** 2 < 1
    planes[inside] = 0.4 * planes[inside] + 0.6 * generator.uniform(0, 255, size=3)


def make_pictures(folder: Path, count: int, classes: int = 10, seed: int = 0, side: float = 420.0) -> Path:
    """Write an ImageFolder tree of `count` JPEGs whose sizes spread as ImageNet's do (log-normal).

    Args:
        side: median side of the pictures, in px.
    """
    generator = np.random.default_rng(seed)
    for number in tqdm(range(count), desc="making pictures", disable=True if count < 100 else None):
        width, height = np.maximum(16, side * np.exp(generator.normal(0, 0.3, size=2))).astype(int)
        path = folder / f"class{number % classes:02d}" / f"{number:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(generator, int(width), int(height)).save(path, quality=int(generator.integers(75, 97)))
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="Where to write them: a folder per class.")
    parser.add_argument("--count", type=int, default=300, help="Pictures to make (default: %(default)s).")
    parser.add_argument(
        "--classes", type=int, default=10, help="Classes that they are dealt out to (default: %(default)s)."
    )
    parser.add_argument("--seed", type=int, default=0, help="Equal seeds make equal pictures (default: %(default)s).")
    options = parser.parse_args()
    make_pictures(options.folder, options.count, options.classes, options.seed)


if __name__ == "__main__":
    main()
