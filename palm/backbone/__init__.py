"""Shared encoders, registered as `bert`, `distilbert`, `electra`, `ernie`, `roberta` and `transformers`."""

from palm.backbone.base import BACKBONES, Backbone
from palm.backbone.encoder import BERT, ELECTRA, ERNIE, DistilBERT, RoBERTa
from palm.backbone.transformers import Transformers

__all__ = [
    "BACKBONES",
    "BERT",
    "ELECTRA",
    "ERNIE",
    "Backbone",
    "DistilBERT",
    "RoBERTa",
    "Transformers",
]
