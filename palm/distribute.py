"""Batches in pieces for several devices, under the name of PaddlePALM 2.x; see `palm.trainer.pieces`."""

from palm.trainer.pieces import (
    cpu_dev_count,
    data_feeder,
    decode_fake,
    dev_count,
    gpu_dev_count,
    yield_pieces,
)

__all__ = ["cpu_dev_count", "data_feeder", "decode_fake", "dev_count", "gpu_dev_count", "yield_pieces"]
