"""Table of the models that can be downloaded."""

from __future__ import annotations

import os
from dataclasses import dataclass
from urllib.parse import urlsplit

from palm.core.errors import PalmError

HUGGING_FACE = "https://huggingface.co"


@dataclass(frozen=True)
class Model:
    """A published model.

    Args:
        name: name of the model and of its folder.
        url: URL of PaddlePALM's archive, or of a repository at Hugging Face.
        is_supported: True if palm has its backbone.
    """

    name: str
    url: str
    is_supported: bool = True

    @property
    def repository(self) -> str | None:
        """The model's name at Hugging Face; None for an archive."""
        return urlsplit(self.url).path[1:] if self.url.startswith(HUGGING_FACE) else None

    def address(self) -> str:
        """Return the URL of an archive; if `PALM_MIRROR` is set, on this mirror.

        The mirror's URL replaces everything before the path.

        Raises:
            PalmError: if the variable is not an HTTP URL.
        """
        mirror = os.environ.get("PALM_MIRROR")
        if not mirror:
            return self.url
        if not mirror.startswith(("http://", "https://")):
            raise PalmError(
                "the environment variable PALM_MIRROR should be a URL that begins with http:// or https://, "
                f"not {mirror!r}"
            )
        return mirror.rstrip("/") + urlsplit(self.url).path


_ARCHIVES = {
    "RoBERTa-zh-base": "https://bert-models.bj.bcebos.com/chinese_roberta_wwm_ext_L-12_H-768_A-12.tar.gz",
    "RoBERTa-zh-large": "https://bert-models.bj.bcebos.com/chinese_roberta_wwm_large_ext_L-24_H-1024_A-16.tar.gz",
    "ERNIE-v2-en-base": "https://ernie.bj.bcebos.com/ERNIE_Base_en_stable-2.0.0.tar.gz",
    "ERNIE-v2-en-large": "https://ernie.bj.bcebos.com/ERNIE_Large_en_stable-2.0.0.tar.gz",
    "XLNet-cased-base": "https://xlnet.bj.bcebos.com/xlnet_cased_L-12_H-768_A-12.tgz",
    "XLNet-cased-large": "https://xlnet.bj.bcebos.com/xlnet_cased_L-24_H-1024_A-16.tgz",
    "ERNIE-v1-zh-base": "https://baidu-nlp.bj.bcebos.com/ERNIE_stable-1.0.1.tar.gz",
    "ERNIE-v1-zh-base-max-len-512": "https://ernie.bj.bcebos.com/ERNIE_1.0_max-len-512.tar.gz",
    "BERT-en-uncased-large-whole-word-masking": "https://bert-models.bj.bcebos.com/wwm_uncased_L-24_H-1024_A-16.tar.gz",
    "BERT-en-cased-large-whole-word-masking": "https://bert-models.bj.bcebos.com/wwm_cased_L-24_H-1024_A-16.tar.gz",
    "BERT-en-uncased-base": "https://bert-models.bj.bcebos.com/uncased_L-12_H-768_A-12.tar.gz",
    "BERT-en-uncased-large": "https://bert-models.bj.bcebos.com/uncased_L-24_H-1024_A-16.tar.gz",
    "BERT-en-cased-base": "https://bert-models.bj.bcebos.com/cased_L-12_H-768_A-12.tar.gz",
    "BERT-en-cased-large": "https://bert-models.bj.bcebos.com/cased_L-24_H-1024_A-16.tar.gz",
    "BERT-multilingual-uncased-base": "https://bert-models.bj.bcebos.com/multilingual_L-12_H-768_A-12.tar.gz",
    "BERT-multilingual-cased-base": "https://bert-models.bj.bcebos.com/multi_cased_L-12_H-768_A-12.tar.gz",
    "BERT-zh-base": "https://bert-models.bj.bcebos.com/chinese_L-12_H-768_A-12.tar.gz",
    "bert-en-uncased-large": "https://bert-models.bj.bcebos.com/uncased_L-24_H-1024_A-16.tar.gz",
    "ernie-en-uncased-large": "https://ernie.bj.bcebos.com/ERNIE_Large_en_stable-2.0.0.tar.gz",
}
"""PaddlePALM's archives: the names of 2.x, then the two in the documentation of 0.2.1."""

_REPOSITORIES = (
    "google-bert/bert-base-uncased",
    "google-bert/bert-base-cased",
    "google-bert/bert-large-uncased",
    "google-bert/bert-large-cased",
    "google-bert/bert-base-multilingual-cased",
    "google-bert/bert-base-chinese",
    "google/bert_uncased_L-2_H-128_A-2",
    "sentence-transformers/all-MiniLM-L6-v2",
    "hfl/chinese-roberta-wwm-ext",
    "hfl/chinese-macbert-base",
    "nghuyong/ernie-1.0-base-zh",
    "nghuyong/ernie-2.0-base-en",
    "nghuyong/ernie-2.0-large-en",
    "nghuyong/ernie-3.0-base-zh",
    "FacebookAI/roberta-base",
    "FacebookAI/roberta-large",
    "distilbert/distilbert-base-uncased",
    "distilbert/distilbert-base-multilingual-cased",
    "google/electra-small-discriminator",
    "google/electra-base-discriminator",
)
"""Repositories at Hugging Face with a supported encoder; the last part is the name."""

MODELS: dict[str, Model] = {
    name: Model(name, url, is_supported=not name.startswith("XLNet")) for name, url in _ARCHIVES.items()
} | {
    name: Model(name, f"{HUGGING_FACE}/{repository}")
    for repository in _REPOSITORIES
    for name in [repository.partition("/")[2]]
}
"""Name -> model."""
