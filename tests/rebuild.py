"""The inverse of corruption, in plain Python and independent of the package: input and target -> document."""


def rebuild_t5(inputs, targets, sentinels, eos):
    """The tokens of a T5 example (span corruption). Asserts that input and target have the right layout."""
    assert inputs[-1] == eos and targets[-1] == eos
    spans = _masked_spans(targets[:-1], set(sentinels))
    assert list(spans) == list(sentinels[: len(spans)]), "sentinels are used in order"
    tokens = _fill(inputs[:-1], spans)
    assert not spans, "every span of the target has its sentinel in the input"
    return tokens


def rebuild_depth(inputs, targets, sentinels, sentence_tokens, eosen, eos):
    """The sentences of a DEPTH example, in their true order; with the same assertions."""
    assert inputs[0] == eosen and inputs[-2:] == targets[-2:] == [eosen, eos]
    inputs_of = sentences_by_token(inputs[1:-1], set(sentence_tokens), eosen)
    targets_of = sentences_by_token(targets[:-1], set(sentence_tokens), eosen)
    assert inputs_of.keys() == targets_of.keys()
    sentences, all_sentinels = [], set(sentinels)
    for token, target in targets_of.items():
        spans = _masked_spans(target, all_sentinels)
        sentences.append(_fill(inputs_of[token], spans))
        assert not spans, "every span of the target has its sentinel in the same sentence of the input"
    used = [token for sentence in targets_of.values() for token in sentence if token in all_sentinels]
    assert len(used) == len(set(used)), "no sentinel is used twice"
    return sentences


def sentence_order(ids, sentence_tokens):
    """The sentence tokens of an input or target, as they come."""
    sentence_tokens = set(sentence_tokens)
    return [token for token in ids if token in sentence_tokens]


def sentences_by_token(ids, sentence_tokens, eosen):
    """`<sent_a> tokens <eosen> <sent_b> tokens <eosen>` -> {a: tokens, b: tokens}."""
    sentences, current = {}, None
    for token in ids:
        if current is None:
            assert token in sentence_tokens and token not in sentences, "a sentence begins with a token of its own"
            current = sentences[token] = []
        elif token == eosen:
            current = None
        else:
            assert token not in sentence_tokens, "a sentence ends with <eosen>"
            current.append(token)
    assert current is None
    return sentences


def _masked_spans(ids, sentinels):
    """`sentinel tokens sentinel tokens` -> {sentinel: tokens}, in this order."""
    spans = {}
    for token in ids:
        if token in sentinels:
            assert token not in spans, "no sentinel is used twice"
            current = spans[token] = []
        else:
            current.append(token)
    assert all(spans.values()), "no span is empty"
    return spans


def _fill(ids, spans):
    """Replace each sentinel by the tokens of its span. Removes the spans that were used from `spans`."""
    tokens = []
    for token in ids:
        tokens += spans.pop(token, [token])
    return tokens
