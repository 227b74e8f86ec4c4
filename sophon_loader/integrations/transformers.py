"""Hugging Face Transformers: the loaders that its Trainer makes, with samples from an agent.

    from sophon_loader.integrations.transformers import offloading

    class Training(transformers.Trainer):
        def get_train_dataloader(self):
            return offloading(super().get_train_dataloader(), agent="tcp://fileserver:5555/imagenet")

A Trainer that goes on in the middle of an epoch makes its loader again, by a function of accelerate's that knows
torch's DataLoader only. Importing this module has Trainers use one that keeps ours.
"""

from __future__ import annotations

import transformers.trainer

from sophon_loader.integrations.accelerate import offloading, skip_first_batches

__all__ = ["offloading"]

transformers.trainer.skip_first_batches = skip_first_batches
