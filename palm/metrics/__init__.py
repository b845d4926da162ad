"""Metrics by name, and functions that score files and lists."""

from palm.metrics import (  # noqa: F401 - they register their metrics, in this order
    answers,
    classification,
    ranking,
    regression,
    spans,
)
from palm.metrics.answers import squad_questions, squad_scores
from palm.metrics.base import METRICS, Metric, metric_problems, metrics_of, scores_of
from palm.metrics.classification import calibration_error
from palm.metrics.spans import entities, entity_scores

__all__ = [
    "METRICS",
    "Metric",
    "calibration_error",
    "entities",
    "entity_scores",
    "metric_problems",
    "metrics_of",
    "scores_of",
    "squad_questions",
    "squad_scores",
]
