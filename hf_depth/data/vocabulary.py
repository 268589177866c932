"""
A vocabulary of one's own, trained the T5 way: from texts to a tokenizer that `AutoTokenizer` loads.

The tokenizer has T5's layout of ids (`<pad>`, `</s>`, `<unk>`, pieces, sentinels), so that it can take the place of a
published T5 tokenizer. DEPTH's sentence tokens come on top, see `tokenization.add_sentence_tokens`.
"""

import io
import os
import re
import string
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import sentencepiece
from transformers import PreTrainedTokenizerBase, T5Tokenizer

from ..errors import UserError
from .tokenization import NUM_SENTINELS

CHARACTER_COVERAGE = 0.99999  # rarer characters are unknown to a trained vocabulary; printable ASCII never is
MAX_TRAINING_SIZE = 40_000_000  # characters that a vocabulary is trained on

# Never learned as pieces, since they have ids of their own.
_SPECIAL_TOKEN = re.compile(r"<(?:extra_id_\d+|sent_\d+|eosen|/s|pad|unk)>")


def train_tokenizer(
    texts: Iterable[str | None],
    vocab_size: int,
    output_dir: str | os.PathLike | None = None,
    allow_fewer: bool = False,
) -> PreTrainedTokenizerBase:
    """
    Train a vocabulary the T5 way: a SentencePiece unigram model with `<pad>` 0, `</s>` 1, `<unk>` 2, no `<s>`, and 100
    sentinels at the end, `<extra_id_0>` last.

    The same texts give the same vocabulary. Training takes about 1 s per million characters, of which at most
    `MAX_TRAINING_SIZE` are used, spread evenly over the texts. In a run of several processes, call it in the first
    process alone (`with training_args.main_process_first():`), and `AutoTokenizer.from_pretrained(output_dir)` in all.

    Args:
        texts (`Iterable[str]`): the documents, such as the column `"text"` of a data set. `None` is skipped.
        vocab_size (`int`): number of ids, sentinels included; sentence tokens (`add_sentence_tokens`) come on top.
        output_dir (`str` or `os.PathLike`, *optional*): where the tokenizer is saved, and as `spiece.model`.
        allow_fewer (`bool`, defaults to `False`): take `vocab_size` as an upper limit, if the text is too small.

    Raises:
        `ValueError`: if the texts cannot fill so large a vocabulary, or their characters alone exceed it.

    >>> tokenizer = train_tokenizer(["The cat sat on the mat. The dog sat on the cat."], 300, allow_fewer=True)
    >>> tokenizer.decode(tokenizer.encode("A dog sat."))
    'A dog sat.</s>'
    """
    if isinstance(texts, str):
        raise UserError("`texts` must be several documents, got one string: write `[text]`.")
    if vocab_size <= NUM_SENTINELS:
        raise UserError(f"`vocab_size` must be larger than its {NUM_SENTINELS} sentinels, got {vocab_size}.")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_training_lines(texts),
            model_writer=model,
            model_type="unigram",
            vocab_size=vocab_size - NUM_SENTINELS,
            hard_vocab_limit=not allow_fewer,
            character_coverage=CHARACTER_COVERAGE,
            required_chars=string.digits + string.ascii_letters + string.punctuation,
            max_sentence_length=2**30,  # longer ones would be left out silently
            num_threads=1,  # the model depends on their number, and more are not faster
            pad_id=0,
            eos_id=1,
            unk_id=2,
            bos_id=-1,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise UserError(_explain_training_error(str(error), vocab_size)) from error
    with tempfile.TemporaryDirectory() as folder:
        # Read from a folder of its own: `output_dir` may hold an older tokenizer, which would be read instead.
        source, saved = Path(folder, "model"), Path(folder, "tokenizer") if output_dir is None else Path(output_dir)
        source.mkdir()
        Path(source, "spiece.model").write_bytes(model.getvalue())
        T5Tokenizer.from_pretrained(source, extra_ids=NUM_SENTINELS).save_pretrained(saved)
        Path(saved, "spiece.model").write_bytes(model.getvalue())
        return T5Tokenizer.from_pretrained(saved)


def _training_lines(texts: Iterable[str | None]) -> Iterator[str]:
    """Lines of every n-th text: the smallest power of two that leaves at most `MAX_TRAINING_SIZE` characters."""
    chosen, size, step = [], 0, 1
    for index, text in enumerate(texts):
        if text and index % step == 0:
            chosen.append(text)
            size += len(text)
            if size > MAX_TRAINING_SIZE:
                chosen, step = chosen[::2], 2 * step
                size = sum(map(len, chosen))
    for text in chosen:
        yield from _SPECIAL_TOKEN.sub(" ", text).splitlines()


def _explain_training_error(message: str, vocab_size: int) -> str:
    """Say in terms of `vocab_size` what SentencePiece says in terms of its own pieces."""
    if "sentences_.empty()" in message:
        return "There is no text to train a vocabulary on."
    problem = f"A vocabulary of `vocab_size`={vocab_size} cannot be trained on this text"
    too_large = re.search(r"value <= (\d+)", message)
    if too_large:
        return f"{problem}: it gives at most {int(too_large[1]) + NUM_SENTINELS} ids. Lower `vocab_size`, or add text."
    too_small = re.search(r"smaller than required_chars. \d+ vs (\d+)", message)
    if too_small:
        return f"{problem}: its characters alone need {int(too_small[1]) + NUM_SENTINELS} ids. Raise `vocab_size`."
    return f"{problem}. SentencePiece says: {message}"
