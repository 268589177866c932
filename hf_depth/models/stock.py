"""
Encoder-decoders of transformers without a class here: LongT5, Switch, T5Gemma, BART, Pegasus and others.

Nothing here asks for the family of a model. A model needs an encoder, a decoder, a head, and the ids of `</s>`, of
padding and of the token that the decoder starts with.
"""

import os
from collections.abc import Iterator
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING

from ..errors import UserError, suggestion

SPECIAL_IDS = ("eos_token_id", "pad_token_id", "bos_token_id")
# T5's embedding has a multiple of 128 rows (32,128 for 32,100 tokens), and tensor cores like that.
ROWS_MULTIPLE = 128


def vocabulary_size(config: PreTrainedConfig) -> int:
    """The rows of the output head. Some families keep them in the configuration of the decoder."""
    return config.get_text_config(decoder=True).vocab_size


def parts_with_vocabulary(config: PreTrainedConfig) -> Iterator[PreTrainedConfig]:
    """A configuration, and the configurations inside it that have a vocabulary."""
    yield config
    for part in vars(config).values():
        if isinstance(part, PreTrainedConfig) and hasattr(part.get_text_config(), "vocab_size"):
            yield from parts_with_vocabulary(part)


def decoder_inputs(model: PreTrainedModel, labels: torch.Tensor) -> torch.Tensor:
    """
    Labels (B, T), padded with -100, shifted to the right, after the start token. Some families shift otherwise: an
    mBART starts with the last token of the target, which `generate()` does not know.
    """
    decoder = model.config.get_text_config(decoder=True)
    shifted = labels.roll(1, dims=-1)
    shifted[:, 0] = decoder_start_token_id(model)
    return shifted.masked_fill(shifted == -100, 0 if decoder.pad_token_id is None else decoder.pad_token_id)


def decoder_start_token_id(model: PreTrainedModel) -> int:
    """What the decoder starts with, in training as in `generate()`. Raises `ValueError` if nothing says so."""
    for source in (model.config, getattr(model, "generation_config", None)):
        if getattr(source, "decoder_start_token_id", None) is not None:
            return source.decoder_start_token_id
    start = getattr(model.config.get_text_config(decoder=True), "bos_token_id", None)
    if start is None:
        raise UserError(
            f"The configuration of the {type(model).__name__} has no `decoder_start_token_id`, with which its targets "
            "begin. Load the model by `load_model(..., tokenizer)`, or set it, mostly to the id of `</s>` or padding."
        )
    return start


def check_length(length: int, places: int | None, what: str = "An input") -> None:
    """Raise if a model has not enough places for these tokens: a GPU would stop without a reason."""
    if places is not None and length > places:
        raise UserError(
            f"{what} has {length} tokens, but the model knows {places} places of a text (`max_position_embeddings`). "
            "Cut it, or lower `max_source_length` or `max_target_length`."
        )


def number_of_places(stack: nn.Module) -> int | None:
    """The number of positions that an encoder or a decoder has embeddings for, as in BART; `None` for any number."""
    table = getattr(stack, "embed_positions", None)
    return table.num_embeddings - getattr(table, "offset", 0) if isinstance(table, nn.Embedding) else None


def load_stock_model(
    name_or_path: str | os.PathLike | None,
    config: PreTrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    attn_implementation: str,
    hub: dict[str, Any],
    changes: dict[str, Any],
) -> PreTrainedModel:
    """
    The model of transformers for a configuration, from a checkpoint or from scratch (`None`). Each token has a row in
    the embeddings. Attention is "eager" if a family has no "sdpa". `hub` goes to `from_pretrained`, `changes` into the
    configuration.
    """
    model_class = MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING[type(config)]
    if attn_implementation.startswith("depth_"):
        raise UserError(
            f"`attn_implementation` {attn_implementation!r} is for a T5 and a DEPTH made of one, not for "
            f"{config.model_type!r} models."
        )
    if attn_implementation in ("auto", "sdpa"):
        attn_implementation = "sdpa" if model_class._supports_sdpa else "eager"
    config = _changed(config, tokenizer, changes, is_checkpoint=name_or_path is not None)
    if name_or_path is None:
        model = from_scratch(model_class, config, attn_implementation)
    else:  # files of BART and Pegasus hold tables that the classes compute
        kinds = ("missing", "mismatched")
        model = load_weights(model_class, name_or_path, config, attn_implementation, hub, kinds)
    add_rows(model, tokenizer)
    generation = model.generation_config  # `generate()` starts as training does, and ends where targets end
    generation.decoder_start_token_id = model.config.decoder_start_token_id
    generation.eos_token_id, generation.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    generation.forced_bos_token_id = generation.forced_eos_token_id = None
    return model


def from_scratch(
    model_class: type[PreTrainedModel], config: PreTrainedConfig, attn_implementation: str
) -> PreTrainedModel:
    """A model of random weights, in float32."""
    # Under ZeRO-3, transformers (5.24) initializes only a part of a class with this field, which is custom code to it.
    auto_class, model_class._auto_class = model_class._auto_class, None
    try:
        return model_class._from_config(config, dtype=torch.float32, attn_implementation=attn_implementation)
    finally:
        model_class._auto_class = auto_class


def _changed(
    config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, changes: dict[str, Any], is_checkpoint: bool
) -> PreTrainedConfig:
    """The configuration with the changes, and with the special ids of the tokenizer."""
    known = config.to_dict()
    for name in changes:
        if name not in known and name not in config.attribute_map:
            raise UserError(
                f"Unknown argument `{name}` of `load_model`, for a {config.model_type!r} model."
                f"{suggestion(name, sorted(known), 'fields')}"
            )
    for name in ("eos_token", "pad_token"):
        if getattr(tokenizer, name) is None:
            raise UserError(f"The tokenizer has no `{name}`, which every target needs for its end or padding: set it.")
    start = _start_token_id(config, tokenizer, is_checkpoint)
    if changes:
        config = type(config).from_dict(known | changes)
    ids = {name: getattr(tokenizer, name) for name in SPECIAL_IDS}
    if ids["bos_token_id"] is None and not is_checkpoint:
        ids["bos_token_id"] = start
    size = vocabulary_size(config)
    if not is_checkpoint:
        size = size_for(tokenizer, size, is_given="vocab_size" in changes)
    for part in parts_with_vocabulary(config):
        for name, value in ids.items():
            if value is not None and hasattr(part, name):
                setattr(part, name, value)
        if hasattr(part, "vocab_size"):
            part.vocab_size = size
    config.decoder_start_token_id = start
    # `generate()` would force these ids into the text of BART, mBART and M2M100. Our targets begin with text.
    for name in ("forced_bos_token_id", "forced_eos_token_id"):
        if hasattr(config, name):
            setattr(config, name, None)
    return config


def _start_token_id(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, is_checkpoint: bool) -> int:
    """What a decoder starts with: for a checkpoint the id that it had, else the token of the same meaning."""
    decoder = config.get_text_config(decoder=True)
    start = getattr(config, "decoder_start_token_id", None)
    start = getattr(decoder, "bos_token_id", None) if start is None else start
    if start is None:
        return tokenizer.pad_token_id  # as in all T5s
    if is_checkpoint:
        return start
    meanings = {getattr(decoder, name, None): getattr(tokenizer, name) for name in reversed(SPECIAL_IDS)}
    meaning = meanings.get(start)
    return tokenizer.pad_token_id if meaning is None else meaning


def size_for(tokenizer: PreTrainedTokenizerBase, size: int, is_given: bool) -> int:
    """The rows of a model from scratch: `size`, or more if the tokenizer has more tokens and no size was given."""
    if size >= len(tokenizer):
        return size
    enough = -(-len(tokenizer) // ROWS_MULTIPLE) * ROWS_MULTIPLE
    if is_given:
        raise UserError(
            f"`vocab_size` {size} is smaller than the tokenizer, which has {len(tokenizer)} tokens. "
            f"Use at least {enough}, or leave the argument out."
        )
    return enough


def load_weights(
    model_class: type[PreTrainedModel],
    name_or_path: str | os.PathLike,
    config: PreTrainedConfig,
    attn_implementation: str,
    hub: dict[str, Any],
    kinds: tuple[str, ...] = ("missing", "unexpected", "mismatched"),
) -> PreTrainedModel:
    """
    The model of a checkpoint, in float32. `kinds` are the differences between weights and model that are refused.

    Raises:
        `ValueError`: if the weights cannot be read, belong to another model, or are not finite.
    """
    try:
        model, info = model_class.from_pretrained(
            name_or_path,
            config=config,
            dtype=torch.float32,
            attn_implementation=attn_implementation,
            ignore_mismatched_sizes=True,  # reported below with the others
            output_loading_info=True,
            **hub,
        )
    except (EOFError, OSError, SafetensorError, UnpicklingError) as error:
        raise UserError(
            f"The weights of {name_or_path} cannot be read: {str(error).rstrip('.')}. They are missing, or a file "
            "was not copied or written to its end: fetch them again, or name another checkpoint."
        ) from error
    keys = {kind: sorted(k if isinstance(k, str) else k[0] for k in info[f"{kind}_keys"]) for kind in kinds}
    problems = [f"{len(names)} {kind}: {', '.join(names[:5])}" for kind, names in keys.items() if names]
    if problems:
        raise UserError(
            f"The weights of {name_or_path} are not those of the {model_class.__name__} that its config.json "
            f"describes ({'; '.join(problems)}). Name a checkpoint with encoder, decoder and output head."
        )
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            raise UserError(
                f"{name} of {name_or_path} is not finite: the run that saved it had diverged, or the file is damaged. "
                "Name another checkpoint."
            )
    return model


def add_rows(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Add rows to the embeddings if the tokenizer has more tokens."""
    if vocabulary_size(model.config) >= len(tokenizer):
        return
    model.resize_token_embeddings(len(tokenizer), pad_to_multiple_of=ROWS_MULTIPLE)
    size = model.get_output_embeddings().weight.shape[0]
    for stack in (model, model.get_encoder(), model.get_decoder()):  # some have a copy of the configuration
        for part in parts_with_vocabulary(stack.config):
            if hasattr(part, "vocab_size"):
                part.vocab_size = size
