"""What users may write: a change here is a change of the public interface."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

import palm
from helpers.reader_files import write_vocabulary
from palm import compat
from palm.backbone import BACKBONES
from palm.mixing import MIXINGS
from palm.mixing.balance import BALANCES
from palm.optimizer import OPTIMIZERS
from palm.optimizer.lr_sched import LR_SCHEDULES
from palm.paradigm import HEADS
from palm.reader import READERS

PACKAGES = {
    "reader": [
        "base_reader",
        "ClassifyReader",
        "MatchReader",
        "SequenceLabelReader",
        "MRCReader",
        "MaskLMReader",
    ],
    "backbone": ["base_backbone", "BERT", "ERNIE", "RoBERTa", "DistilBERT", "ELECTRA"],
    "head": ["base_head", "Classify", "Match", "SequenceLabel", "MRC", "MaskLM"],
    "optimizer": ["base_optimizer", "Adam"],
    "lr_sched": [
        *("base_schedualer", "Schedualer", "TriangularSchedualer", "WarmupSchedualer"),
        *("TriangularScheduler", "WarmupScheduler", "NoamScheduler", "LinearScheduler", "CosineScheduler"),
    ],
    "mixing": ["MixRatio", "Proportional", "Temperature", "RoundRobin"],
    "downloader": ["ls", "download"],
    "export": ["to_hugging_face", "to_onnx"],
    "distribute": ["gpu_dev_count", "cpu_dev_count", "yield_pieces", "data_feeder", "decode_fake"],
}

REGISTERED = {
    "reader": (
        READERS,
        [
            *("cls", "embedding", "match", "mlm", "mrc", "multi_label", "multiple_choice"),
            *("ranking", "relation", "seq_label", "span"),
        ],
    ),
    "paradigm": (
        HEADS,
        [
            *("cls", "count", "embedding", "match", "mlm", "mrc", "multi_label", "multiple_choice"),
            *("ordinal", "ranking", "regression", "relation", "seq_label", "span"),
        ],
    ),
    "backbone": (BACKBONES, ["bert", "distilbert", "electra", "ernie", "roberta", "transformers"]),
    "optimizer": (OPTIMIZERS, ["adam", "adamw", "adamwdl", "lamb"]),
    "mixing": (MIXINGS, ["mix_ratio", "proportional", "round_robin", "temperature"]),
    "balance": (BALANCES, ["uncertainty"]),
    "schedule": (
        LR_SCHEDULES,
        ["constant", "cosine", "linear", "linear_warmup_decay", "noam", "noam_decay"],
    ),
}

TRAINER = {
    "build_forward": "backbone, task_head",
    "build_predict_forward": "pred_backbone, pred_head",
    "build_backward": "optimizer, weight_decay=None, use_ema=False, ema_decay=None",
    "fit_reader": "reader, phase='train'",
    "load_pretrain": "model_path, convert=False",
    "load_ckpt": "model_path",
    "load_predict_model": "model_path, convert=False",
    "set_saver": "save_path, save_steps, save_type='ckpt'",
    "save": "save_path, save_type='ckpt'",
    "train": "print_steps=5, callbacks=()",
    "train_one_step": "batch",
    "get_one_batch": "phase='train'",
    "predict": "output_dir=None, print_steps=1000",
    "predict_one_batch": "batch",
    "reset_buffer": "",
    "set_as_aux": "",
}
SEVERAL = {
    **{name: TRAINER[name] for name in ("build_backward", "load_pretrain", "load_ckpt", "set_saver", "save")},
    **{name: TRAINER[name] for name in ("train", "train_one_step", "get_one_batch", "predict")},
    "build_forward": "",
    "build_predict_forward": "",
    "fit_readers": "readers, phase='train'",
    "fit_readers_with_mixratio": "readers, sampling_reference, num_epochs, phase='train'",
    "merge_inference_readers": "readers",
    "predict_one_batch": "task_name, batch",
}
READER = {
    "load_data": "input_file, batch_size, num_epochs=None, file_format='tsv', shuffle_train=True",
    "register_with": "backbone",
    "get_registered_backbone": "",
    "require_attr": "attr_name",
    "get_epoch_outputs": "",
    "clone": "phase='train'",
}


def parameters(function: Any) -> str:
    """A method's parameters without annotations, as they are written."""
    signature = inspect.signature(function)
    bare = [p.replace(annotation=p.empty) for name, p in signature.parameters.items() if name != "self"]
    return ", ".join(map(str, bare))


def test_palm_offers_these_names() -> None:
    assert palm.__all__ == [
        *("Client", "ConfigError", "Controller", "DataError", "Evaluator", "InferenceModel"),
        *("JointModel", "MultiHeadTrainer", "PalmError", "StorageError", "Task", "Trainer"),
        *("TrainingError", "WiringError", "__version__", "backbone", "compare", "convert"),
        *("distribute", "downloader", "export", "head", "inspect_directory", "load_backbone"),
        *("load_model", "lr_sched", "metrics", "mixing", "optimizer", "plot", "reader", "sweep"),
        "write_report",
    ]
    assert all(hasattr(palm, name) for name in palm.__all__)


@pytest.mark.parametrize(("package", "names"), PACKAGES.items())
def test_the_packages_of_2_x_have_their_names(package: str, names: list[str]) -> None:
    assert [name for name in names if not hasattr(getattr(compat, package), name)] == []


@pytest.mark.parametrize("kind", REGISTERED)
def test_a_configuration_may_name_these(kind: str) -> None:
    registry, names = REGISTERED[kind]
    assert sorted(registry) == names


@pytest.mark.parametrize(
    ("cls", "methods"),
    [(palm.Trainer, TRAINER), (palm.MultiHeadTrainer, SEVERAL), (compat.reader.LoadingReader, READER)],
)
def test_methods_have_the_parameters_of_2_x(cls: type, methods: dict[str, str]) -> None:
    assert {name: parameters(getattr(cls, name)) for name in methods} == methods


def test_constructors_of_trainers_are_those_of_2_x_and_a_little_more() -> None:
    of_2x = "name, mix_ratio=1.0, reuse_head_with=None"
    assert parameters(palm.Trainer.__init__) == f"{of_2x}, precision='auto'"
    assert parameters(palm.MultiHeadTrainer.__init__) == "trainers, precision='auto'"


TEXTS = "tokenizer lang seed do_lower_case"
LAYERS = "hidden_size num_hidden_layers num_attention_heads vocab_size max_position_embeddings "
DROPOUT = "hidden_act hidden_dropout_prob attention_probs_dropout_prob initializer_range is_pairwise phase"

PLACES = {
    compat.backbone.BERT: f"{LAYERS}type_vocab_size {DROPOUT}",
    compat.backbone.ERNIE: f"{LAYERS}sent_type_vocab_size task_type_vocab_size {DROPOUT}".replace(
        " phase", " use_task_emb phase"
    ),
    compat.head.Classify: "num_classes input_dim dropout_prob param_initializer_range phase",
    compat.head.Match: "num_classes input_dim dropout_prob param_initializer_range learning_strategy margin "
    "phase",
    compat.head.SequenceLabel: "num_classes input_dim dropout_prob learning_rate param_initializer_range "
    "phase",
    compat.head.MRC: "max_query_len input_dim pred_output_path verbose with_negative do_lower_case "
    "max_ans_len null_score_diff_threshold n_best_size phase",
    compat.head.MaskLM: "input_dim vocab_size hidden_act dropout_prob param_initializer_range phase",
    compat.optimizer.Adam: "loss_var lr lr_schedualer",
    compat.lr_sched.TriangularSchedualer: "warmup_steps num_train_steps",
    compat.lr_sched.WarmupSchedualer: "warmup_steps",
    compat.reader.ClassifyReader: f"vocab_path max_len {TEXTS} phase",
    compat.reader.MatchReader: f"vocab_path max_len {TEXTS} learning_strategy phase dev_count print_prefix",
    compat.reader.SequenceLabelReader: f"vocab_path max_len label_map_config {TEXTS} phase "
    "dev_count print_prefix",
    compat.reader.MRCReader: f"vocab_path max_len max_query_len doc_stride {TEXTS} remove_noanswer phase",
    compat.reader.MaskLMReader: f"vocab_path max_len {TEXTS} phase dev_count print_prefix",
}


@pytest.mark.parametrize("component", PLACES, ids=lambda component: component.__name__)
def test_components_take_the_positional_arguments_of_2_x(component: Any) -> None:
    own = inspect.signature(component).parameters
    named = [name for name, p in own.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert " ".join(named).startswith(PLACES[component])


def test_a_reader_of_2_x_is_saved_as_the_one_it_stands_for(tmp_path: Path) -> None:
    vocab = write_vocabulary(tmp_path)
    made = compat.reader.SequenceLabelReader(
        vocab, 16, {"O": 0, "B": 1}, "wordpiece", "cn", 3, True, "predict"
    )
    house = palm.reader.SequenceLabelReader(vocab, 16, {"O": 0, "B": 1}, for_cn=True, do_lower_case=True)
    assert made.settings == house.settings
    assert (made.seed, made.phase) == (3, "predict")
    assert READERS.name_of(type(made)) == "seq_label"
