"""Demo 1: machine reading comprehension alone, from a YAML file to a saved model."""

from pathlib import Path

import palm

HERE = Path(__file__).parent

if __name__ == "__main__":
    controller = palm.Controller(HERE / "config.yaml")
    controller.train()
