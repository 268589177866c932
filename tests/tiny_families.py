"""A tiny encoder-decoder of each family of transformers, with a tokenizer such as the family has."""

import functools
import json
import string

from sentencepiece.sentencepiece_model_pb2 import ModelProto
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import (
    BartConfig,
    ByT5Tokenizer,
    LongT5Config,
    MBartConfig,
    MT5Config,
    PegasusConfig,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    SwitchTransformersConfig,
    T5Config,
    T5Gemma2Config,
    T5GemmaConfig,
    T5Tokenizer,
    UMT5Config,
)
from transformers.models.t5gemma.configuration_t5gemma import T5GemmaModuleConfig
from transformers.models.t5gemma2.configuration_t5gemma2 import (
    T5Gemma2DecoderConfig,
    T5Gemma2EncoderConfig,
    T5Gemma2TextConfig,
)

from helpers import SENTENCES, tiny_mt5_tokenizer, tiny_tokenizer, tiny_vocabulary

V = 512
T5 = {"vocab_size": V, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 2}
T5 |= {"dropout_rate": 0.0, "decoder_start_token_id": 0}
STACK = {"layers": 1, "attention_heads": 2, "ffn_dim": 16}
STACKS = {f"{part}_{name}": size for part in ("encoder", "decoder") for name, size in STACK.items()}
BART = {"vocab_size": V, "d_model": 16, "dropout": 0.0, "max_position_embeddings": 128, **STACKS}
GEMMA = {"vocab_size": V, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
GEMMA |= {"num_key_value_heads": 1, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 16}
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
VISION |= {"image_size": 16, "patch_size": 8}


def _pieces() -> list[tuple[str, float]]:
    return [(piece.piece, piece.score) for piece in ModelProto.FromString(tiny_vocabulary()).pieces]


def tokenizer_without_sentinels() -> PreTrainedTokenizerBase:
    """As mBART has it: pieces, and nothing that is free."""
    return T5Tokenizer(vocab=_pieces(), extra_ids=0)


def pegasus_tokenizer() -> PreTrainedTokenizerBase:
    """With `<unk_2>` … `<unk_102>`, which nothing uses."""
    unused = [f"<unk_{number}>" for number in range(2, 103)]
    vocabulary = _pieces() + [(token, 0.0) for token in unused]
    return T5Tokenizer(vocab=vocabulary, extra_ids=0, extra_special_tokens=unused)


def bart_tokenizer() -> PreTrainedTokenizerBase:
    """Bytes in pairs, with `<s>`, `<pad>`, `</s>`, `<unk>`, `<mask>` and no token that is free."""
    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet)
    backend.train_from_iterator(SENTENCES, trainer)
    names = ("bos_token", "pad_token", "eos_token", "unk_token", "mask_token")
    return PreTrainedTokenizerFast(tokenizer_object=backend, **dict(zip(names, special, strict=True)))


def gemma_tokenizer() -> PreTrainedTokenizerBase:
    """Pairs over whole texts, with `<unused0>` … `<unused98>`, no special tokens, and ends of other names."""
    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    backend.decoder = decoders.Replace("▁", " ")
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    unused = [f"<unused{number}>" for number in range(99)]
    alphabet = [*string.ascii_letters, *string.punctuation, *string.digits]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=[*special, *unused], initial_alphabet=alphabet)
    backend.train_from_iterator(SENTENCES, trainer)
    state = json.loads(backend.to_str())
    for token in state["added_tokens"]:
        token["special"] = token["content"] in special
    backend = Tokenizer.from_str(json.dumps(state))
    names = ("pad_token", "eos_token", "bos_token", "unk_token")
    return PreTrainedTokenizerFast(tokenizer_object=backend, **dict(zip(names, special, strict=True)))


def t5gemma_config() -> PreTrainedConfig:
    encoder, decoder = T5GemmaModuleConfig(**GEMMA), T5GemmaModuleConfig(**GEMMA, cross_attention_hidden_size=16)
    return T5GemmaConfig(encoder=encoder, decoder=decoder, dropout_rate=0.0, vocab_size=V)


def t5gemma2_config() -> PreTrainedConfig:
    images = {"image_token_index": 3, "boi_token_index": 3, "eoi_token_index": 3}
    text = T5Gemma2TextConfig(**GEMMA).to_dict()
    encoder = T5Gemma2EncoderConfig(text_config=text, vision_config=VISION, **images)
    return T5Gemma2Config(encoder=encoder, decoder=T5Gemma2DecoderConfig(**GEMMA), image_token_index=3)


# The configuration and the tokenizer of each family, by its name.
FAMILIES = {
    "t5": (functools.partial(T5Config, **T5), tiny_tokenizer),
    "mt5": (functools.partial(MT5Config, **T5, tie_word_embeddings=False), tiny_mt5_tokenizer),
    "umt5": (functools.partial(UMT5Config, **T5), tiny_tokenizer),
    "byt5": (functools.partial(T5Config, **T5, feed_forward_proj="gated-gelu"), ByT5Tokenizer),
    "longt5": (functools.partial(LongT5Config, **T5, local_radius=7), tiny_tokenizer),
    "switch": (
        functools.partial(
            SwitchTransformersConfig, **T5, num_experts=2, num_sparse_encoder_layers=1, router_jitter_noise=0
        ),
        tiny_tokenizer,
    ),
    "t5gemma": (t5gemma_config, gemma_tokenizer),
    "t5gemma2": (t5gemma2_config, gemma_tokenizer),
    "bart": (functools.partial(BartConfig, **BART), bart_tokenizer),
    "mbart": (functools.partial(MBartConfig, **BART), tokenizer_without_sentinels),
    "pegasus": (functools.partial(PegasusConfig, **BART), pegasus_tokenizer),
}
