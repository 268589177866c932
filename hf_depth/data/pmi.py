"""
PMI masking: collocations of a corpus, and where they stand in token ids, so that each is masked as a whole.

Collocations are n-grams of words whose parts come together far more often than by chance. If only a part of one is
masked, the rest gives it away, and the model learns little else (Levine et al. 2021, arXiv 2010.01825).
"""

import logging
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerBase

from ..manifests import replace_text
from .corruption import MAX_UNIT_LENGTH, Ragged

logger = logging.getLogger(__name__)

SPACE = "▁"  # SentencePiece's mark of a space
MAX_NGRAM_LENGTH = 5  # words, as in the paper
# The paper's vocabulary: 800,000 n-grams, half of them bigrams, and so on; each at least ten times in its corpus.
VOCABULARY_SIZE, MIN_COUNT = 800_000, 10
SHARES = {2: 0.5, 3: 0.25, 4: 0.125, 5: 0.125}
MAX_COUNTED = 10_000_000  # n-grams of each length in memory

# Words, with apostrophes inside, and runs of other characters: what a text and a vocabulary are divided into.
_WORD = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]+")
_BREAK = re.compile(r"(?:[^\w\s'’]|(?<!\w)['’]|['’](?!\w))+|\n")
_APOSTROPHES = ("'", "’")
_PUNCTUATION, _LETTERS, _APOSTROPHE = range(3)

_BASE = np.uint64(6364136223846793005)  # odd, as for `corruption.example_keys`
_WORD_BASE = np.uint64(0xD1342543DE82EF95)


def split_words(text: str) -> list[str]:
    """
    The words of a text without regard to case; runs of punctuation marks are words, too.

    >>> split_words("He didn't see New York, did he?")
    ['he', "didn't", 'see', 'new', 'york', ',', 'did', 'he', '?']
    """
    return _WORD.findall(text.casefold())


def read_pmi_vocabulary(path: str | os.PathLike) -> list[str]:
    """
    Read a vocabulary of collocations: a text file with one n-gram of words on each line, as [`write_pmi_vocabulary`]
    leaves it and as the authors of the paper publish theirs (`pmi-wiki-bc.txt`, https://github.com/AI21Labs/pmi-masking).

    Args:
        path: the file, in UTF-8.

    Raises:
        `ValueError`: if it cannot be read, or holds no n-gram of two words or more.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ValueError(f"`pmi_vocab_file` {path} cannot be read: {reason}.") from error
    ngrams = [line.strip() for line in lines if len(line.split()) > 1]
    if not ngrams:
        raise ValueError(
            f"`pmi_vocab_file` {path} holds no collocation: it must have one n-gram of two words or more on each "
            "line, such as `new york city`. `examples/build_pmi_vocabulary.py` makes one of a corpus."
        )
    return ngrams


class UnitFinder:
    """
    Divides token ids into the units that PMI masking masks as a whole: collocations of a vocabulary, and other words.

    A word is a run of tokens from one space or change between letters and punctuation to the next, so that no unit
    begins or ends within a word. Collocations are compared by the hashes of their words, without regard to case. Long
    ones are preferred to shorter ones, and of the same length those further to the left. A word of more than
    `MAX_UNIT_LENGTH` (12) tokens is several units, and a collocation of more is none.

    Args:
        tokenizer ([`PreTrainedTokenizerBase`]): with a SentencePiece vocabulary. Not kept.
        ngrams (`Iterable[str]`): the collocations, words separated by spaces, see [`read_pmi_vocabulary`].

    Raises:
        `ValueError`: if the vocabulary of the tokenizer does not mark spaces.

    >>> from hf_depth import train_tokenizer
    >>> tokenizer = train_tokenizer(["He saw New York."], vocab_size=300, allow_fewer=True)
    >>> ids = np.array(tokenizer.encode("He saw New York.", add_special_tokens=False))
    >>> lengths, _ = UnitFinder(tokenizer, ["new york"])(ids, np.array([len(ids)]))
    >>> [tokenizer.decode(part) for part in np.split(ids, np.cumsum(lengths)[:-1])]
    ['He', 'saw', 'New York', '.']
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, ngrams: Iterable[str]):
        pieces = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
        if not any(piece.startswith(SPACE) for piece in pieces):
            raise ValueError(
                f"PMI masking needs a SentencePiece vocabulary, whose pieces begin with `{SPACE}` after a space, but "
                f"that of {tokenizer.name_or_path!r} marks no spaces."
            )
        texts = [piece.removeprefix(SPACE).casefold() for piece in pieces]
        self.has_space = np.array([piece.startswith(SPACE) for piece in pieces])  # (vocab_size,), as those below
        self.is_space = np.array([piece == SPACE for piece in pieces])
        self.kinds = np.array([_kind(text) for text in texts], np.int8)
        self.num_characters = np.array(list(map(len, texts)))
        self.hashes = np.array([_text_hash(text) for text in texts], np.uint64)
        hashes: dict[int, set[int]] = {}
        for ngram in ngrams:
            words = split_words(ngram)
            if len(words) > 1:
                hashes.setdefault(len(words), set()).add(_ngram_hash(words))
        # Length in words -> hashes in ascending order, the longest first.
        self.vocabulary = {
            size: np.sort(np.fromiter(found, np.uint64, len(found))) for size, found in sorted(hashes.items())[::-1]
        }

    def __call__(self, token_ids: np.ndarray, lengths: np.ndarray) -> Ragged:
        """
        Args:
            token_ids (`np.ndarray` of shape `(lengths.sum(),)`): tokens of all texts.
            lengths (`np.ndarray` of shape `(num_texts,)`): tokens per text, possibly none.

        Returns:
            Tokens per unit, and units per text, both int64: of shapes `(num_units.sum(),)` and `(num_texts,)`.
        """
        text_of_token = np.repeat(np.arange(len(lengths)), lengths)  # (lengths.sum(),)
        if not len(token_ids):
            return np.zeros(0, np.int64), np.zeros(len(lengths), np.int64)
        words = np.flatnonzero(self._begins_word(token_ids, text_of_token))  # (num_words,): first tokens
        text_of_word = text_of_token[words]  # (num_words,)
        ends = np.append(words[1:], len(token_ids))  # (num_words,)
        is_unit = np.ones(len(words), bool)  # whether a unit begins with this word
        is_free = np.ones(len(words), bool)
        hashes = self._ngram_hashes(token_ids, words)
        for size, vocabulary in self.vocabulary.items():
            count = len(words) - size + 1
            if count < 1:
                continue
            fits = text_of_word[:count] == text_of_word[size - 1 :]
            fits &= ends[size - 1 :] - words[:count] <= MAX_UNIT_LENGTH
            fits &= np.all([is_free[i : i + count] for i in range(size)], axis=0)
            places = np.flatnonzero(fits)
            found = hashes[size][places]
            index = np.minimum(np.searchsorted(vocabulary, found), len(vocabulary) - 1)
            chosen = _leftmost(places[vocabulary[index] == found], size)
            for i in range(size):
                is_free[chosen + i] = False
                is_unit[chosen + i] = i == 0
        begins = np.zeros(len(token_ids), bool)  # (lengths.sum(),)
        begins[words[is_unit]] = True
        place = np.arange(len(token_ids))
        place -= np.maximum.accumulate(np.where(begins, place, 0))
        begins |= place % MAX_UNIT_LENGTH == 0
        starts = np.flatnonzero(begins)
        num_units = np.bincount(text_of_token[starts], minlength=len(lengths))
        return np.diff(starts, append=len(token_ids)), num_units

    def _begins_word(self, token_ids: np.ndarray, text_of_token: np.ndarray) -> np.ndarray:
        has_space, kinds = self.has_space[token_ids], self.kinds[token_ids].copy()
        is_first = np.diff(text_of_token, prepend=-1) > 0
        apart = has_space | is_first
        # An apostrophe between letters is a part of the word.
        letters = kinds == _LETTERS
        follows = np.append(letters[1:] & ~apart[1:], False)
        precedes = np.concatenate([[False], letters[:-1]]) & ~apart
        kinds[kinds == _APOSTROPHE] = _PUNCTUATION
        kinds[(self.kinds[token_ids] == _APOSTROPHE) & follows & precedes] = _LETTERS
        changes = np.concatenate([[True], kinds[1:] != kinds[:-1]])
        changes[1:] &= ~self.is_space[token_ids[:-1]]  # a space by itself belongs to what follows
        return apart | changes

    def _ngram_hashes(self, token_ids: np.ndarray, words: np.ndarray) -> dict[int, np.ndarray]:
        """Of each length in words, the hashes of all n-grams: uint64, shape `(num_words - length + 1,)`."""
        places = np.cumsum(self.num_characters[token_ids])
        places -= self.num_characters[token_ids]  # (num_tokens,)
        places -= np.repeat(places[words], np.diff(words, append=len(token_ids)))  # in the word
        powers = np.multiply.accumulate(np.concatenate([[np.uint64(1)], np.full(places.max(), _BASE)]))
        one = np.add.reduceat(self.hashes[token_ids] * powers[places], words)  # (num_words,)
        hashes = {1: one}
        for size in range(2, max(self.vocabulary, default=1) + 1):
            hashes[size] = hashes[size - 1][:-1] * _WORD_BASE + one[size - 1 :] if len(one) >= size else one[:0]
        return hashes


def _kind(text: str) -> int:
    if text in _APOSTROPHES:
        return _APOSTROPHE
    return _LETTERS if re.search(r"\w", text) else _PUNCTUATION


def _text_hash(text: str) -> int:
    """The sum of character * base^place, modulo 2^64."""
    value = 0
    for character in reversed(text):
        value = (value * int(_BASE) + ord(character) + 1) % 2**64
    return value


def _ngram_hash(words: Iterable[str]) -> int:
    value = 0
    for word in words:
        value = (value * int(_WORD_BASE) + _text_hash(word)) % 2**64
    return value


def _leftmost(starts: np.ndarray, size: int) -> np.ndarray:
    """
    Of ascending places, those taken from left to right by n-grams of `size` words that must not overlap.

    >>> _leftmost(np.array([0, 1, 2, 3, 9]), 2)
    array([0, 2, 9])
    """
    chosen = []
    while len(starts):
        # One that is far enough behind the place before it is taken; those that it overlaps are dropped.
        is_taken = np.diff(starts, prepend=-size) >= size
        taken = np.maximum.accumulate(np.where(is_taken, starts, -size))
        chosen.append(starts[is_taken])
        starts = starts[~is_taken & (starts - taken >= size)]
    return np.sort(np.concatenate(chosen)) if chosen else starts


def count_ngrams(texts: Iterable[str | None], max_counted: int = MAX_COUNTED) -> tuple[dict[int, Counter], dict]:
    """
    Count the n-grams of a stream of texts, of one to five words without a punctuation mark or a line break among them.

    Memory is bounded: when more than `max_counted` different n-grams of a length are held, the rare ones are dropped,
    one count more each time; so a count may be too low by the number of these times, which is logged.

    Args:
        texts (`Iterable[str | None]`): any number of texts.
        max_counted (`int`): most n-grams of each length to hold.

    Returns:
        Length in words -> count of each n-gram, a tuple of words; and length -> number of all n-grams.

    >>> counts, totals = count_ngrams(["New York, New York.", "A new day"])
    >>> counts[2]["new", "york"], counts[1]["new",], totals[2]
    (2, 3, 4)
    """
    counts: dict[int, Counter] = {size: Counter() for size in range(1, MAX_NGRAM_LENGTH + 1)}
    totals = dict.fromkeys(counts, 0)
    dropped = dict.fromkeys(counts, 0)
    for text in texts:
        for part in _BREAK.split((text or "").casefold()):
            words = _WORD.findall(part)
            for size, counter in counts.items():
                if len(words) >= size:
                    totals[size] += len(words) - size + 1
                    counter.update(zip(*(words[start:] for start in range(size)), strict=False))
        for size, counter in counts.items():
            while len(counter) > max_counted:
                dropped[size] += 1
                counts[size] = counter = Counter({ngram: n for ngram, n in counter.items() if n > dropped[size]})
    for size, times in dropped.items():
        if times:
            logger.warning(
                f"N-grams of {size} words that came {times} times or less in a part of the text were dropped."
            )
    return counts, totals


def pmi(ngram: tuple[str, ...], counts: dict[int, Counter], totals: dict[int, int]) -> float:
    """
    The pointwise mutual information of an n-gram: the least, over all ways to cut it into two parts or more, of
    `log(p(ngram) / product of p(part))`. So an n-gram is not a collocation because a part of it is one.

    Args:
        ngram (`tuple[str, ...]`): two words or more.
        counts, totals: from [`count_ngrams`]. A part that was dropped there counts as often as the n-gram.

    Source: Levine et al. (2021), arXiv 2010.01825, equation 3.
    """
    own = counts[len(ngram)][ngram]

    def log_probability(start: int, end: int) -> float:
        size = end - start
        return math.log(max(counts[size][ngram[start:end]], own) / totals[size])

    whole = len(ngram)
    likeliest = [0.0]  # of the first words, cut in the likeliest way
    for end in range(1, whole + 1):
        starts = range(end) if end < whole else range(1, whole)
        likeliest.append(max(likeliest[start] + log_probability(start, end) for start in starts))
    return log_probability(0, whole) - likeliest[whole]


def build_pmi_vocabulary(
    texts: Iterable[str | None],
    size: int = VOCABULARY_SIZE,
    min_count: int = MIN_COUNT,
    max_counted: int = MAX_COUNTED,
) -> list[str]:
    """
    The collocations of a corpus: of the n-grams of two to five words, those of the highest [`pmi`].

    Args:
        texts (`Iterable[str | None]`): the corpus, which is read once and not held.
        size (`int`, defaults to 800,000): the most n-grams of the vocabulary: half of them bigrams, a quarter
            trigrams, an eighth n-grams of four and of five words each, as in the paper.
        min_count (`int`, defaults to 10): leave out n-grams that come less often.
        max_counted (`int`, defaults to 10,000,000): see [`count_ngrams`].

    Returns:
        `list[str]`: for each length, from two words to five, n-grams in the order of their PMI; words in lower case.

    Raises:
        `ValueError`: if the corpus has none, or if a number is below 1.

    >>> texts = ["He saw New York. She saw it, too.", "In New York it rained.", "It rained on it."]
    >>> build_pmi_vocabulary(texts, size=4, min_count=2)
    ['new york', 'it rained']
    """
    for name, value in (("size", size), ("min_count", min_count), ("max_counted", max_counted)):
        if value < 1:
            raise ValueError(f"`{name}` must be at least 1, got {value}.")
    counts, totals = count_ngrams(texts, max_counted)
    vocabulary = list(chain.from_iterable(_best(length, counts, totals, size, min_count) for length in SHARES))
    if not vocabulary:
        raise ValueError(
            f"No n-gram of two words or more comes {min_count} times in {totals[1]:,} words: read more text, or lower "
            "`min_count`."
        )
    return vocabulary


def _best(length: int, counts: dict[int, Counter], totals: dict[int, int], size: int, min_count: int) -> Iterator[str]:
    frequent = (ngram for ngram, count in counts[length].items() if count >= min_count)
    # Equal ones in the order of the alphabet: so the same corpus gives the same file in any order of its texts.
    ranked = sorted((-value, ngram) for ngram in frequent if (value := pmi(ngram, counts, totals)) > 0)
    return (" ".join(ngram) for _, ngram in islice(ranked, int(size * SHARES[length])))


def write_pmi_vocabulary(vocabulary: Iterable[str], path: str | os.PathLike) -> None:
    """
    Write a vocabulary for [`read_pmi_vocabulary`]: one n-gram on each line. There is never a part of a file.

    Args:
        vocabulary (`Iterable[str]`): the n-grams.
        path: the file, which is replaced if it exists.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, "".join(f"{ngram}\n" for ngram in vocabulary))
