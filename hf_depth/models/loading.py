"""[`load_model`]: a model that fits a tokenizer, from scratch or from a checkpoint."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from transformers import (
    AttentionInterface,
    AutoConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    T5Config,
    UMT5Config,
)
from transformers import initialization as init
from transformers.integrations import is_deepspeed_zero3_enabled
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING

from ..data.tokenization import sentence_fields
from ..errors import UserError, suggestion
from ..ranges import SIZE_FIELDS
from .adapters import is_adapter, load_adapted
from .configuration_depth import DEPTH_CONFIGS, T5_MODEL_TYPES, DepthConfig, DepthFields
from .modeling_depth import (
    DepthForConditionalGeneration,
    T5ForConditionalGeneration,
    UMT5ForConditionalGeneration,
)
from .stock import add_rows, from_scratch, load_stock_model, load_weights, size_for

MODEL_TYPES = {
    "depth": (DepthConfig, DepthForConditionalGeneration),
    "t5": (T5Config, T5ForConditionalGeneration),
}
# The fields of a DEPTH configuration that T5 lacks.
SENTENCE_SETTINGS = tuple(DepthFields.__annotations__)
# Fields of a configuration that follow from others, or from the class of the model.
NOT_INHERITED = (
    *("model_type", "architectures", "auto_map", "dtype"),
    *("is_gated_act", "dense_act_fn", "scale_decoder_outputs"),
)
BIAS_FIELD = "relative_attention_bias_in_every_layer"
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


@contextlib.contextmanager
def _mistakes_of_users() -> Iterator[None]:
    """Make a `UserError` of what a model refuses: the files on the Hub cannot import that class."""
    try:
        yield
    except ValueError as error:
        raise error if isinstance(error, UserError) else UserError(str(error)) from error


@_mistakes_of_users()
def load_model(
    name_or_config: str | os.PathLike | PreTrainedConfig | None,
    tokenizer: PreTrainedTokenizerBase,
    *,
    model_type: str | None = None,
    attn_implementation: str = "auto",
    cache_dir: str | None = None,
    revision: str = "main",
    token: str | bool | None = None,
    quantization_config: Any = None,
    device_map: Any = None,
    **config_changes: Any,
) -> PreTrainedModel:
    """
    A model that fits a tokenizer, in float32. Every id has a row in the embeddings and in the output head, and a DEPTH
    model knows the ids of the sentence tokens. Rows are added up to a multiple of 128, and never removed.

    Args:
        name_or_config: a checkpoint (folder or Hub) of a DEPTH model or of any that `AutoModelForSeq2SeqLM` loads. A
            PEFT adapter is merged into its base. A configuration gives a model from scratch; `None` gives T5 v1.1 in
            its small size.
        tokenizer: the tokenizer that the model will read.
        model_type: `"depth"`, or `"t5"` for any model without sentence tokens. By default that of the checkpoint.
        attn_implementation: `"auto"`, `"eager"`, `"sdpa"`, or [`"depth_sdpa"`](../performance.md#attention). All
            compute the same. `"auto"` is `"depth_sdpa"` for T5s and DEPTH models of them, else `"sdpa"`.
        cache_dir, revision, token, quantization_config, device_map: as for `from_pretrained`.
        config_changes: fields of the configuration, such as `dropout_rate=0.1`. A checkpoint keeps its size.

    Returns:
        For `"depth"` [`DepthForConditionalGeneration`], or the class of another family, such as
        `DepthBartForConditionalGeneration`. For `"t5"` [`T5ForConditionalGeneration`],
        [`UMT5ForConditionalGeneration`], or a class of transformers.

    Raises:
        `ValueError`: if weights, tokenizer or `config_changes` do not fit the model.

    >>> from hf_depth import add_sentence_tokens, train_tokenizer
    >>> tokenizer = add_sentence_tokens(train_tokenizer(["Call me Ishmael."], vocab_size=200, allow_fewer=True))
    >>> model = load_model(None, tokenizer, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    >>> model.encoder.config.first_sentence_token_id == tokenizer.convert_tokens_to_ids("<sent_0>")
    True
    """
    changes = {T5Config.attribute_map.get(name, name): value for name, value in config_changes.items()}
    hub = {"cache_dir": cache_dir, "revision": revision, "token": token}
    is_checkpoint = isinstance(name_or_config, str | os.PathLike)
    if is_checkpoint and is_adapter(name_or_config, **hub):
        if quantization_config is not None:
            raise UserError(f"{name_or_config} is an adapter, for which no base is quantised (`quantization_config`).")
        options = {"attn_implementation": attn_implementation, "device_map": device_map, **changes}
        return _load_adapter(name_or_config, model_type, tokenizer, hub, options)
    source = load_config(name_or_config, **hub) if is_checkpoint else name_or_config
    how = {"quantization_config": quantization_config, "device_map": device_map}
    hub |= {name: value for name, value in how.items() if value is not None}
    model_type = model_type or ("depth" if source is None else config_model_type(source))
    if model_type not in MODEL_TYPES:
        raise UserError(f"Unknown `model_type` {model_type!r}.{suggestion(model_type, MODEL_TYPES, 'kinds')}")
    is_t5 = source is None or source.model_type in (DepthConfig.model_type, *T5_MODEL_TYPES)
    config = source if is_t5 else _of_type(source, model_type)
    name = name_or_config if is_checkpoint else None
    ids = _ids_of(tokenizer, model_type, name, source, changes)
    if is_t5:
        return _load_t5(name, source, model_type, tokenizer, attn_implementation, hub, changes, ids)
    if model_type == "depth":
        config.update(sentence_fields(tokenizer))
    return load_stock_model(name, config, tokenizer, attn_implementation, hub, changes)


def _load_adapter(name, model_type, tokenizer, hub, options):
    """A PEFT adapter, loaded by `revision` and merged into its base."""
    if model_type is None:
        with contextlib.suppress(ValueError, OSError):  # an adapter that was trained elsewhere has no config.json
            model_type = checkpoint_model_type(name, **hub)
    options |= {"model_type": model_type, **hub, "revision": "main"}
    return load_adapted(name, lambda base: load_model(base, tokenizer, **options), **hub)


def _ids_of(tokenizer, model_type, name, source, changes):
    """The fields that the tokenizer decides. Changes and a DEPTH checkpoint must agree with them."""
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    if model_type == "depth":
        ids |= sentence_fields(tokenizer)
    for field, value in ids.items():
        if changes.pop(field, value) != value:
            raise UserError(f"`{field}` of the tokenizer is {value}, which cannot be changed. Leave the argument out.")
        trained = getattr(source, field, value)
        if field in SENTENCE_SETTINGS and name is not None and trained != value:
            raise UserError(
                f"`{field}` of {name} is {trained}, but the tokenizer has {value}. The model would look for its "
                "sentence tokens in rows of the embeddings that were not trained for them. Load the tokenizer "
                f"that was saved beside the model: `load_tokenizer({str(name)!r})`."
            )
    return ids


def load_config(name_or_path: str | os.PathLike, **hub_arguments: Any) -> PreTrainedConfig:
    """The configuration of a checkpoint. Raises `ValueError` if there is no `config.json` of a model."""
    try:
        # `False`: for a type that is not known here it would ask whether to run the code of the checkpoint.
        return AutoConfig.from_pretrained(name_or_path, trust_remote_code=False, **hub_arguments)
    except (TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"{name_or_path} is no T5 and no DEPTH model, by its config.json: {reason}") from error


def checkpoint_model_type(name_or_path: str | os.PathLike, **hub_arguments: Any) -> str:
    """The kind of a checkpoint, a key of `MODEL_TYPES`. Arguments and errors: see [`load_config`]."""
    return config_model_type(load_config(name_or_path, **hub_arguments))


def config_model_type(config: PreTrainedConfig) -> str:
    """
    The kind of a model, a key of `MODEL_TYPES`. Every encoder-decoder of transformers is a `"t5"`, since it is
    pre-trained as one. Raises `ValueError` for other models.
    """
    if isinstance(config, DepthFields):
        return "depth"
    if type(config) in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING:
        return "t5"
    raise UserError(
        f"{config.name_or_path or 'The configuration'} is of the kind {config.model_type!r}, which is no "
        "encoder-decoder. Name a checkpoint that `AutoModelForSeq2SeqLM` loads, such as a T5, mT5, T5Gemma, BART or "
        "DEPTH model."
    )


def config_values(config: PreTrainedConfig) -> dict[str, Any]:
    """The fields of a T5's configuration, with `tie_word_embeddings` as the author of the model chose it."""
    values = {BIAS_FIELD: config.model_type == "umt5"} | config.to_dict()
    # For a T5 v1.1, transformers 5 turns `tie_word_embeddings=False` into `True` and this field. An mT5 is a v1.1:
    # transformers 5 may have tied its head in training, but never scaled it.
    if values.get("scale_decoder_outputs") is False or config.model_type == "mt5":
        values["tie_word_embeddings"] = False
    return values


def _load_t5(name, source, model_type, tokenizer, attn_implementation, hub, changes, ids):
    """A T5 or a DEPTH model of one, from a checkpoint, or from scratch if `name` is `None`."""
    if attn_implementation == "auto":  # what `hf_depth.kernels` has registered, if it is imported
        attn_implementation = "depth_sdpa" if "depth_sdpa" in AttentionInterface().valid_keys() else "sdpa"
    known = {*DepthConfig().to_dict(), "gradient_checkpointing"} - set(NOT_INHERITED)
    if unknown := changes.keys() - known:
        first = min(unknown)
        raise UserError(f"Unknown argument `{first}` of `load_model`.{suggestion(first, sorted(known), 'fields')}")
    values = SCRATCH_DEFAULTS if source is None else config_values(source)
    if name is not None:
        for field in (*SIZE_FIELDS, BIAS_FIELD):
            if field in changes and changes[field] != values[field]:
                raise UserError(
                    f"`{field}` is {changes[field]}, but the checkpoint has {values[field]}, and its weights fit no "
                    "other. Leave the argument out, or pass `None` or a configuration for a model from scratch."
                )
    # The fields of all T5s have the same names, whichever class the file names.
    values = {field: value for field, value in values.items() if field not in NOT_INHERITED} | changes | ids
    if "num_layers" in changes and "num_decoder_layers" not in changes:
        values.pop("num_decoder_layers", None)
    config_class, model_class = MODEL_TYPES[model_type]
    if model_type == "t5":
        bias_in_every_layer = values.pop(BIAS_FIELD, False)
        values = {field: value for field, value in values.items() if field not in SENTENCE_SETTINGS}
        if bias_in_every_layer:
            config_class, model_class = UMT5Config, UMT5ForConditionalGeneration
    if name is None:
        size = values.get("vocab_size", 0)
        config = config_class(**values | {"vocab_size": size_for(tokenizer, size, is_given="vocab_size" in changes)})
        return _initialized(model_class, config, attn_implementation)
    model = load_weights(model_class, name, config_class(**values), attn_implementation, hub)
    add_rows(model, tokenizer)
    return model


def _initialized(model_class, config, attn_implementation):
    """A model from scratch. A seed gives it the same weights in one process and under DeepSpeed ZeRO-3."""
    if is_deepspeed_zero3_enabled():  # transformers initializes it, module by module
        return from_scratch(model_class, config, attn_implementation)
    with init.no_init_weights():  # as it does there: else torch would draw numbers first
        model = from_scratch(model_class, config, attn_implementation)
    model.init_weights()
    return model


def _of_type(source, model_type):
    """The DEPTH configuration for a plain one of another family than T5, or the other way round."""
    if (model_type == "depth") == isinstance(source, DepthFields):
        return source
    fields = {name: value for name, value in source.to_dict().items() if name not in NOT_INHERITED}
    if model_type == "t5":
        fields = {name: value for name, value in fields.items() if name not in SENTENCE_SETTINGS}
        return AutoConfig.for_model(source.model_type.removeprefix("depth_"), **fields)
    if source.model_type not in DEPTH_CONFIGS:
        raise UserError(
            f"There is no DEPTH model of the kind {source.model_type!r}, only of "
            f"{', '.join(map(repr, DEPTH_CONFIGS))}. Their attention takes a mask for each pair of tokens, and tokens "
            'meet nowhere else. Give `model_type="t5"`, which is any model without sentence tokens, and an objective '
            "of T5: span corruption, a mixture of denoisers or prefix-LM."
        )
    return DEPTH_CONFIGS[source.model_type](**fields)
