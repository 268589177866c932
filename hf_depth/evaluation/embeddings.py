"""[`sentence_embeddings`]: one vector for each sentence, from the encoder of a DEPTH model or a T5."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.sentences import get_sentence_splitter
from ..data.tokenization import (
    TextEncoder,
    check_sentence_tokens,
    encode_sentences,
    eosen_token_id,
    layout_document,
    sentence_token_ids,
)
from ..models.modeling_depth import has_sentence_tokens
from ..suggestions import suggestion

POOLINGS = ("sentence_token", "mean")


@dataclass(frozen=True)
class _Document:
    """What the encoder reads, and to which sentence each token belongs: -1 for those that no embedding is made of."""

    input_ids: list[int]
    sentence_numbers: list[int]
    num_sentences: int


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
    Embeddings of sentences by the encoder alone: of a DEPTH model the states at its sentence tokens, of a T5 the mean
    of the states at the tokens of each sentence.

    The sentences of a document are read together. In the last layer a sentence token attends to the tokens of its own
    sentence only, but these attend to the whole document in the layers before: an embedding depends on the sentences
    around it, in a model of one encoder layer (or in hidden states 0 and 1) on its own sentence alone. To embed
    sentences without their context, make each a document: `[[sentence] for sentence in sentences]`. Nothing is ever
    cut, and other documents of the batch change nothing.

    Args:
        model (`PreTrainedModel`): a DEPTH model or a T5; it is put into evaluation mode and back.
        tokenizer (`PreTrainedTokenizerBase`): the one that it was trained with.
        texts (`str`, `Sequence[str]` or `Sequence[Sequence[str]]`):
            A text, which is split into sentences; the sentences of one document; or those of several documents.
        layer (`int`, *optional*, defaults to -1):
            The index of the hidden states: 0 are the token embeddings, -1 is the normalized output of the encoder.
        pooling (`str`, *optional*):
            `"sentence_token"`, the default of a DEPTH model, or `"mean"` over the tokens of a sentence, special tokens
            left out: the default of a T5, which has no sentence tokens.
        batch_size (`int`, *optional*, defaults to 32): documents of one forward pass.
        sentence_language (`str`, *optional*, defaults to `"en"`): of a text, see [`get_sentence_splitter`].

    Returns:
        `torch.FloatTensor` of shape `(num_sentences, d_model)`, float32 and on the CPU; of several documents a list
        with one for each.

    Raises:
        `ValueError`: if model and tokenizer do not fit each other; if a document has no sentence, more sentences than
            the model has sentence tokens, or a sentence without a token; if an argument is out of its range.
        `TypeError`: if `texts` are no texts.
        `FloatingPointError`: if an embedding is not finite.

    >>> from hf_depth import add_sentence_tokens, load_model, sentence_embeddings, train_tokenizer
    >>> text = "It rains. The street is wet."
    >>> tokenizer = add_sentence_tokens(train_tokenizer([text], vocab_size=300, allow_fewer=True))
    >>> model = load_model(None, tokenizer, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    >>> sentence_embeddings(model, tokenizer, text).shape
    torch.Size([2, 16])
    """
    layer = _check_layer(model, layer)
    pooling = _check_pooling(model, pooling)
    if batch_size < 1:
        raise ValueError(f"`batch_size` must be at least 1, got {batch_size}.")
    check_sentence_tokens(model, tokenizer)
    texts = texts if isinstance(texts, str) else list(texts)
    is_one = _is_one_document(texts)
    documents = _encode([texts] if is_one else texts, model, tokenizer, sentence_language)
    found: list[torch.Tensor] = [torch.empty(0)] * len(documents)
    was_training = model.training
    model.eval()
    try:
        for places, batch in _batches(documents, batch_size):
            embeddings = _embed(model, tokenizer, batch, layer, pooling)
            for place, document, rows in zip(places, batch, embeddings, strict=True):
                # A copy, or a short document would keep the memory of the whole batch.
                found[place] = rows[: document.num_sentences].clone()
                if not found[place].isfinite().all():
                    raise FloatingPointError(
                        f"The embeddings of document {place} are not finite: the model has weights that are not "
                        "finite, or overflows. T5 overflows in float16: take float32 or bfloat16."
                    )
    finally:
        model.train(was_training)
    return found[0] if is_one else found


def _check_layer(model: PreTrainedModel, layer: int) -> int:
    number = model.config.num_layers + 1
    if not -number <= layer < number:
        raise ValueError(
            f"`layer` must be between {-number} and {number - 1} for an encoder of {number - 1} layers (0: the token "
            f"embeddings), got {layer}."
        )
    return layer


def _check_pooling(model: PreTrainedModel, pooling: str | None) -> str:
    has_them = has_sentence_tokens(model.config)
    if pooling is None:
        return "sentence_token" if has_them else "mean"
    if pooling not in POOLINGS:
        raise ValueError(
            f"`pooling` must be one of {', '.join(POOLINGS)}, got {pooling!r}.{suggestion(str(pooling), POOLINGS)}"
        )
    if pooling == "sentence_token" and not has_them:
        raise ValueError("`pooling` sentence_token is for a DEPTH model: a T5 has no sentence tokens. Use mean.")
    return pooling


def _is_one_document(texts: str | Sequence[str] | Sequence[Sequence[str]]) -> bool:
    if isinstance(texts, str):
        return True
    if all(isinstance(part, str) for part in texts):
        return bool(texts)  # of no documents there are no embeddings
    for number, part in enumerate(texts):
        if isinstance(part, str) or not isinstance(part, Sequence) or not all(isinstance(one, str) for one in part):
            raise TypeError(
                "`texts` must be a text, a list of sentences, or a list of documents that are lists of sentences; "
                f"item {number} is {part!r:.80}."
            )
    return False


def _encode(
    documents: Sequence[str | Sequence[str]],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentence_language: str,
) -> list[_Document]:
    encoder, splitter = TextEncoder(tokenizer), get_sentence_splitter(sentence_language)
    tokens, end_of_sentence = (), -1
    if has_sentence_tokens(model.config):
        tokens, end_of_sentence = sentence_token_ids(tokenizer), eosen_token_id(tokenizer)
    given = [sentence for document in documents if not isinstance(document, str) for sentence in document]
    encoded = iter(encoder(given))
    laid_out = []
    for number, document in enumerate(documents):
        if isinstance(document, str):
            (sentences,) = encode_sentences([document], encoder, splitter)
        else:
            sentences = [next(encoded) for _ in document]
            if [] in sentences:
                place = sentences.index([])
                raise ValueError(
                    f"Sentence {place} of document {number} has no token: {document[place]!r:.80}. Leave it out."
                )
        if not sentences:
            raise ValueError(f"Document {number} has no sentence: {document!r:.80}. Leave it out.")
        laid_out.append(_lay_out(sentences, number, tokens, end_of_sentence, tokenizer.eos_token_id))
    return laid_out


def _lay_out(
    sentences: Sequence[list[int]], number: int, tokens: Sequence[int], end_of_sentence: int, end_of_text: int
) -> _Document:
    """The encoder input as in training, see [`layout_document`]; of a T5, the tokens and `</s>`."""
    if not len(tokens):
        input_ids = [token_id for ids in sentences for token_id in ids]
        owners = [place for place, ids in enumerate(sentences) for _ in ids]
        return _Document([*input_ids, end_of_text], [*owners, -1], len(sentences))
    if len(sentences) > len(tokens):
        raise ValueError(
            f"Document {number} has {len(sentences)} sentences, but the model has {len(tokens)} sentence tokens. Give "
            f"it as several documents: `[sentences[i : i + {len(tokens)}] for i in range(0, len(sentences), "
            f"{len(tokens)})]`."
        )
    owners = [owner for place, ids in enumerate(sentences) for owner in (-1, place, *[place] * len(ids))]
    input_ids = layout_document(sentences, tokens, end_of_sentence, end_of_text)
    return _Document(input_ids, [*owners, -1, -1], len(sentences))


def _batches(documents: Sequence[_Document], batch_size: int) -> Iterator[tuple[list[int], list[_Document]]]:
    """Places of documents of similar lengths, and the documents."""
    order = sorted(range(len(documents)), key=lambda place: -len(documents[place].input_ids))
    for start in range(0, len(order), batch_size):
        places = order[start : start + batch_size]
        yield places, [documents[place] for place in places]


@torch.no_grad()
def _embed(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    documents: Sequence[_Document],
    layer: int,
    pooling: str,
) -> torch.Tensor:
    """Embeddings of shape `(batch_size, most sentences of a document, d_model)`."""
    length = max(len(document.input_ids) for document in documents)
    input_ids = torch.full((len(documents), length), tokenizer.pad_token_id)
    owners = torch.full((len(documents), length), -1)
    for row, document in enumerate(documents):
        input_ids[row, : len(document.input_ids)] = torch.tensor(document.input_ids)
        owners[row, : len(document.input_ids)] = torch.tensor(document.sentence_numbers)
    outputs = model.get_encoder()(
        input_ids=input_ids.to(model.device),
        attention_mask=_is_token(documents, length).to(model.device),
        output_hidden_states=True,
        return_dict=True,
    )
    states = outputs.hidden_states[layer].float().cpu()  # (B, L, D)
    starts = torch.zeros_like(owners, dtype=torch.bool)
    if has_sentence_tokens(model.config):
        # A sentence token is the first that belongs to its sentence.
        starts[:, 1:] = (owners[:, 1:] >= 0) & (owners[:, 1:] != owners[:, :-1])
    chosen = starts if pooling == "sentence_token" else (owners >= 0) & ~starts
    numbers = torch.arange(max(document.num_sentences for document in documents))
    weights = ((owners[:, None] == numbers[:, None]) & chosen[:, None]).float()  # (B, S, L)
    weights /= weights.sum(-1, keepdim=True).clamp(min=1)
    return weights @ states


def _is_token(documents: Sequence[_Document], length: int) -> torch.Tensor:
    lengths = torch.tensor([len(document.input_ids) for document in documents])
    return (torch.arange(length) < lengths[:, None]).long()
