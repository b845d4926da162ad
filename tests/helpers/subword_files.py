"""Small vocabularies of other kinds than WordPiece's, trained on a few sentences."""

from __future__ import annotations

from pathlib import Path

from tokenizers import (
    ByteLevelBPETokenizer,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
CORPUS = [
    "Anna owns the old red boat near the door.",
    "anna has a new blue coat and an old grey ball .",
    "who owns the red door? what colour is the boat?",
    "Paris is the capital of France; Rome is that of Italy.",
    "naïve café, 北京 is a city, and so is Zürich 🙂.",
] * 3


def write_byte_level(folder: Path, texts: list[str] = CORPUS) -> Path:
    """RoBERTa's two files; returns `vocab.json`."""
    folder.mkdir(exist_ok=True, parents=True)
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        texts, vocab_size=400, min_frequency=2, special_tokens=SPECIAL, show_progress=False
    )
    tokenizer.save_model(str(folder))
    return folder / "vocab.json"


def write_byte_level_json(folder: Path, texts: list[str] = CORPUS) -> Path:
    """The same as one `tokenizer.json`, special tokens and rows included, as transformers saves it."""
    vocab = write_byte_level(folder / "parts", texts)
    tokenizer = Tokenizer(models.BPE.from_file(str(vocab), str(vocab.with_name("merges.txt"))))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    sep, cls = (("</s>", tokenizer.token_to_id("</s>")), ("<s>", tokenizer.token_to_id("<s>")))
    tokenizer.post_processor = processors.RobertaProcessing(sep, cls, add_prefix_space=False)
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.enable_truncation(max_length=8)
    tokenizer.enable_padding(pad_id=1, pad_token="<pad>")
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def write_unigram_json(folder: Path, texts: list[str] = CORPUS) -> Path:
    """A vocabulary of XLM-R's kind: pieces with probabilities, and `<mask>` outside the model."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=150, special_tokens=SPECIAL[:4], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def write_wordpiece_json(folder: Path, vocab: Path, lowercase: bool) -> Path:
    """BERT's tokenizer as one `tokenizer.json`."""
    tokens = vocab.read_text(encoding="utf-8").split("\n")[:-1]
    ids = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"
