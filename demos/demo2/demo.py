"""Demo 2: reading comprehension with two tasks that help, then the answers to questions never seen."""

from itertools import islice
from pathlib import Path

import palm

HERE = Path(__file__).parent
DEV = HERE / "../../data/mrqa/dev.json"

if __name__ == "__main__":
    controller = palm.Controller(HERE / "config.yaml", task_dir="tasks")
    controller.train()

    controller = palm.Controller(HERE / "config.yaml", task_dir="tasks", for_train=False)
    answers = controller.pred("mrqa")

    for key, question in islice(palm.metrics.squad_questions(DEV).items(), 5):
        print(f"{question.text}\n  {answers[key]} (expected: {question.answers[0]})")
    scores = palm.metrics.squad_scores(answers, DEV)
    print(f"exact match {scores['exact_match']:.1f} %, F1 {scores['f1']:.1f} % of {len(answers)} questions")
