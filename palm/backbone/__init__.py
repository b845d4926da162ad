"""Shared encoders by name: `bert`, `distilbert`, `electra`, `ernie`, `roberta` and `transformers`."""

from palm.backbone import base_backbone
from palm.backbone.base import BACKBONES, Backbone
from palm.backbone.bert import BERT
from palm.backbone.distilbert import DistilBERT
from palm.backbone.electra import ELECTRA
from palm.backbone.ernie import ERNIE
from palm.backbone.roberta import RoBERTa
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
    "base_backbone",
]
