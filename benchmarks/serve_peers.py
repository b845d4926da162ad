"""The servers that `serve_load.py` compares `palm serve` with: python serve_peers.py NAME PORT DIR …"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from palm.core.device import resolved
from palm.predict.inference import JointModel
from palm.predict.loading import load_model
from palm.predict.onnx import INPUTS

DTYPE = torch.bfloat16 if resolved("auto", torch.device("cpu")) == "bf16" else torch.float32
"""The dtype that palm chooses for this processor."""


def exported(folders: Sequence[Path]) -> list[Path]:
    """The models as `transformers` reads them."""
    return [folder.with_name(f"{folder.name}-hf") for folder in folders]


def serve_pipeline(folders: Sequence[Path], port: int) -> None:
    import uvicorn
    from fastapi import FastAPI
    from transformers import pipeline

    pipes = [
        pipeline("text-classification", model=str(each), top_k=None, dtype=DTYPE, device="cpu")
        for each in exported(folders)
    ]
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
        """Models of `transformers` behind LitServe; of the module, because LitServe pickles it."""

        def __init__(self, folders: Sequence[Path]) -> None:
            super().__init__(max_batch_size=32, batch_timeout=0.005)
            self.folders = folders

        def setup(self, device: str) -> None:  # noqa: ARG002
            from transformers import AutoModelForSequenceClassification, AutoTokenizer

            torch.set_num_threads(1)
            made = exported(self.folders)
            self.tokenizer = AutoTokenizer.from_pretrained(made[0])
            self.models = [
                AutoModelForSequenceClassification.from_pretrained(each, dtype=DTYPE).eval() for each in made
            ]

        def decode_request(self, request):  # type: ignore[no-untyped-def]  # a type would be read as a schema
            return str(request["texts"][0])

        def batch(self, inputs: list[str]) -> list[str]:
            return inputs

        @torch.inference_mode()
        def predict(self, x: list[str]) -> list[Any]:
            batch = self.tokenizer(x, padding=True, truncation=True, max_length=128, return_tensors="pt")
            probs = [model(**batch).logits.float().softmax(-1).tolist() for model in self.models]
            return [
                [{"label": max(range(len(p)), key=p.__getitem__), "probs": p} for p in row]
                for row in zip(*probs, strict=True)
            ]

        def unbatch(self, output: list[Any]) -> list[Any]:
            return output

        def encode_response(self, output: Any) -> dict[str, Any]:
            return {"results": [output]}

    class JointApi(Api):
        """palm's joint model behind LitServe."""

        def setup(self, device: str) -> None:  # noqa: ARG002
            torch.set_num_threads(1)
            loaded = [load_model(folder) for folder in self.folders]
            self.model = JointModel({model.task: model for model in loaded})

        def predict(self, x: list[str]) -> list[Any]:
            return self.model.predict(x)


def serve_litserve(folders: Sequence[Path], port: int) -> None:
    _serve_lit(Api(folders), port)


def serve_litjoint(folders: Sequence[Path], port: int) -> None:
    _serve_lit(JointApi(folders), port)


def _serve_lit(api: Any, port: int) -> None:
    server = litserve.LitServer(api, accelerator="cpu")
    server.run(host="127.0.0.1", port=port, generate_client_file=False, log_level="warning")


if __name__ == "__main__":
    name, port, *words = sys.argv[1:]
    servers = {
        "pipeline": serve_pipeline,
        "litserve": serve_litserve,
        "litjoint": serve_litjoint,
        "onnx": serve_onnx,
    }
    torch.set_num_threads(1)
    servers[name](list(map(Path, words)), int(port))
