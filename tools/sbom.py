"""What the demo and each image are made of, as lists of parts in CycloneDX 1.6. Asks nobody.

    python tools/sbom.py DIR [--bundle BUNDLE]

Writes ``DIR/NAME.cdx.json`` for each lock: packages with version, licence, hashes and who wants them, and the drafters
that come along. With ``--bundle`` also one of a bundle: each file with its sha256, by the manifest. Each is held
against the schema. The same input is the same bytes: there is no time in it, and its number follows from what it lists.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from licences import GEMMA, Licence, recorded
from locks import LOCKS, ROOT, SELF, Lock, read
from packageurl import PackageURL

_NUMBERS = uuid.UUID("6f1b8a52-7a55-5c0e-9d0e-2f0a6d0c7b11")
"""Of what serial numbers are made."""
DRAFTERS = ROOT / "export" / "drafters"


def version() -> str:
    text = (ROOT / "edge_runtime" / "__init__.py").read_text(encoding="utf-8")
    (line,) = (line for line in text.splitlines() if line.startswith("__version__"))
    return line.split('"')[1]


def _sha256(hexadecimal: str) -> HashType:
    return HashType(alg=HashAlgorithm.SHA_256, content=hexadecimal)


def _itself() -> Component:
    return Component(
        type=ComponentType.APPLICATION, name=SELF, version=version(), bom_ref=SELF,
        licenses=[LicenseFactory().make_from_string("Apache-2.0")],
    )  # fmt: skip


def of_lock(lock: Lock, licences: Mapping[tuple[str, str], Licence]) -> Bom:
    """A package that several Pythons have in other versions is there once for each, with its marker."""
    itself = _itself()
    bom = Bom(metadata=BomMetaData(component=itself))
    parts: dict[str, list[Component]] = {}
    pins = read(lock.path)
    for pin in pins:
        purl = PackageURL("pypi", name=pin.name, version=pin.version)
        # One release has several files, of which one is installed: these are no hashes of the part itself.
        said = [Property(name="edge-runtime:lock:sha256", value=one) for one in pin.hashes]
        said += [Property(name="edge-runtime:lock:marker", value=pin.marker)] if pin.marker else []
        part = Component(
            name=pin.name, version=pin.version, purl=purl, bom_ref=str(purl), properties=said,
            licenses=[LicenseFactory().make_from_string(licences[pin.name, pin.version].expression)],
        )  # fmt: skip
        bom.components.add(part)
        parts.setdefault(pin.name, []).append(part)
    for pin in pins:
        wanted = [part for part in parts[pin.name] if part.version == pin.version]
        # What a lock asks for by itself, as cuda-python, belongs to the image.
        for name in pin.wanted_by or (SELF,):
            for one in [itself] if name == SELF else parts.get(name, []):
                bom.register_dependency(one, wanted)
    if lock.name == "demo":
        drafters = [_drafter(path) for path in sorted(DRAFTERS.glob("*/model.safetensors"))]
        bom.components.update(drafters)
        bom.register_dependency(itself, drafters)
    return bom


def _drafter(path: Path) -> Component:
    target = path.parent.name
    return Component(
        type=ComponentType.MACHINE_LEARNING_MODEL, name=f"drafter for {target}", bom_ref=f"drafter:{target}",
        hashes=[_sha256(hashlib.sha256(path.read_bytes()).hexdigest())],
        licenses=[LicenseFactory().make_from_string(GEMMA)],
    )  # fmt: skip


def of_bundle(folder: Path) -> Bom:
    """By what the manifest says; ``edge-export check`` compares the files with it. Raises ``ValueError``."""
    try:
        from edge_runtime.bundle import read_manifest
        from edge_runtime.errors import BundleError
    except ImportError as problem:
        raise ValueError(f"a bundle is read by edge-runtime, which is not installed here ({problem})") from None
    try:
        manifest = read_manifest(folder)
    except BundleError as problem:
        raise ValueError(str(problem)) from None
    listed = [
        Component(type=ComponentType.FILE, name=one.name, bom_ref=f"file:{one.name}", hashes=[_sha256(one.sha256)])
        for one in manifest.files
    ]
    sha256 = hashlib.sha256((folder / "bundle.json").read_bytes()).hexdigest()
    model = Component(
        type=ComponentType.MACHINE_LEARNING_MODEL, name=manifest.name, bom_ref=manifest.name, hashes=[_sha256(sha256)],
        licenses=[DisjunctiveLicense(name=manifest.licence)],
        properties=[
            Property(name="edge-runtime:made-of", value=f"{one.name} {one.sha256 or 'without a hash'}")
            for one in manifest.sources
        ],
    )  # fmt: skip
    bom = Bom(metadata=BomMetaData(component=model), components=listed)
    bom.register_dependency(model, listed)
    return bom


def written(bom: Bom) -> str:
    """As JSON. Raises ``ValueError`` where the schema has something to say."""
    document = json.loads(JsonV1Dot6(bom).output_as_string())
    document["metadata"].pop("timestamp")
    document.pop("serialNumber")
    content = json.dumps(document, sort_keys=True)
    document["serialNumber"] = uuid.uuid5(_NUMBERS, content).urn
    text = json.dumps(document, indent=1, sort_keys=True) + "\n"
    problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if problem is not None:
        raise ValueError(f"not CycloneDX: {problem}")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description="List what the demo and the images are made of.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bundle", type=Path)
    given = parser.parse_args()
    licences = recorded()
    try:
        found = {lock.name: of_lock(lock, licences) for lock in LOCKS if lock.project}
        if given.bundle is not None:
            found[f"bundle-{given.bundle.resolve().name}"] = of_bundle(given.bundle)
        given.folder.mkdir(parents=True, exist_ok=True)
        for name, bom in found.items():
            path = given.folder / f"{name}.cdx.json"
            path.write_text(written(bom), encoding="utf-8")
            print(f"{path}: {len(bom.components)} parts")
    except (OSError, ValueError) as problem:
        sys.exit(f"error: {problem}")


if __name__ == "__main__":
    main()
