"""Metrics by name, and functions that score files and lists."""

from palm.metrics import (  # noqa: F401 - they register their metrics, in this order
    answers,
    classification,
    ranking,
    regression,
    spans,
)
from palm.metrics.answers import Question, cmrc_scores, squad2_scores, squad_questions, squad_scores
from palm.metrics.base import METRICS, Metric, metric_problems, metrics_of, scores_of
from palm.metrics.classification import calibration_error
from palm.metrics.spans import Entity, entities, entity_scores, scheme_of

__all__ = [
    "METRICS",
    "Entity",
    "Metric",
    "Question",
    "calibration_error",
    "cmrc_scores",
    "entities",
    "entity_scores",
    "metric_problems",
    "metrics_of",
    "scheme_of",
    "scores_of",
    "squad2_scores",
    "squad_questions",
    "squad_scores",
]
