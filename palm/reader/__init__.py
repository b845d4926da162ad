"""Readers, which turn data files into batches and predictions into files."""

from palm.reader.base import READERS, Draw, Reader
from palm.reader.groups import EmbeddingReader, MultipleChoiceReader, RankingReader
from palm.reader.mask_lm import MaskLMReader
from palm.reader.mrc import MRCReader
from palm.reader.predictions import Predictions, Record
from palm.reader.rows import BadRow, Column, Rows
from palm.reader.span import RelationReader, SpanReader
from palm.reader.table import ClassifyReader, MatchReader, MultiLabelReader
from palm.reader.words import SequenceLabelReader

__all__ = [
    "READERS",
    "BadRow",
    "ClassifyReader",
    "Column",
    "Draw",
    "EmbeddingReader",
    "MRCReader",
    "MaskLMReader",
    "MatchReader",
    "MultiLabelReader",
    "MultipleChoiceReader",
    "Predictions",
    "RankingReader",
    "Reader",
    "Record",
    "RelationReader",
    "Rows",
    "SequenceLabelReader",
    "SpanReader",
]
