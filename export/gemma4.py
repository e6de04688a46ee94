"""The Gemma 4 text graph and that of its assistants, written once. Knows no engine, no precision and no weight values.

What is new beside Gemma 3: values are normed and queries not scaled; the last layers may borrow keys and values; every
layer ends in a factor of its own; and on the E models each token says something to each layer, from a table that is as
large as the rest of the model.
"""

from __future__ import annotations

from dataclasses import replace

from edge_runtime.bundle import KvLayer

from .gemma4_config import AssistantConfig
from .graph import (
    AddNorm,
    Attention,
    BorrowedAttention,
    Embed,
    GatedGelu,
    GeluProduct,
    Graph,
    GroupNorm,
    Join,
    Linear,
    Op,
    RmsNorm,
    Rope,
    Softcap,
    Split,
    Sum,
)
from .model_config import GemmaConfig, LayerConfig, LayerShape


def describe_gemma4(config: GemmaConfig, depth: int) -> Graph:
    """The graph of the first ``depth`` layers."""
    layers = config.layers[:depth]
    kv_layers = tuple(_kv(layer) for layer in layers if _shape(layer).donor is None)
    body: list[Op] = [Embed("x0", Graph.EMBED, config.embed_scale)]
    if config.per_layer_size:
        body += _per_layer_inputs(config)
    body.append(RmsNorm("a0", "x0", "layers.0.attn_norm"))
    for i, layer in enumerate(layers):
        body += _attention(config, i, layer)
        body += _feed_forward(i)
        body += _ending(config, i)
        last = i + 1 == depth
        body.append(
            RmsNorm(
                Graph.BODY_OUT if last else f"a{i + 1}",
                f"x{i + 1}",
                "final_norm" if last else f"layers.{i + 1}.attn_norm",
            )
        )
    head: list[Op] = [Linear(Graph.HEAD_OUT, Graph.HEAD_IN, (Graph.EMBED,))]
    if config.final_softcap is not None:
        head = [
            Linear("raw_logits", Graph.HEAD_IN, (Graph.EMBED,)),
            Softcap(Graph.HEAD_OUT, "raw_logits", config.final_softcap),
        ]
    graph = Graph(tuple(body), tuple(head), kv_layers, config.hidden_size, config.rms_eps)
    if not config.per_layer_size:
        return graph
    lookup = Embed(Graph.PER_LAYER, "per_layer_embed", config.per_layer_size**0.5)
    return replace(graph, lookup=(lookup,), lookup_width=config.num_layers * config.per_layer_size)


def describe_assistant(config: AssistantConfig, kv_layers: tuple[KvLayer, ...]) -> Graph:
    """``kv_layers``: those of the target that it looks at, by ``KINDS``. The embedding is the target's, scaled as
    there, and ``hidden_in`` are its rows. The head is what ``Graph.EMBED`` means to whoever spells it."""
    text = config.text
    body: list[Op] = [
        Embed("e", Graph.EMBED, config.backbone_size**0.5),
        Join("eh", "e", Graph.HIDDEN_IN),
        Linear("x0", "eh", ("pre_projection",)),
        RmsNorm("a0", "x0", "layers.0.attn_norm"),
    ]
    for i, layer in enumerate(text.layers):
        w, shape = f"layers.{i}.", _shape(layer)
        assert shape.donor is not None
        body += [
            Linear(f"q{i}", f"a{i}", (w + "q",)),
            BorrowedAttention(
                out=f"att{i}",
                q=f"q{i}",
                layer=shape.donor,
                heads=text.num_heads,
                kv=kv_layers[shape.donor],
                # As transformers masks it: a distance of at most the window from the last entry, both ends included.
                reach=None if layer.window is None else layer.window + 1,
                scale=text.query_scale,
                rope=_rope(layer),
                q_norm=w + "q_norm",
            ),
        ]
        body += _feed_forward(i)
        body += _ending(text, i)
        last = i + 1 == text.num_layers
        after = "final_norm" if last else f"layers.{i + 1}.attn_norm"
        body.append(RmsNorm(Graph.BODY_OUT if last else f"a{i + 1}", f"x{i + 1}", after))
    body.append(Linear(Graph.FEED, Graph.BODY_OUT, ("post_projection",)))
    head = Linear(Graph.HEAD_OUT, Graph.HEAD_IN, (Graph.EMBED,))
    return Graph(tuple(body), (head,), kv_layers, text.hidden_size, text.rms_eps, config.backbone_size)


def shared_layers(target: GemmaConfig) -> tuple[int, ...]:
    """The caches that an assistant looks at: of each of ``gemma4_config.KINDS``, where there are any, the last one."""
    caches = [layer for layer in target.layers if _shape(layer).donor is None]
    of_kind = [[i for i, layer in enumerate(caches) if (layer.window is None) == full] for full in (False, True)]
    return tuple(places[-1] for places in of_kind if places)


def _shape(layer: LayerConfig) -> LayerShape:
    assert layer.shape is not None
    return layer.shape


def _kv(layer: LayerConfig) -> KvLayer:
    return KvLayer(_shape(layer).kv_heads, _shape(layer).head_dim, layer.window)


def _rope(layer: LayerConfig) -> Rope:
    return Rope(layer.rope_theta, layer.rope_scale, _shape(layer).rotated)


def _per_layer_inputs(config: GemmaConfig) -> list[Op]:
    """p_i of every layer: what the token's row says and what its embedding does, in equal parts."""
    count = config.num_layers
    return [
        Linear("p.context", "x0", ("per_layer_projection",)),
        # The reference divides by sqrt(hidden) first; norms do not see that, but for their epsilon.
        GroupNorm("p.normed", "p.context", "per_layer_norm", count, eps=float(config.hidden_size)),
        Sum("p", "p.normed", Graph.PER_LAYER, 0.5**0.5),
        Split(tuple(f"p{i}" for i in range(count)), "p"),
    ]


def _attention(config: GemmaConfig, i: int, layer: LayerConfig) -> list[Op]:
    w, shape = f"layers.{i}.", _shape(layer)
    parts = {"own": ("q", "k", "v"), "from-keys": ("q", "k"), "borrowed": ("q",)}
    values = "borrowed" if shape.donor is not None else "from-keys" if shape.values_from_keys else "own"
    return [
        Linear(f"qkv{i}", f"a{i}", tuple(w + part for part in parts[values])),
        Attention(
            out=f"att{i}",
            qkv=f"qkv{i}",
            layer=i if shape.donor is None else shape.donor,
            heads=config.num_heads,
            kv=_kv(layer),
            scale=config.query_scale,
            softcap=None,
            rope=_rope(layer),
            q_norm=w + "q_norm",
            k_norm=None if shape.donor is not None else w + "k_norm",
            values=values,  # type: ignore[arg-type]
            value_norm=shape.donor is None,
        ),
    ]


def _feed_forward(i: int) -> list[Op]:
    """Attention's output to y_i, the residual stream behind the feed-forward half."""
    w = f"layers.{i}."
    return [
        Linear(f"o{i}", f"att{i}", (w + "o",)),
        RmsNorm(f"on{i}", f"o{i}", w + "post_attn_norm"),
        AddNorm(f"f{i}", f"m{i}", f"x{i}", f"on{i}", w + "ffn_norm"),
        Linear(f"gu{i}", f"f{i}", (w + "gate", w + "up")),
        GatedGelu(f"g{i}", f"gu{i}"),
        Linear(f"d{i}", f"g{i}", (w + "down",)),
        RmsNorm(f"dn{i}", f"d{i}", w + "post_ffn_norm"),
    ]


def _ending(config: GemmaConfig, i: int) -> list[Op]:
    """x_{i+1}: the layer's own word, where tokens have one for it, and its factor."""
    w = f"layers.{i}."
    if not config.per_layer_size:
        return [Sum(f"x{i + 1}", f"m{i}", f"dn{i}", w + "scalar")]
    return [
        Sum(f"y{i}", f"m{i}", f"dn{i}"),
        Linear(f"pg{i}", f"y{i}", (w + "per_layer_gate",)),
        GeluProduct(f"pp{i}", f"pg{i}", f"p{i}"),
        Linear(f"po{i}", f"pp{i}", (w + "per_layer_out",)),
        RmsNorm(f"pn{i}", f"po{i}", w + "post_per_layer_norm"),
        Sum(f"x{i + 1}", f"y{i}", f"pn{i}", w + "scalar"),
    ]
