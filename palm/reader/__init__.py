"""Readers, which turn data files into batches and predictions into files."""

from palm.reader.base import READERS, Draw, Reader
from palm.reader.classify import ClassifyReader
from palm.reader.embedding import EmbeddingReader
from palm.reader.mask_lm import MaskLMReader
from palm.reader.match import MatchReader
from palm.reader.mrc import MRCReader
from palm.reader.multi_label import MultiLabelReader
from palm.reader.multiple_choice import MultipleChoiceReader
from palm.reader.predictions import Predictions, Record
from palm.reader.ranking import RankingReader
from palm.reader.relation import RelationReader
from palm.reader.rows import BadRow, Column, Rows
from palm.reader.seq_label import SequenceLabelReader
from palm.reader.span import SpanReader

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
