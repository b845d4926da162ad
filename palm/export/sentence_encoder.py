"""Export of a trained embedding to sentence-transformers: encoder, pooling and normalization."""

from __future__ import annotations

from pathlib import Path

from palm.backbone.encoder import Encoder
from palm.backbone.token_encoder import TokenEncoder
from palm.backbone.transformers import Transformers
from palm.core.errors import PalmError
from palm.core.io import make_folder, write_json
from palm.core.numerics.layers import ACTIVATIONS
from palm.core.saved import save_tensors
from palm.export.tokenizer_files import load_tokenizer
from palm.predict.inference import InferenceModel
from palm.pretrained.directory import POOLING_FILE, POOLING_MODES
from palm.pretrained.families import family_of, write_hugging_face

MODULES = "sentence_transformers.models"

MODULE_NAMES = {"tanh": "Tanh", "relu": "ReLU", "gelu": "GELU"}
"""A pooler's activation -> its class in torch."""


def save_sentence_encoder(model: InferenceModel, part: Path) -> None:
    """Write everything except the tokenizer to a new directory.

    Raises:
        PalmError: the library would compute different sentence embeddings.
    """
    backbone = model.backbone
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    if isinstance(backbone, Transformers):
        has_layers = backbone.sentence is not None or getattr(backbone.model, "pooler", None) is not None
        if backbone.pooling == "cls" and has_layers:
            raise PalmError(
                f"{model.task} passes the first token through further layers, and sentence-transformers does "
                "not; train with pooling: mean or max"
            )
        left_out: tuple[str, ...] = ()
    else:
        assert isinstance(backbone, Encoder)
        # Some families have the pooler only in their classifiers.
        left_out = (
            () if family_of(backbone).pooler.endswith("pooler.dense") else ("pooler.weight", "pooler.bias")
        )
        if backbone.pooler is not None:
            modules.append(("2_Dense", "Dense"))
            _save_pooler(backbone, part / "2_Dense")
    weights = {name: value for name, value in backbone.state_dict().items() if name not in left_out}
    pad_id = load_tokenizer(model.reader).pad_id
    write_hugging_face(weights, backbone, part, pad_token_id=pad_id, dtype="float32")
    modules.append((f"{len(modules)}_Normalize", "Normalize"))
    _save_pooling(backbone, part)
    listed = [
        {"idx": k, "name": str(k), "path": place, "type": f"{MODULES}.{kind}"}
        for k, (place, kind) in enumerate(modules)
    ]
    make_folder(part / modules[-1][0])
    write_json(part / "modules.json", listed)
    longest = model.reader.settings["max_seq_len"]
    write_json(part / "sentence_bert_config.json", {"max_seq_length": longest, "do_lower_case": False})
    write_json(part / "config_sentence_transformers.json", {"similarity_fn_name": "cosine", "prompts": {}})


def _save_pooler(backbone: Encoder, folder: Path) -> None:
    pooler = backbone.pooler
    assert pooler is not None
    make_folder(folder)
    activation = next(MODULE_NAMES[n] for n in MODULE_NAMES if ACTIVATIONS[n] is backbone.pooler_activation)
    config = {
        "in_features": pooler.in_features,
        "out_features": pooler.out_features,
        "bias": True,
        "activation_function": f"torch.nn.modules.activation.{activation}",
    }
    write_json(folder / "config.json", config)
    weights = {f"linear.{name}": value.detach() for name, value in pooler.named_parameters()}
    save_tensors(folder / "model.safetensors", weights)


def _save_pooling(backbone: TokenEncoder, part: Path) -> None:
    width = backbone.outputs_attr["sentence_embedding"].shape[-1]
    modes = {name: backbone.pooling == mode for name, mode in POOLING_MODES.items()}
    make_folder(part / "1_Pooling")
    write_json(part / POOLING_FILE, {"word_embedding_dimension": width, **modes})
