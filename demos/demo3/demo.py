"""Demo 3: six target tasks at once; some share their head."""

from pathlib import Path

import palm

HERE = Path(__file__).parent

if __name__ == "__main__":
    controller = palm.Controller(HERE / "config.yaml", task_dir="tasks")
    controller.train()

    controller = palm.Controller(HERE / "config.yaml", task_dir="tasks", for_train=False)
    for prediction in controller.pred("cls1")[:3]:
        print(prediction)
