"""Which model and tokenizer a script works with: the arguments, and how they become objects."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from itertools import islice
from pathlib import Path

import torch
from transformers import (
    AutoConfig,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    T5Config,
    TrainingArguments,
)

from . import tokenization
from .configuration_depth import DepthConfig
from .corpus import train_tokenizer
from .modeling_depth import DepthForConditionalGeneration, T5ForConditionalGeneration
from .tokenization import (
    NUM_SENTENCE_TOKENS,
    SENTENCE_TOKENS,
    add_sentence_tokens,
    eosen_token_id,
    sentence_token_ids,
)

logger = logging.getLogger(__name__)

MODEL_TYPES = {
    "depth": (DepthConfig, DepthForConditionalGeneration),
    "t5": (T5Config, T5ForConditionalGeneration),
}
# An embedding of a multiple of 128 rows is what T5 has (32,128 rows for 32,100 tokens) and what tensor cores like.
ROWS_MULTIPLE = 128

DEFAULT_VOCAB_SIZE = 4096  # of a vocabulary trained here
MAX_TOKENIZER_DOCUMENTS = 200_000


@dataclass
class ModelArguments:
    """
    A checkpoint to start from, or the size of a model from scratch: T5 v1.1 unless its fields say otherwise.
    """

    model_type: str = field(
        default="depth", metadata={"help": "`depth`, or `t5` for the baseline.", "choices": list(MODEL_TYPES)}
    )
    model_name_or_path: str | None = field(
        default=None,
        metadata={"help": "T5 or DEPTH checkpoint to continue from (folder or Hub). Default: from scratch."},
    )
    config_name: str | None = field(
        default=None, metadata={"help": "Configuration of a model from scratch (folder or Hub)."}
    )
    tokenizer_name: str | None = field(
        default=None,
        metadata={
            "help": "Tokenizer (folder or Hub). Default: the checkpoint's; from scratch, one is trained on the corpus."
        },
    )
    cache_dir: str | None = field(default=None, metadata={"help": "Where downloads from the Hub are kept."})
    model_revision: str = field(default="main", metadata={"help": "Branch, tag or commit of the checkpoint."})
    attn_implementation: str = field(
        default="sdpa",
        metadata={"help": "`sdpa`, `eager` or `flex_attention`.", "choices": ["sdpa", "eager", "flex_attention"]},
    )
    num_sentence_tokens: int | None = field(
        default=None, metadata={"help": "Sentence tokens of a DEPTH model (default: the tokenizer's, or 20)."}
    )
    hierarchical_encoder_mask: bool | None = field(
        default=None,
        metadata={"help": "Encoder: false: sentence tokens attend to all, not to their own sentence only."},
    )
    hierarchical_decoder_mask: bool | None = field(
        default=None, metadata={"help": "Decoder: false: sentence tokens attend to all earlier tokens."}
    )
    hierarchical_cross_mask: bool | None = field(
        default=None, metadata={"help": "Cross-attention: false: sentence tokens attend to all tokens."}
    )
    # Fields of T5Config, for a model from scratch; `None` keeps the value of `config_name` or the default beside it.
    vocab_size: int | None = field(
        default=None,
        metadata={"help": "Rows of the embedding; also tokens of a vocabulary trained here, with sentence tokens."},
    )
    d_model: int | None = field(default=None, metadata={"help": "Width of the model (default 512)."})
    d_kv: int | None = field(default=None, metadata={"help": "Width of an attention head (default 64)."})
    d_ff: int | None = field(default=None, metadata={"help": "Width of the feed-forward layers (default 1024)."})
    num_layers: int | None = field(default=None, metadata={"help": "Layers of the encoder (default 8)."})
    num_decoder_layers: int | None = field(
        default=None, metadata={"help": "Layers of the decoder (default: as encoder)."}
    )
    num_heads: int | None = field(default=None, metadata={"help": "Attention heads (default 6)."})
    dropout_rate: float | None = field(
        default=None, metadata={"help": "Dropout (default: 0.0 from scratch, the checkpoint's otherwise)."}
    )
    feed_forward_proj: str | None = field(
        default=None, metadata={"help": "`gated-gelu` (v1.1, default) or `relu` (v1.0)."}
    )
    tie_word_embeddings: bool | None = field(
        default=None,
        metadata={"help": "true: the head is the scaled embedding (v1.0); false (default): its own (v1.1)."},
    )

    def __post_init__(self):
        for name in SIZE_FIELDS:
            value = getattr(self, name)
            if type(value) is int and value < 1:
                raise ValueError(f"`--{name}` must be at least 1, got {value}.")
        if self.dropout_rate is not None and not 0 <= self.dropout_rate < 1:
            raise ValueError(f"`--dropout_rate` must lie between 0 and 1, got {self.dropout_rate}.")
        if self.model_name_or_path is not None:
            _check_folder(self.model_name_or_path)
            given = [name for name in SIZE_FIELDS if getattr(self, name) is not None]
            if given:
                raise ValueError(
                    f"`--{given[0]}` sizes a model from scratch, but `--model_name_or_path {self.model_name_or_path}` "
                    "starts from a checkpoint, which has its own size. Leave one of them out."
                )


@dataclass
class FineTuningModelArguments(ModelArguments):
    """[`ModelArguments`] of which a checkpoint's own kind is the default."""

    model_type: str | None = field(
        default=None,
        metadata={"help": "`depth` or `t5` (default: what the checkpoint is; depth from scratch)."}
        | {"choices": list(MODEL_TYPES)},
    )
    train_from_scratch_if_missing: bool = field(
        default=False,
        metadata={"help": "If there is no folder `model_name_or_path`, build the model that the sizes describe."},
    )

    def __post_init__(self):
        self.missing_checkpoint = None
        if self.train_from_scratch_if_missing and self.model_name_or_path is not None:
            if Path(self.model_name_or_path).exists():
                for name in SIZE_FIELDS:  # of the model that would be built otherwise
                    setattr(self, name, None)
            else:
                self.missing_checkpoint, self.model_name_or_path = self.model_name_or_path, None
        super().__post_init__()


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


def _check_folder(name_or_path: str) -> None:
    """Raise if what can only be a folder is none; the Hub would be asked for it, and answer in its own words."""
    is_path = name_or_path.startswith(("/", ".", "~")) or name_or_path.count("/") > 1
    if is_path and not Path(name_or_path).is_dir():
        raise ValueError(
            f"`--model_name_or_path {name_or_path}`: there is no such folder (nor such a name on the Hub)."
        )


def load_tokenizer(model_args: ModelArguments) -> PreTrainedTokenizerBase | None:
    """
    The tokenizer that the arguments name, with sentence tokens for a DEPTH model; `None` if one is to be trained.
    """
    name = model_args.tokenizer_name or model_args.model_name_or_path or model_args.config_name
    if name is None:
        return None
    tokenizer = tokenization.load_tokenizer(name, **_hub_arguments(model_args))
    return with_sentence_tokens(tokenizer, model_args)


def own_tokenizer(
    texts: Iterable[str | None], model_args: ModelArguments, training_args: TrainingArguments
) -> PreTrainedTokenizerBase:
    """
    A vocabulary trained on texts by the first process, and read from `output_dir` by all.

    Args:
        texts: the training documents, of which at most `MAX_TOKENIZER_DOCUMENTS` are read.
    """
    folder = Path(training_args.output_dir, "tokenizer")
    # Room for `<sent_i>` and `<eosen>`, also for a T5: so both kinds of model share one vocabulary.
    num_added = (model_args.num_sentence_tokens or NUM_SENTENCE_TOKENS) + 1
    vocab_size = (model_args.vocab_size or DEFAULT_VOCAB_SIZE) - num_added
    with training_args.main_process_first(local=False, desc="training a tokenizer"):
        if training_args.process_index == 0:
            logger.info(f"Training a vocabulary of {vocab_size} tokens (and {num_added} for sentences) on the text")
            texts = islice(texts, MAX_TOKENIZER_DOCUMENTS)
            train_tokenizer(texts, vocab_size, folder, allow_fewer=model_args.vocab_size is None)
    return with_sentence_tokens(AutoTokenizer.from_pretrained(folder), model_args)


def with_sentence_tokens(tokenizer: PreTrainedTokenizerBase, model_args: ModelArguments) -> PreTrainedTokenizerBase:
    """`tokenizer`, with sentence tokens if the model is a DEPTH model."""
    if model_args.model_type != "depth":
        return tokenizer
    has_them = SENTENCE_TOKENS[0] in tokenizer.get_vocab()
    if model_args.num_sentence_tokens is None and has_them:
        return tokenizer
    return add_sentence_tokens(tokenizer, model_args.num_sentence_tokens or NUM_SENTENCE_TOKENS)


def checkpoint_model_type(model_args: ModelArguments) -> str:
    """
    What kind of model a checkpoint is: a key of `MODEL_TYPES`. Without a checkpoint, `depth`.

    Raises:
        `ValueError`: if it is none of them.
    """
    if model_args.model_name_or_path is None:
        return "depth"
    model_type = AutoConfig.from_pretrained(model_args.model_name_or_path, **_hub_arguments(model_args)).model_type
    if model_type not in MODEL_TYPES:
        raise ValueError(
            f"`--model_name_or_path {model_args.model_name_or_path}` is a model of the kind {model_type!r}, not "
            f"{' or '.join(MODEL_TYPES)}. Name another checkpoint."
        )
    return model_type


def build_model(model_args: ModelArguments, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """
    The model that the arguments name, in float32, with room for all ids of the tokenizer.

    Args:
        tokenizer: what the model will read; gives the ids of the sentence tokens.

    Returns:
        [`DepthForConditionalGeneration`] or [`T5ForConditionalGeneration`].

    Raises:
        `ValueError`: if `--vocab_size` is smaller than the tokenizer.
    """
    config_class, model_class = MODEL_TYPES[model_args.model_type]
    config = _config(model_args, config_class, tokenizer)
    if model_args.model_name_or_path is None:
        _check_vocabulary(config.vocab_size, tokenizer)
        return model_class._from_config(config, attn_implementation=model_args.attn_implementation)
    sentence_ids = {name: getattr(config, name) for name in SENTENCE_FIELDS if hasattr(config, name)}
    too_small = config.vocab_size < len(tokenizer)
    if too_small and sentence_ids:
        # The sentence tokens get their rows below; until then any ids do.
        config.update({"first_sentence_token_id": 0, "eosen_token_id": 0})
    model = model_class.from_pretrained(
        model_args.model_name_or_path,
        config=config,
        dtype=torch.float32,
        attn_implementation=model_args.attn_implementation,
        **_hub_arguments(model_args),
    )
    if too_small:
        model.resize_token_embeddings(len(tokenizer), pad_to_multiple_of=ROWS_MULTIPLE)
        for part in (model, model.encoder, model.decoder):  # each has a copy of its own
            part.config.update(sentence_ids)
    return model


def config_values(config: PretrainedConfig) -> dict:
    """The fields of a configuration, among them `tie_word_embeddings` as the model's author chose it."""
    values = config.to_dict()
    # Reading a T5 v1.1, transformers 5 turns `tie_word_embeddings=False` into `True` and this field.
    if values.get("scale_decoder_outputs") is False:
        values["tie_word_embeddings"] = False
    return values


def _config(model_args, config_class, tokenizer):
    """The configuration of the checkpoint, of `config_name`, or of a T5 v1.1, with the arguments' changes."""
    source = model_args.model_name_or_path or model_args.config_name
    values = {}
    if source is not None:
        # A DEPTH model reads any T5's configuration, so the class that the file names does not matter.
        values = config_values(AutoConfig.from_pretrained(source, **_hub_arguments(model_args)))
        for name in NOT_INHERITED:
            values.pop(name, None)
    else:
        values |= SCRATCH_DEFAULTS | {"vocab_size": _rounded_up(len(tokenizer))}
    names = {f.name for f in fields(model_args)} & set(config_class().to_dict())
    values |= {name: getattr(model_args, name) for name in names if getattr(model_args, name) is not None}
    if model_args.model_name_or_path is None and model_args.dropout_rate is None:
        values["dropout_rate"] = SCRATCH_DEFAULTS["dropout_rate"]
    if model_args.num_layers is not None and model_args.num_decoder_layers is None:
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


def _hub_arguments(model_args) -> dict:
    return {"cache_dir": model_args.cache_dir, "revision": model_args.model_revision}
