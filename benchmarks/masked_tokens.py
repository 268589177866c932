"""
How well a pre-trained model fills masked spans of held-out documents, beside what the frequencies of tokens and of
pairs of tokens in the training documents give.

    python benchmarks/masked_tokens.py examples/configs/quickstart.yaml

The arguments are those of the run; the model is that of its `output_dir`. Counted are the masked tokens alone, without
the sentinels and sentence tokens of the target, each predicted from the input and the true tokens before it. A few
spans are shown as they are, and as they are predicted token by token.
"""

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from transformers import AutoModelForSeq2SeqLM, PreTrainedTokenizerBase

from hf_depth import DepthTrainingArguments, load_corpus, load_tokenizer
from hf_depth.arguments.data_args import CorpusArguments, ObjectiveArguments
from hf_depth.arguments.model_args import ModelArguments
from hf_depth.arguments.parser import parse_arguments

NUM_SHOWN = 8  # spans
UNIGRAM_WEIGHT = 0.3  # in the mixture with the pairs, of which most are rare


def main(args: Sequence[str] | None = None) -> None:
    kinds = (ModelArguments, CorpusArguments, ObjectiveArguments, DepthTrainingArguments)
    model_args, corpus_args, objective_args, training_args = parse_arguments(kinds, args, description=__doc__)
    tokenizer = load_tokenizer(training_args.output_dir)
    model = AutoModelForSeq2SeqLM.from_pretrained(training_args.output_dir).eval()
    objective = objective_args.build(model_args.model_type, tokenizer)
    corpus = load_corpus(**corpus_args.for_loading(), cache_dir=model_args.cache_dir)
    data, _ = objective.prepare_splits(corpus, **corpus_args.for_preparing(training_args))
    collator = objective.collator(**objective_args.for_collating(training_args))
    frequencies = Frequencies(data["train"]["input_ids"], len(tokenizer))

    rows = []
    loader = DataLoader(data["validation"], training_args.per_device_eval_batch_size, collate_fn=collator)
    for batch in loader:
        with torch.no_grad():
            logits = model(**batch).logits
        rows += masked_tokens(batch, logits, text_ids(tokenizer))
    labels = torch.tensor([row["label"] for row in rows])
    before = [row["before"] for row in rows]
    print(f"{len(rows):,} masked tokens of {len(data['validation']):,} held-out examples")
    print(f"{'':24}{'accuracy':>10}{'loss':>10}")
    scores = {
        "most frequent token": frequencies.log_probabilities([None] * len(rows)),
        "after the token before": frequencies.log_probabilities(before),
        "model": torch.stack([row["logits"] for row in rows]),
    }
    for name, values in scores.items():
        accuracy = (values.argmax(-1) == labels).double().mean()
        print(f"{name:24}{accuracy:10.3f}{cross_entropy(values[:, : len(tokenizer)], labels):10.3f}")
    print("\nspan / prediction:")
    for span in islice(spans(rows), NUM_SHOWN):
        predicted = [int(row["logits"].argmax()) for row in span]
        print(f"  {tokenizer.decode([row['label'] for row in span])!r} / {tokenizer.decode(predicted)!r}")


class Frequencies:
    """Probabilities of a token, by itself and after another, as counted in documents."""

    def __init__(self, documents: Sequence[Sequence[int]], vocab_size: int):
        self.single = torch.ones(vocab_size, dtype=torch.double)
        self.pairs: dict[int, Counter] = defaultdict(Counter)
        for ids in documents:
            self.single += torch.bincount(torch.as_tensor(ids), minlength=vocab_size)
            for first, second in zip(ids[:-1], ids[1:], strict=True):
                self.pairs[int(first)][int(second)] += 1
        self.single /= self.single.sum()

    def log_probabilities(self, before: Sequence[int | None]) -> torch.Tensor:
        """Of every token, `(number of tokens before, vocabulary)`; `None` is an unknown token."""
        rows = self.single.repeat(len(before), 1)
        for row, token in zip(rows, before, strict=True):
            counts = self.pairs.get(token)
            if counts:
                row *= UNIGRAM_WEIGHT
                ids = torch.tensor(list(counts))
                row[ids] += (1 - UNIGRAM_WEIGHT) * torch.tensor(list(counts.values())) / counts.total()
        return rows.log()


def text_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """The ids that stand for text: neither sentinels nor sentence tokens nor other special tokens."""
    special = re.compile(r"</?[a-z]+(_[a-z]+)?(_\d+)?>")
    vocabulary = tokenizer.get_vocab()
    return {id for token, id in vocabulary.items() if token == tokenizer.unk_token or not special.fullmatch(token)}


def masked_tokens(batch: Mapping[str, torch.Tensor], logits: torch.Tensor, text: set[int]) -> Iterator[dict]:
    """Yield label, logits, and the token before it in the document (`None` at its beginning), of each masked token."""
    for inputs, labels, scores in zip(batch["input_ids"].tolist(), batch["labels"].tolist(), logits, strict=True):
        for place, label in enumerate(labels):
            if label not in text:
                continue
            before, begins_span = labels[place - 1], labels[place - 1] not in text
            if begins_span:  # the sentinel: the span continues what stands before it in the input
                before = inputs[inputs.index(before) - 1]
            before = before if before in text else None
            yield {"label": label, "logits": scores[place], "before": before, "begins_span": begins_span}


def spans(rows: Sequence[dict]) -> Iterator[list[dict]]:
    """Yield the masked tokens of each span."""
    starts = [place for place, row in enumerate(rows) if row["begins_span"]]
    for start, end in pairwise([*starts, len(rows)]):
        yield rows[start:end]


if __name__ == "__main__":
    main(sys.argv[1:])
