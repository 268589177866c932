"""
Time of scoring all labels, beside that of generating one label.

    python benchmarks/label_scoring.py
    python benchmarks/label_scoring.py --tokenizer_name google-t5/t5-small --d_model 512 --vocab_size 32128

The examples have the form of DiscoEval's sentence position (five sentences and five labels), are made of the
documentation of Python, and are batched by length. The weights are random, as the time does not depend on them;
generation is greedy, with a cache, and as long as the longest label, which is where a trained model ends the batch.
Both read the same batches in the same process and take turns. Time is CPU time of the process, which other load
affects less than wall-clock time; the ratio is the median over the rounds.
"""

import argparse
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase, T5Config

from hf_depth import DepthConfig, DepthForConditionalGeneration, T5ForConditionalGeneration, add_sentence_tokens
from hf_depth.data.python_reference import python_reference_documents
from hf_depth.data.sentences import get_sentence_splitter
from hf_depth.data.tokenization import eosen_token_id, load_tokenizer, sentence_token_ids
from hf_depth.data.vocabulary import train_tokenizer
from hf_depth.evaluation.label_scoring import score_labels
from hf_depth.tasks.dataset import DataCollatorForTasks
from hf_depth.tasks.preprocessing import TaskPreprocessor, encode_labels
from hf_depth.tasks.registry import get_task

SPEC = get_task("SParxiv", "disco_eval")
TEXT_VOCABULARY = 2048  # the text suffices for no more; `vocab_size` may be larger, as ids need no piece


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokenizer_name", help="by default one trained on the text; T5's makes shorter labels")
    parser.add_argument("--d_model", type=int, default=128)
    parser.add_argument("--num_layers", type=int, default=4)
    parser.add_argument("--vocab_size", type=int, default=8192)
    args = parser.parse_args()

    torch.set_num_threads(1)
    documents = [document["text"] for document in python_reference_documents()]
    tokenizer = add_sentence_tokens(load_tokenizer(args.tokenizer_name) if args.tokenizer_name else trained(documents))
    examples = sentence_position_examples(documents, args.examples)
    for kind in ("depth", "t5"):
        model = random_model(kind, tokenizer, args)
        batches = prepared_batches(kind, tokenizer, examples, args.batch_size)
        compare(kind, model, batches, encode_labels(tokenizer, list(SPEC.labels.values())), args.rounds)


def compare(
    kind: str,
    model: PreTrainedModel,
    batches: Sequence[Mapping[str, torch.Tensor]],
    label_ids: torch.LongTensor,
    rounds: int,
) -> None:
    """Print the seconds that both take over all batches, and the ratio of scoring to generation."""
    length = label_ids.shape[1]
    actions = {
        "scores": lambda batch: score_labels(model, batch["input_ids"], batch["attention_mask"], label_ids),
        "generation": lambda batch: model.generate(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            do_sample=False,
            num_beams=1,
            min_new_tokens=length,
            max_new_tokens=length,
        ),
    }
    for action in actions.values():
        action(batches[0])  # warm-up
    seconds = {name: [] for name in actions}
    for _ in range(rounds):
        totals = dict.fromkeys(actions, 0.0)
        for number, batch in enumerate(batches):
            order = list(actions) if number % 2 else list(actions)[::-1]
            for name in order:
                start = time.process_time()
                with torch.no_grad():
                    actions[name](batch)
                totals[name] += time.process_time() - start
        for name, total in totals.items():
            seconds[name].append(total)
    ratio = np.median(np.array(seconds["scores"]) / np.array(seconds["generation"]))
    tokens = sum(int(batch["attention_mask"].sum()) for batch in batches)
    examples = sum(len(batch["input_ids"]) for batch in batches)
    print(
        f"{kind}: {examples} examples of {tokens / examples:.0f} tokens, {len(label_ids)} labels of up to {length}: "
        f"scores {np.median(seconds['scores']):.2f} s, greedy generation {np.median(seconds['generation']):.2f} s, "
        f"ratio {ratio:.2f}",
        flush=True,
    )


def trained(documents: Sequence[str]) -> PreTrainedTokenizerBase:
    with tempfile.TemporaryDirectory() as folder:
        return train_tokenizer(documents, TEXT_VOCABULARY, folder)


def sentence_position_examples(documents: Sequence[str], number: int) -> list[dict[str, Any]]:
    """Five successive sentences of a document, one of them moved to the front; documents repeat as needed."""
    splitter = get_sentence_splitter("en")
    runs = []
    for document in documents:
        sentences = splitter(document)
        runs += [sentences[start : start + 5] for start in range(len(sentences) - 4)]
    examples = []
    for index in range(number):
        sentences, label = list(runs[index % len(runs)]), index % 5
        sentences.insert(0, sentences.pop(label))
        examples.append(dict(zip(SPEC.text_column_name, sentences, strict=True)) | {SPEC.label_column_name: label})
    return examples


def prepared_batches(
    kind: str, tokenizer: PreTrainedTokenizerBase, examples: Sequence[Mapping[str, Any]], batch_size: int
) -> list[dict[str, torch.Tensor]]:
    preprocessor = TaskPreprocessor(tokenizer, SPEC, sentence_tokens=kind == "depth")
    columns = preprocessor({name: [example[name] for example in examples] for name in examples[0]})
    prepared = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    prepared.sort(key=lambda example: -len(example["input_ids"]))
    collator = DataCollatorForTasks(tokenizer)
    return [collator(prepared[start : start + batch_size]) for start in range(0, len(prepared), batch_size)]


def random_model(kind: str, tokenizer: PreTrainedTokenizerBase, args: argparse.Namespace) -> PreTrainedModel:
    size = {
        "vocab_size": max(args.vocab_size, len(tokenizer)),
        "d_model": args.d_model,
        "d_kv": 64,
        "d_ff": 4 * args.d_model,
        "num_layers": args.num_layers,
        "num_heads": max(1, args.d_model // 64),
        "feed_forward_proj": "gated-gelu",
        "decoder_start_token_id": 0,
    }
    torch.manual_seed(0)
    if kind == "t5":
        return T5ForConditionalGeneration(T5Config(**size)).eval()
    ids = {
        "first_sentence_token_id": int(sentence_token_ids(tokenizer)[0]),
        "eosen_token_id": eosen_token_id(tokenizer),
    }
    return DepthForConditionalGeneration(DepthConfig(**size, **ids)).eval()


if __name__ == "__main__":
    main()
