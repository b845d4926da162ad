"""Write a model, or only an encoder, as a directory of transformers or sentence-transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from palm.backbone.base import TokenEncoder
from palm.backbone.encoder import Encoder
from palm.backbone.transformers import Transformers, head_layers, task_model
from palm.core.component import Component, Registry, path_problems, raise_any
from palm.core.errors import PalmError
from palm.core.io import (
    check_target,
    make_folder,
    new_directory,
    wrap_read_errors,
    write_json,
    write_text,
)
from palm.core.logging import logger
from palm.core.saved import save_tensors
from palm.core.version import __version__
from palm.export.sources import load_tokenizer, save_reader, save_tokenizer
from palm.paradigm import HEADS, Embedding, SequenceLabel
from palm.predict.inference import InferenceModel
from palm.predict.loading import load_models
from palm.pretrained.directory import ACTIVATION_CLASSES, POOLING_FILE, POOLING_MODES, read_directory
from palm.pretrained.families import (
    ABOVE,
    Family,
    config_of,
    family_of,
    save_library_model,
    write_hugging_face,
)
from palm.pretrained.loading import (
    PROBLEM_TYPES,
    HeadLayout,
    Report,
    fill_backbone,
    layout_of_head,
    pretrained_directory,
    renamed,
)
from palm.pretrained.names import from_ours
from palm.reader import READERS
from palm.reader.tokenizer import load_tokenizer as tokenizer_of
from palm.train.model_card import CARD, label_names, model_card
from palm.train.model_paths import DESCRIPTION, EXPORT, EXPORT_FORMAT, chosen_model, description_of

VERSION = 1


def _described(model: InferenceModel) -> dict[str, Any]:
    """Describe a task: its reader, its head, its labels, and values that are not weights of a layer."""
    task: dict[str, Any] = {
        "reader": _component(READERS, model.reader),
        "paradigm": _component(HEADS, model.head),
    }
    if labels := label_names(model.reader, model.head):
        task["labels"] = labels
    if fitted := {name: values.tolist() for name, values in model.head.named_buffers()}:
        task["fitted"] = fitted
    if isinstance(model.head, SequenceLabel) and model.head.crf is not None:
        # Scores of a text's first label, of its last, and of each label (row) followed by another.
        first, last, *following = model.head.crf.weight.tolist()
        task["crf"] = {"first": first, "last": last, "following": following}
    return task


def _component(registry: Registry[Any], part: Component) -> dict[str, Any]:
    """Describe a component without files, which are not exported."""
    settings = {name: value for name, value in part.settings.items() if not isinstance(value, Path)}
    return {"name": registry.name_of(type(part)), "settings": settings}


def describe_export(folder: Path, to: str, models: Sequence[InferenceModel], **more: Any) -> None:
    """Write `palm_export.json`.

    Args:
        folder: an existing folder.
        to: 'hf' or 'onnx'.
        models: one per task.
        more: further facts, JSON-ready.
    """
    tasks = {model.task: _described(model) for model in models}
    about = {"format": EXPORT_FORMAT, "version": VERSION, "palm_version": __version__, "to": to}
    write_json(folder / EXPORT, {**about, **more, "tasks": tasks})


def label_settings(model: InferenceModel) -> dict[str, Any]:
    """Return the settings of Hugging Face's `config.json` that follow from a task's labels and kind."""
    settings: dict[str, Any] = {}
    if labels := label_names(model.reader, model.head):
        settings["id2label"] = dict(enumerate(labels))
        settings["label2id"] = {label: number for number, label in enumerate(labels)}
    if problem := PROBLEM_TYPES.get(HEADS.name_of(type(model.head))):
        settings["problem_type"] = problem
    return settings


MODULES = "sentence_transformers.models"


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
                "not; train with pooling: first, mean or max"
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
    config = {
        "in_features": pooler.in_features,
        "out_features": pooler.out_features,
        "bias": True,
        "activation_function": f"torch.nn.modules.activation.{ACTIVATION_CLASSES[backbone.pooler_act]}",
    }
    write_json(folder / "config.json", config)
    weights = {f"linear.{name}": value.detach() for name, value in pooler.named_parameters()}
    save_tensors(folder / "model.safetensors", weights)


def _save_pooling(backbone: TokenEncoder, part: Path) -> None:
    width = backbone.outputs_attr["sentence_embedding"].shape[-1]
    pooling = "first" if backbone.pooling == "cls" else backbone.pooling
    modes = {name: pooling == mode for name, mode in POOLING_MODES.items()}
    make_folder(part / "1_Pooling")
    write_json(part / POOLING_FILE, {"word_embedding_dimension": width, **modes})


def to_hugging_face(
    model_dir: str | Path, folder: str | Path, *, trust: str | Sequence[str] = (), overwrite: bool = False
) -> None:
    """Write a saved model as a directory that `transformers` loads, or one of several tasks as a folder with
    such a directory per task; for arguments see `to_onnx`.

    Raises:
        PalmError: `transformers` cannot compute what the model computes; with the reason.
        StorageError: `model_dir` is not a complete model, or `folder` is in use or cannot be written.
    """
    folder = Path(folder)
    check_target(folder, overwrite, [model_dir])
    source = Path(model_dir)
    models = load_models(source, device="cpu", precision="fp32", trust=trust).tasks.values()
    description = description_of(chosen_model(source))
    with new_directory(folder, overwrite) as part:
        for model in models:
            place = part / model.task if len(models) > 1 else part
            make_folder(place)
            architecture = _write_task(model, description, source, place)
            logger.info("%s: %s written to %s", model.task, architecture, folder / place.relative_to(part))


def _write_task(model: InferenceModel, description: Mapping[str, Any], source: Path, place: Path) -> str:
    """Write the directory of a task; return the library's class."""
    name, architecture, write = _parts(model, source)
    labels = {model.task: label_names(model.reader, model.head)}
    with wrap_read_errors(chosen_model(source) / DESCRIPTION):
        alone = {**description, "tasks": {model.task: description["tasks"][model.task]}}
        card = model_card(alone, labels, architecture=architecture)
    write(place)
    save_reader(model.reader, model.backbone, place, marks_text=name == "mlm")
    describe_export(place, "hf", [model], architecture=architecture)
    write_text(place / CARD, card)
    return architecture


def _parts(model: InferenceModel, model_dir: str | Path) -> tuple[str, str, Callable[[Path], None]]:
    """Return palm's name of the head, the library's class, and a function that writes its files."""
    if isinstance(model.head, Embedding):
        return "embedding", "SentenceTransformer", partial(save_sentence_encoder, model)
    name, head = layout_of_head(model.head)
    family = None if isinstance(model.backbone, Transformers) else family_of(model.backbone)
    architecture = f"{family.classes if family else ''}{head.model}"
    if problem := _problem(name, model, head):
        raise PalmError(f"{model_dir} cannot be exported as {architecture}: {problem}")
    if family is not None:
        return name, architecture, partial(_write, model, family, head)
    built = library_model(model, head)
    return name, type(built).__name__, partial(save_library_model, built)


def _write(model: InferenceModel, family: Family, head: HeadLayout, part: Path) -> None:
    save_tensors(part / "model.safetensors", _weights(model, family, head))
    write_json(part / "config.json", _config(model, family, head))


def _problem(name: str, model: InferenceModel, head: HeadLayout) -> str | None:
    """Return the reason why `transformers` would compute something else, or None."""
    settings = model.head.settings
    encoder = model.backbone.settings
    if settings.get("use_crf"):
        return (
            "transformers has no CRF, and without it the labels would be different; export it to ONNX, "
            "which saves the CRF's weights beside the graph, or train with use_crf: False"
        )
    if head.reads_pooler and encoder["pooling"] in ("first", "mean", "max"):
        return (
            f"it uses {encoder['pooling']} pooling, but transformers uses the pooler; export it to "
            "ONNX, or train with pooling: cls"
        )
    is_compared = isinstance(model.backbone, Transformers)  # `library_model` checks the head
    return _mlm_problem(model, head) if name == "mlm" and not is_compared else None


def _mlm_problem(model: InferenceModel, head: HeadLayout) -> str | None:
    settings = model.head.settings
    encoder = model.backbone.settings
    theirs = {key: encoder[key] for key in ("hidden_act", "layer_norm_eps")}
    theirs |= head.fixed.get(family_of(model.backbone).model_type, {})
    differing = [
        f"{key} {settings[key]!r}, transformers {value!r}"
        for key, value in theirs.items()
        if settings[key] != value
    ]
    return f"its head has {' and '.join(differing)}" if differing else None


def _weights(model: InferenceModel, family: Family, head: HeadLayout) -> dict[str, Tensor]:
    encoder = dict(model.backbone.state_dict())
    if "embeddings.task.weight" in encoder:
        # `transformers` uses the first row if no task is given.
        table = encoder["embeddings.task.weight"]
        row = int(model.reader.settings.get("task_id", 0))
        encoder["embeddings.task.weight"] = torch.cat([table[row : row + 1], table[:row], table[row + 1 :]])
    names = [name for name in encoder if name.startswith("pooler.")]
    pooler = {name: encoder.pop(name) for name in names}
    named = from_ours(encoder, family.layout)
    weights = {f"{family.model_type}.{name}": value for name, value in named.items()}
    if head.reads_pooler:
        weights |= {n: pooler[own] for own, n in renamed(pooler, {"pooler": family.pooler}).items()}
    own = model.head.library_parameters()
    theirs = renamed(own, head.names_on(family.model_type))
    return weights | {theirs[name]: value for name, value in own.items()}


def _config(model: InferenceModel, family: Family, head: HeadLayout) -> dict[str, Any]:
    config: dict[str, Any] = {
        "pad_token_id": load_tokenizer(model.reader).pad_id,
        "dtype": "float32",
        **config_of(model.backbone, head.model),
    }
    if "dropout_prob" in model.head.settings:
        key = family.keys.get("classifier_dropout", "classifier_dropout")
        config[key] = model.head.settings["dropout_prob"]
    return config | label_settings(model)


def library_model(model: InferenceModel, head: HeadLayout) -> Any:
    """Build the library's model of a task, with the task's weights.

    Raises:
        PalmError: the library has no model that computes the same; with the reason.
    """
    backbone = model.backbone
    assert isinstance(backbone, Transformers)
    settings = {"_attn_implementation": "eager", "architectures": None, **label_settings(model)}
    built = task_model(backbone.config, head.model, **settings)
    layers = head_layers(backbone.config, head.model)
    if built is None or layers is None:
        what = f"{head.model[3:]} of {backbone.config.model_type}"
        raise PalmError(f"transformers has no {what} that computes the same; export it to ONNX")
    prefix = f"{built.base_model_prefix}."
    weights = {prefix + name: value for name, value in backbone.model.state_dict().items()}
    if head.reads_pooler:
        weights |= {n.removeprefix(ABOVE): v for n, v in backbone.state_dict().items() if n.startswith(ABOVE)}
    own = model.head.library_parameters()
    weights |= {theirs: own[ours] for ours, theirs in layers.names.items() if ours in own}
    differing = _load(built, weights)
    differing += [f"no {name}" for name, value in own.items() if name not in layers.names and value.any()]
    if differing:
        others = ", ".join(differing)
        raise PalmError(f"{type(built).__name__} has {others}, unlike {model.task}; export it to ONNX")
    return built


def _load(built: nn.Module, weights: dict[str, Tensor]) -> list[str]:
    """Load weights, and return the names of missing ones, except tied tensors and an unused pooler."""
    missing = built.load_state_dict(weights, strict=False).missing_keys
    state = built.state_dict()
    loaded = {state[name].data_ptr() for name in weights if name in state}
    pooler = f"{built.base_model_prefix}.pooler."
    return [name for name in missing if state[name].data_ptr() not in loaded and not name.startswith(pooler)]


def convert(source: str | Path, folder: str | Path, overwrite: bool = False) -> Report:
    """Write an encoder's weights (bit for bit), configuration and vocabulary in Hugging Face's layout.

    `source` is a directory that `palm.load_backbone` reads.

    Raises:
        ConfigError: the configuration of the encoder is incomplete or wrong.
        StorageError: `source` cannot be read, `transformers` has no such encoder, or `folder` is in use.
    """
    raise_any(path_problems(source=source, folder=folder))
    folder = Path(folder)
    check_target(folder, overwrite, [source])
    directory = read_directory(pretrained_directory(source))
    # Every parameter is written, also a pooler that the directory's pooling does not use.
    backbone = replace(directory, settings={**directory.settings, "pooling": "cls"}).build()
    report = fill_backbone(backbone, directory.given, directory.path)
    state = backbone.state_dict()
    weights = {name: directory.given.weights.get(name, state[name]) for name in report.loaded}
    with new_directory(folder, overwrite) as part:
        write_hugging_face(weights, backbone, part, directory.given.original)
        if directory.vocab_path is not None:
            tokenizer = tokenizer_of(directory.vocab_path, directory.do_lower_case)
            save_tokenizer(tokenizer, part, backbone, longest=backbone.max_tokens, marks_text=True)
    logger.info("%s written to %s", type(backbone).__name__, folder)
    return report
