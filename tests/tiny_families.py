"""A tiny encoder-decoder of each family of transformers, with a tokenizer such as the family has."""

import functools
import json
import string
from collections.abc import Callable

from sentencepiece.sentencepiece_model_pb2 import ModelProto
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoConfig, ByT5Tokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast, T5Tokenizer

from helpers import SENTENCES, tiny_mt5_tokenizer, tiny_tokenizer, tiny_vocabulary
from tiny_models import BART_SIZE, GEMMA_SIZE, VISION_SIZE

V = 512
T5 = {"vocab_size": V, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 2}
T5 |= {"dropout_rate": 0.0, "decoder_start_token_id": 0}
LAYERS = {"encoder_layers": 1, "decoder_layers": 1}
BART = {**BART_SIZE, **LAYERS, "vocab_size": V, "max_position_embeddings": 128}
GEMMA = {**GEMMA_SIZE, "vocab_size": V, "num_hidden_layers": 2, "sliding_window": 16}
IMAGES = {"image_token_index": 3, "boi_token_index": 3, "eoi_token_index": 3}
T5GEMMA = {"encoder": GEMMA, "decoder": {**GEMMA, "cross_attention_hidden_size": 32}, "vocab_size": V}
T5GEMMA2 = {"encoder": {"text_config": GEMMA, "vision_config": VISION_SIZE, **IMAGES}, "decoder": GEMMA}
SWITCH = {**T5, "num_experts": 2, "num_sparse_encoder_layers": 1, "router_jitter_noise": 0}


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


def family(tokenizer: Callable[[], PreTrainedTokenizerBase], model_type: str, **fields):
    """What makes a configuration, and what makes a tokenizer."""
    return functools.partial(AutoConfig.for_model, model_type, **fields), tokenizer


FAMILIES = {
    "t5": family(tiny_tokenizer, "t5", **T5),
    "mt5": family(tiny_mt5_tokenizer, "mt5", **T5, tie_word_embeddings=False),
    "umt5": family(tiny_tokenizer, "umt5", **T5),
    "byt5": family(ByT5Tokenizer, "t5", **T5, feed_forward_proj="gated-gelu"),
    "longt5": family(tiny_tokenizer, "longt5", **T5, local_radius=7),
    "switch": family(tiny_tokenizer, "switch_transformers", **SWITCH),
    "t5gemma": family(gemma_tokenizer, "t5gemma", **T5GEMMA, dropout_rate=0.0),
    "t5gemma2": family(gemma_tokenizer, "t5gemma2", **T5GEMMA2, image_token_index=3),
    "bart": family(bart_tokenizer, "bart", **BART),
    "mbart": family(tokenizer_without_sentinels, "mbart", **BART),
    "pegasus": family(pegasus_tokenizer, "pegasus", **BART),
    "m2m_100": family(tokenizer_without_sentinels, "m2m_100", **BART),
}
