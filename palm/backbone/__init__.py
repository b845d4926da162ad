"""Shared encoders by name: `bert` and `ernie`."""

from palm.backbone.base import BACKBONES, Backbone
from palm.backbone.bert import BERT
from palm.backbone.ernie import ERNIE

__all__ = ["BACKBONES", "BERT", "ERNIE", "Backbone"]
