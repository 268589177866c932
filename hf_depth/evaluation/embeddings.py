"""[`sentence_embeddings`]: one vector for each sentence, from the encoder of a DEPTH model or a T5."""

from collections.abc import Sequence
from functools import partial

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.sentences import get_sentence_splitter
from ..data.tokenization import TextEncoder, check_sentence_tokens, encode_sentences, sentence_token_ids
from ..errors import UserError
from ..models.modeling_depth import has_sentence_tokens
from .inference import check_has_order, encode_documents, in_batches, lay_out, not_finite, padded


def sentence_embeddings(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: str | Sequence[str] | Sequence[Sequence[str]],
    *,
    layer: int = -1,
    pooling: str | None = None,
    batch_size: int = 32,
    sentence_language: str = "en",
) -> torch.FloatTensor | list[torch.FloatTensor]:
    """
    Embed sentences by the encoder alone. A DEPTH model gives its states at the sentence tokens, a T5 the mean of its
    states at the tokens of each sentence.

    The sentences of a document are read together. To embed sentences without their context, make each a document:
    `[[sentence] for sentence in sentences]`. Nothing is ever cut.

    Args:
        model, tokenizer: a DEPTH model or a T5, and its tokenizer.
        texts: a text, which is split into sentences; or the sentences of one document, or of each of several.
        layer: 0 are the token embeddings, -1 the normalized output of the encoder.
        pooling: `"sentence_token"`, the default for a DEPTH model, or `"mean"` over the words of a sentence.
        batch_size: documents of one forward pass.
        sentence_language: of a text, see [`get_sentence_splitter`].

    Returns float32 on the CPU, `(num_sentences, d_model)`; for several documents a list with one for each.

    Raises `ValueError` if model and tokenizer do not fit each other, or a document cannot be read whole;
    `FloatingPointError` if an embedding is not finite.

    >>> from hf_depth import add_sentence_tokens, load_model, sentence_embeddings, train_tokenizer
    >>> text = "It rains. The street is wet."
    >>> tokenizer = add_sentence_tokens(train_tokenizer([text], vocab_size=300, allow_fewer=True))
    >>> model = load_model(None, tokenizer, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    >>> sentence_embeddings(model, tokenizer, text).shape
    torch.Size([2, 16])
    """
    number = model.get_encoder().config.get_text_config().num_hidden_layers + 1
    if not -number <= layer < number:
        raise UserError(f"`layer` must be between {-number} and {number - 1} (0: the token embeddings), got {layer}.")
    poolings = ("sentence_token", "mean") if has_sentence_tokens(model.config) else ("mean",)
    pooling = pooling or poolings[0]
    if pooling not in poolings:
        raise UserError(f"`pooling` must be one of {', '.join(poolings)} for {type(model).__name__}, got {pooling!r}.")
    check_sentence_tokens(model, tokenizer)
    if isinstance(texts, str):
        is_one = True
        documents = encode_sentences([texts], TextEncoder(tokenizer), get_sentence_splitter(sentence_language))
    else:
        check_has_order("texts", texts)
        texts = list(texts)
        is_one = bool(texts) and isinstance(texts[0], str)
        documents = encode_documents(tokenizer, [texts] if is_one else texts)
    laid_out = [_lay_out(model, tokenizer, number, document) for number, document in enumerate(documents)]
    embed = partial(_embed, model, tokenizer, layer, pooling)
    found = in_batches(model, embed, laid_out, [len(input_ids) for input_ids, _ in laid_out], batch_size)
    for number, embeddings in enumerate(found):
        if not embeddings.isfinite().all():
            raise not_finite(f"An embedding of document {number}", model)
    return found[0] if is_one else found


def _lay_out(model, tokenizer, number: int, sentences: Sequence[list[int]]) -> tuple[list[int], list[int]]:
    """Return what the encoder reads, and to which sentence each token belongs, -1 to none."""
    if not sentences:
        raise UserError(f"Document {number} has no sentence. Leave it out.")
    if not has_sentence_tokens(model.config):
        owners = [place for place, ids in enumerate(sentences) for _ in ids]
        return [*(token_id for ids in sentences for token_id in ids), tokenizer.eos_token_id], [*owners, -1]
    if len(sentences) > (most := len(sentence_token_ids(tokenizer))):
        raise UserError(
            f"Document {number} has {len(sentences)} sentences, but the model has {most} sentence tokens. Give it as "
            "several documents."
        )
    owners = [owner for place, ids in enumerate(sentences) for owner in (-1, place, *[place] * len(ids))]
    return lay_out(tokenizer, [sentences])[0], [*owners, -1, -1]


def _embed(
    model, tokenizer, layer: int, pooling: str, laid_out: Sequence[tuple[list[int], list[int]]]
) -> list[torch.Tensor]:
    """Return the embeddings of each document, `(num_sentences, d_model)`."""
    batch = padded([input_ids for input_ids, _ in laid_out], tokenizer, model)
    owners = pad_sequence([torch.tensor(owners) for _, owners in laid_out], batch_first=True, padding_value=-1)
    outputs = model.get_encoder()(**batch, output_hidden_states=True, return_dict=True)
    states = outputs.hidden_states[layer].float().cpu()  # (B, L, D)
    starts = torch.zeros_like(owners, dtype=torch.bool)
    if has_sentence_tokens(model.config):
        # A sentence token is the first that belongs to its sentence.
        starts[:, 1:] = (owners[:, 1:] >= 0) & (owners[:, 1:] != owners[:, :-1])
    chosen = starts if pooling == "sentence_token" else (owners >= 0) & ~starts
    numbers = torch.arange(owners.max() + 1)
    weights = ((owners[:, None] == numbers[:, None]) & chosen[:, None]).float()  # (B, S, L)
    weights /= weights.sum(-1, keepdim=True).clamp(min=1)
    embeddings = weights @ states  # (B, S, D)
    # Copies, or a short document would keep the memory of the whole batch.
    return [rows[: max(own) + 1].clone() for rows, (_, own) in zip(embeddings, laid_out, strict=True)]
