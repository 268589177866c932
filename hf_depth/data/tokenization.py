"""
Text to token ids: the tokens that DEPTH adds to a T5 vocabulary, and an encoding in which nothing that is written in a
text can become a special token.
"""

import functools
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import tokenizers
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, T5Tokenizer

from ..errors import UserError

logger = logging.getLogger(__name__)

NUM_SENTENCE_TOKENS = 20
SENTENCE_PATTERN = "<sent_{}>"
SENTENCE_TOKENS = tuple(map(SENTENCE_PATTERN.format, range(NUM_SENTENCE_TOKENS)))
EOSEN_TOKEN = "<eosen>"
# T5's sentinels are tokens behind its vocabulary, mT5's are pieces of it, with the mark of the space before a word.
SENTINEL_PATTERNS = ("<extra_id_{}>", "▁<extra_id_{}>")
# Tokens that other vocabularies hold free for uses like this one, with the number of the first: those of Gemma, of
# Pegasus and of BERT. They stand in for sentinels where there are no others.
UNUSED_PATTERNS = (("<unused{}>", 0), ("<unk_{}>", 2), ("[unused{}]", 0))
NUM_SENTINELS = 100  # that are added or taken, as many as T5 has
MIN_UNUSED = 50  # Fewer unused tokens are too few for an input of 512 tokens: then sentinels are added.
_SENTINEL = re.compile(r"▁?<extra_id_\d+>|<unused\d+>|<unk_\d+>|\[unused\d+\]")
_NO_IDS = np.array([], np.int64)
_NEVER_CHOSEN = -1e6  # the score of a piece: far below that of any way to write a word in others

# Of the words whose ids an encoder keeps: some 200,000 words, or fewer long ones, in less than 100 MB.
MAX_CHARACTERS = 2_000_000
# Of the texts whose ids are held as Python's numbers, which take nine times the memory of an array.
CHARACTERS_AT_ONCE = 4_000_000
# Text whose words normalization takes one by one: ASCII, Latin letters, quotes, dashes, signs. (Other characters may
# join words or part them: control characters vanish, wide spaces are spaces, marks combine with a space before them.)
_PLAIN_TEXT = re.compile(r"[ -~\t\n\r\u00a1-\u00ac\u00ae-\u024f\u2010-\u2027\u2030-\u205e\u20ac\u2122]*")


def load_tokenizer(name_or_path: str | os.PathLike, **kwargs: Any) -> PreTrainedTokenizerBase:
    """
    `AutoTokenizer.from_pretrained`, which also reads a folder that holds nothing but `spiece.model`, the one file of
    T5's own vocabulary. (`AutoTokenizer` cannot tell which class such a folder belongs to.) Sentinels are not added to
    the `spiece.model` of an mT5, which has them.

    Args:
        name_or_path (`str` or `os.PathLike`): a folder, or a name on the Hub.
        kwargs (*optional*): for `from_pretrained`.

    Returns:
        `PreTrainedTokenizerBase`: the tokenizer.

    Raises:
        `ValueError`: if it cannot be read, or if there is no vocabulary, as in a folder with nothing but a model.
            Transformers 5 makes an empty tokenizer of such a folder, which reads all text as `<unk>`.

    >>> import tempfile
    >>> from hf_depth import load_tokenizer, train_tokenizer
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     tokenizer = train_tokenizer(["It rains."], vocab_size=200, output_dir=folder, allow_fewer=True)
    ...     load_tokenizer(folder).tokenize("It rains.") == tokenizer.tokenize("It rains.")
    True
    """

    def has(*files: str) -> bool:
        return any(os.path.isfile(os.path.join(name_or_path, file)) for file in files)

    has_no_settings = has("spiece.model") and not has("tokenizer.json", "tokenizer_config.json")
    loader = T5Tokenizer if has_no_settings and not has("config.json") else AutoTokenizer
    try:
        tokenizer = loader.from_pretrained(name_or_path, **kwargs)
        if has_no_settings and len(_numbered_token_ids(tokenizer, SENTINEL_PATTERNS[1])):
            tokenizer = loader.from_pretrained(name_or_path, **{"extra_ids": 0} | kwargs)
    except (AttributeError, LookupError, OSError, TypeError, ValueError) as error:  # an unknown name, a damaged file
        reason = str(error).strip().partition("\n")[0].removesuffix(" from one of: ").rstrip(".: ")
        reason = _sentencepiece_problem() if "tiktoken" in reason else reason
        raise UserError(
            f"The tokenizer {str(name_or_path)!r} cannot be read: {reason}. Name a folder with a tokenizer.json or a "
            "spiece.model, or a tokenizer of the Hub, by `tokenizer_name`."
        ) from error
    if len(tokenizer) <= len(tokenizer.all_special_ids) + 1:  # a lone "▁" is no vocabulary
        raise UserError(f"{name_or_path} holds no vocabulary. Name a tokenizer by `tokenizer_name`.")
    _take_missing_tokens(tokenizer, name_or_path, kwargs)
    return tokenizer


def _take_missing_tokens(
    tokenizer: PreTrainedTokenizerBase, name_or_path: str | os.PathLike, kwargs: Mapping[str, Any]
) -> None:
    """Give a tokenizer without an end or padding token the one that the configuration beside it names, if any."""
    missing = [name for name in ("eos_token", "pad_token") if getattr(tokenizer, name) is None]
    if not missing:
        return
    hub = {name: kwargs[name] for name in ("cache_dir", "revision", "token") if name in kwargs}
    try:
        config = AutoConfig.from_pretrained(name_or_path, trust_remote_code=False, **hub).get_text_config(decoder=True)
    except (OSError, TypeError, ValueError):  # none, or of a kind that is not known: objectives say what is missing
        return
    for name in missing:
        token_id = getattr(config, f"{name}_id", None)
        token_id = token_id[0] if isinstance(token_id, list) else token_id
        if token_id is not None and token_id < len(tokenizer):
            setattr(tokenizer, name, tokenizer.convert_ids_to_tokens(token_id))
            logger.info(
                f"The tokenizer {name_or_path} has no `{name}`: it is {getattr(tokenizer, name)}, by the model."
            )


def _sentencepiece_problem() -> str:
    """Why a SentencePiece model is not read. Transformers (5.23) then takes it for a file of tiktoken, and says so."""
    try:
        from sentencepiece import sentencepiece_model_pb2  # noqa: F401
    except Exception as error:  # protobuf's own is none of Python's
        reason = str(error).rstrip(". ")
        return f"sentencepiece and protobuf do not go together: {reason}; try `pip install -U protobuf`"
    return "it is no SentencePiece model"


def add_sentinels(tokenizer: PreTrainedTokenizerBase, number: int = NUM_SENTINELS) -> PreTrainedTokenizerBase:
    """
    Give a tokenizer sentinels, if it has none: tokens that its vocabulary holds free, such as `<unused0>` of Gemma and
    `<unk_2>` of Pegasus, which need no new rows; else, as for BART, new special tokens `<extra_id_0>`, `<extra_id_1>`,
    …. A message says once which. The tokenizer is changed in place. Objectives that mask spans call this.

    Args:
        tokenizer ([`PreTrainedTokenizerBase`]): of any model.
        number (`int`, defaults to 100): of new tokens.

    Returns:
        `PreTrainedTokenizerBase`: the same tokenizer.

    >>> from transformers import T5Tokenizer
    >>> from hf_depth.data.tokenization import add_sentinels, sentinel_token_ids
    >>> tokenizer = T5Tokenizer(vocab=[("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -1.0)], extra_ids=0)
    >>> len(sentinel_token_ids(add_sentinels(tokenizer)))
    100
    """
    if any(len(_numbered_token_ids(tokenizer, pattern)) for pattern in SENTINEL_PATTERNS):
        return tokenizer
    name = tokenizer.name_or_path or type(tokenizer).__name__
    ids = sentinel_token_ids(tokenizer, allow_none=True)
    if len(ids):
        first, last = tokenizer.convert_ids_to_tokens([int(ids[0]), int(ids[-1])])
        _say_once(f"The tokenizer {name} has no `<extra_id_0>`: its tokens {first} … {last} are the sentinels.")
        return tokenizer
    tokens = [SENTINEL_PATTERNS[0].format(index) for index in range(number)]
    tokenizer.add_special_tokens({"extra_special_tokens": tokens}, replace_extra_special_tokens=False)
    _say_once(
        f"The tokenizer {name} has neither sentinels nor unused tokens: {tokens[0]} … {tokens[-1]} were added, for "
        "which `load_model` adds rows to the embeddings. Load the model after this."
    )
    return tokenizer


@functools.cache
def _say_once(message: str) -> None:
    logger.warning(message)


def add_sentence_tokens(
    tokenizer: PreTrainedTokenizerBase, num_sentence_tokens: int = NUM_SENTENCE_TOKENS
) -> PreTrainedTokenizerBase:
    """
    Add `<sent_0>`, `<sent_1>`, … and `<eosen>` to a tokenizer, as special tokens with successive ids.

    The tokenizer is changed in place and keeps its class, so that `AutoTokenizer` loads the saved one where hf_depth
    is not installed. With the T5 vocabulary the ids are 32100–32119 and 32120, which fit the 32,128 rows of a T5
    embedding. Adding the same tokens again changes nothing.

    Args:
        tokenizer ([`PreTrainedTokenizerBase`]): of any model. One without sentinels gets them, see [`add_sentinels`].
        num_sentence_tokens (`int`, defaults to 20): the most sentences that an example can have.

    Returns:
        `PreTrainedTokenizerBase`: the same tokenizer.

    Raises:
        `ValueError`: if the tokenizer has another number of sentence tokens, or has some of them with ids that do not
            follow each other.

    Example:

    >>> from hf_depth import add_sentence_tokens
    >>> from hf_depth.data.vocabulary import train_tokenizer
    >>> tokenizer = train_tokenizer(["The dog barked. The cat slept."], vocab_size=300, allow_fewer=True)
    >>> size = len(tokenizer)
    >>> tokenizer = add_sentence_tokens(tokenizer)
    >>> ids = tokenizer.convert_tokens_to_ids(["<sent_0>", "<sent_1>", "<sent_19>", "<eosen>"])
    >>> [token_id - size for token_id in ids]
    [0, 1, 19, 20]
    """
    if num_sentence_tokens < 1:
        raise UserError(f"`num_sentence_tokens` must be at least 1, got {num_sentence_tokens}.")
    add_sentinels(tokenizer)
    present = len(_numbered_token_ids(tokenizer, SENTENCE_PATTERN))
    if present not in (0, num_sentence_tokens):
        raise UserError(
            f"The tokenizer already has {present} sentence tokens, {num_sentence_tokens} were requested. Request "
            f"{present}, or start from the T5 tokenizer without sentence tokens."
        )
    tokens = [*map(SENTENCE_PATTERN.format, range(num_sentence_tokens)), EOSEN_TOKEN]
    # Without `replace_extra_special_tokens=False` the sentinels would cease to be special tokens (transformers 5).
    tokenizer.add_special_tokens({"extra_special_tokens": tokens}, replace_extra_special_tokens=False)
    ids = tokenizer.convert_tokens_to_ids(tokens)
    if ids != list(range(ids[0], ids[0] + len(ids))):
        raise UserError(
            f"The ids of `<sent_0>` … `<eosen>` must follow each other, but are {ids}: the tokenizer's vocabulary "
            "already had some of these tokens. Start from the T5 tokenizer without them."
        )
    return tokenizer


def add_mode_tokens(tokenizer: PreTrainedTokenizerBase, modes: Iterable[str]) -> PreTrainedTokenizerBase:
    """
    Add the mode tokens of a mixture of denoisers to a tokenizer, as special tokens; those that it has stay as they
    are. The tokenizer is changed in place. Behind the T5 vocabulary, there is room for three of them and the tokens of
    [`add_sentence_tokens`] in the 32,128 rows of a T5 embedding.

    Args:
        tokenizer ([`PreTrainedTokenizerBase`]): any T5 tokenizer.
        modes (`Iterable[str]`): the tokens, such as `[R]`, `[S]`, `[X]`; repeated ones count once.

    Returns:
        `PreTrainedTokenizerBase`: the same tokenizer.

    Raises:
        `ValueError`: if the vocabulary has one of them that is no special token: it would be found in texts.

    >>> from hf_depth import add_mode_tokens, train_tokenizer
    >>> tokenizer = train_tokenizer(["The dog barked. The cat slept."], vocab_size=300, allow_fewer=True)
    >>> size = len(tokenizer)
    >>> tokenizer = add_mode_tokens(tokenizer, ["[R]", "[S]", "[R]"])
    >>> [token_id - size for token_id in tokenizer.convert_tokens_to_ids(["[R]", "[S]"])]
    [0, 1]
    """
    modes = list(dict.fromkeys(modes))
    missing = [mode for mode in modes if _token_id(tokenizer, mode) is None]
    for mode in modes:
        if mode not in missing:
            _check_mode(tokenizer, mode)
    if missing:
        tokenizer.add_special_tokens({"extra_special_tokens": missing}, replace_extra_special_tokens=False)
    return tokenizer


def mode_token_id(tokenizer: PreTrainedTokenizerBase, mode: str) -> int:
    """
    The id of the mode token of a denoiser.

    Args:
        tokenizer ([`PreTrainedTokenizerBase`]): a tokenizer with this token, see [`add_mode_tokens`].
        mode (`str`): the token.

    Raises:
        `ValueError`: if the tokenizer has none, or it is a piece of text.
    """
    token_id = _token_id(tokenizer, mode)
    if token_id is None:
        raise UserError(
            f"The tokenizer has no mode token `{mode}`: call `add_mode_tokens(tokenizer, ...)` with the modes of all "
            "denoisers before the model is loaded, or go without them by `mode_tokens=False`."
        )
    _check_mode(tokenizer, mode)
    return token_id


def _check_mode(tokenizer: PreTrainedTokenizerBase, mode: str) -> None:
    others = {tokenizer.eos_token, tokenizer.pad_token, tokenizer.unk_token, *SENTENCE_TOKENS}
    if mode in others or _SENTINEL.fullmatch(mode) or re.fullmatch("<sent_\\d+>", mode):
        raise UserError(
            f"The `mode` {mode!r} of a denoiser is a token with a meaning of its own. Take another one, such as `[R]`."
        )
    if mode not in tokenizer.all_special_tokens:
        raise UserError(
            f"The `mode` {mode!r} of a denoiser is a piece of the vocabulary, which the model reads in texts too: it "
            f"would not know one from the other. Take another one, such as `[{mode.strip('▁[]')}]`."
        )


def sentinel_token_ids(tokenizer: PreTrainedTokenizerBase, allow_none: bool = False) -> np.ndarray:
    """
    The ids of `<extra_id_0>`, `<extra_id_1>`, … up to the last that the tokenizer has; of an mT5's, which are pieces
    of its vocabulary, those of `▁<extra_id_0>`, `▁<extra_id_1>`, …; else of the first 100 of `UNUSED_PATTERNS`.

    Args:
        tokenizer ([`PreTrainedTokenizerBase`]): with sentinels, see [`add_sentinels`].
        allow_none (`bool`, defaults to `False`): whether it may have no sentinels.

    Returns:
        `np.ndarray` of shape `(num_sentinels,)`, int64.

    Raises:
        `ValueError`: if there is none.
    """
    ids = next(filter(len, (_numbered_token_ids(tokenizer, pattern) for pattern in SENTINEL_PATTERNS)), _NO_IDS)
    if not len(ids):
        unused = (_numbered_token_ids(tokenizer, *pattern)[:NUM_SENTINELS] for pattern in UNUSED_PATTERNS)
        ids = next((found for found in unused if len(found) >= MIN_UNUSED), _NO_IDS)
    if not len(ids) and not allow_none:
        raise UserError(
            f"The tokenizer {tokenizer.name_or_path!r} has no sentinel token `<extra_id_0>`. Use a T5 tokenizer, or "
            "add sentinels to yours by `hf_depth.data.tokenization.add_sentinels(tokenizer)`."
        )
    return ids


def sentence_token_ids(tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    """
    The ids of `<sent_0>`, `<sent_1>`, … up to the last that the tokenizer has.

    Args:
        tokenizer ([`PreTrainedTokenizerBase`]): a tokenizer with sentence tokens, see [`add_sentence_tokens`].

    Returns:
        `np.ndarray` of shape `(num_sentence_tokens,)`, int64.

    Raises:
        `ValueError`: if there is none.
    """
    ids = _numbered_token_ids(tokenizer, SENTENCE_PATTERN)
    if not len(ids):
        raise UserError("The tokenizer has no token `<sent_0>`: call `add_sentence_tokens(tokenizer)` first.")
    return ids


def eosen_token_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """
    The id of `<eosen>`, the token at the end of a sentence.

    Args:
        tokenizer ([`PreTrainedTokenizerBase`]): a tokenizer with sentence tokens, see [`add_sentence_tokens`].

    Raises:
        `ValueError`: if the tokenizer has none.
    """
    token_id = _token_id(tokenizer, EOSEN_TOKEN)
    if token_id is None:
        raise UserError("The tokenizer has no token `<eosen>`: call `add_sentence_tokens(tokenizer)` first.")
    return token_id


def sentence_fields(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """
    The fields of a [`DepthConfig`] that a tokenizer determines.

    Args:
        tokenizer ([`PreTrainedTokenizerBase`]): a tokenizer with sentence tokens, see [`add_sentence_tokens`].

    Raises:
        `ValueError`: if the tokenizer has none.
    """
    ids = sentence_token_ids(tokenizer)
    return {
        "first_sentence_token_id": int(ids[0]),
        "num_sentence_tokens": len(ids),
        "eosen_token_id": eosen_token_id(tokenizer),
    }


def check_sentence_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """
    Check that a model and a tokenizer agree on the sentence tokens, and that each token has a row of the embeddings.

    A DEPTH model that looks for `<sent_0>` under another id than the tokenizer's finds no sentence token at all, and
    trains as a plain T5.

    Args:
        model: a DEPTH model, or any other encoder-decoder, of which only the number of embedding rows is checked. Out
            of the wrapper of a distributed run.
        tokenizer: what the model will read.

    Raises:
        `ValueError`: if the configuration of a DEPTH model, of its encoder or of its decoder has other ids than the
            tokenizer, if the tokenizer has no sentence tokens for it, or if any model has fewer rows than the
            tokenizer has tokens.
    """
    is_depth = hasattr(model.config, "first_sentence_token_id")
    source = getattr(model, "name_or_path", "") or getattr(model.config, "name_or_path", "")
    line = (
        f"`model = load_model({repr(source) if source else 'model.config'}, tokenizer, "
        f'model_type="{"depth" if is_depth else "t5"}")`'
    )
    if is_depth:
        if not len(_numbered_token_ids(tokenizer, SENTENCE_PATTERN)) or _token_id(tokenizer, EOSEN_TOKEN) is None:
            raise UserError(
                "A DEPTH model needs sentence tokens, but the tokenizer has no `<sent_0>` or no `<eosen>`. Add them "
                f"by `add_sentence_tokens(tokenizer)`, then load a model that fits: {line}."
            )
        expected = sentence_fields(tokenizer)
        # The encoder and the decoder have copies of the configuration.
        for part, config in (
            ("model", model.config),
            ("model.encoder", model.get_encoder().config),
            ("model.decoder", model.get_decoder().config),
        ):
            for name, value in expected.items():
                found = getattr(config, name, value)  # T5Gemma's parts have configurations of their own
                if found != value:
                    raise UserError(
                        f"`{part}.config.{name}` is {found}, but the tokenizer has {value}: the model would not find "
                        f"the sentence tokens. Load a model that fits the tokenizer: {line}."
                    )
    vocab_size = model.config.get_text_config(decoder=True).vocab_size  # T5Gemma's is in a part of its configuration
    if vocab_size < len(tokenizer):
        raise UserError(
            f"`model.config.vocab_size` is {vocab_size}, but the tokenizer has {len(tokenizer)} tokens, "
            f"and each needs a row of the embeddings. Load a model that fits the tokenizer: {line}."
        )


def _numbered_token_ids(tokenizer: PreTrainedTokenizerBase, pattern: str, first: int = 0) -> np.ndarray:
    ids = []
    while (token_id := _token_id(tokenizer, pattern.format(first + len(ids)))) is not None:
        ids.append(token_id)
    return np.array(ids, dtype=np.int64)


def _token_id(tokenizer: PreTrainedTokenizerBase, token: str) -> int | None:
    token_id = tokenizer.convert_tokens_to_ids(token)
    return None if token_id == tokenizer.unk_token_id else token_id


class TextEncoder:
    """
    Encodes texts without adding special tokens, and without finding any in them.

    A literal `<extra_id_3>`, `<sent_2>`, `</s>` or `<pad>` in a text is encoded as the characters that it consists of.
    All other text gets the ids that the tokenizer itself gives it. An encoder holds the vocabulary and nothing else of
    the tokenizer (no name, no path, no padding), so that equal vocabularies have one fingerprint for `datasets.map`,
    until the tokenizers library is upgraded.

    T5's vocabulary encodes each word by itself, so that the ids of words are kept, up to `MAX_CHARACTERS`: that takes
    less time than to encode every word of a text anew. The ids are the same.

    Args:
        tokenizer ([`PreTrainedTokenizerBase`]): any T5 tokenizer. The encoder does not know tokens that are added
            later.

    Example:

    >>> from hf_depth.data.tokenization import TextEncoder
    >>> from hf_depth.data.vocabulary import train_tokenizer
    >>> tokenizer = train_tokenizer(["The dog barked. The cat slept."], vocab_size=300, allow_fewer=True)
    >>> encoder = TextEncoder(tokenizer)
    >>> encoder(["The dog."]) == [tokenizer.encode("The dog.", add_special_tokens=False)]
    True
    >>> tokenizer.eos_token_id in tokenizer.encode("</s>", add_special_tokens=False)
    True
    >>> tokenizer.eos_token_id in encoder(["</s>"])[0]
    False
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        backend, keeps_words = tokenizer, False
        if tokenizer.is_fast:
            state, keeps_words = _plain_backend(tokenizer.backend_tokenizer.to_str())
            backend = Tokenizer.from_str(state)
        self.tokenizer = backend
        self.version = tokenizers.__version__
        self.keeps_words = keeps_words
        self._forget_words()

    def _forget_words(self) -> None:
        self._words: dict[str, list[int]] = {}
        self._num_characters = 0

    def __getstate__(self) -> dict[str, Any]:
        # A copy, and the fingerprint, do not depend on what was encoded before.
        return self.__dict__ | {"_words": {}, "_num_characters": 0}

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        """
        Args:
            texts (`Sequence[str]`): any number of texts.

        Returns:
            `list[list[int]]`: the token ids of each text, without special tokens.
        """
        if not self.keeps_words:
            return self._encode(texts)
        if self._num_characters > MAX_CHARACTERS:
            self._forget_words()
        words = [text.split() if _PLAIN_TEXT.fullmatch(text) else None for text in texts]  # `None`: as a whole
        unknown = sorted(set(chain.from_iterable(filter(None, words))).difference(self._words))
        self._words.update(zip(unknown, self._encode(unknown), strict=True))
        self._num_characters += sum(map(len, unknown))
        others = iter(self._encode([text for text, parts in zip(texts, words, strict=True) if parts is None]))
        ids_of = self._words.__getitem__
        return [next(others) if parts is None else list(chain.from_iterable(map(ids_of, parts))) for parts in words]

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        if isinstance(self.tokenizer, Tokenizer):
            encodings = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
            return [encoding.ids for encoding in encodings]
        # The one T5 tokenizer without a Rust backend is ByT5's: text split into bytes holds no special token.
        return [self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True) for text in texts]


def text_parts(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """
    Texts in parts to be encoded one after the other: a part ends with the text that brings it to `CHARACTERS_AT_ONCE`.

    Args:
        texts (`Sequence[str]`): any number of texts.

    >>> [len(part) for part in text_parts(["book " * 400_000] * 5)]
    [2, 2, 1]
    """
    start, size = 0, 0
    for end, text in enumerate(texts, start=1):
        size += len(text)
        if size >= CHARACTERS_AT_ONCE or end == len(texts):
            yield texts[start:end]
            start, size = end, 0


def encode_sentences(
    texts: Sequence[str], encoder: Callable[[Sequence[str]], list[list[int]]], splitter: Callable[[str], list[str]]
) -> list[list[list[int]]]:
    """
    Split texts into sentences and encode each sentence by itself.

    Args:
        texts (`Sequence[str]`): the documents.
        encoder (`Callable`): gives the token ids of several texts, see [`TextEncoder`].
        splitter (`Callable`): gives the sentences of one text, see [`get_sentence_splitter`].

    Returns:
        `list[list[list[int]]]`: for each document the token ids of its sentences. Sentences without a token (such as a
        lone zero-width space) are left out.
    """
    documents = [splitter(text) for text in texts]
    encoded = iter(encoder([sentence for sentences in documents for sentence in sentences]))
    return [[ids for _ in sentences if (ids := next(encoded))] for sentences in documents]


def layout_document(
    sentences: Sequence[Sequence[int]], sentence_token_ids: Sequence[int], eosen_token_id: int, eos_token_id: int
) -> list[int]:
    """
    The encoder input of an uncorrupted document: `<eosen> <sent_0> s1 <eosen> <sent_1> s2 <eosen> … </s>`.

    Sentence tokens count up from the first. If there are more sentences than sentence tokens, the remaining sentences
    share the last sentence token: they follow it as one long sentence, so that no token is lost.

    Args:
        sentences (`Sequence[Sequence[int]]`): token ids of each sentence.
        sentence_token_ids (`Sequence[int]`): ids of `<sent_0>`, `<sent_1>`, …
        eosen_token_id (`int`): id of `<eosen>`.
        eos_token_id (`int`): id of `</s>`.

    Returns:
        `list[int]`: the ids; two more than there are tokens for each sentence (as long as there are sentence tokens),
        and two at the end. Without a sentence, `</s>` alone.

    >>> layout_document([[5, 6], [7]], sentence_token_ids=[100, 101], eosen_token_id=120, eos_token_id=1)
    [120, 100, 5, 6, 120, 101, 7, 120, 1]
    """
    if not sentences:
        return [eos_token_id]
    last = len(sentence_token_ids) - 1
    ids = []
    for position, sentence in enumerate(sentences):
        if position <= last:
            ids += [eosen_token_id, int(sentence_token_ids[position])]
        ids += sentence
    return [*ids, eosen_token_id, eos_token_id]


def _encodes_words(state: dict[str, Any]) -> bool:
    """Whether the ids of a text are those of its words, between white space: as T5's own tokenizers are made."""
    splitters = (state["pre_tokenizer"] or {}).get("pretokenizers", [])
    return (
        state["model"]["type"] == "Unigram"
        and (state["normalizer"] or {"type": "Precompiled"})["type"] == "Precompiled"
        and [splitter["type"] for splitter in splitters] == ["WhitespaceSplit", "Metaspace"]
        and splitters[1]["prepend_scheme"] == "always"
        and not state["added_tokens"]  # which may be found within words and across them
    )


@functools.lru_cache(maxsize=4)  # each task has an encoder; as a rule all of them are of one tokenizer
def _plain_backend(serialized: str) -> tuple[str, bool]:
    """
    A tokenizer's backend that has the same ids, but finds no special token in text; and whether it encodes words.

    `split_special_tokens=True` is not enough: `</s>`, `<unk>`, `<pad>` and the sentinels are also pieces of a T5
    vocabulary, where the unigram model finds them; those of mT5 are nothing else. Here they get names with a space:
    text is cut at its spaces before the model sees it, so that no piece of text has one.
    """
    state = json.loads(serialized)
    vocabulary = state["model"]["vocab"]
    added = {token["id"]: token["content"] for token in state["added_tokens"]}
    special = {token["content"] for token in state["added_tokens"] if token["special"]}
    special |= {piece for piece in chain(added.values(), dict(vocabulary)) if _SENTINEL.fullmatch(piece)}
    if isinstance(vocabulary, list):  # unigram: pairs of piece and score, ordered by id
        # Those that are found as whole words only would be a piece of other words too, if they cost nothing.
        words = {token["content"] for token in state["added_tokens"] if token["single_word"]} - special
        behind = [added[index] for index in sorted(added) if index >= len(vocabulary)]
        vocabulary += [[piece, _NEVER_CHOSEN if piece in words else 0.0] for piece in behind]
        state["model"]["vocab"] = [[f" {piece}" if piece in special else piece, score] for piece, score in vocabulary]
    else:  # byte pairs
        vocabulary.update({piece: index for index, piece in added.items()})
        merges = state["model"].get("merges")
        if merges:  # Gemma's has `</s>` and more, which some merge may make
            pairs = (merge.split(" ", 1) if isinstance(merge, str) else merge for merge in merges)
            state["model"]["merges"] = [list(pair) for pair in pairs if "".join(pair) not in special]
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] not in special]
    state.update(post_processor=None, truncation=None, padding=None)
    return json.dumps(state), _encodes_words(state)
