"""The logger for MLflow: curves, settings, results and model cards in a store in `<folder>/mlflow`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from palm.train.callbacks import Ended, Started
from palm.train.loggers.base import Logger, parameters_of, settings_text

STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "stopped": "FAILED"}


class MLflow(Logger):
    """A run in the experiment `palm`, or in the one that MLFLOW_EXPERIMENT_NAME names.

    It uses its own client, so the program's active run does not change. The store is in the run's folder
    unless MLFLOW_TRACKING_URI names another.
    """

    def log(self, points: Mapping[str, float]) -> None:
        for name, value in points.items():
            self.client.log_metric(self.run, name, value, step=self.step)

    def end(self, event: Ended) -> None:
        for name, text in self.texts():
            self.client.log_text(self.run, text, f"{name}.md")
        self.client.set_terminated(self.run, STATUS[event.reason])

    def _last_step(self, name: str) -> int:
        return max(int(point.step) for point in self.client.get_metric_history(self.run, name))

    def start(self, event: Started) -> None:
        from mlflow import MlflowClient

        store = f"sqlite:///{(self.folder / 'mlflow.db').resolve()}"
        self.client: Any = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI", store))
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "palm")
        known = self.client.get_experiment_by_name(name)
        place = (self.folder / "artifacts").resolve().as_uri()
        experiment = self.client.create_experiment(name, place) if known is None else known.experiment_id
        # A resumed run continues its earlier MLflow run.
        if (earlier := self.earlier_id()) is not None:
            run = self.client.get_run(earlier)
        else:
            run = self.client.create_run(experiment, run_name=self.run_folder.resolve().name)
        self.run: str = run.info.run_id
        self.keep_id(self.run)
        # Points that a killed run logged after its checkpoint are kept, and not logged again.
        self.known |= {name: self._last_step(name) for name in run.data.metrics}
        for name, value in parameters_of(event.configuration).items():
            if name not in run.data.params:
                self.client.log_param(self.run, name, value)
        self.client.log_text(self.run, settings_text(event.configuration), "resolved_config.yaml")
