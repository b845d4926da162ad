"""Metrics by name, and functions that score files and lists."""

from palm.metrics.answers import Cmrc, Squad, Squad2
from palm.metrics.base import METRICS, Metric, metric_problems, metrics_of, scores_of
from palm.metrics.calibration import (
    CalibrationError,
    LabelCalibrationError,
    WordCalibrationError,
    calibration_error,
)
from palm.metrics.classification import Accuracy, MacroF1, MatthewsCorrelation, MicroF1, QuadraticKappa
from palm.metrics.files import Question, cmrc_scores, squad2_scores, squad_questions, squad_scores
from palm.metrics.mlm import Perplexity, WordAccuracy
from palm.metrics.multi_label import ExactMatch, LabelF1, RankingPrecision
from palm.metrics.pairs import PairAccuracy
from palm.metrics.ranking import RankingScores, RetrievalScores
from palm.metrics.regression import MeanSquaredError, Pearson, PoissonDeviance, Spearman
from palm.metrics.spans import RelationBoundaryF1, RelationF1, SpanF1, SpanLabelF1
from palm.metrics.tagging import Entity, EntityF1, TokenAccuracy, entities, entity_scores

__all__ = [
    "METRICS",
    "Accuracy",
    "CalibrationError",
    "Cmrc",
    "Entity",
    "EntityF1",
    "ExactMatch",
    "LabelCalibrationError",
    "LabelF1",
    "MacroF1",
    "MatthewsCorrelation",
    "MeanSquaredError",
    "Metric",
    "MicroF1",
    "PairAccuracy",
    "Pearson",
    "Perplexity",
    "PoissonDeviance",
    "QuadraticKappa",
    "Question",
    "RankingPrecision",
    "RankingScores",
    "RelationBoundaryF1",
    "RelationF1",
    "RetrievalScores",
    "SpanF1",
    "SpanLabelF1",
    "Spearman",
    "Squad",
    "Squad2",
    "TokenAccuracy",
    "WordAccuracy",
    "WordCalibrationError",
    "calibration_error",
    "cmrc_scores",
    "entities",
    "entity_scores",
    "metric_problems",
    "metrics_of",
    "scores_of",
    "squad2_scores",
    "squad_questions",
    "squad_scores",
]
