"""Training a drafter, piece by piece: each against another way to the same numbers. Knows no whole run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from training_runs import random_checkpoint, random_drafter, target

from edge_runtime.errors import CheckpointError, ConfigError
from export.checkpoint import open_checkpoint
from export.reference import Reference
from export.training.batches import Batches, Cursor
from export.training.checkpoint import load_drafter, save_drafter, write_tensors
from export.training.corpus import read_segments
from export.training.drafter import TextRows, drafts, trained
from export.training.evaluate import held_acceptance
from export.training.features import open_part, read_part
from export.training.labels import labels_of
from export.training.loss import LossWeights, head_loss
from export.training.muon import orthogonal
from export.training.reference import ReferenceCache, reference_step
from export.training.target import TextCache

FAMILIES = ("gemma2", "gemma3")


def random_ids(batch: int, length: int) -> torch.Tensor:
    return torch.randint(4, 500, (batch, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_target_is_that_of_transformers(family: str) -> None:
    ids = random_ids(1, 40)
    expected = Reference(open_checkpoint(random_checkpoint(family))).logits(ids[0].numpy())
    model = target(family)
    found = model.logits(model.hidden(ids).hidden, model.embed)[0]
    assert np.abs(found.numpy() - expected).max() < 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_a_text_token_by_token_has_the_rows_of_the_whole(family: str) -> None:
    model, ids = target(family), random_ids(2, 30)
    whole = model.hidden(ids).hidden
    cache = TextCache(model.config, 2, 30, model.device)
    rows = [model.hidden(ids[:, :11], cache).hidden]
    rows += [model.extend(ids[:, at : at + 1], cache, at) for at in range(11, 30)]
    torch.testing.assert_close(torch.cat(rows, dim=1), whole, rtol=1e-3, atol=1e-3)


def test_drawn_texts_follow_the_target_and_keep_its_rows() -> None:
    model, prompts = target(), random_ids(3, 6)
    rows = torch.arange(4, 500)
    ids, hidden = model.draw(prompts, 20, rows, torch.Generator().manual_seed(5))
    again, _ = model.draw(prompts, 20, rows, torch.Generator().manual_seed(5))
    assert torch.equal(ids, again) and torch.equal(ids[:, :6], prompts)
    assert int(ids.min()) >= 4 and int(ids.max()) < 500
    torch.testing.assert_close(hidden, model.hidden(ids).hidden, rtol=1e-3, atol=1e-3)
    # Of many draws of one token, the shares are those of the law.
    law = model.logits(model.hidden(prompts[:1]).hidden[0, -1:], model.embed[rows]).softmax(-1)[0]
    many, _ = model.draw(prompts[:1].expand(4000, -1), 7, rows, torch.Generator().manual_seed(6))
    shares = torch.bincount(many[:, 6], minlength=500)[4:500] / 4000
    assert float((shares - law).abs().sum()) < 0.35


@pytest.mark.parametrize(("family", "window"), [("gemma3", None), ("gemma3", 5), ("gemma2", None)])
def test_all_rows_at_once_are_the_reference_entry_by_entry(family: str, window: int | None) -> None:
    start, params = random_drafter(family, window)
    model, ids, steps = target(family), random_ids(1, 14), 3
    hidden = model.hidden(ids).hidden
    outputs = drafts(start, params, TextRows(model.embed[ids] * start.config.embed_scale, hidden), steps)
    drafter = trained(start, params, {})
    embed, head = model.embed.numpy(), start.head.numpy()
    for row in range(14 - steps):
        cache = ReferenceCache()
        for entry in range(row):
            reference_step(drafter, cache, embed[ids[0, entry + 1]], hidden[0, entry].numpy(), entry, head)
        given = hidden[0, row].numpy()
        for step in range(steps):
            entry = row + step
            found = reference_step(drafter, cache, embed[ids[0, entry + 1]], given, entry, head)
            given = found.feed
            np.testing.assert_allclose(outputs[step][0, row].numpy(), found.hidden, rtol=2e-3, atol=2e-3)
            logits = start.logits(outputs[step][0, row]).numpy()
            np.testing.assert_allclose(logits, found.logits, rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("weight", [0.0, 0.7])
def test_the_gradient_by_hand_is_autograds(family: str, weight: float) -> None:
    start, params = random_drafter(family)
    model, ids = target(family), random_ids(2, 9)
    hidden = model.hidden(ids).hidden
    texts = TextRows(model.embed[ids] * start.config.embed_scale, hidden)
    outputs = [y.detach().requires_grad_() for y in drafts(start, params, texts, 2)]
    found = head_loss(start, [y.detach() for y in outputs], hidden, LossWeights(0.5, 0.0, weight))
    total = torch.zeros(())
    for step, y in enumerate(outputs):
        p = start.logits(hidden[:, step + 1 : step + 1 + y.shape[1]]).softmax(-1)
        log_q = start.logits(y).log_softmax(-1)
        entropy, accepted = -(p * log_q).sum(-1).mean(), torch.minimum(p, log_q.exp()).sum(-1).mean()
        assert found.cross_entropy[step] == pytest.approx(entropy.item(), rel=1e-4)
        assert found.acceptance[step] == pytest.approx(accepted.item(), rel=1e-4)
        total = total + 0.5**step * (entropy + weight * (1 - accepted))
    total.backward()
    for y, gradient in zip(outputs, found.gradients, strict=True):
        torch.testing.assert_close(gradient, y.grad, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_some_rows_of_the_head_stand_for_all(family: str, tmp_path: Path) -> None:
    start, params = random_drafter(family)
    model, ids = target(family), random_ids(1, 12)
    hidden = model.hidden(ids).hidden.to(torch.float16).float()
    part = open_part(tmp_path / "p", 1, 12, model.config.hidden_size, {}, held=False)
    part.append(ids.numpy(), hidden.numpy())
    labels, device = labels_of(start, part, tmp_path), model.device
    assert np.array_equal(labels_of(start, part, tmp_path).best, labels.best)
    outputs = [y.detach() for y in drafts(start, params, TextRows(model.embed[ids], hidden), 2)]
    given = LossWeights(acceptance=0.5)
    whole = head_loss(start, outputs, hidden, given)
    same = head_loss(start, outputs, hidden, given, [labels.judged_by(0, 128, np.random.default_rng(0), device)])
    for found, expected in zip(same.gradients, whole.gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)
    plain = LossWeights(acceptance=0.0)
    few = [labels.judged_by(0, 4, np.random.default_rng(i), device) for i in range(300)]
    assert all(len(by.rows) < 128 for by in few)
    losses = [head_loss(start, outputs, hidden, plain, [by]).cross_entropy[0] for by in few]
    # A sample of the head is right on average, up to the bend of the logarithm.
    assert np.mean(losses) == pytest.approx(head_loss(start, outputs, hidden, plain).cross_entropy[0], rel=0.1)


@pytest.mark.parametrize("shape", [(48, 16), (16, 48), (32, 32)])
def test_muon_makes_a_matrix_nearly_orthogonal(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    found = torch.linalg.svdvals(orthogonal(matrix))
    assert float(found.min()) > 0.25 and float(found.max()) < 1.4
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    assert float((orthogonal(matrix) * (left @ right)).sum()) > 0.8 * float((left @ right).square().sum())


def naive_acceptance(part: str, place: Path, steps: int) -> tuple[list[float], list[float]]:
    """Position by position, row by row, from the definition and the numpy reference."""
    start, params = random_drafter()
    drafter, model, found = trained(start, params, {}), target(), read_part(place / part)
    embed, head, ids_of = model.embed.numpy(), start.head.numpy(), drafter.token_ids.tolist()
    sums = np.zeros((4, steps))
    for i in range(found.done):
        ids, hidden = found.tokens[i], found.hidden[i].astype(np.float32)
        full = torch.from_numpy(hidden) @ model.embed.T
        laws = full.softmax(-1).numpy()
        for row in range(found.length - steps):
            cache = ReferenceCache()
            for entry in range(row):
                reference_step(drafter, cache, embed[ids[entry + 1]], hidden[entry], entry, head)
            given, drawn, agreed = hidden[row], 1.0, 1.0
            for step in range(steps):
                output = reference_step(drafter, cache, embed[ids[row + step + 1]], given, row + step, head)
                given = output.feed
                q = np.exp(output.logits - output.logits.max())
                q /= q.sum()
                p = laws[row + step + 1]
                best = int(p.argmax())
                hit = float(ids_of[int(q.argmax())] == best)
                sums[:, step] += [drawn * np.minimum(p[ids_of], q).sum(), drawn, agreed * hit, agreed]
                if row + step + 2 < found.length:
                    token = int(ids[row + step + 2])
                    chance = q[ids_of.index(token)] if token in ids_of else 0.0
                    drawn *= min(1.0, chance / p[token])
                    agreed *= hit * (token == best)
    return (sums[0] / sums[1]).tolist(), (sums[2] / np.maximum(sums[3], 1e-9)).tolist()


def test_held_out_acceptance_is_what_its_definition_says(tmp_path: Path) -> None:
    model, ids = target(), random_ids(2, 16)
    hidden = model.hidden(ids).hidden
    part = open_part(tmp_path / "held", 2, 16, model.config.hidden_size, {}, held=True)
    logits = hidden.to(torch.float16).float() @ model.embed.T
    part.append(ids.numpy(), hidden.numpy(), logits.logsumexp(-1).numpy(), logits.argmax(-1).numpy())
    start, params = random_drafter()
    found = held_acceptance(start, params, model.embed, part, steps=3)
    sampled, greedy = naive_acceptance("held", tmp_path, 3)
    assert found.sampled == pytest.approx(sampled, rel=5e-3, abs=1e-4)
    assert found.greedy == pytest.approx(greedy, abs=0.05)
    assert 0 < found.covered < 1 and found.rows == 32


def test_an_epoch_reads_every_text_once_and_a_share_the_first_of_each(tmp_path: Path) -> None:
    parts = [open_part(tmp_path / name, count, 8, 4, {}, held=False) for name, count in (("a", 10), ("b", 7))]
    for part in parts:
        part.append(np.zeros((part.size, 8)), np.zeros((part.size, 8, 4), np.float32))
    batches, cursor = Batches(parts, 24, seed=3), Cursor()
    seen = []
    while cursor.epoch == 0:
        micro = batches.next(cursor)
        assert 1 <= len(micro.rows) <= 3
        seen += [(micro.part, int(row)) for row in micro.rows]
    assert sorted(seen) == [(0, i) for i in range(10)] + [(1, i) for i in range(7)]
    later = Batches(parts, 24, seed=3)
    assert np.array_equal(later.next(Cursor(1, 2)).rows, [batches.next(cursor) for _ in range(3)][2].rows)
    half = Batches(parts, 24, seed=3, share=0.5)
    assert half.tokens == (5 + 3) * 8


def test_features_outlive_a_stop_and_refuse_another_source(tmp_path: Path) -> None:
    part = open_part(tmp_path / "p", 4, 8, 4, {"target": "a"}, held=False)
    part.append(np.ones((3, 8)), np.full((3, 8, 4), 0.5, np.float32))
    again = open_part(tmp_path / "p", 4, 8, 4, {"target": "a"}, held=False)
    assert again.done == 3 and float(again.hidden[2, 7, 3]) == 0.5
    with pytest.raises(ConfigError, match="target 'a', not 'b'"):
        open_part(tmp_path / "p", 4, 8, 4, {"target": "b"}, held=False)
    with pytest.raises(ConfigError, match="float16"):
        again.append(np.ones((1, 8)), np.full((1, 8, 4), 1e6, np.float32))
    with pytest.raises(ConfigError, match="no features"):
        read_part(tmp_path / "q")


def test_no_held_out_text_is_trained_on(tmp_path: Path) -> None:
    for domain, letter in (("one", "a"), ("two", "b")):
        (tmp_path / domain).mkdir()
        for i in range(3):
            text = "".join(chr(ord(letter) + (i * 7 + j) % 20) for j in range(200))
            (tmp_path / domain / f"{i}.txt").write_text(text, encoding="utf-8")
    found = read_segments([tmp_path], lambda text: [ord(c) + i for i, c in enumerate(text)], 2, 21, 0)
    rows = [tuple(row) for row in (*found.train, *found.held)]
    assert len(set(rows)) == len(rows) == 60 and len(found.held) == 2 and set(found.train[:, 0]) == {2}
    assert found.domains == {"one": 30 * 21, "two": 30 * 21}


@pytest.mark.parametrize(
    ("content", "words"), [(None, "no such file"), ("short", "fewer than two"), (b"\xff", "utf-8")]
)
def test_a_corpus_that_is_none_is_refused_in_one_line(tmp_path: Path, content: str | bytes | None, words: str) -> None:
    path = tmp_path / "c.txt"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=words):
        read_segments([path], lambda text: list(text.encode()), 2, 64, 0)


def test_a_drafter_on_disk_is_the_one_that_was_saved(tmp_path: Path) -> None:
    start, params = random_drafter()
    drafter = trained(start, params, {"seed": 1})
    save_drafter(tmp_path, drafter, "F32")
    found = load_drafter(tmp_path)
    assert found.config == drafter.config and found.record == {"seed": 1} and found.ties_head
    assert np.array_equal(found.token_ids, drafter.token_ids)
    assert all(np.array_equal(found.tensors[name], values) for name, values in drafter.tensors.items())
    save_drafter(tmp_path, drafter)
    half = load_drafter(tmp_path)
    for name, values in drafter.tensors.items():
        np.testing.assert_allclose(half.tensors[name], values, rtol=1e-3, atol=1e-4)
    save_drafter(tmp_path, drafter, "I8")
    eight = load_drafter(tmp_path)
    for name, values in drafter.tensors.items():
        off = np.abs(eight.tensors[name] - values).max() / np.abs(values).max()
        assert off < 0.005, name


def test_eight_bits_without_scales_are_refused(tmp_path: Path) -> None:
    drafter = trained(*random_drafter(), {})
    save_drafter(tmp_path, drafter, "F32")
    arrays = {**drafter.tensors, "token_ids": drafter.token_ids}
    arrays["projection"] = arrays["projection"].astype(np.int8)
    write_tensors(tmp_path / "model.safetensors", arrays)
    with pytest.raises(CheckpointError, match="no scales that fit"):
        load_drafter(tmp_path)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("q", None, "missing"),
        ("q", (3, 3), r"\[3, 3\]"),
        ("nonsense", (3,), "not known"),
        ("token_ids", (5,), "are not 128 integers"),
    ],
)
def test_a_damaged_drafter_is_refused_in_one_line(
    tmp_path: Path, name: str, change: tuple[int, ...] | None, words: str
) -> None:
    drafter = trained(*random_drafter(), {})
    save_drafter(tmp_path, drafter, "F32")
    arrays = {**drafter.tensors, "token_ids": drafter.token_ids}
    name = f"layers.0.{name}" if name == "q" else name
    if change is None:
        del arrays[name]
    else:
        arrays[name] = np.zeros(change, np.int64 if name == "token_ids" else np.float32)
    write_tensors(tmp_path / "model.safetensors", arrays)
    with pytest.raises(CheckpointError, match=words) as refused:
        load_drafter(tmp_path)
    assert "\n" not in str(refused.value)


def test_a_window_of_its_own_is_part_of_the_config(tmp_path: Path) -> None:
    start, params = random_drafter(window=5)
    save_drafter(tmp_path, trained(start, params, {}))
    assert load_drafter(tmp_path).config.window == 5
    assert load_drafter(tmp_path).config == replace(start.config, window=5)
