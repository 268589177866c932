"""The inverse of corruption, in plain Python and without a line of the package: input and target -> document."""


def rebuild_t5(inputs, targets, sentinels, eos):
    """The words of a T5 example (span corruption). Asserts that input and target have the layout that they should."""
    assert inputs[-1] == eos and targets[-1] == eos
    hidden = _hidden_spans(targets[:-1], set(sentinels))
    assert list(hidden) == list(sentinels[: len(hidden)]), "sentinels are used in order"
    words = _fill(inputs[:-1], hidden)
    assert not hidden, "every span of the target has its sentinel in the input"
    return words


def rebuild_depth(inputs, targets, sentinels, sentence_tokens, eosen, eos):
    """The sentences of a DEPTH example, in their true order; with the same assertions."""
    assert inputs[0] == eosen and inputs[-2:] == targets[-2:] == [eosen, eos]
    shown = _sentences(inputs[1:-1], set(sentence_tokens), eosen)
    asked = _sentences(targets[:-1], set(sentence_tokens), eosen)
    assert shown.keys() == asked.keys()
    sentences = []
    for token, target in asked.items():
        hidden = _hidden_spans(target, set(sentinels))
        sentences.append(_fill(shown[token], hidden))
        assert not hidden, "every span of the target has its sentinel in the same sentence of the input"
    used = [word for sentence in asked.values() for word in sentence if word in set(sentinels)]
    assert len(used) == len(set(used)), "no sentinel is used twice"
    return sentences


def sentence_order(ids, sentence_tokens):
    """The sentence tokens of an input or target, as they come."""
    return [token for token in ids if token in set(sentence_tokens)]


def _sentences(ids, sentence_tokens, eosen):
    """`<sent_a> words <eosen> <sent_b> words <eosen>` -> {a: words, b: words}."""
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


def _hidden_spans(ids, sentinels):
    """`sentinel words sentinel words` -> {sentinel: words}, in this order."""
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
    """Put the words of a span where its sentinel stands; takes the spans that were used out of `spans`."""
    words = []
    for token in ids:
        words += spans.pop(token, [token])
    return words
