"""tf.data service: dispatcher and workers near the files, which run everything up to the batch.

Its JPEG decoder, its resizing and its random numbers are TensorFlow's; images stay in its layout, height first.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import tensorflow as tf

from bench.peers.systems import DEVIATION, MEAN, Client, Settings, pictures

service = tf.data.experimental.service
COMPRESSION = {"tf-data": None, "tf-data-auto": "AUTO", "tf-data-uint8": "AUTO"}


@contextmanager
def server(settings: Settings) -> Iterator[None]:
    dispatcher = service.DispatchServer(service.DispatcherConfig(port=settings.port))
    workers = [
        service.WorkerServer(
            service.WorkerConfig(
                dispatcher_address=f"{settings.address}:{settings.port}",
                worker_address=f"{settings.address}:{port}",
                port=port,
            )
        )
        for port in range(settings.port + 1, settings.port + 1 + settings.workers)
    ]
    yield
    del workers, dispatcher


def crop_and_flip(file: Any, label: Any) -> tuple[Any, Any]:
    """Read a file, decode a random region of it (no more than that), resize, maybe flip."""
    body = tf.io.read_file(file)
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        tf.io.extract_jpeg_shape(body),
        tf.zeros([0, 0, 4]),
        area_range=(0.08, 1.0),
        aspect_ratio_range=(3 / 4, 4 / 3),
        max_attempts=10,
        use_image_if_no_bounding_boxes=True,
    )
    image = tf.io.decode_and_crop_jpeg(body, tf.concat([begin[:2], size[:2]], 0), channels=3)
    return tf.image.random_flip_left_right(tf.image.resize(image, (224, 224), antialias=True)), label


def to_uint8(image: Any, label: Any) -> tuple[Any, Any]:
    return tf.cast(tf.round(image), tf.uint8), label


def normalise(image: Any, label: Any) -> tuple[Any, Any]:
    return (tf.cast(image, tf.float32) / 255.0 - tf.constant(MEAN)) / tf.constant(DEVIATION), label


class TfDataClient(Client):
    def __init__(self, settings: Settings) -> None:
        tf.random.set_seed(0)
        files, labels = zip(*pictures(settings.data), strict=True)
        late = settings.system == "tf-data-uint8"
        dataset = tf.data.Dataset.from_tensor_slices((list(map(str, files)), list(labels)))
        dataset = dataset.shuffle(len(files), reshuffle_each_iteration=True)
        dataset = dataset.map(crop_and_flip, tf.data.AUTOTUNE).map(to_uint8 if late else normalise, tf.data.AUTOTUNE)
        dataset = dataset.batch(settings.batch_size).apply(
            service.distribute(
                processing_mode=service.ShardingPolicy.DYNAMIC,
                service=f"grpc://{settings.address}:{settings.port}",
                compression=COMPRESSION[settings.system],
            )
        )
        self.dataset = dataset.map(normalise, tf.data.AUTOTUNE) if late else dataset

    def batches(self, epoch: int) -> Iterable[tuple[Any, Any]]:
        return self.dataset.as_numpy_iterator()  # type: ignore[no-any-return]


open_client = TfDataClient
