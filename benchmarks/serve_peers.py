"""The servers that `serve_load.py` compares `palm serve` with: python serve_peers.py NAME PORT DIR …"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from palm.predict.joint import JointModel
from palm.predict.loading import load_model
from palm.predict.onnx import INPUTS


def serve_pipeline(folders: Sequence[Path], port: int) -> None:
    import uvicorn
    from fastapi import FastAPI
    from transformers import pipeline

    made = [folder.with_name(f"{folder.name}-hf") for folder in folders]
    pipes = [pipeline("text-classification", model=str(each), top_k=None) for each in made]
    app = FastAPI()

    @app.post("/predict")
    def predict(body: dict[str, Any]) -> dict[str, Any]:
        return {"results": [pipe(body["texts"], truncation=True) for pipe in pipes]}

    uvicorn.run(app, port=port, log_level="warning")


def serve_onnx(folders: Sequence[Path], port: int) -> None:
    import onnxruntime
    import uvicorn
    from fastapi import FastAPI

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    made = [folder.with_name(f"{folder.name}-onnx") / "model.onnx" for folder in folders]
    sessions = [onnxruntime.InferenceSession(each, options, ["CPUExecutionProvider"]) for each in made]
    wanted = [each.name for each in sessions[0].get_inputs()]
    reader = load_model(folders[0]).reader
    app = FastAPI()

    @app.post("/predict")
    def predict(body: dict[str, Any]) -> dict[str, Any]:
        rows = reader.encode(list(reader.parse(body["texts"])), with_targets=False)
        batch = reader.collate(rows, range(len(rows)), lambda _: np.random.default_rng(0))
        inputs = {INPUTS.get(name, name): value.long().numpy() for name, value in batch.items()}
        inputs = {name: value for name, value in inputs.items() if name in wanted}
        return {"results": [each.run(None, inputs)[0].tolist() for each in sessions]}

    uvicorn.run(app, port=port, log_level="warning")


if importlib.util.find_spec("litserve"):
    import litserve

    class Api(litserve.LitAPI):
        """palm's joint model behind LitServe; of the module, because LitServe pickles it."""

        def __init__(self, folders: Sequence[Path]) -> None:
            super().__init__(max_batch_size=32, batch_timeout=0.005)
            self.folders = folders

        def setup(self, device: str) -> None:  # noqa: ARG002
            torch.set_num_threads(1)
            loaded = [load_model(folder, precision="fp32") for folder in self.folders]
            self.model = JointModel({model.task: model for model in loaded})

        def decode_request(self, request):  # type: ignore[no-untyped-def]  # a type would be read as a schema
            return str(request["texts"][0])

        def batch(self, inputs: list[str]) -> list[str]:
            return inputs

        def predict(self, x: list[str]) -> list[Any]:
            return self.model.predict(x)

        def unbatch(self, output: list[Any]) -> list[Any]:
            return output

        def encode_response(self, output: Any) -> dict[str, Any]:
            return {"results": [output]}


def serve_litserve(folders: Sequence[Path], port: int) -> None:
    server = litserve.LitServer(Api(folders), accelerator="cpu")
    server.run(host="127.0.0.1", port=port, generate_client_file=False, log_level="warning")


if __name__ == "__main__":
    name, port, *words = sys.argv[1:]
    servers = {"pipeline": serve_pipeline, "litserve": serve_litserve, "onnx": serve_onnx}
    torch.set_num_threads(1)
    servers[name](list(map(Path, words)), int(port))
