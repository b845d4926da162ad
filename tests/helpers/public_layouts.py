"""Directories in the layouts of public models, made tiny by their own libraries."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from helpers.reader_files import write_vocabulary
from helpers.subword_files import CORPUS, write_byte_level, write_unigram_json
from helpers.tiny import sizes

SIZES = sizes(16, 2, 2, intermediate_size=32, max_position_embeddings=66, initializer_range=0.3)
IDS = {"pad_token_id": 0, "bos_token_id": 2, "cls_token_id": 2, "sep_token_id": 3, "eos_token_id": 3}
MODERN = sizes(16, 2, 2, intermediate_size=24, **IDS)


def _edit(file: Path, **values: Any) -> None:
    content = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    file.write_text(json.dumps({**content, **values}), encoding="utf-8")


def _encoder(folder: Path, kind: str, **settings: Any) -> Any:
    """Write a random encoder of the library."""
    import transformers

    torch.manual_seed(0)
    size = {"vocab_size": 500} | (MODERN if kind == "ModernBert" else SIZES) | settings
    if kind == "DistilBert":
        size = {"vocab_size": 500, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, **settings}
    model = getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**size))
    model.save_pretrained(folder)
    return model


def _bert(folder: Path, lower: bool = True, kind: str = "Bert", **tokenizing: Any) -> None:
    """An encoder with WordPiece as published before tokenizer.json: vocab.txt and settings."""
    folder.mkdir(exist_ok=True)
    _encoder(folder, kind)
    write_vocabulary(folder)
    name = f"{kind}Tokenizer"
    _edit(folder / "tokenizer_config.json", do_lower_case=lower, tokenizer_class=name, **tokenizing)


def _wordpiece_json(folder: Path, lower: bool = True) -> None:
    import transformers

    tokenizer = transformers.BertTokenizer(vocab=str(write_vocabulary(folder)), do_lower_case=lower)
    tokenizer.save_pretrained(folder)
    (folder / "vocab.txt").unlink()


def _sentences(folder: Path, *above: Any, **options: Any) -> None:
    """Make a directory of sentence-transformers of a directory of transformers, with modules above."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    torch.manual_seed(1)
    parts = [Pooling(16, one) if isinstance(one, str) else one() for one in above]
    encoder = Transformer(str(folder), max_seq_length=32, **options)
    SentenceTransformer(modules=[encoder, *parts], device="cpu").save(str(folder))


def _normalize() -> Any:
    from sentence_transformers.base.modules import Normalize

    return Normalize()


def _dense(width: int) -> Callable[[], Any]:
    def make() -> Any:
        from sentence_transformers.base.modules import Dense

        return Dense(16, width)

    return make


def bert_uncased(folder: Path) -> None:
    """google-bert/bert-base-uncased."""
    _bert(folder)


def bert_multilingual_cased(folder: Path) -> None:
    """A cased BERT that keeps accents and Chinese words, with tokens added by its author."""
    _bert(folder, False, strip_accents=False, tokenize_chinese_chars=False)
    size = len((folder / "vocab.txt").read_text(encoding="utf-8").split("\n"))
    _edit(folder / "added_tokens.json", **{"[E1]": size, "[/E1]": size + 1})
    _edit(folder / "special_tokens_map.json", additional_special_tokens=["[E1]", "[/E1]"])


def minilm(folder: Path) -> None:
    """sentence-transformers/all-MiniLM-L6-v2: padding and truncation in tokenizer.json, mean, normalized."""
    _bert(folder)
    _wordpiece_json(folder)
    _sentences(folder, "mean", _normalize)
    stored = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    stored["padding"] = {
        **{"strategy": {"Fixed": 128}, "direction": "Right", "pad_to_multiple_of": None},
        **{"pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"},
    }
    stored["truncation"] = {"max_length": 8, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    (folder / "tokenizer.json").write_text(json.dumps(stored), encoding="utf-8")


def bge(folder: Path) -> None:
    """BAAI/bge-small-en-v1.5: the first token itself, normalized; vocab.txt beside tokenizer.json."""
    _bert(folder)
    _wordpiece_json(folder)
    write_vocabulary(folder)
    _sentences(folder, "cls", _normalize)


def labse(folder: Path) -> None:
    """sentence-transformers/LaBSE: the first token through a dense layer with tanh."""
    _bert(folder, False)
    _sentences(folder, "cls", _dense(16), _normalize)


def distiluse(folder: Path) -> None:
    """sentence-transformers/distiluse-base-multilingual-cased: mean through a narrower dense layer."""
    _bert(folder, False, "DistilBert")
    _sentences(folder, "mean", _dense(8))


def old_sentences(folder: Path) -> None:
    """sentence-transformers before 2.0: the encoder in 0_Transformer, pickled weights with a prefix."""
    _bert(folder, False)
    _sentences(folder, "max", do_lower_case=True)
    encoder = folder / "0_Transformer"
    encoder.mkdir()
    for name in ("config.json", "tokenizer_config.json"):
        (folder / name).rename(encoder / name)
    write_vocabulary(encoder)
    (folder / "tokenizer.json").unlink()
    weights = load_file(folder / "model.safetensors")
    torch.save(weights, encoder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    settings = {"max_seq_length": 32, "do_lower_case": True}
    _edit(encoder / "sentence_bert_config.json", **settings)
    (folder / "sentence_bert_config.json").unlink(missing_ok=True)
    listed = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    listed[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(listed), encoding="utf-8")


def mpnet(folder: Path) -> None:
    """sentence-transformers/all-mpnet-base-v2: WordPiece with RoBERTa's special tokens."""
    import transformers

    folder.mkdir()
    _encoder(folder, "MPNet", pad_token_id=1)
    lines = write_vocabulary(folder).read_text(encoding="utf-8").split("\n")
    names = {"[PAD]": "<pad>", "[UNK]": "[UNK]", "[CLS]": "<s>", "[SEP]": "</s>", "[MASK]": "<mask>"}
    (folder / "vocab.txt").write_text("\n".join(names.get(line, line) for line in lines), "utf-8")
    tokenizer = transformers.MPNetTokenizer(vocab=str(folder / "vocab.txt"), do_lower_case=True)
    tokenizer.save_pretrained(folder)
    _sentences(folder, "mean", _normalize)


def roberta(folder: Path) -> None:
    """FacebookAI/roberta-base: vocab.json and merges.txt."""
    write_byte_level(folder)
    _encoder(folder, "Roberta", vocab_size=400, type_vocab_size=1)
    _edit(folder / "tokenizer_config.json", tokenizer_class="RobertaTokenizer")


def e5(folder: Path) -> None:
    """intfloat/multilingual-e5: pieces of SentencePiece in tokenizer.json, mean."""
    import transformers
    from tokenizers import Tokenizer, processors

    folder.mkdir()
    made = Tokenizer.from_file(str(write_unigram_json(folder, CORPUS)))
    ids = [(token, made.token_to_id(token)) for token in ("</s>", "<s>")]
    made.post_processor = processors.RobertaProcessing(*ids, trim_offsets=True, add_prefix_space=False)
    made.save(str(folder / "tokenizer.json"))
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>", "cls_token": "<s>"}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), **names, sep_token="</s>"
    )
    tokenizer.save_pretrained(folder)
    _encoder(folder, "XLMRoberta", vocab_size=400, type_vocab_size=1, pad_token_id=1)
    _sentences(folder, "mean", _normalize)


def modernbert(folder: Path) -> None:
    """Alibaba-NLP/gte-modernbert-base: through the adapter, the first token itself, no prefix of names."""
    folder.mkdir()
    _encoder(folder, "ModernBert")
    _wordpiece_json(folder)
    _sentences(folder, "cls")


def compiled_electra(folder: Path) -> None:
    """An ELECTRA that was saved compiled, below a trainer's attribute."""
    _bert(folder, kind="Electra")
    weights = load_file(folder / "model.safetensors")
    prefixed = {f"model._orig_mod.{name}": value for name, value in weights.items()}
    save_file(prefixed, folder / "model.safetensors", {"format": "pt"})


LAYOUTS: dict[str, Callable[[Path], None]] = {
    make.__name__: make
    for make in (
        *(bert_uncased, bert_multilingual_cased, minilm, bge, labse, old_sentences, mpnet, roberta),
        *(e5, modernbert, compiled_electra, distiluse),
    )
}
"""Name -> what writes such a directory."""


def without_prefixes(folder: Path, target: Path) -> Path:
    """A copy whose weights have the names that `transformers` itself reads."""
    shutil.copytree(folder, target)
    weights = load_file(target / "model.safetensors")
    plain = {name.removeprefix("model._orig_mod."): value for name, value in weights.items()}
    save_file(plain, target / "model.safetensors", {"format": "pt"})
    return target
