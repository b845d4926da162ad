"""What a directory of weights is, and its files."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import _TYPES
from torch import Tensor

from palm.backbone import BACKBONES, Backbone
from palm.backbone.encoder import Encoder
from palm.backbone.transformers import RUN, Transformers, unknown
from palm.config import settings_of
from palm.core.device import within_weights
from palm.core.errors import ConfigError, StorageError, shortened
from palm.core.io import is_inside, read_bytes, read_json, read_object, resolve_inside, wrap_read_errors
from palm.core.layers import skip_init
from palm.core.saved import file_settings, headers_in, load_tensors
from palm.pretrained.families import FAMILIES
from palm.pretrained.names import Renamed, to_ours
from palm.reader.tokenizer import COMPANIONS, MAX_VOCABULARY, MERGES, SETTINGS, load_tokenizer

CONFIG_FILES = (
    *("config.json", "bert_config.json", "ernie_config.json", "model_config.json"),
    *("electra_config.json", "roberta_config.json", "xlnet_config.json"),
)
"""Files with an encoder's sizes; the first one that exists is used."""

BACKBONE_OF = {family.model_type: name for name, family in FAMILIES.items()} | {
    "xlm-roberta": "roberta",
    "camembert": "roberta",
}
"""`model_type` of Hugging Face -> our name of the encoder."""

COMPUTED_AS: dict[str, Any] = {
    "is_decoder": False,
    "add_cross_attention": False,
    "position_embedding_type": "absolute",
    "normalize_before": False,
    "pruned_heads": {},
    "quantization_config": None,
}
"""Setting of other frameworks that changes the computation -> the only value that palm supports."""

ROWS_OF = {
    "intermediate_size": "layers.0.ffn.inner.weight",
    "type_vocab_size": "embeddings.segment.weight",
    "task_type_vocab_size": "embeddings.task.weight",
}
"""Setting that files lack or have wrong -> the parameter with this number of rows."""

_CLASS = re.compile(r"([A-Za-z]+?)(?:Model|For[A-Z]\w*)$")


def find_config(path: Path) -> Path | None:
    """Find the JSON file in a directory or, as with PaddlePALM's `params`, one level up; None if missing."""
    folder = path if path.is_dir() else path.parent
    places = (place / name for place in (folder, folder.parent) for name in CONFIG_FILES)
    return next((place for place in places if place.is_file()), None)


def read_config(file: Path) -> dict[str, Any]:
    """Read the file; PaddleNLP's nested `init_args` are flattened.

    Raises:
        StorageError: if it is not a JSON object.
    """
    config = read_object(file)
    inner = next((value for value in config.pop("init_args", ()) if isinstance(value, dict)), {})
    return {**inner, **config}


def described(file: Path, given: Renamed) -> tuple[str, dict[str, Any]]:
    """Determine an encoder's name in a configuration and its constructor's arguments from a JSON file.

    Args:
        file: a file of `CONFIG_FILES`, possibly of a model saved by palm.
        given: the weights beside it, from which missing settings are inferred.

    Raises:
        StorageError: if it describes a model that palm does not support.
        ConfigError: if sizes are missing.
    """
    config = read_config(file)
    with wrap_read_errors(file), prefix_errors(file):
        if isinstance(config.get("backbone"), dict):
            return _saved_by_palm(config["backbone"], file)
        if config.get("model_type") in RUN - BACKBONE_OF.keys():
            return "transformers", {"encoder_config_path": file}
        check_computation(config, file)
        name = _name(config, file, given)
        encoder = BACKBONES[name]
        assert issubclass(encoder, Encoder)
        return name, encoder.settings_in({**config, **_inferred_settings(given, config)})


@contextmanager
def prefix_errors(file: Path) -> Iterator[None]:
    """Prefix every problem of a `ConfigError` with the file."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{file}: {problem}" for problem in error.problems) from None


def check_computation(config: Mapping[str, Any], file: Path) -> None:
    """Refuse settings of other frameworks with which the weights compute something unsupported.

    Raises:
        StorageError: if there are any; lists all of them.
    """
    if wrong := computation_problems(config):
        raise StorageError("\n".join(f"{file}: {line}" for line in wrong.values()))


def computation_problems(config: Mapping[str, Any]) -> dict[str, str]:
    """Map each setting that differs from `COMPUTED_AS` to a message."""
    return {
        name: f"{name} is {config[name]!r}; palm's encoders support only {usual!r} and would compute other "
        "results; use other weights, or backbone: transformers"
        for name, usual in COMPUTED_AS.items()
        if config.get(name) is not None and config[name] != usual
    }


def _saved_by_palm(saved: Mapping[str, Any], file: Path) -> tuple[str, dict[str, Any]]:
    """Check that the encoder is one of palm's own, because a directory of weights must not run code."""
    name = saved["name"]
    settings = file_settings(saved["settings"], file.parent)
    if name not in set(BACKBONES):
        raise StorageError(
            f"{file} describes the backbone {name!r}; only palm's own ({', '.join(BACKBONES)}) are built "
            "from a directory of weights; name it in the configuration to start from these weights"
        )
    if extra := settings.keys() - settings_of(BACKBONES[name]).keys():  # type: ignore[arg-type]
        raise StorageError(f"{file}: {name} has no settings {', '.join(map(repr, sorted(extra)))}")
    return name, settings


def _name(config: Mapping[str, Any], file: Path, given: Renamed) -> str:
    kind = _declared_kind(config) or _inferred_kind(config, file, given)
    if kind not in BACKBONE_OF:
        raise StorageError(f"{file}: {unknown(kind)}")
    # PaddleNLP calls BERTs with RoBERTa's training "roberta", too; only byte-level ones have a pad id of 1.
    is_bert = kind == "roberta" and given.layout == "paddlenlp" and not config.get("pad_token_id")
    return "bert" if is_bert else BACKBONE_OF[kind]


def _declared_kind(config: Mapping[str, Any]) -> str | None:
    """Return Hugging Face's `model_type`, or the prefix of a class name of PaddleNLP."""
    if "model_type" in config:
        return str(config["model_type"])
    classes = [config.get("init_class"), *(config.get("architectures") or ())]
    matches = (_CLASS.match(name) for name in classes if name)
    return next((match[1].lower() for match in matches if match), None)


def _inferred_kind(config: Mapping[str, Any], file: Path, given: Renamed) -> str:
    kind = file.name.removesuffix("_config.json")
    if kind in ("ernie", "electra", "roberta", "xlnet"):
        return kind
    if "task_type_vocab_size" in config or "embeddings.task.weight" in given.weights:
        return "ernie"
    if given.layout == "distilbert":
        return "distilbert"
    return "electra" if "embeddings.projection.weight" in given.weights else "bert"


def _inferred_settings(given: Renamed, config: Mapping[str, Any]) -> dict[str, Any]:
    """Infer missing or wrong settings: PaddlePALM's files may contain an inner width that was not used."""
    rows = {name: len(given.weights[ours]) for name, ours in ROWS_OF.items() if ours in given.weights}
    wrong = {"intermediate_size"} & rows.keys()
    lacking = set() if "sent_type_vocab_size" in config else rows.keys() - config.keys()
    found: dict[str, Any] = {name: rows[name] for name in wrong | lacking}
    if not {"use_task_id", "use_task_emb"} & config.keys():
        found["use_task_id"] = "embeddings.task.weight" in given.weights
    return found


Weights = dict[str, Tensor]

WEIGHT_FILES = (
    *("model.safetensors", "model.safetensors.index.json"),
    *("pytorch_model.bin", "pytorch_model.bin.index.json"),
    *("model_state.pdparams", "model_state.pdparams.index.json"),
    *("__palmmodel__", "word_embedding", "__paddlepalm_word_embedding"),
)
"""Files of weights; the first one that exists in a folder, or in its `params`, is read."""

SUFFIXES = (".safetensors", ".bin", ".pdparams")
"""Suffixes of files of weights that are given directly."""


def read_weights(path: str | Path, headers: bool = False) -> Weights:
    """Read all tensors of a model directory, or of one of its files, under their names in the file.

    Args:
        path: a directory (PaddlePALM's `params` too) or a file in one.
        headers: do not read the values if the format allows it; the tensors are on the device "meta".

    Raises:
        StorageError: if no weights are found, if several files could be the weights, or if a file is damaged.
    """
    path = Path(path)
    path = path if path.name else path.absolute()
    if path.is_file() and (path.name in WEIGHT_FILES or path.suffix in SUFFIXES):
        return _read_file(path, headers)
    places = (folder / name for folder in (path, path / "params") for name in WEIGHT_FILES)
    return _read_file(next((place for place in places if place.is_file()), None) or _only_file(path), headers)


def _read_file(file: Path, headers: bool) -> Weights:
    if file.name.endswith(".index.json"):
        return _read_shards(file, headers)
    if file.suffix == ".safetensors":
        return _read_safetensors(file, headers)
    if file.suffix == ".bin":
        return _read_torch(file, headers)
    # `palm.compat` is above this package, so it cannot be imported by name.
    paddle = import_module("palm.compat.paddle_files")
    if file.suffix == ".pdparams":
        return cast("Weights", paddle.read_pdparams(file, headers))
    read = paddle.read_archive if file.name == "__palmmodel__" else paddle.read_variables
    return cast("Weights", read(file, headers))


def _only_file(path: Path) -> Path:
    """Find the only file of Paddle's without a fixed name in a folder."""
    names = sorted(file.name for file in path.iterdir()) if path.is_dir() else []
    found = [name for name in names if name.endswith(".pdparams")]
    if len(found) == 1:
        return path / found[0]
    if found:
        raise StorageError(
            f"several files in {path} could be the weights: {', '.join(found)}; give the path of one of them"
        )
    reason = "unknown kind of file" if path.exists() else "it does not exist"
    if path.is_dir():
        reason = f"it contains {', '.join(shortened(names, 8))}" if names else "it is empty"
        if broken := [name for name in names if not (path / name).exists()]:
            reason = (
                f"{', '.join(shortened(broken, 8))} are links to files that do not exist; download it again"
            )
    expected = ", ".join([*WEIGHT_FILES[:-2], "one .pdparams", "PaddlePALM's params"])
    raise StorageError(f"no weights at {path}: {reason}; expected one of {expected}")


def _read_safetensors(file: Path, headers: bool) -> Weights:
    if not headers:
        return load_tensors(file)
    with wrap_read_errors(file):
        return {
            name: torch.empty(shape, dtype=_TYPES.get(kind, torch.int64), device="meta")
            for name, (kind, shape) in headers_in(file).items()
        }


def _read_torch(file: Path, headers: bool) -> Weights:
    """Read a file written by `torch.save(model.state_dict(), file)` without running its code."""
    with wrap_read_errors(file, " as a dictionary of tensors"):
        if is_zip := zipfile.is_zipfile(file):  # since torch 1.6
            with zipfile.ZipFile(file) as archive:
                if sum(entry.file_size for entry in archive.infolist()) > file.stat().st_size:
                    raise ValueError("its entries are compressed, which torch never does")
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=is_zip)
        if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
            raise ValueError("it is not a plain dictionary of tensors, as returned by `state_dict()`")
        return {str(name): value.to("meta") if headers else value for name, value in content.items()}


def _read_shards(index: Path, headers: bool) -> Weights:
    """Read the files that an index names; they must be in its folder, and have no tensor twice."""
    with wrap_read_errors(index):
        weights: Weights = {}
        for shard in sorted(set(read_json(index)["weight_map"].values())):
            file = resolve_inside(index.parent, shard)
            if file.suffix not in SUFFIXES:
                raise ValueError(f"{shard} is not a file of weights")
            found = _read_file(file, headers)
            if twice := weights.keys() & found.keys():
                raise ValueError(f"{', '.join(shortened(sorted(twice), 3))}: in {shard} and in another file")
            weights |= found
        return weights


VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json")
"""Possible files of a vocabulary; the first one that exists is used. `vocab.json` needs `merges.txt`."""

MODULES = "modules.json"
POOLING_FILE = "1_Pooling/config.json"
"""The files in which sentence-transformers lists a model's modules, and stores its pooling."""

POOLING_MODES = {
    "pooling_mode_cls_token": "first",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
}
"""Switch in that file -> our name of the pooling."""

ACTIVATION_CLASSES = {"tanh": "Tanh", "relu": "ReLU", "gelu": "GELU"}
"""A pooler's activation -> its class in torch."""

FILES = (*CONFIG_FILES, *VOCABULARIES, *COMPANIONS, MODULES, POOLING_FILE, "2_Dense/*")
"""The files that palm reads of a directory, beside those of the weights."""


@dataclass(frozen=True)
class ModelDirectory:
    """The content of a directory with an encoder's weights.

    Args:
        path: the directory, or the file of weights in it.
        config_file: the JSON file with the sizes.
        backbone: the encoder's name in a configuration.
        settings: the arguments of its constructor.
        vocab_path: the vocabulary; None if there is none.
        do_lower_case: True if the vocabulary needs lower-cased texts.
        given: the weights under our names, and the other tensors of the files.
    """

    path: Path
    config_file: Path
    backbone: str
    settings: dict[str, Any]
    vocab_path: Path | None
    do_lower_case: bool
    given: Renamed = field(repr=False)

    def build(self) -> Backbone:
        """Build the encoder without the weights; optional parameters that they lack are initialized.

        Raises:
            ConfigError: if a size is invalid.
            StorageError: if sizes far exceed those of the weights.
        """
        file = self.config_file
        complete = all(name in self.given.weights for name in ("pooler.weight", "pooler.bias"))
        start = skip_init() if complete else nullcontext()
        with wrap_read_errors(file), prefix_errors(file), within_weights(self.given.original, file), start:
            return BACKBONES[self.backbone](**self.settings)


def read_directory(path: str | Path, headers: bool = False) -> ModelDirectory:
    """Read a directory of pretrained weights.

    Args:
        path: a directory that `load_backbone` accepts, or the file of weights itself.
        headers: do not read the values of the weights; see `read_weights`.

    Raises:
        StorageError, ConfigError: see `load_backbone`.
    """
    path = encoder_folder(Path(path))
    with wrap_read_errors(path):
        given = encoder_weights(path, headers)
        config_file = find_config(path)
        if config_file is None:
            lacking = f"none of {', '.join(CONFIG_FILES)}, which define the encoder's sizes"
            raise StorageError(f"{path} has weights but {lacking}")
        backbone, settings = described(config_file, given)
        if is_sentence_encoder(path):
            settings["pooling"] = computable_pooling(path)
        if not given.weights and backbone != "transformers":
            names = ", ".join(shortened(list(given.original), 4))
            what = f"a name that {backbone} or a wrapper of it gives them"
            raise StorageError(f"none of the tensors of {path} has {what}: {names}")
        return ModelDirectory(path, config_file, backbone, settings, *_vocabulary_of(config_file), given)


def _vocabulary_of(config_file: Path) -> tuple[Path | None, bool]:
    """Find the vocabulary beside a JSON file, and check whether it needs lower-cased texts."""
    config = read_config(config_file)
    # A palm model of several tasks has a reader for each.
    tasks = config["tasks"].values() if isinstance(config.get("tasks"), dict) else ()
    saved = next((task.get("reader") for task in tasks), config.get("reader"))
    if isinstance(saved, dict) and "settings" in saved:  # a palm model, which stores both
        settings = file_settings(saved["settings"], config_file.parent)
        return settings["vocab_path"], bool(settings.get("do_lower_case"))
    vocabulary = find_vocabulary(config_file.parent)
    return vocabulary, vocabulary is not None and is_lower_case(vocabulary)


def settings_of_directory(path: str | Path) -> dict[str, Any]:
    """Determine the settings of a run that starts from a directory's weights, for `backbone: auto`.

    Args:
        path: a directory, see `read_directory`.

    Returns:
        `backbone`, the settings of its constructor, `vocab_path` (absolute; the expected file if there is no
        vocabulary) and `do_lower_case`.

    Raises:
        StorageError, ConfigError: see `load_backbone`.
    """
    directory = read_directory(Path(path).absolute(), headers=True)
    with torch.device("meta"):  # only to check the settings and derive sizes
        backbone = directory.build()
    sizes = backbone.sizes() if isinstance(backbone, Transformers) else {}
    expected = "vocab.json" if directory.backbone == "roberta" else "vocab.txt"
    if any(directory.config_file.parent.glob("*.model")):  # SentencePiece's own file
        expected = "tokenizer.json"
    vocabulary = directory.vocab_path or directory.config_file.with_name(expected)
    return {
        "backbone": directory.backbone,
        **directory.settings,
        **sizes,
        "vocab_path": str(vocabulary),
        "do_lower_case": directory.do_lower_case,
    }


def is_sentence_encoder(path: Path) -> bool:
    """Check whether sentence-transformers wrote a directory."""
    return bool(_modules_above(path))


def computable_pooling(path: Path) -> str:
    """Return the pooling of a directory, or `model` if palm does not compute its sentence vectors."""
    try:
        return directory_pooling(path)
    except StorageError:
        return "model"  # refused when the weights are loaded, unless another pooling is set


def find_vocabulary(folder: Path) -> Path | None:
    """Find the vocabulary in a folder; None if there is none."""
    files = [folder / name for name in VOCABULARIES if (folder / name).is_file()]
    has_merges = (folder / MERGES).is_file()
    return next((file for file in files if file.name != "vocab.json" or has_merges), None)


def vocabulary_differences(ours: Path, theirs: Path | None) -> Iterator[str]:
    """Compare a reader's vocabulary with that of the weights.

    Args:
        ours: the reader's vocabulary.
        theirs: the vocabulary with which the weights were trained; None if unknown.
    """
    if theirs is None:
        return
    known = load_tokenizer(theirs).ids
    other = [token for token, number in load_tokenizer(ours).ids.items() if known.get(token) != number]
    if other:
        yield (
            f"{len(other)} tokens of {ours} have different ids in {theirs}, the vocabulary of the weights "
            f"({', '.join(map(repr, other[:3]))}); set vocab_path: {theirs}"
        )


def is_lower_case(vocabulary: Path) -> bool:
    """Check whether texts should be lower-cased for a vocabulary.

    `tokenizer_config.json` beside it decides; without it, a WordPiece vocabulary without capital letters is
    lower-case. False for vocabularies in JSON files, which include their own normalization.
    """
    if vocabulary.suffix == ".json":
        return False
    beside = vocabulary.with_name(SETTINGS)
    settings = read_json(beside) if beside.is_file() else None
    found = settings.get("do_lower_case") if isinstance(settings, dict) else None
    if found is not None:
        return bool(found)
    with wrap_read_errors(vocabulary):
        lines = read_bytes(vocabulary, MAX_VOCABULARY).decode("utf-8-sig").splitlines()
    words = (line.split("\t")[0] for line in lines)
    return not any(word != word.lower() for word in words if not word.startswith(("[", "<")))


def encoder_folder(path: Path) -> Path:
    """Return the folder of the encoder in a directory of sentence-transformers, or the path itself."""
    modules = path / MODULES
    return _listed(modules)[0][1] if modules.is_file() else path


def _listed(modules: Path) -> list[tuple[str, Path]]:
    """Read the kinds and folders of all modules in `modules.json`."""
    with wrap_read_errors(modules):
        root = modules.parent
        listed = []
        for module in read_json(modules):
            if module["path"] and not is_inside(module["path"]):
                raise ValueError(f"{module['path']!r} is not a folder below it")
            place = root / module["path"]
            place.is_dir()  # raises here if the name is too long
            listed.append((str(module["type"]).rpartition(".")[2], place))
        if not listed or listed[0][0] != "Transformer":
            raise ValueError(
                f"its first module should be a Transformer, not {listed[0][0] if listed else None}"
            )
        return listed


def _modules_above(encoder: Path) -> list[tuple[str, Path]]:
    """Find the modules of sentence-transformers that follow an encoder's folder."""
    for modules in (encoder / MODULES, encoder.parent / MODULES):
        if modules.is_file() and (listed := _listed(modules))[0][1].resolve() == encoder.resolve():
            above = [module for module in listed[1:] if module[0] != "Dropout"]
            # Normalizing at the end changes no comparison of embeddings: palm compares cosines.
            return above[:-1] if above and above[-1][0] == "Normalize" else above
    return [("Pooling", encoder / "1_Pooling")] if (encoder / POOLING_FILE).is_file() else []


def directory_pooling(folder: Path) -> str:
    """Determine the pooling of a directory: `cls` unless sentence-transformers or palm wrote another one.

    Raises:
        StorageError: if a file is damaged, or palm does not compute the directory's sentence vectors.
    """
    file = find_config(folder)
    config = {} if file is None else read_config(file)
    if isinstance(config.get("backbone"), dict):  # a palm model
        pooling = config["backbone"].get("settings", {}).get("pooling", "cls")
        return "cls" if pooling == "model" else str(pooling)
    modules = _modules_above(folder)
    if not modules:
        return "cls"
    if modules[0][0] != "Pooling":
        raise StorageError(f"{modules[0][1]}: palm does not compute {modules[0][0]} layers; {_OWN_POOLING}")
    pooling = _pooling_mode(modules[0][1] / "config.json")
    if len(modules) == 1 or pooler_folder(folder) is not None:
        return pooling if len(modules) == 1 else "cls"
    kind, place = modules[1]
    what = f"palm does not compute {kind} layers after {pooling} pooling"
    raise StorageError(f"{place}: {what}; {_OWN_POOLING}")


_OWN_POOLING = "to train on the vectors below it, set pooling: first, mean or max"


def pooler_folder(folder: Path) -> Path | None:
    """Find the dense layer of sentence-transformers that computes what the encoder's pooler does."""
    modules = _modules_above(folder)
    file = find_config(folder)
    if [kind for kind, _ in modules] != ["Pooling", "Dense"] or file is None:
        return None
    encoder = BACKBONES[BACKBONE_OF.get(_declared_kind(read_config(file)) or "", "transformers")]
    if _pooling_mode(modules[0][1] / "config.json") != "first" or not issubclass(encoder, Encoder):
        return None
    dense = read_object(modules[1][1] / "config.json")
    activation = str(dense.get("activation_function")).rpartition(".")[2]
    is_square = dense.get("in_features") == dense.get("out_features") and dense.get("bias", True) is True
    is_plain = is_square and not dense.get("use_residual")
    return modules[1][1] if is_plain and activation == ACTIVATION_CLASSES[encoder.pooler_act] else None


def _pooling_mode(file: Path) -> str:
    pooling = read_object(file)
    # Newer versions of that library name the poolings; older ones have a switch for each.
    switches = [name for name, value in pooling.items() if name.startswith("pooling_mode_") and value is True]
    named = pooling.get("pooling_mode", switches)
    modes = [str(name) for name in (named if isinstance(named, list) else [named])]
    modes = ["first" if mode == "cls" else POOLING_MODES.get(mode, mode) for mode in modes]
    if len(modes) != 1 or modes[0] not in POOLING_MODES.values():
        raise StorageError(f"{file}: expected one pooling of cls, mean and max, not {modes}")
    return modes[0]


def encoder_weights(path: Path, headers: bool = False) -> Renamed:
    """Read an encoder's weights, see `read_weights`, under our names.

    A dense layer of sentence-transformers that computes what the pooler does is the pooler.
    """
    given = to_ours(read_weights(path, headers))
    if (folder := pooler_folder(path)) is not None:
        dense = read_weights(folder, headers)
        with wrap_read_errors(folder):
            given.weights.update({f"pooler.{name}": dense[f"linear.{name}"] for name in ("weight", "bias")})
    return given
