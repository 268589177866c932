"""
Does pre-training help, and does DEPTH help more than T5? Small models are pre-trained on three kinds of text for a
number of CPU minutes, and compared with models from scratch and with bags of words.

    python benchmarks/transfer.py --output_dir runs/transfer --prose "novels/*.jsonl.gz" --processes 2
    python benchmarks/transfer.py --output_dir runs/transfer --minutes 3 --parts curves

The texts are documentation and Python functions of what is installed, and `--prose`, files of documents. All parts are
measured by default:

    optimizers  optimizers and learning rates from scratch at three sizes: held-out loss, entropy of attention
    tuning      optimizers and learning rates for fine-tuning a checkpoint, and for going on with its pre-training
    curves      accuracy over the number of labels: T5, DEPTH, from scratch, bag of words
    order       tasks of discourse: ordering, position, coherence of sentences; order of statements
    unshuffle   exact order and Kendall's tau of 2 and 4 sentences without any label, beside a linear ranker
    pairs       minimal pairs: is the sentence as it was written the likelier one?
    variants    what was tried for DEPTH: coefficient, shuffled share, number of sentences, noise, size
    probes      DiscoEval's tasks from frozen embeddings, of the files in `--disco_eval`

Each process uses one thread; a budget of minutes is CPU time of the optimizer's steps. Each measurement is a line of
results.jsonl; started again, the script goes on with those that are missing, also within a pre-training. At the end,
and by `--report`, it writes results.md, curves.png and order.png.
"""

import argparse
import contextlib
import itertools
import json
import math
import multiprocessing
import os
import re
import statistics
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transfer_data as data
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback, set_seed
from transformers.trainer_utils import get_last_checkpoint

from hf_depth import (
    DepthObjective,
    DepthTrainer,
    DepthTrainingArguments,
    SpanCorruptionObjective,
    TaskSplits,
    TaskTrainer,
    TaskTrainingArguments,
    add_sentence_tokens,
    load_corpus,
    load_model,
    load_tokenizer,
    order_sentences,
    train_tokenizer,
)
from hf_depth.data.tokenization import TextEncoder
from hf_depth.evaluation.minimal_pairs import fill_log_probabilities
from hf_depth.evaluation.probing import ProbeOptions, probe_task

Cell = dict[str, Any]  # what is measured: `part` and settings; equal ones are measured once

PARTS = ("optimizers", "tuning", "curves", "order", "unshuffle", "pairs", "variants", "probes")
CORPORA = ("documentation", "functions", "prose", "subjectivity", "abstracts")
GIVEN = ("prose", "subjectivity", "abstracts")  # these are read from files that the user names
MINUTES = (3, 20, 120)
SEEDS = (0, 1, 2)
LABELS = (50, 200, 1000)
STEPS = {50: 100, 200: 200, 1000: 400}  # of fine-tuning, of 16 examples
TUNED_AT = 200  # labels at which the learning rate is chosen, by validation examples, with the first seed
RATES = {"pre-trained": (1e-3, 5e-3, 1e-2), "scratch": (5e-3, 1e-2, 2e-2)}  # of `adamw_scale`

SIZE = {"d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4}
SIZES = {
    "64 x 1+1": SIZE | {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 1, "num_decoder_layers": 1},
    "128 x 2+2": SIZE,
    "256 x 3+3": SIZE | {"d_model": 256, "d_kv": 64, "d_ff": 512, "num_layers": 3, "num_decoder_layers": 3},
}
VOCAB_SIZE = 4096
PRETRAINING = {
    "max_source_length": 96,
    "batch_size": 32,
    "optim": "adamw_scale",
    "optim_args": None,
    "learning_rate": 1e-2,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 0.05,
    "adam_beta2": 0.98,
    "dropout_rate": 0.0,
}
KINDS = {
    "T5": PRETRAINING | {"mlm_probability": 0.15, "mean_noise_span_length": 3.0},
    "DEPTH": PRETRAINING
    | {
        "mlm_probability": 0.15,
        "mean_noise_span_length": 3.0,
        "sentence_shuffling_probability": 1.0,
        "sentence_loss_coefficient": 10.0,
        "min_sentences": 2,
        "max_sentences": 4,
    },
}
MODEL_TYPES = {"T5": "t5", "DEPTH": "depth"}
WITHOUT_ORDER = ("subjectivity",)  # each document is one sentence: there is nothing to un-shuffle
OBJECTIVE_SETTINGS = (
    "max_source_length",
    "mlm_probability",
    "mean_noise_span_length",
    "min_sentences",
    "max_sentences",
)
OBJECTIVE_SETTINGS += ("sentence_shuffling_probability",)
OPTIMIZERS = {
    "adamw_torch_fused 1e-3": {"optim": "adamw_torch_fused", "learning_rate": 1e-3},
    "adamw_torch_fused 3e-3": {"optim": "adamw_torch_fused", "learning_rate": 3e-3},
    "adamw_scale 1e-2": {"optim": "adamw_scale", "learning_rate": 1e-2},
    "adamw_scale 2e-2": {"optim": "adamw_scale", "learning_rate": 2e-2},
    "adafactor 2e-2": {"optim": "adafactor", "optim_args": "scale_parameter=True", "learning_rate": 2e-2},
    "muon 1e-3": {"optim": "muon", "learning_rate": 1e-3},
}
OPTIMIZER_MINUTES = 5
TUNING = [
    ("adamw_torch_fused", None, (1e-4, 5e-4, 2e-3)),
    ("adamw_scale", None, (1e-3, 5e-3, 2e-2)),
    ("adafactor", "scale_parameter=True", (1e-3, 5e-3, 2e-2)),
]
VARIANTS = {
    "as in the other parts": {},
    "coefficient 1": {"sentence_loss_coefficient": 1.0},
    "coefficient 2": {"sentence_loss_coefficient": 2.0},
    "coefficient 5": {"sentence_loss_coefficient": 5.0},
    "half of the examples shuffled": {"sentence_shuffling_probability": 0.5},
    "2 sentences": {"max_sentences": 2},
    "2 to 8 sentences": {"max_sentences": 8},
    "one sentence and more": {"min_sentences": 1},
    "two sentence tokens, 2 sentences": {"num_sentence_tokens": 2, "max_sentences": 2},
    "noise 0.3": {"mlm_probability": 0.3},
    "length 64": {"max_source_length": 64},
    "d_model 64, 1 + 1 layers": {"size": "64 x 1+1"},
    "d_model 256, 3 + 3 layers": {"size": "256 x 3+3"},
}
VARIANT_MINUTES = 10
CURVES = {
    "documentation": ("topic", "altered", "last_word", "sentence_ordering"),
    "functions": ("sentence_ordering",),
    "subjectivity": ("subjectivity",),
    "abstracts": ("BSOarxiv",),
}
ORDER = {
    "documentation": ("sentence_position", "discourse_coherence"),
    "prose": data.DISCOURSE,
    "abstracts": ("SParxiv",),
}
PROBES = ("SParxiv", "BSOarxiv", "DCchat")
PROBED = ("documentation", "abstracts")  # texts of the models that are probed
MAX_HELD_OUT = 500  # documents, for losses


# ---- Measurements: each is a function of its settings and the folder with all files ---------------------------------


class StepClock(TrainerCallback):
    """CPU seconds of each step, without evaluations and checkpoints."""

    def __init__(self):
        self.seconds: list[float] = []

    def on_step_begin(self, *args, **kwargs):
        self.started = time.process_time()

    def on_step_end(self, *args, **kwargs):
        self.seconds.append(time.process_time() - self.started)


def model_folder(root: Path, cell: Cell) -> Path:
    """Of a pre-training: named by its settings, those that are not the usual ones by a hash."""
    name = "-".join(str(cell[key]) for key in ("corpus", "kind", "minutes", "seed"))
    if cell.get("settings"):
        name += f"-{zlib.crc32(json.dumps(cell['settings'], sort_keys=True).encode()):08x}"
    return root / "models" / name


def pretrain(cell: Cell, root: Path) -> dict[str, Any]:
    """Pre-train for `minutes` of CPU time; goes on with a checkpoint."""
    settings = {**KINDS[cell["kind"]], **cell.get("settings", {})}
    size = SIZES[settings.pop("size", "128 x 2+2")]
    folder, corpus = model_folder(root, cell), root / "corpora" / cell["corpus"]
    tokenizer = load_tokenizer(str(root / "tokenizers" / cell["corpus"]))
    given = {name: settings[name] for name in OBJECTIVE_SETTINGS if name in settings}
    if cell["kind"] == "DEPTH":
        tokenizer = add_sentence_tokens(tokenizer, settings.get("num_sentence_tokens", 20))
        given["sentence_language"] = language_of(cell["corpus"])
        objective = DepthObjective(tokenizer, **given)
    else:
        objective = SpanCorruptionObjective(tokenizer, **given)
    files = {f"{split}_file": str(corpus / f"{split}.jsonl") for split in ("train", "validation")}
    documents = load_corpus(**files)
    documents["validation"] = documents["validation"].select(range(min(MAX_HELD_OUT, len(documents["validation"]))))
    prepared, counts = objective.prepare_splits(documents)

    def trainer(output_dir: Path, steps: int) -> DepthTrainer:
        set_seed(cell["seed"])
        start = cell.get("start")
        dropout = {"dropout_rate": settings["dropout_rate"]}
        model = load_model(str(root / "models" / start), tokenizer, **dropout) if start else None
        if model is None:
            model = load_model(None, tokenizer, model_type=MODEL_TYPES[cell["kind"]], **size, **dropout)
        names = ("optim", "optim_args", "learning_rate", "lr_scheduler_type", "warmup_steps", "adam_beta2")
        arguments = {name: settings[name] for name in (*names, "sentence_loss_coefficient") if name in settings}
        return DepthTrainer(
            model=model,
            args=DepthTrainingArguments(
                str(output_dir),
                max_steps=steps,
                per_device_train_batch_size=settings["batch_size"],
                per_device_eval_batch_size=64,
                logging_steps=max(1, steps // 20),
                save_steps=max(1, steps // 10),
                save_total_limit=1,
                seed=cell["seed"],
                use_cpu=True,
                disable_tqdm=True,
                report_to="none",
                **arguments,
            ),
            data_collator=objective.collator(),
            train_dataset=prepared["train"],
            eval_dataset=prepared["validation"],
            processing_class=tokenizer,
            callbacks=[StepClock()],
        )

    plan = folder / "plan.json"
    if not plan.is_file():
        trial = trainer(folder / "trial", 14)
        trial.train()
        seconds = statistics.median(clock_of(trial).seconds[4:])
        steps = max(20, round(60 * cell["minutes"] / seconds))
        plan.write_text(json.dumps({"steps": steps, "trial_seconds": seconds}))
        del trial
    steps = json.loads(plan.read_text())["steps"]
    run = trainer(folder, steps)
    run.train(resume_from_checkpoint=get_last_checkpoint(str(folder)))
    metrics = run.evaluate()
    run.save_model()
    kept = {name.removeprefix("eval_"): value for name, value in metrics.items() if not name.endswith("_second")}
    return kept | {
        "steps": steps,
        "cpu_minutes": statistics.fmean(clock_of(run).seconds) * steps / 60,
        "examples": counts["train"]["examples"],
        "parameters": sum(parameter.numel() for parameter in run.model.parameters()),
    }


def clock_of(trainer: DepthTrainer) -> StepClock:
    return next(one for one in trainer.callback_handler.callbacks if isinstance(one, StepClock))


def language_of(corpus: str) -> str:
    return "lines" if corpus in ("functions", "abstracts") else "en"


def kinds_of(corpus: str) -> tuple[str, ...]:
    return ("T5",) if corpus in WITHOUT_ORDER else tuple(KINDS)


def load_splits(cell: Cell, root: Path, labels: int | None = None) -> TaskSplits:
    """The splits of a task: so many labels, and the same held-out rows for all."""
    limits = {
        "max_train_samples": labels,
        "max_eval_samples": data.TASK_ROWS["validation"],
        "max_predict_samples": data.TASK_ROWS["test"],
    }
    if cell["task"] in PROBES:
        dataset_dir = str(root / "tasks" / cell["task"])
        return TaskSplits.load(f"disco_eval/{cell['task']}", dataset_dir=dataset_dir, **limits, seed=cell["seed"])
    if cell["task"] in data.DISCOURSE:
        folder, task = root / "corpora" / cell["corpus"], f"discourse/{cell['task']}"
    else:
        folder, task = root / "tasks" / cell["task"], data.SPECS[cell["task"]]
    return TaskSplits.load(
        task,
        **{f"{split}_file": str(folder / f"{split}.jsonl") for split in data.SPLITS},
        **limits,
        sentence_language=language_of(cell["corpus"]),
        seed=cell["seed"],
    )


def load_start(cell: Cell, root: Path, **changes: Any) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A pre-trained model with its tokenizer; "scratch" is a DEPTH model with random weights, of the usual size."""
    if cell["model"] != "scratch":
        folder = str(root / "models" / cell["model"])
        return load_model(folder, tokenizer := load_tokenizer(folder), **changes), tokenizer
    torch.manual_seed(cell["seed"])
    tokenizer = add_sentence_tokens(load_tokenizer(str(root / "tokenizers" / cell["corpus"])))
    return load_model(None, tokenizer, **SIZE, **changes), tokenizer


def fine_tune(cell: Cell, root: Path) -> dict[str, Any]:
    """Fine-tune a pre-trained model, or one from scratch, on some labels; score held-out examples."""
    set_seed(cell["seed"])
    model, tokenizer = load_start(cell, root, dropout_rate=0.1)
    splits = load_splits(cell, root, cell["labels"]).prepare(tokenizer)
    spec = splits.tasks[0]
    output_dir = root / "fine_tuning" / str(os.getpid())
    trainer = TaskTrainer(
        model=model,
        args=TaskTrainingArguments(
            str(output_dir),
            max_steps=cell.get("steps", STEPS[cell["labels"]]),
            per_device_train_batch_size=16,
            per_device_eval_batch_size=64,
            optim=cell.get("optim", "adamw_scale"),
            optim_args=cell.get("optim_args"),
            learning_rate=cell["rate"],
            lr_scheduler_type="cosine",
            warmup_steps=0.1,
            prediction_mode="generate" if spec.labels is None else "score_labels",
            save_strategy="no",
            logging_steps=100,
            seed=cell["seed"],
            use_cpu=True,
            disable_tqdm=True,
            report_to="none",
        ),
        train_dataset=splits.train_dataset(),
        eval_dataset=splits.eval_dataset(),
        processing_class=tokenizer,
    )
    trainer.train()
    scores = {}
    for split, dataset in (("validation", splits.eval_dataset()), ("test", splits.test_datasets())):
        metrics = trainer.evaluate_tasks(dataset, metric_key_prefix=split)
        scores[split] = metrics[f"{split}_{spec.metric_to_optimize}"]
        names = [f"{split}_{kind}_{spec.metric_to_optimize}" for kind in ("majority", "chance")]
        scores |= {name.removeprefix(f"{split}_"): metrics[name] for name in names if name in metrics}
        scores["attention_entropy"] = metrics.get(f"{split}_attention_entropy")
    return scores


def bag_of_words(cell: Cell, root: Path) -> dict[str, Any]:
    """TF-IDF of words and pairs of words, by column, and a logistic regression chosen by validation examples."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    (part,) = load_splits(cell, root, cell["labels"]).parts
    spec, examples = part.spec, part.examples
    if spec.labels is None:
        return following_words(examples, read_texts(root, cell["corpus"]))
    texts = {
        split: [words_by_column([row[name] for name in spec.text_column_name]) for row in examples[split]]
        for split in data.SPLITS
    }
    labels = {split: spec.label_ids(examples[split]) for split in data.SPLITS}
    found = []
    for most, strength in itertools.product((1, 2), (0.1, 1.0, 10.0, 100.0)):
        vectorizer = TfidfVectorizer(sublinear_tf=True, token_pattern=r"\S+", ngram_range=(1, most), lowercase=False)
        classifier = LogisticRegression(C=strength, max_iter=2000)
        classifier.fit(vectorizer.fit_transform(texts["train"]), labels["train"])
        scores = {
            split: classifier.score(vectorizer.transform(texts[split]), labels[split])
            for split in ("validation", "test")
        }
        found.append(scores)
    return max(found, key=lambda scores: scores["validation"])


def words_by_column(columns: Sequence[str]) -> str:
    """The words of each column, each with the number of its column."""
    return " ".join(f"{place}:{word}" for place, text in enumerate(columns) for word in words(text))


def words(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", text.lower())


def read_texts(root: Path, corpus: str) -> list[str]:
    return [row["text"] for row in data.read_rows(root / "corpora" / corpus / "train.jsonl")]


def following_words(examples: Mapping[str, Any], texts: Sequence[str]) -> dict[str, Any]:
    """Which word ends a sentence: the one that ends most, after the last two words, or one, in all texts."""
    counts: dict[tuple[str, ...], Counter] = defaultdict(Counter)
    for text in texts:
        pieces = text.split()
        for place, piece in enumerate(pieces):
            word = piece[:-1]
            if piece.endswith(".") and word.isalpha() and word.islower() and len(word) > 2:
                for size in range(3):
                    counts[tuple(pieces[max(0, place - size) : place])][word] += 1

    def guess(text: str, most: int) -> str:
        pieces = text.split()
        for size in range(most, -1, -1):
            found = counts.get(tuple(pieces[len(pieces) - size :]))
            if found:
                return found.most_common(1)[0][0]
        return ""

    scores = {}
    for split in ("validation", "test"):
        rows = list(examples[split])
        scores[split] = statistics.fmean(guess(row["text"], 2) == row["label"] for row in rows)
        scores["majority_exact_match"] = statistics.fmean(guess(row["text"], 0) == row["label"] for row in rows)
    return scores


def unshuffle(cell: Cell, root: Path) -> dict[str, Any]:
    """Put windows of 2 and of 4 sentences in order, which come in a random one."""
    windows = json.loads((root / "windows" / f"{cell['corpus']}.json").read_text(encoding="utf-8"))
    order = order_by(cell, root, windows["train"])
    rng, scores = np.random.default_rng(0), {}
    for size in cell.get("sizes", ("2", "4")):
        arranged = [rng.permutation(len(window)).tolist() for window in windows[size]]
        given = [[window[i] for i in places] for window, places in zip(windows[size], arranged, strict=True)]
        found = [[places[i] for i in own] for own, places in zip(order(given), arranged, strict=True)]
        scores[f"exact_{size}"] = statistics.fmean(own == sorted(own) for own in found)
        scores[f"tau_{size}"] = statistics.fmean(map(kendall_tau, found))
    return scores


def kendall_tau(order: Sequence[int]) -> float:
    pairs = list(itertools.combinations(order, 2))
    return sum(1 if a < b else -1 for a, b in pairs) / len(pairs)


def order_by(cell: Cell, root: Path, pairs: Sequence[Sequence[str]]) -> Callable[[list[list[str]]], list[list[int]]]:
    """A function that gives the order of the sentences of each window."""
    if cell["model"] == "ranker":
        return ranker(pairs)
    model, tokenizer = load_start(cell, root)
    model.eval()
    if cell["kind"] == "DEPTH":
        return lambda windows: [one["order"] for one in order_sentences(model, tokenizer, windows, num_arrangements=2)]
    return lambda windows: by_likelihood(model, tokenizer, windows)


def ranker(pairs: Sequence[Sequence[str]]) -> Callable[[list[list[str]]], list[list[int]]]:
    """
    A logistic regression on the difference between the words of the first and of the second sentence; sentences are
    sorted by its weights.
    """
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression

    vectorizer = CountVectorizer(tokenizer=words_and_ends, token_pattern=None, lowercase=False, binary=True)
    vectorizer.fit(text for pair in pairs for text in pair)
    firsts, seconds = (vectorizer.transform([pair[place] for pair in pairs]) for place in (0, 1))
    signs = np.where(np.arange(len(pairs)) % 2, -1, 1)  # every second pair is turned round: there must be two classes
    classifier = LogisticRegression(C=0.1, fit_intercept=False, max_iter=2000)
    classifier.fit((firsts - seconds).multiply(signs[:, None]).tocsr(), signs)

    def order(windows: list[list[str]]) -> list[list[int]]:
        return [np.argsort(-classifier.decision_function(vectorizer.transform(one))).tolist() for one in windows]

    return order


def words_and_ends(text: str) -> list[str]:
    found = words(text)
    return [*found, f"begins {found[0]}", f"ends {found[-1]}", f"words {len(found) // 5}"] if found else []


def by_likelihood(model, tokenizer, windows: list[list[str]]) -> list[list[int]]:
    """
    By a T5, without labels: for each two sentences, how likely is each as what follows the other, against as what
    precedes it? The sentence that wins most comes first.
    """
    asked, places = [], []
    for number, window in enumerate(windows):
        for a, b in itertools.permutations(range(len(window)), 2):  # a before b
            asked += [((window[a], ""), window[b]), (("", window[b]), window[a])]
            places += [(number, a, b)] * 2
    scores = log_likelihoods(model, tokenizer, asked)
    wins = [np.zeros((len(window), len(window))) for window in windows]
    for (number, a, b), score in zip(places, scores, strict=True):
        wins[number][a, b] += score
    return [np.argsort(-np.sign(matrix - matrix.T).sum(1), kind="stable").tolist() for matrix in wins]


def log_likelihoods(
    model, tokenizer, asked: Sequence[tuple[tuple[str, str], str]], batch_size: int = 64
) -> list[float]:
    """
    The log-probability in nats of each text between what stands before and behind it: `((before, behind), text)`.
    """
    texts = sorted({text for (before, behind), middle in asked for text in (before, behind, middle) if text})
    ids = dict(zip(texts, TextEncoder(tokenizer)(texts), strict=True)) | {"": []}
    blanks = [(ids[before], ids[middle], ids[behind]) for (before, behind), middle in asked]
    return fill_log_probabilities(model, tokenizer, blanks, batch_size)


def minimal_pairs(cell: Cell, root: Path) -> dict[str, Any]:
    """How often what was written is likelier than what was not, by the model, or by frequencies of words and pairs."""
    rows = data.read_rows(root / "minimal_pairs" / f"{cell['corpus']}.jsonl")
    if cell["model"] == "bigrams":
        scores = bigram_scores(rows, read_texts(root, cell["corpus"]))
    else:
        model, tokenizer = load_start(cell, root)
        asked = [((row["before"], row["after"]), row[name]) for row in rows for name in ("good", "bad")]
        scores = log_likelihoods(model.eval(), tokenizer, asked)
    right = defaultdict(list)
    for row, good, bad in zip(rows, scores[::2], scores[1::2], strict=True):
        for kind in ("all", row["kind"]):
            right[kind].append(1.0 if good > bad else 0.5 if good == bad else 0.0)
    return {kind: statistics.fmean(values) for kind, values in right.items()} | {"pairs": len(rows)}


def bigram_scores(rows: Sequence[Mapping[str, str]], texts: Sequence[str]) -> list[float]:
    singles, pairs = Counter(), Counter()
    for text in texts:
        pieces = text.lower().split()
        singles.update(pieces)
        pairs.update(itertools.pairwise(pieces))
    total = sum(singles.values())

    def score(text: str) -> float:
        pieces = text.lower().split()
        return sum(
            math.log(0.9 * pairs[a, b] / max(1, singles[a]) + 0.1 * (singles[b] + 0.1) / total)
            for a, b in itertools.pairwise(pieces)
        )

    whole = (f"{row['before']} {row[name]} {row['after']}" for row in rows for name in ("good", "bad"))
    return list(map(score, whole))


def probe(cell: Cell, root: Path) -> dict[str, Any]:
    """A task of DiscoEval by a classifier of frozen embeddings, beside the same of random weights and words."""
    model, tokenizer = load_start(cell, root)
    (part,) = TaskSplits.load(
        f"disco_eval/{cell['task']}",
        dataset_dir=str(Path(cell["folder"], cell["task"])),
        max_train_samples=1000,
        max_eval_samples=500,
        max_predict_samples=1000,
        seed=cell["seed"],
    ).parts
    splits = [part.examples[name] for name in data.SPLITS]
    (found,) = probe_task(
        model,
        tokenizer,
        part.spec,
        *splits[:2],
        {"test": splits[2]},
        ProbeOptions(batch_size=64, read_together=cell["read_together"]),
        seed=cell["seed"],
    )
    return {name: value for name, value in found.metrics.items() if name.endswith("accuracy")}


MEASURES: dict[str, Callable[[Cell, Path], dict[str, Any]]] = {
    function.__name__: function for function in (pretrain, fine_tune, bag_of_words, unshuffle, minimal_pairs, probe)
}


# ---- What is measured, in which order -------------------------------------------------------------------------------

Done = Mapping[str, dict[str, Any]]  # the scores of each cell that was measured


def key_of(cell: Cell) -> str:
    return json.dumps(cell, sort_keys=True)


def plan(args: argparse.Namespace, done: Done) -> Iterator[list[Cell]]:
    """
    Yield waves of cells: those of one do not need each other. `done` has the scores of all waves before, by which the
    learning rates of the next are chosen.
    """
    parts, corpora = args.parts, corpora_of(args)
    if "optimizers" in parts:
        yield [
            pretraining("documentation", "T5", OPTIMIZER_MINUTES, 0, {**optimizer, "size": size})
            for size, optimizer in itertools.product(SIZES, OPTIMIZERS.values())
        ]
    if "variants" in parts:
        yield (models := [pretraining("documentation", "DEPTH", VARIANT_MINUTES, 0, one) for one in VARIANTS.values()])
        yield [unshuffling(model) for model in models]
    ordered = [corpus for corpus in corpora if corpus not in WITHOUT_ORDER]
    if {"curves", "order", "unshuffle"} & set(parts):
        yield [{"what": "unshuffle", "corpus": corpus, "model": "ranker"} for corpus in ordered]
    for minutes in args.minutes:
        seeds = SEEDS if minutes <= args.seeded_minutes else SEEDS[:1]
        starts = [(corpus, kind) for corpus in corpora for kind in kinds_of(corpus)]
        models = [pretraining(*start, minutes, seed) for start, seed in itertools.product(starts, seeds)]
        if {"curves", "order", "unshuffle", "pairs", "probes", "tuning"} & set(parts):
            yield models
        if "unshuffle" in parts:
            yield [unshuffling(model) for model in models if model["corpus"] in ordered]
        if "pairs" in parts:
            yield list(pair_cells(models))
        tasks = [task for task, part in tasks_of(args).items() if part in parts]
        yield from fine_tuning_waves(tasks, minutes, done, args)
        if "probes" in parts and args.disco_eval:
            wanted = [model for model in models if model["corpus"] in PROBED and model["seed"] == 0]
            yield [probe_cell(model, task, args) for model, task in itertools.product(wanted, PROBES)]
    if "tuning" in parts:
        yield list(tuning_cells(args))


def corpora_of(args: argparse.Namespace) -> list[str]:
    files = given_files(args)
    return [corpus for corpus in args.corpora if corpus not in GIVEN or files[corpus]]


def given_files(args: argparse.Namespace) -> dict[str, Any]:
    return {"prose": args.prose, "subjectivity": args.subjectivity, "abstracts": args.disco_eval}


def pretraining(corpus: str, kind: str, minutes: float, seed: int, settings: Mapping[str, Any] | None = None) -> Cell:
    cell = {"what": "pretrain", "corpus": corpus, "kind": kind, "minutes": minutes, "seed": seed}
    return cell | ({"settings": dict(settings)} if settings else {})


def unshuffling(model: Cell) -> Cell:
    cell = {"what": "unshuffle", "corpus": model["corpus"], "kind": model["kind"], "model": name_of(model)}
    return cell | ({"sizes": ["2"]} if "num_sentence_tokens" in model.get("settings", {}) else {})


def name_of(model: Cell) -> str:
    return model_folder(Path(), model).name


def pair_cells(models: Sequence[Cell]) -> Iterator[Cell]:
    for model in models:
        if model["corpus"] in data.WITH_PAIRS:
            cell = {"what": "minimal_pairs", "corpus": model["corpus"]}
            yield cell | {"model": name_of(model), "seed": model["seed"]}
            yield cell | {"model": "scratch", "seed": model["seed"]}
    for corpus in {model["corpus"] for model in models} & set(data.WITH_PAIRS):
        yield {"what": "minimal_pairs", "corpus": corpus, "model": "bigrams"}


def probe_cell(model: Cell, task: str, args: argparse.Namespace) -> Cell:
    cell = {"what": "probe", "task": task, "model": name_of(model), "folder": args.disco_eval, "seed": 0}
    return cell | {"read_together": model["kind"] == "DEPTH"}


def tasks_of(args: argparse.Namespace) -> dict[tuple[str, str], str]:
    """The tasks that models are fine-tuned on, and the part that each belongs to."""
    tasks = {(corpus, task): "curves" for corpus, names in CURVES.items() for task in names}
    tasks |= {(corpus, task): "order" for corpus, names in ORDER.items() for task in names}
    return {(corpus, task): part for (corpus, task), part in tasks.items() if corpus in corpora_of(args)}


def fine_tuning(task: tuple[str, str], start: Cell | str, labels: int, rate: float, seed: int, **more: Any) -> Cell:
    """`start` is a pre-training, or "scratch"."""
    model = start if start == "scratch" else name_of(start)
    cell = {"what": "fine_tune", "corpus": task[0], "task": task[1], "model": model}
    return cell | {"labels": labels, "rate": rate, "seed": seed} | more


def labels_of(task: tuple[str, str]) -> tuple[int, ...]:
    return LABELS if task[1] in CURVES.get(task[0], ()) else LABELS[-1:]


def fine_tuning_waves(
    tasks: Sequence[tuple[str, str]], minutes: float, done: Done, args: argparse.Namespace
) -> Iterator[list[Cell]]:
    """First the learning rates, with the first seed, then all seeds and numbers of labels."""
    starts = [(task, kind) for task in tasks for kind in kinds_of(task[0])]
    starts += [(task, "scratch") for task in tasks] * (minutes == args.minutes[0])
    yield [fine_tuning(*one) for start in starts for one in tuned(*start, minutes)]
    cells = []
    for task, kind in starts:
        best = max(tuned(task, kind, minutes), key=lambda one: done[key_of(fine_tuning(*one))]["validation"])
        for labels, seed in itertools.product(labels_of(task), SEEDS):
            model = start_of(task, kind, minutes, seed, args.seeded_minutes)
            cells.append(fine_tuning(task, model, labels, best[3], seed))
            if kind == "scratch":
                cell = {"what": "bag_of_words", "corpus": task[0], "task": task[1], "labels": labels, "seed": seed}
                cells.append(cell)
    yield cells


def start_of(task: tuple[str, str], kind: str, minutes: float, seed: int, seeded_minutes: float) -> Cell | str:
    if kind == "scratch":
        return kind
    return pretraining(task[0], kind, minutes, seed if minutes <= seeded_minutes else 0)


def tuned(task: tuple[str, str], kind: str, minutes: float) -> list[tuple]:
    """What `fine_tuning` takes for each of the learning rates that are compared."""
    labels = TUNED_AT if TUNED_AT in labels_of(task) else labels_of(task)[0]
    rates = RATES["scratch" if kind == "scratch" else "pre-trained"]
    return [(task, start_of(task, kind, minutes, 0, 0), labels, rate, 0) for rate in rates]


def tuning_cells(args: argparse.Namespace) -> Iterator[Cell]:
    """Optimizers and rates for fine-tuning the longest checkpoint of at most 20 minutes, and to go on with it."""
    minutes = max(minutes for minutes in args.minutes if minutes <= 20)
    model = pretraining("documentation", "DEPTH", minutes, 0)
    for (optim, options, rates), task in itertools.product(TUNING, ("sentence_ordering", "topic")):
        for rate, seed in itertools.product(rates, SEEDS):
            more = {"optim": optim, "optim_args": options}
            yield fine_tuning(("documentation", task), model, TUNED_AT, rate, seed, **more)


# ---- Execution ------------------------------------------------------------------------------------------------------


def measure(cell: Cell, root: Path) -> dict[str, Any]:
    """In a process of its own: the scores of a cell and its CPU seconds. What is printed goes to a file."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    started = time.process_time()
    (root / "logs").mkdir(exist_ok=True)
    with (root / "logs" / f"{os.getpid()}.log").open("a", encoding="utf-8") as log:
        print(f"\n---- {key_of(cell)}", file=log, flush=True)
        with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            scores = MEASURES[cell["what"]](cell, root)
    return scores | {"seconds": round(time.process_time() - started, 1)}


def prepare(args: argparse.Namespace, root: Path) -> None:
    """Write texts, vocabularies and tasks that are not there."""
    for corpus in corpora_of(args):
        folder = root / "corpora" / corpus
        if not (folder / "test.jsonl").is_file():
            data.write_corpus(corpus, folder, given_files(args).get(corpus))
        if not (root / "tokenizers" / corpus).is_dir():
            texts = [row["text"] for row in data.read_rows(folder / "train.jsonl")]
            train_tokenizer(texts, VOCAB_SIZE, str(root / "tokenizers" / corpus), allow_fewer=True)
        if corpus in data.WITH_PAIRS and not (root / "minimal_pairs" / f"{corpus}.jsonl").is_file():
            (root / "minimal_pairs").mkdir(exist_ok=True)
            data.write_minimal_pairs(folder, root / "minimal_pairs" / f"{corpus}.jsonl")
        if corpus not in WITHOUT_ORDER and not (root / "windows" / f"{corpus}.json").is_file():
            data.write_windows(folder, root / "windows" / f"{corpus}.json", language_of(corpus))
    for corpus, task in tasks_of(args):
        if task in data.SPECS and not (root / "tasks" / task / "test.jsonl").is_file():
            data.write_task(task, root / "corpora" / corpus, root / "tasks" / task)
        if task in PROBES and not (root / "tasks" / task).exists():
            (root / "tasks").mkdir(exist_ok=True)
            (root / "tasks" / task).symlink_to(Path(args.disco_eval, task).resolve())


def read_results(root: Path) -> dict[str, dict[str, Any]]:
    path = root / "results.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    return {key_of(line["cell"]): line["scores"] for line in lines}


def execute(args: argparse.Namespace, root: Path) -> dict[str, dict[str, Any]]:
    """Measure all cells that are not in results.jsonl, and return the scores of all."""
    path, done = root / "results.jsonl", read_results(root)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.processes, context) as pool, path.open("a", encoding="utf-8") as file:
        for wave in plan(args, done):
            missing = list({key_of(cell): cell for cell in wave if key_of(cell) not in done}.values())
            running = {pool.submit(measure, cell, root): cell for cell in missing}
            for number, future in enumerate(as_completed(running), 1):
                cell, scores = running[future], future.result()
                done[key_of(cell)] = scores
                print(json.dumps({"cell": cell, "scores": scores}), file=file, flush=True)
                print(f"{number}/{len(missing)} {cell} {scores['seconds']} s", flush=True)
    return done


# ---- Report ---------------------------------------------------------------------------------------------------------


def spread(values: Sequence[float]) -> str:
    """Mean and standard error over seeds."""
    if not values:
        return ""
    error = f" ± {statistics.stdev(values) / math.sqrt(len(values)):.3f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.3f}{error}"


def markdown(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join([f"## {title}\n", *("| " + " | ".join(map(str, line)) + " |" for line in lines)]) + "\n"


class Report:
    """Tables and figures from the scores of all cells."""

    def __init__(self, args: argparse.Namespace, done: Done):
        self.args, self.done = args, done
        self.cells = [(json.loads(key), scores) for key, scores in done.items()]

    def found(self, cells: Sequence[Cell], name: str) -> list[float]:
        keys = map(key_of, cells)
        return [self.done[key][name] for key in keys if self.done.get(key, {}).get(name) is not None]

    def tables(self) -> list[str]:
        parts = (
            self.optimizers,
            self.tuning,
            self.fine_tuned,
            self.unshuffled,
            self.pairs,
            self.variants,
            self.probes,
        )
        return [table for part in parts for table in part()]

    def optimizers(self) -> Iterator[str]:
        rows = []
        for name, optimizer in OPTIMIZERS.items():
            row = [name]
            for size in SIZES:
                cell = pretraining("documentation", "T5", OPTIMIZER_MINUTES, 0, {**optimizer, "size": size})
                scores = self.done.get(key_of(cell))
                found = f"{scores['reconstruction_loss']:.3f} ({scores['attention_entropy']:.3f})" if scores else ""
                row.append(found)
            rows.append(row)
        if any(map(any, (row[1:] for row in rows))):
            yield markdown("Optimizers: held-out loss (least entropy of attention)", ["", *SIZES], rows)

    def tuning(self) -> Iterator[str]:
        cells = [cell for cell in tuning_cells(self.args) if key_of(cell) in self.done]
        rows: dict[tuple, dict[str, list[Cell]]] = {}
        for cell in cells:
            rows.setdefault((cell["optim"], cell["rate"]), {}).setdefault(cell["task"], []).append(cell)
        tasks = list(dict.fromkeys(cell["task"] for cell in cells))
        lines = [
            [optim, f"{rate:g}", *(spread(self.found(of.get(task, ()), "test")) for task in tasks)]
            for (optim, rate), of in rows.items()
        ]
        if lines:
            yield markdown(f"Fine-tuning, {TUNED_AT} labels", ["optimizer", "learning rate", *tasks], lines)

    def starts(self, task: tuple[str, str]) -> Iterator[tuple[str, str, float]]:
        """Name, kind and minutes of what a task is fine-tuned from."""
        yield "from scratch", "scratch", self.args.minutes[0]
        for kind, minutes in itertools.product(KINDS, self.args.minutes):
            yield f"{kind}, {minutes:g} minutes", kind, minutes

    def cells_of(self, task: tuple[str, str], kind: str, minutes: float, labels: int) -> list[Cell]:
        tried = [one for one in tuned(task, kind, minutes) if key_of(fine_tuning(*one)) in self.done]
        if not tried:
            return []
        best = max(tried, key=lambda one: self.done[key_of(fine_tuning(*one))]["validation"])
        starts = [start_of(task, kind, minutes, seed, self.args.seeded_minutes) for seed in SEEDS]
        return [fine_tuning(task, start, labels, best[3], seed) for start, seed in zip(starts, SEEDS, strict=True)]

    def fine_tuned(self) -> Iterator[str]:
        for task in tasks_of(self.args):
            labels = labels_of(task)
            rows = []
            for name, kind, minutes in self.starts(task):
                row = [spread(self.found(self.cells_of(task, kind, minutes, number), "test")) for number in labels]
                if any(row):
                    rows.append([name, *row])
            bags = [
                spread([scores["test"] for cell, scores in self.cells if is_bag_of_words(cell, task, number)])
                for number in labels
            ]
            if rows:
                rows.insert(0, ["bag of words", *bags])
                yield markdown(f"{task[0]}, {task[1]}", ["labels", *map(str, labels)], rows)

    def unshuffled(self) -> Iterator[str]:
        names = ("exact_2", "tau_2", "exact_4", "tau_4")
        for corpus in CORPORA:
            own = [(cell, s) for cell, s in self.cells if cell["what"] == "unshuffle" and cell["corpus"] == corpus]
            own = [(cell, s) for cell, s in own if is_usual(cell["model"])]
            by_name: dict[str, list[dict]] = {}
            for cell, scores in own:
                model = cell["model"]
                name = (
                    "linear ranker on words" if model == "ranker" else f"{cell['kind']}, {minutes_of(model)} minutes"
                )
                by_name.setdefault(name, []).append(scores)
            rows = [[name, *(spread([one[k] for one in scores]) for k in names)] for name, scores in by_name.items()]
            if rows:
                rows.append(["chance", "0.500", "0.000", "0.042", "0.000"])
                head = ["", "2: exact", "2: tau", "4: exact", "4: tau"]
                yield markdown(f"{corpus}: sentences put in order without labels", head, rows)

    def pairs(self) -> Iterator[str]:
        kinds = ("all", "agreement", "determiner", "neighbours", "replaced")
        for corpus in ("documentation", "prose"):
            by_name: dict[str, list[dict]] = {}
            for cell, scores in self.cells:
                if cell["what"] == "minimal_pairs" and cell["corpus"] == corpus:
                    model = cell["model"]
                    is_own = model in ("scratch", "bigrams")
                    name = model if is_own else f"{model.split('-')[1]}, {minutes_of(model)} minutes"
                    by_name.setdefault(name, []).append(scores)
            rows = [
                [name, *(spread([one[k] for one in scores if k in one]) for k in kinds)]
                for name, scores in by_name.items()
            ]
            if rows:
                yield markdown(f"{corpus}: minimal pairs", ["", *kinds], rows)

    def variants(self) -> Iterator[str]:
        rows = []
        for name, settings in VARIANTS.items():
            model = pretraining("documentation", "DEPTH", VARIANT_MINUTES, 0, settings)
            scores = self.done.get(key_of(unshuffling(model)))
            if scores:
                names = ("exact_2", "tau_2", "exact_4", "tau_4")
                rows.append([name, *(f"{scores[key]:.3f}" if key in scores else "" for key in names)])
        if rows:
            head = ["", "2: exact", "2: tau", "4: exact", "4: tau"]
            yield markdown(f"DEPTH, {VARIANT_MINUTES:g} minutes of documentation: what was tried", head, rows)

    def probes(self) -> Iterator[str]:
        rows: dict[str, dict[str, float]] = {}
        for cell, scores in self.cells:
            if cell["what"] == "probe":
                rows.setdefault(cell["model"], {})[cell["task"]] = scores["accuracy"]
                for name in ("chance", "majority", "bag_of_words", "random_weights"):
                    rows.setdefault(name.replace("_", " "), {}).setdefault(cell["task"], scores[f"{name}_accuracy"])
        lines = [[name, *(f"{of[task]:.3f}" if task in of else "" for task in PROBES)] for name, of in rows.items()]
        if lines:
            yield markdown("Probes of DiscoEval", ["", *PROBES], lines)

    def figures(self, folder: Path) -> None:
        """Write curves.png, scores over labels, and order.png, un-shuffling over the minutes of pre-training."""
        self.draw_curves(folder / "curves.png")
        self.draw_order(folder / "order.png")

    def draw_curves(self, path: Path) -> None:
        from matplotlib.figure import Figure

        fine_tuned = {(cell["corpus"], cell["task"]) for cell, _ in self.cells if cell["what"] == "fine_tune"}
        tasks = [task for task in tasks_of(self.args) if len(labels_of(task)) > 1 and task in fine_tuned]
        if not tasks:
            return
        figure = Figure(figsize=(4.5 * len(tasks), 4), layout="constrained")
        for axes, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
            for name, kind, minutes in self.starts(task):
                groups = [self.found(self.cells_of(task, kind, minutes, number), "test") for number in LABELS]
                color = {"T5": "C0", "DEPTH": "C1"}.get(kind, "grey")
                shade = 0.4 + 0.6 * self.args.minutes.index(minutes) / max(1, len(self.args.minutes) - 1)
                draw(axes, LABELS, groups, label=name, color=color, alpha=shade if kind in KINDS else 1.0)
            bags = [
                [scores["test"] for cell, scores in self.cells if is_bag_of_words(cell, task, number)]
                for number in LABELS
            ]
            draw(axes, LABELS, bags, label="bag of words", color="C2", linestyle="--")
            axes.set(xscale="log", xticks=LABELS, xticklabels=LABELS, xlabel="labels", title=f"{task[0]}\n{task[1]}")
            axes.grid(alpha=0.3)
        figure.axes[0].set_ylabel("test score")
        figure.axes[-1].legend(fontsize="x-small")
        figure.savefig(path, dpi=110)

    def draw_order(self, path: Path) -> None:
        from matplotlib.figure import Figure

        scores: dict[str, dict[str, dict[float, list[float]]]] = {}  # by corpus, kind and minutes
        for cell, found in self.cells:
            if cell["what"] == "unshuffle" and is_usual(cell["model"]):
                kind, minutes = cell.get("kind", "ranker"), 0.0
                if kind in KINDS:
                    minutes = float(minutes_of(cell["model"]))
                of = scores.setdefault(cell["corpus"], {}).setdefault(kind, {})
                of.setdefault(minutes, []).append(found["exact_2"])
        if not scores:
            return
        figure = Figure(figsize=(4.5 * len(scores), 4), layout="constrained")
        panels = figure.subplots(1, len(scores), squeeze=False, sharey=True)[0]
        for axes, (corpus, kinds) in zip(panels, scores.items(), strict=True):
            for kind in KINDS:
                places = sorted(kinds.get(kind, {}))
                color = {"T5": "C0", "DEPTH": "C1"}[kind]
                draw(axes, places, [kinds[kind][place] for place in places], label=kind, color=color)
            for value in kinds.get("ranker", {}).get(0.0, ()):
                axes.axhline(value, color="C2", linestyle="--", label="linear ranker on words")
            axes.axhline(0.5, color="grey", linestyle=":", label="chance")
            ticks = sorted({place for kind in KINDS for place in kinds.get(kind, ())})
            axes.set(xscale="log", xlabel="CPU minutes of pre-training", title=corpus)
            axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axes.minorticks_off()
            axes.grid(alpha=0.3)
        figure.axes[0].set_ylabel("pairs of sentences in the right order, without labels")
        figure.axes[-1].legend(fontsize="x-small")
        figure.savefig(path, dpi=110)


def draw(axes: Any, places: Sequence[float], groups: Sequence[Sequence[float]], **style: Any) -> None:
    """A line through the means of groups of scores, with standard errors."""
    kept = [(place, values) for place, values in zip(places, groups, strict=True) if values]
    if kept:
        means = [statistics.fmean(values) for _, values in kept]
        errors = [statistics.stdev(v) / math.sqrt(len(v)) if len(v) > 1 else 0.0 for _, v in kept]
        axes.errorbar([place for place, _ in kept], means, errors, marker="o", markersize=3, **style)


def is_bag_of_words(cell: Cell, task: tuple[str, str], labels: int) -> bool:
    return cell["what"] == "bag_of_words" and (cell["corpus"], cell["task"]) == task and cell["labels"] == labels


def is_usual(model: str) -> bool:
    """Whether the name of a model is that of the usual settings: corpus, kind, minutes, seed."""
    return model == "ranker" or len(model.split("-")) == 4


def minutes_of(model: str) -> str:
    return model.split("-")[2]


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", required=True, help="is continued")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--corpora", nargs="+", choices=CORPORA, default=list(CORPORA))
    parser.add_argument("--minutes", nargs="+", type=float, default=list(MINUTES), help="of pre-training, CPU time")
    parser.add_argument("--seeded_minutes", type=float, default=20, help="up to which each seed has its pre-training")
    parser.add_argument("--prose", nargs="+", help="files of documents, with a column title for what belongs together")
    parser.add_argument("--subjectivity", help="JSON lines of text and label: Pang and Lee's subjectivity sentences")
    parser.add_argument("--disco_eval", help="folder of DiscoEval, with a folder of files for each of its tasks")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--report", action="store_true", help="of what there is; measures nothing")
    return parser.parse_args(argv)


def main() -> None:
    args = parse_args()
    args.minutes = [int(minutes) if minutes == int(minutes) else minutes for minutes in args.minutes]
    root = Path(args.output_dir).resolve()
    root.mkdir(parents=True, exist_ok=True)
    if not args.report:
        prepare(args, root)
        execute(args, root)
    report = Report(args, read_results(root))
    (root / "results.md").write_text("\n".join(report.tables()), encoding="utf-8")
    report.figures(root)
    print("\n".join(report.tables()))


if __name__ == "__main__":
    main()
