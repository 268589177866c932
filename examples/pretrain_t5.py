"""
Pre-train a DEPTH model (span corruption and sentence un-shuffling) or a T5 (span corruption, prefix-LM).

    python examples/pretrain_t5.py examples/configs/quickstart.yaml
    accelerate launch examples/pretrain_t5.py examples/configs/quickstart.yaml --max_steps 100
    accelerate launch examples/pretrain_t5.py --train_file texts.jsonl.gz --output_dir runs/mine --do_train --do_eval

Arguments come from a YAML or JSON file, from flags, or from a file followed by flags that override it.
"""

import json
import logging
import math
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import torch
from datasets import Dataset, IterableDataset
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, TrainerState, set_seed

from hf_depth import DataCollatorForDepth, DataCollatorForT5SpanCorruption, DepthTrainer, DepthTrainingArguments
from hf_depth.arguments.launch import check_run_arguments, set_up
from hf_depth.arguments.model_args import ModelArguments, load_tokenizer, own_tokenizer
from hf_depth.arguments.parser import parse_arguments
from hf_depth.data.corpus import load_corpus
from hf_depth.data.corruption import noise_counts, t5_input_and_target_lengths, t5_raw_length
from hf_depth.data.preprocessing import (
    DepthPreprocessor,
    SpanCorruptionPreprocessor,
    check_enough_sentinels,
    dataset_statistics,
    prepare_dataset,
)
from hf_depth.data.tokenization import sentence_token_ids
from hf_depth.evaluation.plots import plot_losses
from hf_depth.models.loading import load_model
from hf_depth.training.callbacks import RunRecorder
from hf_depth.training.checkpoints import (
    best_checkpoint,
    check_same_model,
    check_same_run,
    checkpoint_to_resume,
    describe_run,
    is_finished,
)
from hf_depth.training.model_card import run_settings
from hf_depth.training.previews import describe_example, metrics_table, unshuffle
from hf_depth.training.statistics import is_shuffled

logger = logging.getLogger(__name__)

REPORTED_METRICS = (
    "eval_loss",
    "eval_sentence_loss",
    "eval_reconstruction_loss",
    "eval_sentence_accuracy",
    "eval_sentence_accuracy_chance",
    "eval_sentence_accuracy_shuffled",
    "eval_sentence_accuracy_shuffled_chance",
    "eval_sentence_accuracy_unshuffled",
    "eval_sentence_accuracy_unshuffled_chance",
    "eval_reconstruction_accuracy",
    "eval_order_exact_shuffled",
    "eval_order_exact_shuffled_chance",
    "eval_order_kendall_tau_shuffled",
)


@dataclass
class DataArguments:
    """The text, and what becomes of it. With no source at all: the Python reference that every CPython carries."""

    dataset_name: str | None = field(default=None, metadata={"help": "Data set on the Hub (or folder)."})
    dataset_config_name: str | None = field(default=None, metadata={"help": "Configuration of that data set."})
    train_file: list[str] | None = field(
        default=None, metadata={"help": "Files or globs: txt, json, jsonl, csv, parquet, or .gz of these."}
    )
    validation_file: list[str] | None = field(default=None, metadata={"help": "Likewise, for evaluation."})
    test_file: list[str] | None = field(default=None, metadata={"help": "Likewise, for --do_predict."})
    text_column: str = field(default="text", metadata={"help": "Column that holds the documents."})
    validation_split_percentage: int = field(
        default=5, metadata={"help": "Documents kept for evaluation when there is no validation data."}
    )
    streaming: bool = field(default=False, metadata={"help": "Read the data while training; needs --max_steps."})
    shuffle_buffer_size: int = field(default=10_000, metadata={"help": "Examples to shuffle among when streaming."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Use this many training examples only."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Use this many evaluation examples only."})
    max_predict_samples: int | None = field(default=None, metadata={"help": "Use this many test examples only."})
    preprocessing_num_workers: int | None = field(default=None, metadata={"help": "Processes that prepare the text."})
    overwrite_cache: bool = field(default=False, metadata={"help": "Prepare the text anew."})
    objective: str = field(
        default="span_corruption",
        metadata={"help": "Of a T5: span_corruption or prefix_lm.", "choices": ["span_corruption", "prefix_lm"]},
    )
    mlm_probability: float | None = field(
        default=None, metadata={"help": "Share of the words to hide (default: 0.3 for DEPTH, 0.15 for T5)."}
    )
    mean_noise_span_length: float = field(default=3.0, metadata={"help": "Mean length of a hidden span in tokens."})
    sentence_shuffling_probability: float = field(
        default=0.5, metadata={"help": "DEPTH: share of the examples whose sentences are shuffled."}
    )
    max_source_length: int = field(default=512, metadata={"help": "Longest encoder input in tokens."})
    max_target_length: int | None = field(
        default=None,
        metadata={
            "help": "Longest target in tokens (default: what the longest input needs; DEPTH: max_source_length)."
        },
    )
    max_sentences: int | None = field(
        default=None, metadata={"help": "DEPTH: most sentences of an example (default: all sentence tokens)."}
    )
    min_sentences: int = field(
        default=1, metadata={"help": "DEPTH: leave out examples with fewer sentences. (One sentence has no order.)"}
    )
    sentence_language: str = field(default="en", metadata={"help": "DEPTH: language for splitting sentences."})
    pack_examples: bool = field(
        default=False, metadata={"help": "T5: join documents, so that every input has max_source_length tokens."}
    )
    pad_to_max_length: bool = field(
        default=False, metadata={"help": "Pad to the maximal lengths (static shapes, for --torch_compile)."}
    )
    pad_to_multiple_of: int | None = field(default=None, metadata={"help": "Pad lengths to a multiple of this."})

    def __post_init__(self):
        for name in ("max_train_samples", "max_eval_samples", "max_predict_samples"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"`--{name}` must be at least 1, got {getattr(self, name)}.")


CORPUS_ARGUMENTS = (
    "dataset_name",
    "dataset_config_name",
    "train_file",
    "validation_file",
    "test_file",
    "text_column",
    "streaming",
    "validation_split_percentage",
)


# Smallest and largest value; shares of exactly 0 or 1 would leave nothing to hide or nothing to show.
RANGES = (
    ("mlm_probability", 0.001, 0.999),
    ("mean_noise_span_length", 1, math.inf),
    ("sentence_shuffling_probability", 0, 1),
)


def check(model_args, data_args, training_args):
    """Stop on arguments that contradict each other, before anything is loaded."""
    check_run_arguments(model_args, training_args)
    for name, lowest, highest in RANGES:
        value = getattr(data_args, name)
        if value is not None and not lowest <= value <= highest:
            raise ValueError(f"`--{name}` must lie between {lowest} and {highest}, got {value}.")
    if model_args.model_type == "depth":
        for name, value in (("objective", "span_corruption"), ("pack_examples", False)):
            if getattr(data_args, name) != value:
                raise ValueError(f"`--{name} {getattr(data_args, name)}` is for `--model_type t5` alone.")
    elif data_args.min_sentences > 1:
        raise ValueError("`--min_sentences` is for `--model_type depth` alone: no sentences are known to a T5.")
    if data_args.streaming and training_args.do_train and training_args.max_steps <= 0:
        raise ValueError("`--streaming` reads data whose length is not known: say how long to train by `--max_steps`.")
    if data_args.streaming and training_args.do_eval and data_args.max_eval_samples is None:
        raise ValueError("`--streaming`: say how many examples to evaluate on by `--max_eval_samples`.")
    if training_args.do_train and training_args.device.type == "cpu":
        if model_args.attn_implementation == "flex_attention":
            raise ValueError("PyTorch's flex_attention cannot train on a CPU: use `--attn_implementation sdpa`.")


def complete(model_args, data_args, training_args):
    """Fill in the defaults that depend on other arguments."""
    depth = model_args.model_type == "depth"
    if data_args.mlm_probability is None:
        data_args.mlm_probability = 0.3 if depth else 0.15
    if data_args.max_target_length is None:
        data_args.max_target_length = data_args.max_source_length
        if not depth and data_args.objective == "span_corruption":
            noise = (data_args.mlm_probability, data_args.mean_noise_span_length)
            raw_length = t5_raw_length(data_args.max_source_length, *noise)
            data_args.max_target_length = int(t5_input_and_target_lengths(raw_length, *noise)[1])
    if training_args.generation_max_length is None:
        # The host's default is 20 tokens. `generate()` counts the start token as well.
        training_args.generation_max_length = data_args.max_target_length + 1


def prepare(corpus, tokenizer, model_args, data_args, training_args):
    """Documents -> rows of the collator and their statistics, for the splits that are needed."""
    preprocessor = build_preprocessor(tokenizer, model_args, data_args)
    limits = {
        "train": data_args.max_train_samples,
        "validation": data_args.max_eval_samples,
        "test": data_args.max_predict_samples,
    }
    data, statistics = dict.fromkeys(limits), {}
    for split, remedy in needed_splits(training_args).items():
        if split not in corpus:
            raise ValueError(f"There are no {split} data: {remedy}.")
        with training_args.main_process_first(desc=f"preparing the {split} split"):
            data[split] = prepare_split(corpus[split], split, limits[split], preprocessor, data_args)
        if not isinstance(data[split], IterableDataset):
            statistics[split] = dataset_statistics(data[split], tokenizer.unk_token_id)
            report_statistics(statistics[split], split, model_args)
    return data, statistics


def needed_splits(training_args):
    """The splits that a run needs, and what to do where one is missing."""
    needed = {}
    if training_args.do_train:
        needed["train"] = "`--do_train` needs `--train_file` or `--dataset_name`"
    if training_args.do_eval:
        needed["validation"] = "name `--validation_file`, or raise `--validation_split_percentage`"
    if training_args.do_predict:
        needed["test"] = "`--do_predict` needs `--test_file`"
    return needed


def prepare_split(documents, split, limit, preprocessor, data_args):
    """At most `limit` rows, without preparing many more documents than that takes."""
    if isinstance(documents, IterableDataset):
        rows = prepare_dataset(documents, preprocessor, min_sentences=data_args.min_sentences)
        rows = rows if limit is None else rows.take(limit)
        if split == "train":
            # A stream starts over at its end, so that processes with shards of unequal size never wait for each other.
            return rows.repeat(None)
        # Kept in memory: only then do several processes know which examples just fill up their last batch.
        return Dataset.from_list(list(rows), features=preprocessor.features).with_format("numpy")
    number = len(documents) if limit is None or data_args.pack_examples else min(limit, len(documents))
    while True:
        rows = prepare_dataset(
            documents.select(range(number)),
            preprocessor,
            num_proc=data_args.preprocessing_num_workers,
            overwrite_cache=data_args.overwrite_cache,
            desc=f"Preparing {split}",
            min_sentences=data_args.min_sentences,
        )
        if limit is None or len(rows) >= limit or number == len(documents):
            break
        number = min(2 * number, len(documents))  # some documents were empty
    rows = rows if limit is None else rows.select(range(min(limit, len(rows))))
    return rows.with_format("numpy")


def build_preprocessor(tokenizer, model_args, data_args):
    noise = (data_args.mlm_probability, data_args.mean_noise_span_length)
    if model_args.model_type == "depth":
        available = len(sentence_token_ids(tokenizer))
        max_sentences = available if data_args.max_sentences is None else data_args.max_sentences
        if not 2 <= max_sentences <= available:
            raise ValueError(
                f"`--max_sentences` must lie between 2 and {available}, the number of sentence tokens, got "
                f"{max_sentences}. For more, raise `--num_sentence_tokens`."
            )
        return DepthPreprocessor(
            tokenizer,
            max_source_length=data_args.max_source_length,
            max_target_length=data_args.max_target_length,
            mlm_probability=data_args.mlm_probability,
            mean_noise_span_length=data_args.mean_noise_span_length,
            max_sentences=max_sentences,
            text_column=data_args.text_column,
            language=data_args.sentence_language,
        )
    if data_args.objective == "prefix_lm":
        raw_length = min(data_args.max_source_length, data_args.max_target_length)
    else:
        raw_length = t5_raw_length(data_args.max_source_length, *noise, data_args.max_target_length)
        check_enough_sentinels(int(noise_counts(raw_length, *noise)[1]), tokenizer)
    return SpanCorruptionPreprocessor(
        tokenizer, raw_length, text_column=data_args.text_column, pack_examples=data_args.pack_examples
    )


def build_collator(tokenizer, model_args, data_args, training_args):
    arguments = {
        "tokenizer": tokenizer,
        "mlm_probability": data_args.mlm_probability,
        "mean_noise_span_length": data_args.mean_noise_span_length,
        "max_source_length": data_args.max_source_length,
        "max_target_length": data_args.max_target_length,
        "padding": "max_length" if data_args.pad_to_max_length else "longest",
        "pad_to_multiple_of": data_args.pad_to_multiple_of,
        "seed": training_args.data_seed if training_args.data_seed is not None else training_args.seed,
    }
    if model_args.model_type == "depth":
        probability = data_args.sentence_shuffling_probability
        return DataCollatorForDepth(**arguments, sentence_shuffling_probability=probability)
    return DataCollatorForT5SpanCorruption(**arguments, objective=data_args.objective)


def train(trainer, checkpoint, statistics):
    result = trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model()
    trainer.save_state()
    metrics = result.metrics | {f"train_{name}": value for name, value in statistics.items()}
    trainer.log_metrics("train", metrics)
    trainer.save_metrics("train", metrics)


def evaluate(trainer, statistics):
    """Evaluate the final model, and show it beside the first evaluation of the run."""
    metrics = trainer.evaluate() | {f"eval_{name}": value for name, value in statistics.items()}
    trainer.save_metrics("eval", metrics)
    first_log = next((log for log in trainer.state.log_history if "eval_loss" in log), None)
    before = first_log if first_log is not None and first_log["step"] == 0 and trainer.state.global_step else None
    if trainer.args.should_log:
        print("\n" + metrics_table(before, metrics, REPORTED_METRICS), flush=True)


def predict(trainer, test_dataset):
    """Metrics of the test data; with `--predict_with_generate` also what the model writes, one example a line."""
    output = trainer.predict(test_dataset, metric_key_prefix="predict")
    trainer.log_metrics("predict", output.metrics)
    trainer.save_metrics("predict", output.metrics)
    if trainer.is_world_process_zero() and trainer.args.predict_with_generate:
        decode, pad = trainer.processing_class.decode, trainer.processing_class.pad_token_id
        path = Path(trainer.args.output_dir, "predictions.jsonl")
        with path.open("w", encoding="utf-8") as file:
            for prediction, target in zip(output.predictions, output.label_ids, strict=True):
                texts = {
                    "prediction": decode(prediction[(prediction >= 0) & (prediction != pad)]),
                    "target": decode(target[target >= 0]),
                }
                file.write(json.dumps(texts, ensure_ascii=False) + "\n")
        logger.info(f"Predictions are in {path}")


def show_examples(data, collator, tokenizer, number=2):
    rows = next(rows for rows in data.values() if rows is not None)
    print("\nWhat the model reads and writes:")
    for row in islice(rows, number):
        print(describe_example(row, collator, tokenizer) + "\n", flush=True)


def unshuffle_one(trainer):
    """Load what was saved, as a user would, and let it put one held-out document in order."""
    tokenizer = trainer.processing_class
    saved = trainer.args.do_train
    model = AutoModelForSeq2SeqLM.from_pretrained(trainer.args.output_dir) if saved else trainer.model
    collator = replace(trainer.eval_data_collator, sentence_shuffling_probability=1.0)
    for row in islice(trainer.eval_dataset, 100):
        batch = collator([row])
        if is_shuffled(batch["input_ids"], batch["labels"], model.config).item():
            break
    else:
        logger.warning("No evaluation example has several sentences: there is nothing to un-shuffle.")
        return
    result = unshuffle(model, tokenizer, row, batch, max_length=trainer.args.generation_max_length)
    print("\nUn-shuffling a held-out document by generate():")
    for title in ("given", "predicted", "true"):
        print(f"  {title} order:")
        print("".join(f"    {number}. {sentence}\n" for number, sentence in enumerate(result[title], 1)), end="")
    if not result["predicted"]:
        print("  The model wrote no sentence token of this document.")
    print(f"  Kendall's tau {result['kendall_tau']:.2f} (1: the true order, 0: chance, -1: reversed)")
    print(f"  generated: {result['generated']}", flush=True)


def report_statistics(statistics, split, model_args):
    """Say what the preparation made of the documents; stop if there is nothing to learn from."""
    logger.info(f"{split}: " + ", ".join(f"{value:,} {name.replace('_', ' ')}" for name, value in statistics.items()))
    unknown = statistics.get("unknown_tokens", 0) / max(statistics["tokens"], 1)
    if unknown > 0.01:
        logger.warning(
            f"{unknown:.1%} of the {split} tokens are unknown to the tokenizer (`<unk>`): does it fit the language? "
            "Name another one by `--tokenizer_name`."
        )
    if model_args.model_type == "depth" and statistics["one_sentence_examples"] == statistics["examples"]:
        message = (
            f"No example of the {split} data has more than one sentence, so there is nothing to un-shuffle. DEPTH "
            "needs documents of several sentences: check `--text_column` (one document per row, not one sentence) and "
            "`--sentence_language`, raise `--max_source_length`, or train a `--model_type t5`."
        )
        if split == "train":
            raise ValueError(message)
        logger.warning(message)


def card_sections(model_args, data_args, training_args, statistics, model):
    """What the model card states about the data and the settings of a run."""
    source = data_args.dataset_name or ", ".join(data_args.train_file or []) or "the Python language reference"
    names = (*SETTINGS, *(DEPTH_SETTINGS if model_args.model_type == "depth" else ()))
    settings = {name: getattr(data_args, name) for name in names if getattr(data_args, name) is not None}
    if model_args.model_type == "depth":
        settings["sentence_loss_coefficient"] = training_args.sentence_loss_coefficient
    settings |= run_settings(model_args, training_args, model)
    return {"Data": {"source": source, **statistics}, "Settings": settings}


SETTINGS = ("objective", "mlm_probability", "mean_noise_span_length", "max_source_length", "max_target_length")
DEPTH_SETTINGS = ("sentence_shuffling_probability", "max_sentences", "min_sentences")


def finish(trainer, model_args):
    """The plot, the model card, a document un-shuffled, and what goes to the Hub."""
    args = trainer.args
    if args.do_train:
        trainer.save_state()  # once more, with the last evaluation
        if trainer.is_world_process_zero():
            plot_losses(trainer.state.log_history, Path(args.output_dir, "losses.png"))
            trainer.create_model_card()
    sharded = trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled  # then no process has a model of its own
    if args.do_eval and model_args.model_type == "depth" and not sharded and trainer.is_world_process_zero():
        unshuffle_one(trainer)
    if args.push_to_hub:
        trainer.push_to_hub()


def main(args=None):
    model_args, data_args, training_args = parse_arguments(
        (ModelArguments, DataArguments, DepthTrainingArguments), args
    )
    set_up(training_args)
    check(model_args, data_args, training_args)
    complete(model_args, data_args, training_args)
    run = describe_run(model_args, script=Path(__file__).name, objective=data_args.objective)
    checkpoint = checkpoint_to_resume(training_args)
    if checkpoint is not None:
        check_same_run(checkpoint, run)
        best = best_checkpoint(checkpoint, training_args)
    if checkpoint is not None and is_finished(checkpoint, training_args):
        logger.info(f"{checkpoint} is the end of this run: there is nothing left to train.")
        training_args.do_train = False
        if not (training_args.do_eval or training_args.do_predict):
            return None
    set_seed(training_args.seed)

    corpus = load_corpus(
        **{name: getattr(data_args, name) for name in CORPUS_ARGUMENTS},
        seed=training_args.seed,
        cache_dir=model_args.cache_dir,
    )
    for split, documents in corpus.items():
        if not isinstance(documents, IterableDataset):
            logger.info(f"{split}: {len(documents):,} documents")
    tokenizer = AutoTokenizer.from_pretrained(checkpoint) if checkpoint else load_tokenizer(model_args)
    if tokenizer is None:
        texts = (document[data_args.text_column] for document in corpus["train"])
        tokenizer = own_tokenizer(texts, model_args, training_args)
    data, statistics = prepare(corpus, tokenizer, model_args, data_args, training_args)
    collator = build_collator(tokenizer, model_args, data_args, training_args)
    model = load_model(tokenizer=tokenizer, **model_args.for_loading())
    if checkpoint is not None:
        check_same_model(checkpoint, model)
    if checkpoint is not None and not training_args.do_train:
        model = type(model).from_pretrained(best, dtype=torch.float32)
    logger.info(f"{type(model).__name__} with {model.num_parameters() / 1e6:.1f} M parameters")
    if training_args.should_log:
        show_examples(data, collator, tokenizer)
    if isinstance(data["train"], IterableDataset):
        data["train"] = data["train"].shuffle(seed=training_args.seed, buffer_size=data_args.shuffle_buffer_size)

    trainer = DepthTrainer(
        model=model,
        args=training_args,
        data_collator=collator,
        train_dataset=data["train"],
        eval_dataset=data["validation"],
        processing_class=tokenizer,
    )
    trainer.add_callback(RunRecorder(run))
    trainer.card_sections = card_sections(model_args, data_args, training_args, statistics, model)
    if checkpoint is not None and not training_args.do_train:
        trainer.state = TrainerState.load_from_json(Path(checkpoint, "trainer_state.json"))
    if training_args.do_train:
        train(trainer, checkpoint, statistics.get("train", {}))
    if training_args.do_eval:
        evaluate(trainer, statistics["validation"])
    if training_args.do_predict:
        predict(trainer, data["test"])
    finish(trainer, model_args)
    trainer.end()
    return trainer


if __name__ == "__main__":
    main()
