"""A balancing method of gradients that needs no further library."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from palm.mixing.balance import Balance


class EqualNorms(Balance):
    """Bring the gradients to one norm, and the more of it to a task the more steps it had."""

    needs_gradients = True

    def of_gradients(self, tasks: Sequence[str], gramian: Tensor, draws: np.random.Generator) -> list[float]:
        """Divide by the norm; a little noise shows that draws are repeated."""
        steps = self.table("steps")
        norms = gramian.diagonal().sqrt().tolist()
        noise = draws.uniform(0.9, 1.1, len(tasks)).tolist()
        return [
            each * (1 + 0.1 * steps.get(task, 0)) / norm
            for task, norm, each in zip(tasks, norms, noise, strict=True)
        ]

    def observe(self, tasks: Sequence[str], losses: Sequence[float]) -> None:
        """Count steps."""
        for task in tasks:
            self.table("steps")[task] = self.table("steps").get(task, 0) + 1
