"""The attention masks of a model as data and as a picture."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..kernels.masks import expand_mask, is_compact
from .figures import import_matplotlib, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLES = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross-attention",
}
# Of a cell: no attention, attention of an ordinary token, attention of a sentence token.
COLORS = ("white", "#9ecae1", "#08519c")


@torch.no_grad()
def attention_masks(
    model: PreTrainedModel,
    input_ids: torch.LongTensor,
    decoder_input_ids: torch.LongTensor,
    attention_mask: torch.Tensor | None = None,
) -> dict[str, torch.BoolTensor]:
    """
    The masks that the attention of a model gets. They are read off while the model runs, not computed a second time.

    Args:
        model (`PreTrainedModel`): DEPTH, T5 or UMT5.
        input_ids (`torch.LongTensor` of shape `(batch_size, source_length)`): encoder input.
        decoder_input_ids (`torch.LongTensor` of shape `(batch_size, target_length)`): decoder input.
        attention_mask (`torch.Tensor` of shape `(batch_size, source_length)`, *optional*):
            Non-zero on tokens that are not padding.

    Returns:
        `dict[str, torch.BoolTensor]`: `True` where a query (second axis) may attend to a key (third axis):

        - `encoder`, of shape `(batch_size, source_length, source_length)`: self-attention of the encoder,
        - `decoder`, of shape `(batch_size, target_length, target_length)`: self-attention of the decoder,
        - `cross`, of shape `(batch_size, target_length, source_length)`: attention of the decoder to the encoder.

    >>> from hf_depth import DepthConfig, DepthForConditionalGeneration
    >>> size = {"vocab_size": 64, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    >>> config = DepthConfig(**size, first_sentence_token_id=40, num_sentence_tokens=20, eosen_token_id=60)
    >>> model = DepthForConditionalGeneration(config)
    >>> masks = attention_masks(model, torch.tensor([[41, 5, 40, 6]]), torch.tensor([[0, 40, 6]]))
    >>> masks["encoder"][0].int().tolist()
    [[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 1, 1], [1, 1, 1, 1]]
    >>> masks["cross"][0].int().tolist()
    [[1, 1, 1, 1], [1, 0, 1, 0], [1, 1, 1, 1]]
    """
    seen = {}

    def record(kind):
        return lambda module, args, kwargs: seen.update({kind: kwargs["mask"]})

    decoder_layer = model.decoder.block[0].layer
    attentions = {
        "encoder": model.encoder.block[0].layer[0].SelfAttention,
        "decoder": decoder_layer[0].SelfAttention,
        "cross": decoder_layer[1].EncDecAttention,
    }
    with ExitStack() as hooks:
        for kind, attention in attentions.items():
            hooks.callback(attention.register_forward_pre_hook(record(kind), with_kwargs=True).remove)
        model(input_ids=input_ids, attention_mask=attention_mask, decoder_input_ids=decoder_input_ids, use_cache=False)
    source, target = input_ids.shape[1], decoder_input_ids.shape[1]
    shapes = {"encoder": (source, source), "decoder": (target, target), "cross": (target, source)}
    return {kind: _dense(seen[kind], kind, (len(input_ids), *shapes[kind])) for kind in attentions}


def _dense(mask: torch.Tensor | None, kind: str, shape: tuple[int, int, int]) -> torch.BoolTensor:
    """A mask as booleans of shape (B, Q, K), whichever attention implementation it was made for."""
    batch_size, queries, keys = shape
    if mask is None:  # sdpa: all keys, in the decoder all up to the query
        mask = torch.ones(queries, keys, dtype=torch.bool)
        mask = (mask.tril() if kind == "decoder" else mask)[None, None]
    elif is_compact(mask):
        mask = expand_mask(mask, queries)
    elif mask.dtype != torch.bool:  # eager: what is added to the scores
        mask = mask == 0
    return mask.expand(batch_size, 1, queries, keys)[:, 0].cpu()


def plot_attention_masks(
    path: str | os.PathLike,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    input_ids: torch.LongTensor,
    decoder_input_ids: torch.LongTensor,
) -> None:
    """
    Draw the three masks of one example, each row a token that attends, each column one that is attended to, and save
    them as a picture. Its `Description` has the masks as characters: `#` for attention, `.` for none.

    Args:
        path (`str` or `os.PathLike`): file to write, `.svg` or `.png`.
        model (`PreTrainedModel`): DEPTH, T5 or UMT5.
        tokenizer (`PreTrainedTokenizerBase`): the model's, which names the tokens.
        input_ids (`torch.LongTensor` of shape `(source_length,)`): encoder input.
        decoder_input_ids (`torch.LongTensor` of shape `(target_length,)`): decoder input: the labels, shifted to the
            right.
    """
    masks = attention_masks(model, input_ids[None], decoder_input_ids[None])
    masks = {kind: mask[0] for kind, mask in masks.items()}
    source, target = (tokenizer.convert_ids_to_tokens(ids.tolist()) for ids in (input_ids, decoder_input_ids))
    metadata = {"Description": describe_masks(masks)} | ({"Date": None} if Path(path).suffix == ".svg" else {})
    import_matplotlib()
    from matplotlib import rc_context

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "hf_depth"}):  # text stays text: a small, constant file
        masks_figure(masks, source, target).savefig(path, dpi=90, metadata=metadata)


def describe_masks(masks: dict[str, torch.BoolTensor]) -> str:
    """The masks of one example as lines of `#` (may attend) and `.`, each mask after its name."""
    lines = []
    for kind, mask in masks.items():
        lines += [kind, *("".join(".#"[value] for value in row) for row in mask.int().tolist())]
    return "\n".join(lines)


def masks_figure(
    masks: dict[str, torch.BoolTensor], source_tokens: Sequence[str], target_tokens: Sequence[str]
) -> "Figure":
    """
    The picture of [`plot_attention_masks`] as a matplotlib figure.

    Args:
        masks (`dict[str, torch.BoolTensor]`): of [`attention_masks`], of a single example: `(queries, keys)`.
        source_tokens, target_tokens (`Sequence[str]`): what the tokens of encoder and decoder input are called.
    """
    import_matplotlib()
    from matplotlib.colors import ListedColormap

    colors = ListedColormap(COLORS)
    source, target = len(source_tokens), len(target_tokens)
    cell = 0.23  # inches
    figure = new_figure(cell * (2 * source + target) + 4, cell * max(source, target) + 2)
    panels = figure.subplots(1, 3, width_ratios=[source, target, source])
    tokens = {
        "encoder": (source_tokens, source_tokens),
        "decoder": (target_tokens, target_tokens),
        "cross": (target_tokens, source_tokens),
    }
    for axes, (kind, mask) in zip(panels, masks.items(), strict=True):
        queries, keys = tokens[kind]
        is_sentence = torch.tensor([token.startswith("<sent_") for token in queries])
        cells = mask.int() * (1 + is_sentence.int())[:, None]
        axes.imshow(cells.numpy(), cmap=colors, vmin=0, vmax=2)
        axes.set_xticks(range(len(keys)), keys, rotation=90, fontsize=8)
        axes.set_yticks(range(len(queries)), queries, fontsize=8)
        edges = {"colors": "0.8", "linewidth": 0.5}
        axes.vlines([edge - 0.5 for edge in range(len(keys))], -0.5, len(queries) - 0.5, **edges)
        axes.hlines([edge - 0.5 for edge in range(len(queries))], -0.5, len(keys) - 0.5, **edges)
        axes.tick_params(length=0)
        axes.set(title=TITLES[kind], xlabel="attended to", ylabel="attends" if kind == "encoder" else None)
    return figure
