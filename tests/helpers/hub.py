"""Hugging Face on this machine: what its server answers about models, and its library told to ask there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from huggingface_hub import constants
from safetensors.torch import save

from helpers.file_server import FileServer
from palm.backbone import Backbone
from palm.pretrained.names import from_ours

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def ask(server: FileServer, cache: Path, patch: pytest.MonkeyPatch) -> None:
    """Let this process ask the server, as HF_ENDPOINT and HF_HUB_CACHE would have done when it began."""
    patch.setenv("NO_PROXY", "127.0.0.1,localhost")
    patch.setattr(constants, "ENDPOINT", server.url)
    patch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
    )
    patch.setattr(constants, "HF_HUB_CACHE", str(cache))
    patch.setattr(constants, "HF_TOKEN_PATH", str(cache / "token"))


def files_of(backbone: Backbone) -> dict[str, bytes]:
    """The files of an encoder's repository, name -> content: sizes, weights and 20 tokens."""
    weights = from_ours(backbone.state_dict(), "huggingface")
    config = {name: value for name, value in backbone.settings.items() if value is not None}
    return {
        "config.json": json.dumps(config).encode(),
        "vocab.txt": "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmno"]).encode(),
        "model.safetensors": save({name: value.contiguous() for name, value in weights.items()}),
    }


def offer_model(
    server: FileServer,
    name: str,
    files: Mapping[str, bytes],
    commit: str = COMMIT,
    revisions: tuple[str, ...] = ("main",),
) -> None:
    """Have a model, whose weights lie elsewhere, as large files do there.

    Args:
        server: what answers.
        name: `owner/name`.
        files: name -> content.
        commit: what they are committed as.
        revisions: the branches and tags that mean this commit.
    """
    about = {"id": name, "modelId": name, "sha": commit, "private": False, "tags": [], "downloads": 0}
    about["siblings"] = [{"rfilename": file} for file in files]
    entries = []
    for file, content in files.items():
        oid, sha256 = hashlib.sha1(content).hexdigest(), hashlib.sha256(content).hexdigest()
        entry = {"type": "file", "path": file, "oid": oid, "size": len(content)}
        is_large = file.endswith((".safetensors", ".bin"))
        entries.append(
            {**entry, "lfs": {"oid": sha256, "size": len(content), "pointerSize": 134}} if is_large else entry
        )
        for revision in (commit, *revisions):
            path = f"/{name}/resolve/{revision}/{file}"
            of_commit = {"X-Repo-Commit": commit}
            if is_large:
                linked = {"X-Linked-Size": str(len(content)), "X-Linked-ETag": f'"{sha256}"'}
                elsewhere = server.url.replace("127.0.0.1", "localhost")  # another host's redirections differ
                server.redirects[path] = (f"{elsewhere}/cdn/{sha256}", {**of_commit, **linked})
                server.files[f"/cdn/{sha256}"] = content
            else:
                server.files[path] = content
                server.headers[path] = {**of_commit, "ETag": f'"{oid}"'}
    api = f"/api/models/{name}"
    for revision in (commit, *revisions):
        server.files[f"{api}/revision/{revision}"] = json.dumps(about).encode()
        server.files[f"{api}/tree/{revision}"] = json.dumps(entries).encode()
    if "main" in revisions:
        server.files[api] = json.dumps(about).encode()


def refuse_model(server: FileServer, name: str, status: int, code: str, revision: str = "") -> None:
    """Answer about a model, or a revision of it, with an error of Hugging Face."""
    path = f"/api/models/{name}" + (f"/revision/{revision}" if revision else "")
    for place in (path, path if revision else f"{path}/revision/main"):
        server.errors[place] = status
        server.headers[place] = {"X-Error-Code": code}
