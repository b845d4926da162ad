"""Build the documentation as a site: search, dark mode, two languages, and no request to other hosts.

    python scripts/build_site.py [--output build/site] [--url https://...]

The pages are the Markdown files of the project, with the files that they link to; the navigation is the
index, docs/README.md. Needs the extra `docs` (zensical). Fails if a page is missing, or asks another host for
anything.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[1]
PAGES = ["README*.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**/*.md", "benchmarks/*.md"]
SHOWN = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".sh": "bash", "": "text"}
"""The suffixes of files that the page of a folder shows -> their language."""

LINK = re.compile(r"\]\(([^)\s#]+)[^)\s]*\)|(?:src|srcset)=\"([^\"]+)\"")
OTHER_HOST = re.compile(
    r"<(?:script|img|iframe|source)[^>]*\s(?:src|srcset)=\"https?://"
    r"|<link[^>]*rel=\"(?:stylesheet|preconnect)\"[^>]*https?://"
)
LINKED = r"<(?:a|img|source) [^>]*?(?:href|src|srcset)=\"([^\"#:?]*)(?:#([^\"]*))?\""
"""The address of another page or picture of the site, and its anchor."""

LANGUAGES = {"en": ("English", ""), "zh": ("中文", "README.zh-CN")}
"""Language -> its name, and the folder of its first page."""

STYLE = "assets/palm.css"
ON_A_PHONE = "@media (max-width: 600px) { picture img { width: 100% } }"
"""Pictures beside each other would be too small to read."""

SWITCH = re.compile(r"href=\"[^\"]*\" hreflang=\"(\w+)\"")
"""A link of the menu of languages."""


def write_pages(folder: Path) -> None:
    """Copy the pages and the files that they link to; a linked folder becomes a page that shows its files."""
    pages = sorted({page for pattern in PAGES for page in ROOT.glob(pattern)})
    linked = {
        (page.parent / (target[0] or target[1])).resolve()
        for page in pages
        for target in LINK.findall(page.read_text("utf-8"))
    }
    for source in sorted({*pages, *(each for each in linked if each.is_relative_to(ROOT))}):
        copy = folder / source.relative_to(ROOT)
        if source.is_dir():
            copy.mkdir(parents=True, exist_ok=True)
            (copy / "index.md").write_text(listing(source), encoding="utf-8")
        elif source.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)
    (folder / STYLE).parent.mkdir(exist_ok=True)
    (folder / STYLE).write_text(ON_A_PHONE, encoding="utf-8")


def listing(folder: Path) -> str:
    """Return a page with the files of a folder."""
    shown = [f"# {folder.relative_to(ROOT).as_posix()}"]
    for file in sorted(folder.rglob("*")):
        if file.is_file() and "output" not in file.as_posix() and file.suffix in SHOWN:
            text = file.read_text("utf-8")
            shown.append(f"## {file.relative_to(folder).as_posix()}\n\n````{SHOWN[file.suffix]}\n{text}````")
    return "\n\n".join(shown) + "\n"


def navigation() -> list[dict[str, list[dict[str, str]]]]:
    """Return the groups of the index with their pages, and the pages in Chinese."""
    index = (ROOT / "docs" / "README.md").read_text("utf-8")
    head, *groups = re.split(r"^## ", index, flags=re.MULTILINE)

    def pages(text: str) -> list[dict[str, str]]:
        found = re.findall(r"\[([^\]]+)\]\(([^)#]+\.md)\)", text)
        return [
            {name[0].upper() + name[1:]: (Path("docs") / target).as_posix().replace("docs/../", "")}
            for name, target in found
        ]

    named = {"中文": head} | {group.partition("\n")[0]: group for group in groups}
    groups_of_pages = [{name: pages(named[name])} for name in [*list(named)[1:], "中文"]]
    return [{"palm": [{"Index": "docs/README.md"}]}, *groups_of_pages]


def config(url: str) -> str:
    """Return the settings of zensical, which reads those of MkDocs, as YAML in JSON's style."""
    modes = [("", "default", "sun-moon"), (": light", "default", "sun"), (": dark", "slate", "moon")]
    names = ["Light mode", "Dark mode", "Mode of the system"]
    palette = [
        {
            "media": f"(prefers-color-scheme{mode})",
            "scheme": scheme,
            "toggle": {"icon": f"lucide/{icon}", "name": name},
        }
        for (mode, scheme, icon), name in zip(modes, names, strict=True)
    ]
    alternate = [{"name": name, "link": "/", "lang": language} for language, (name, _) in LANGUAGES.items()]
    settings = {
        "site_name": "palm",
        "site_url": url,
        "docs_dir": "pages",
        "site_dir": "site",
        "nav": navigation(),
        "theme": {
            "name": "material",
            "font": False,  # fonts would come from another host
            "palette": palette,
            "features": ["navigation.sections", "navigation.footer", "navigation.top", "content.code.copy"],
        },
        "extra": {"alternate": alternate, "generator": False},
        "extra_css": [STYLE],
        "plugins": ["search"],
        "markdown_extensions": [
            "tables",
            "fenced_code",
            "attr_list",
            "md_in_html",
            "pymdownx.highlight",
            "pymdownx.superfences",
            {"toc": {"permalink": True}},
        ],
    }
    return json.dumps(settings, indent=2, ensure_ascii=False)


def switch_languages(site: Path, base: str) -> None:
    """Lead the menu of languages to the same page in the other language, or to the first one.

    Pages in Chinese also say that they are, and search divides Chinese into words."""
    index = site / "search.json"
    found = json.loads(index.read_text("utf-8"))
    found["config"]["lang"] = list(LANGUAGES)
    index.write_text(json.dumps(found, ensure_ascii=False), encoding="utf-8")
    for page in site.rglob("*.html"):
        folder = page.parent.relative_to(site)
        chinese = "zh" in folder.parts or folder.name == LANGUAGES["zh"][1]
        plain = Path(*(part for part in folder.parts if part not in ("zh", LANGUAGES["zh"][1])))
        same = {"en": plain, "zh": Path("docs", "zh", plain.name)}

        def link(found: re.Match[str], same: dict[str, Path] = same) -> str:
            known = same[found[1]].name and (site / same[found[1]] / "index.html").is_file()
            target = same[found[1]].as_posix() if known else LANGUAGES[found[1]][1]
            return f'href="{base}{target and target + "/"}" hreflang="{found[1]}"'

        text = SWITCH.sub(link, page.read_text("utf-8"))
        page.write_text(text.replace('<html lang="en"', '<html lang="zh"') if chinese else text, "utf-8")


def problems(site: Path, base: str = "/") -> list[str]:
    """Return dead links and anchors, and requests to other hosts, in the built pages.

    `base` is the path of the site on its host."""
    found = []
    for page in sorted(site.rglob("*.html")):
        text = page.read_text("utf-8")
        name = page.relative_to(site)
        found += [f"{name}: asks another host: {each[:120]}" for each in OTHER_HOST.findall(text)]
        for target, anchor in re.findall(LINKED, text):
            inside = site / target.removeprefix(base) if target.startswith(base) else page.parent / target
            place = inside if target else page
            file = place / "index.html" if place.is_dir() else place
            if not file.is_file():
                found.append(f"{name}: dead link: {target}")
            elif (
                anchor and file.suffix == ".html" and f'id="{unquote(anchor)}"' not in file.read_text("utf-8")
            ):
                found.append(f"{name}: no such heading: {target}#{anchor}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "site")
    parser.add_argument("--url", default="http://localhost:8000/", help="the address where the site will be")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write_pages(folder / "pages")
        (folder / "mkdocs.yml").write_text(config(args.url), encoding="utf-8")
        subprocess.run(
            [sys.executable, "-m", "zensical", "build", "-f", "mkdocs.yml"], cwd=folder, check=True
        )
        base = urlsplit(args.url).path or "/"
        switch_languages(folder / "site", base)
        found = problems(folder / "site", base)
        print("\n".join(found))
        shutil.rmtree(args.output, ignore_errors=True)
        shutil.copytree(folder / "site", args.output)
    print(f"{args.output}: {sum(1 for _ in args.output.rglob('*.html'))} pages, {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
