"""[`load_model`]: a model that fits a tokenizer, from scratch or of a checkpoint."""

import os
from typing import Any

import torch
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, T5Config

from ..data.tokenization import eosen_token_id, sentence_token_ids
from .configuration_depth import DepthConfig
from .modeling_depth import DepthForConditionalGeneration, T5ForConditionalGeneration

MODEL_TYPES = {
    "depth": (DepthConfig, DepthForConditionalGeneration),
    "t5": (T5Config, T5ForConditionalGeneration),
}
# An embedding of a multiple of 128 rows is what T5 has (32,128 rows for 32,100 tokens) and what tensor cores like.
ROWS_MULTIPLE = 128

SIZE_FIELDS = (
    "vocab_size",
    "d_model",
    "d_kv",
    "d_ff",
    "num_layers",
    "num_decoder_layers",
    "num_heads",
    "feed_forward_proj",
    "tie_word_embeddings",
)
# What a configuration file says that is no choice of the model's author, or follows from another field.
NOT_INHERITED = ("model_type", "architectures", "auto_map", "is_gated_act", "dense_act_fn", "scale_decoder_outputs")
SENTENCE_FIELDS = ("first_sentence_token_id", "num_sentence_tokens", "eosen_token_id")
DEPTH_FIELDS = (*SENTENCE_FIELDS, *(f"hierarchical_{part}_mask" for part in ("encoder", "decoder", "cross")))
# google/t5-v1_1-small without its dropout: T5 v1.1 was pre-trained with none.
SCRATCH_DEFAULTS = {
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 1024,
    "num_layers": 8,
    "num_heads": 6,
    "dropout_rate": 0.0,
    "feed_forward_proj": "gated-gelu",
    "tie_word_embeddings": False,
}


def load_model(
    name_or_config: str | os.PathLike | PretrainedConfig | None,
    tokenizer: PreTrainedTokenizerBase,
    *,
    model_type: str | None = None,
    attn_implementation: str = "sdpa",
    cache_dir: str | None = None,
    revision: str = "main",
    **config_changes: Any,
) -> PreTrainedModel:
    """
    A model that fits a tokenizer, in float32: every id has a row of the embeddings, and for DEPTH the ids of the
    sentence tokens stand in the configuration of the model, of its encoder and of its decoder.

    Args:
        name_or_config: a checkpoint of a T5 or a DEPTH model (folder or Hub), the configuration of a model from
            scratch, or `None` for a T5 v1.1 from scratch, small unless `config_changes` say otherwise.
        tokenizer: what the model will read.
        model_type: `"depth"` or `"t5"`; by default what the checkpoint or the configuration is, else `"depth"`.
        attn_implementation: `"sdpa"`, `"eager"` or `"flex_attention"`.
        cache_dir, revision: of a checkpoint on the Hub.
        config_changes: fields of [`DepthConfig`] or `T5Config` to set, such as `dropout_rate=0.1`.

    Returns:
        [`DepthForConditionalGeneration`] or [`T5ForConditionalGeneration`].

    Raises:
        `ValueError`: if the checkpoint is no T5, if the tokenizer has no sentence tokens for a DEPTH model, or if
            `vocab_size` is smaller than the tokenizer.
    """
    hub = {"cache_dir": cache_dir, "revision": revision}
    is_checkpoint = isinstance(name_or_config, str | os.PathLike)
    if is_checkpoint:
        config = AutoConfig.from_pretrained(name_or_config, **hub)
    else:
        config = name_or_config
    model_type = model_type or (config_model_type(config) if config is not None else "depth")
    config_class, model_class = MODEL_TYPES[model_type]
    config = _config(config, config_class, tokenizer, config_changes)
    if not is_checkpoint:
        _check_vocabulary(config.vocab_size, tokenizer)
        return model_class._from_config(config, attn_implementation=attn_implementation)
    sentence_ids = {name: getattr(config, name) for name in SENTENCE_FIELDS if hasattr(config, name)}
    too_small = config.vocab_size < len(tokenizer)
    if too_small and sentence_ids:
        # The sentence tokens get their rows below; until then any ids do.
        config.update({"first_sentence_token_id": 0, "eosen_token_id": 0})
    model = model_class.from_pretrained(
        name_or_config, config=config, dtype=torch.float32, attn_implementation=attn_implementation, **hub
    )
    if too_small:
        model.resize_token_embeddings(len(tokenizer), pad_to_multiple_of=ROWS_MULTIPLE)
        for part in (model, model.encoder, model.decoder):  # each has a copy of its own
            part.config.update(sentence_ids)
    return model


def checkpoint_model_type(name_or_path: str | os.PathLike, **hub_arguments: Any) -> str:
    """
    What kind of model a checkpoint is: a key of `MODEL_TYPES`.

    Args:
        name_or_path: folder or name on the Hub.
        hub_arguments: for `AutoConfig.from_pretrained`.

    Raises:
        `ValueError`: if it is none of them.
    """
    return config_model_type(AutoConfig.from_pretrained(name_or_path, **hub_arguments))


def config_model_type(config: PretrainedConfig) -> str:
    """
    What kind of model a configuration is of: a key of `MODEL_TYPES`.

    Raises:
        `ValueError`: if it is none of them.
    """
    if config.model_type not in MODEL_TYPES:
        source = f"{config.name_or_path} is" if config.name_or_path else "The configuration is that of"
        raise ValueError(
            f"{source} a model of the kind {config.model_type!r}, not {' or '.join(MODEL_TYPES)}. Name another "
            "checkpoint."
        )
    return config.model_type


def config_values(config: PretrainedConfig) -> dict:
    """The fields of a configuration, among them `tie_word_embeddings` as the model's author chose it."""
    values = config.to_dict()
    # Reading a T5 v1.1, transformers 5 turns `tie_word_embeddings=False` into `True` and this field.
    if values.get("scale_decoder_outputs") is False:
        values["tie_word_embeddings"] = False
    return values


def _config(source, config_class, tokenizer, changes):
    """The configuration of the checkpoint, of the user, or of a T5 v1.1, with changes and the ids of the tokenizer."""
    if source is not None:
        # A DEPTH model reads any T5's configuration, so the class that the file names does not matter.
        values = config_values(source)
        for name in NOT_INHERITED:
            values.pop(name, None)
    else:
        values = SCRATCH_DEFAULTS | {"vocab_size": _rounded_up(len(tokenizer))}
    values |= changes
    if "num_layers" in changes and "num_decoder_layers" not in changes:
        values.pop("num_decoder_layers", None)
    values |= {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    values.setdefault("decoder_start_token_id", tokenizer.pad_token_id)
    if config_class is DepthConfig:
        ids = sentence_token_ids(tokenizer)
        values |= dict(zip(SENTENCE_FIELDS, (int(ids[0]), len(ids), eosen_token_id(tokenizer)), strict=True))
    else:
        values = {name: value for name, value in values.items() if name not in DEPTH_FIELDS}
    return config_class(**values)


def _check_vocabulary(vocab_size, tokenizer):
    if vocab_size < len(tokenizer):
        raise ValueError(
            f"`--vocab_size` {vocab_size} is smaller than the tokenizer, which has {len(tokenizer)} tokens with the "
            f"sentinels and sentence tokens. Use at least {_rounded_up(len(tokenizer))}, or leave the argument out."
        )


def _rounded_up(size: int) -> int:
    return -(-size // ROWS_MULTIPLE) * ROWS_MULTIPLE
