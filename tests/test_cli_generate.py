"""``edge-runtime generate`` on a tiny bundle: what comes out, and what every option does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
import tiny_bundle as tiny
from click.testing import CliRunner, Result

from edge_runtime.cli import main
from edge_runtime.cli.chat import chat
from edge_runtime.cli.generate import generate
from edge_runtime.text.tokenizer import Tokenizer

PAGE = Path(__file__).parent.parent / "docs/run.md"
PLAIN = ("--drafter", "none", "--deterministic")


def run(*options: str, prompt: str = "Hi", bundle: Path | None = None) -> Result:
    where = str(bundle or tiny.bundle())
    # One thread: the model is far too small for two.
    arguments = ["generate", "--bundle", where, "--threads", "1", "--prompt", prompt, *options]
    return CliRunner().invoke(main, arguments)


def text(*options: str, prompt: str = "Hi", bundle: Path | None = None) -> str:
    """Without the line feed that ends the output."""
    result = run(*options, prompt=prompt, bundle=bundle)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout[-1] == "\n"
    return result.stdout[:-1]


def report(*options: str, prompt: str = "Hi") -> dict[str, Any]:
    given = json.loads(text("--json", *options, prompt=prompt))
    assert isinstance(given, dict)
    return given


# --- losslessness ---------------------------------------------------------------------------------

DRAFTING = [("draft", "0"), ("draft", "1"), ("draft", "3"), ("draft", "auto"), ("draft", "prompt-length"),
            ("lookup", "1"), ("lookup", "7"), ("lookup", "auto")]  # fmt: skip


@pytest.mark.parametrize("prompt", ["Hi", "abababababab" * 9])
def test_drafts_do_not_change_the_text(prompt: str) -> None:
    options = ("--deterministic", "--max-tokens", "60")
    plain = text(*options, "--drafter", "none", prompt=prompt)
    assert len(set(plain)) > 5  # a text that repeats one character tests nothing
    for drafter, k in DRAFTING:
        assert text(*options, "--drafter", drafter, "--k", k, prompt=prompt) == plain, (drafter, k)


@pytest.mark.parametrize("law", [("--temperature", "0.8"), ("--temperature", "1", "--top-k", "9", "--top-p", "0.9")])
def test_a_seed_gives_the_text_again(law: tuple[str, ...]) -> None:
    options = (*law, "--deterministic", "--max-tokens", "40")
    expected = text(*options, "--seed", "5", "--drafter", "none")
    for drafter, k in [("draft", "4"), ("lookup", "2"), ("auto", "auto")]:
        assert text(*options, "--seed", "5", "--drafter", drafter, "--k", k) == expected, (drafter, k)
    assert text(*options, "--seed", "6") != expected
    # Without a seed a text is drawn anew.
    assert text(*options) != text(*options)


def test_the_draft_is_used_and_partly_right() -> None:
    given = report("--drafter", "draft", "--k", "3", "--deterministic", "--max-tokens", "80")["speculation"]
    assert given["drafter"] == "draft_model"
    assert 0 < given["accepted"] < given["drafted"]


def test_auto_takes_what_the_bundle_has() -> None:
    for k, drafter, alone in (("2", "draft_model", "prompt_lookup"), ("auto", "auto", "auto")):
        options = ("--json", "--max-tokens", "2", "--k", k)
        assert json.loads(text(*options))["speculation"]["drafter"] == drafter
        without = json.loads(text(*options, bundle=tiny.bundle_without_draft()))
        assert without["speculation"]["drafter"] == alone


@pytest.mark.parametrize("strategy", ["greedy", "top-k:3", "top-p:0.5", "beam:2"])
def test_strategies_and_acceptance_by_name_do_not_change_a_greedy_text(strategy: str) -> None:
    options = ("--deterministic", "--max-tokens", "30")
    plain = text(*options, "--drafter", "none")
    policy = "sampled" if strategy == "greedy" else "exact"
    drafting = ("--drafter", "draft", "--k", "3", "--strategy", strategy, "--policy", policy)
    assert text(*options, *drafting) == plain


def test_what_was_drafted_is_accounted_for() -> None:
    given = report("--drafter", "draft", "--k", "confidence", "--deterministic", "--max-tokens", "80")["speculation"]
    (source,) = given["by_source"]
    assert source == "draft_model" and given["by_source"][source]["drafted"] == given["drafted"]
    assert sum(given["time_shares"].values()) == pytest.approx(1.0)
    assert given["draft_mean_log_likelihood"] < 0.0
    low = given["acceptance_rate"] < 0.5 and given["drafted"] >= 32
    assert any(note.startswith("acceptance") for note in given["notes"]) == low


# --- what an option does --------------------------------------------------------------------------


def test_json_holds_everything() -> None:
    given = report("--k", "3", "--max-tokens", "50", "--deterministic")
    assert given["text"] == text(*PLAIN, "--max-tokens", "50")
    assert len(given["tokens"]) == 50 == given["usage"]["completion_tokens"]
    # The begin-of-text token counts.
    assert given["usage"]["prompt_tokens"] == 3
    assert given["finish_reason"] == "length"
    timings = given["timings"]
    assert set(timings) == {
        "load_s", "ttft_ms", "tpot_ms", "prefill_ms", "draft_ms", "verify_ms", "overhead_ms"
    }  # fmt: skip
    assert all(value > 0 for value in timings.values())
    speculation = given["speculation"]
    assert set(speculation) == {
        "drafter", "reason", "steps", "drafted", "accepted", "acceptance_rate", "acceptance_length",
        "mean_accepted_drafts", "acceptance_by_position", "steps_by_num_draft_tokens", "by_source", "time_shares",
        "draft_mean_log_likelihood", "notes",
    }  # fmt: skip
    steps, drafted, accepted = (speculation[name] for name in ("steps", "drafted", "accepted"))
    assert steps + accepted + 1 in (50, 51)  # the prefill's token; the last step may end by an accepted one
    assert speculation["acceptance_rate"] == pytest.approx(accepted / drafted)
    assert speculation["acceptance_length"] == pytest.approx(49 / steps)
    assert speculation["mean_accepted_drafts"] == pytest.approx(accepted / steps)
    assert len(speculation["acceptance_by_position"]) == 3
    assert all(0 <= rate <= 1 for rate in speculation["acceptance_by_position"])
    by_k = speculation["steps_by_num_draft_tokens"]
    assert sum(by_k) == steps and sum(k * count for k, count in enumerate(by_k)) == drafted
    assert -10 < given["mean_log_likelihood"] < 0


def test_plain_decoding_has_nothing_to_say_on_drafts() -> None:
    given = report(*PLAIN, "--max-tokens", "1")
    assert given["timings"]["tpot_ms"] is None
    assert given["speculation"]["acceptance_rate"] is None
    assert given["speculation"]["acceptance_by_position"] == []


def test_tokens_are_those_of_the_text() -> None:
    tokenizer = Tokenizer(tiny.bundle() / "tokenizer.model")
    given = report(*PLAIN, "--max-tokens", "30")
    assert tokenizer.encode(given["text"], bos=False) == given["tokens"]


def test_a_stop_string_ends_the_text_before_it() -> None:
    whole = text(*PLAIN, "--max-tokens", "40")
    # Over several tokens, and not at the first character that it shares with the text.
    stop = whole[20:24]
    place = whole.index(stop)
    for k in ("0", "3"):
        options = ("--deterministic", "--k", k, "--max-tokens", "40")
        assert text(*options, "--stop", stop) == whole[:place]
        assert text(*options, "--stop", "never", "--stop", stop) == whole[:place]
        assert text(*options, "--stop", whole[:1]) == ""
    given = report(*PLAIN, "--max-tokens", "40", "--stop", stop)
    assert (given["text"], given["finish_reason"]) == (whole[:place], "stop")


def test_the_text_ends_where_the_context_does() -> None:
    given = report("--context", "20")
    assert (given["usage"]["prompt_tokens"], given["usage"]["completion_tokens"]) == (3, 17)
    assert given["usage"]["energy"] == {"joules": None, "joules_per_token": None}, "nobody reads this machine"
    assert given["finish_reason"] == "length"


def test_an_empty_prompt_is_a_text_from_its_beginning() -> None:
    given = report("--max-tokens", "5", prompt="")
    assert (given["usage"]["prompt_tokens"], given["usage"]["completion_tokens"]) == (1, 5)


def test_prompt_from_a_file_and_from_stdin(tmp_path: Path) -> None:
    prompt = "Grüße, 世界\n"
    expected = text(*PLAIN, "--max-tokens", "12", prompt=prompt)
    file = tmp_path / "prompt.txt"
    file.write_text(prompt, encoding="utf-8")
    for name, stdin in ((str(file), None), ("-", prompt.encode())):
        arguments = ["generate", "--bundle", str(tiny.bundle()), "--prompt-file", name, *PLAIN, "--max-tokens", "12"]
        result = CliRunner().invoke(main, arguments, input=stdin)
        assert result.stdout == expected + "\n"


def test_other_ways_through_the_engine() -> None:
    expected = text(*PLAIN, "--max-tokens", "20")
    for options in (["--head", "full"], ["--threads", "2"], ["--no-verify"], ["--context", "100"]):
        assert text(*PLAIN, "--max-tokens", "20", *options) == expected
    assert text("--policy", "threshold", "--max-tokens", "20") != ""


def test_escape_sequences_come_through_a_pipe_as_they_are() -> None:
    """Tokens of a sampled text spell any byte: what is piped is the text, not what a terminal should see of it."""
    options = ("--temperature", "1.5", "--seed", "1", "--max-tokens", "300", "--stop", "\x7f\x7f")
    options += ("--drafter", "none")  # what pays is measured anew by each run, and near-ties may follow K
    given = report(*options)
    assert any(ord(character) < 32 for character in given["text"])
    # The line feeds of a text are its own.
    assert run(*options).stdout_bytes == given["text"].encode() + b"\n"


# --- texts about it -------------------------------------------------------------------------------


def long_options(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts if name.startswith("--")}


def test_the_page_names_every_option() -> None:
    section = PAGE.read_text(encoding="utf-8").split("Options of `generate`", 1)[1].split("\n## ", 1)[0]
    rows = [line.replace("`", " ").replace(",", " ") for line in section.splitlines() if line.startswith("| `--")]
    named = {word for row in rows for word in row.split("|")[1].split()}
    assert named == long_options(generate)
    assert long_options(chat) - named == {"--system", "--socket"}
    whole = PAGE.read_text(encoding="utf-8")
    assert "`--system`" in whole and "`--socket`" in whole
    assert named - long_options(chat) == {"--prompt", "--prompt-file", "--json"}


def test_every_option_has_a_help_text() -> None:
    for command in (generate, chat):
        assert command.help
        assert [p.name for p in command.params if isinstance(p, click.Option) and not p.help] == []
        # click's word for a range without a bound
        assert "<=None" not in command.get_help(click.Context(command))
