"""The code of model cards runs as it stands, with the package and without it, and predicts what the run predicted."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from absl.testing import parameterized
from datasets import Dataset

from helpers import SENTENCES, process_environment, tiny_tokenizer
from hf_depth import (
    DataCollatorForDepth,
    DataCollatorForT5SpanCorruption,
    DepthTrainer,
    DepthTrainingArguments,
    TaskSplits,
    TaskTrainer,
    TaskTrainingArguments,
)
from hf_depth.evaluation.outputs import write_outputs
from hf_depth.tasks.registry import get_task
from hf_depth.tasks.spec import TaskSpec
from hf_depth.training.card_code import name_in_code, pretrained_usage
from hf_depth.training.model_card import CardContent
from tiny_tasks import QUESTIONS, rte_rows
from tiny_training import rows as documents
from tiny_training import tiny_model

# Runs the blocks of cards, each with names of its own, where there is no network; "without" also without the package.
RUNNER = """
import json, socket, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "hf_depth":
            raise ModuleNotFoundError(f"{name} is blocked")

def refuse(*arguments):
    raise OSError("there is no network")

socket.socket.connect = socket.getaddrinfo = refuse
mode, jobs = sys.argv[1], json.load(open("jobs.json"))
if mode == "without":
    sys.meta_path.insert(0, Blocker())
found = {}
for kind, job in jobs.items():
    names = {"__name__": "__main__"}
    exec(compile(job[mode], kind, "exec"), names)
    found[kind] = {key: names[key] for key in ("prediction", "predictions", "order", "input_ids") if key in names}
    if "input_ids" in names:
        found[kind]["input_ids"] = names["input_ids"].tolist()
    if "encode" in names:
        found[kind]["inputs"] = [names["encode"](row)[0].tolist() for row in job["rows"]]
        found[kind]["all"] = [names["predict"](row) for row in job["rows"]]
found["imported"] = [name for name in sys.modules if name.split(".")[0] == "hf_depth"]
json.dump(found, open(f"{mode}.json", "w"))
"""
RTE = get_task("glue/rte")
GERMAN = TaskSpec("tests", "fragen", "frage", "", label_column_name="antworten", max_target_length=12)
GERMAN_ROWS = [
    {
        "frage": f'Dr. Bennet schwieg am {i}. Mai lange. "Wer kam?" Niemand sprach.\nEs war z. B. still. ' * i,
        "antworten": ["ja"],
    }
    for i in range(1, 5)
]
GERMAN_ROWS.append({"frage": "\u200b\n\nWer kam?", "antworten": ["ja"]})  # a sentence of no token
QUESTION_ROWS = [
    {"question": " ".join(SENTENCES[i : i + 3]), "answers": ["yes"], "instance": SENTENCES[i + 2]} for i in range(6)
]
# So many labels that an untrained model does not choose one of them for every example.
LABELS = ("wife", "daughters", "Bennet", "a book", "Ishmael", "world", "November", "sea", "ball", "ship", "hat", "let")
LAST_WORDS = TaskSpec("tests", "last_words", "sentence", "", labels=LABELS)
LAST_WORDS_ROWS = [{"sentence": SENTENCES[i], "label": i} for i in range(12)]
# Kind -> task, its examples, kind of model, arguments of the trainer.
FINE_TUNED = {
    "classifier": (RTE, rte_rows(12), "depth", {}),
    "free-form": (GERMAN, Dataset.from_list(GERMAN_ROWS), "depth", {"generation_num_beams": 2}),
    "t5": (RTE, rte_rows(12), "t5", {"prediction_mode": "score_labels", "length_normalize_scores": True}),
    "t5 'instance'": (QUESTIONS, Dataset.from_list(QUESTION_ROWS), "t5", {}),
    "umt5": (
        LAST_WORDS,
        Dataset.from_list(LAST_WORDS_ROWS),
        "umt5",
        {"prediction_mode": "score_labels", "learning_rate": 1e-4},
    ),
}
COLLATORS = {"depth": DataCollatorForDepth, "t5": DataCollatorForT5SpanCorruption}
PRETRAINED = {"pre-trained": "depth", "pre-trained t5": "t5"}
ARGUMENTS = {"max_steps": 2, "learning_rate": 0.01, "use_cpu": True, "disable_tqdm": True, "save_strategy": "no"}


def python_blocks(folder: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", (folder / "README.md").read_text(), re.DOTALL | re.MULTILINE)


def fine_tune(folder: Path, spec: TaskSpec, rows: Dataset, kind: str, arguments: dict) -> dict:
    """Leaves a model and its card in a folder; returns the examples, their ids and what the run predicted."""
    tokenizer = tiny_tokenizer(sentence_tokens=True)
    language = "de" if spec is GERMAN else "en"
    splits = TaskSplits.from_datasets(
        spec,
        {"train": rows, "validation": rows},
        max_source_length=400 if spec is QUESTIONS else 40,
        max_target_length=12,
        sentence_language=language,
    )
    splits.prepare(tokenizer, sentence_tokens=kind == "depth")
    trainer = TaskTrainer(
        model=sensitive(tiny_model(kind, d_model=32, d_ff=64)),
        args=TaskTrainingArguments(str(folder), per_device_eval_batch_size=5, **ARGUMENTS | arguments),
        train_dataset=splits.train_dataset(),
        eval_dataset=splits.eval_dataset(),
        processing_class=tokenizer,
        card=CardContent(),
    )
    trainer.train()
    trainer.evaluate()
    trainer.save_model()
    write_outputs(folder, trainer.evaluations.values())
    trainer.create_model_card()
    (path,) = folder.glob("predictions_*.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    prepared = splits.eval_dataset().prepared
    return {
        "rows": rows.to_list(),
        "inputs": [ids.tolist() for ids in prepared["input_ids"]],
        "cut": int(sum(prepared["num_cut_tokens"])),
        "predictions": [line.get("answer", line.get("prediction")) for line in lines],
    }


def sensitive(model):
    """With weights so large that what it writes depends on what it reads, without much training."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 2
    return model


def pretrain(folder: Path, kind: str) -> dict:
    """The same for pre-training: the trainer, which predicts what the card shows."""
    trainer = DepthTrainer(
        model=sensitive(tiny_model(kind, d_model=32, d_ff=64)),
        args=DepthTrainingArguments(str(folder), generation_max_length=30, **ARGUMENTS),
        data_collator=COLLATORS[kind](tiny_tokenizer(sentence_tokens=True)),
        train_dataset=documents(8),
        eval_dataset=documents(8),
        processing_class=tiny_tokenizer(sentence_tokens=True),
        card=CardContent(),
    )
    trainer.train()
    trainer.save_model()
    trainer.create_model_card()
    return {"rows": [], "trainer": trainer}


class CardCodeTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        hub = cls.folder / "hub"  # holds nothing but models
        cls.runs = {kind: pretrain(hub / kind, of) for kind, of in PRETRAINED.items()}
        cls.runs |= {kind: fine_tune(hub / kind, *given) for kind, given in FINE_TUNED.items()}
        cls.blocks = {kind: python_blocks(hub / kind) for kind in cls.runs}
        jobs = {
            kind: {"with": blocks[0], "without": blocks[1], "rows": cls.runs[kind]["rows"]}
            for kind, blocks in cls.blocks.items()
        }
        (hub / "jobs.json").write_text(json.dumps(jobs))
        cls.found = {mode: cls.run_blocks(hub, mode) for mode in ("with", "without")}

    @classmethod
    def run_blocks(cls, hub: Path, mode: str) -> dict:
        offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(cls.folder / "cache"), "CUDA_VISIBLE_DEVICES": ""}
        environment = process_environment(**offline)
        if mode == "without":
            environment = {name: value for name, value in (os.environ | offline).items() if name != "PYTHONPATH"}
            environment["OMP_NUM_THREADS"] = "1"
        process = subprocess.run(
            [sys.executable, "-c", RUNNER, mode],
            cwd=hub,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert process.returncode == 0, process.stderr[-5000:]
        cls.output = process.stdout + process.stderr
        return json.loads((hub / f"{mode}.json").read_text())

    def test_the_package_is_imported_in_one_process_only(self):
        self.assertNotEmpty(self.found["with"]["imported"])
        self.assertEmpty(self.found["without"]["imported"])
        self.assertNotIn("custom code", self.output)  # the question whether to run it

    @parameterized.parameters(*FINE_TUNED)
    def test_the_code_of_a_fine_tuned_model_predicts_what_the_run_predicted(self, kind):
        run, without = self.runs[kind], self.found["without"][kind]
        self.assertEqual(without["inputs"], run["inputs"])
        self.assertEqual(run["cut"] > 0, "instance" not in kind)
        self.assertEqual(without["all"], run["predictions"])
        self.assertGreater(len(set(run["predictions"])), 1, "a prediction that does not depend on the input")
        predicted = [prediction["text"] for prediction in self.found["with"][kind]["predictions"]]
        self.assertEqual(predicted, without["predictions"])
        self.assertContainsSubset(predicted, run["predictions"])

    @parameterized.parameters(*PRETRAINED)
    def test_the_code_of_a_pretrained_model_predicts_what_the_run_predicted(self, kind):
        with_package, without = self.found["with"][kind], self.found["without"][kind]
        self.assertEqual(with_package, without)
        trainer, tokenizer = self.runs[kind]["trainer"], tiny_tokenizer(sentence_tokens=True)
        (ids,) = without["input_ids"]
        generated = trainer.model.generate(torch.tensor([ids]), max_length=trainer.generation_max_length)
        self.assertEqual(without["prediction"], tokenizer.decode(generated[0, 1:]))
        card = (self.folder / "hub" / kind / "README.md").read_text()
        self.assertIn(f"\ninput:  {tokenizer.decode(ids)}\ntarget: ", card)

    @parameterized.parameters(*PRETRAINED, *FINE_TUNED)
    def test_the_code_is_short_and_names_the_folder_alone(self, kind):
        for block in self.blocks[kind]:
            self.assertLess(len(block.splitlines()), 50)
            self.assertIn(repr(f"./{kind}"), block)
            self.assertNotIn(str(self.folder), block)
            self.assertEqual("trust_remote_code" in block, "hf_depth" not in block and "t5" not in kind)


class PretrainedUsageTest(parameterized.TestCase):
    def usage(self, kind: str, examples=None, objective: str = "span_corruption"):
        model = tiny_model(kind)
        return pretrained_usage("./m", model, tiny_tokenizer(sentence_tokens=True), examples, objective, 30)

    @parameterized.product(kind=("depth", "t5"), examples=(None, [], [{"text": "a"}]))
    def test_data_that_no_example_can_be_taken_from_does_no_harm(self, kind, examples):
        usage = self.usage(kind, examples)
        self.assertIn("The bell of the ", usage.without_package)

    def test_a_sentence_that_is_no_text_is_no_part_of_an_example(self):
        first, *others = documents(8)[0]["sentence_lengths"]
        for lengths in ([first, 0, *others], [0]):
            example = {"input_ids": documents(8)[0]["input_ids"], "sentence_lengths": lengths}
            usage = self.usage("depth", [example])
            self.assertNotIn("    '',", usage.without_package)

    def test_source_and_target_rebuild_the_text(self):
        usage = self.usage("depth", documents(8))
        masked = dict(re.findall(r"(<extra_id_\d+>) ([^<]*)", usage.target))
        self.assertNotEmpty(masked)
        sentences = {}
        for number, text in re.findall(r"(<sent_\d+>)(.*?)<eosen>", usage.source):
            for sentinel, words in masked.items():
                text = text.replace(sentinel, f" {words}")
            sentences[number] = text.split()
        order = re.findall(r"<sent_\d+>", usage.target)
        self.assertNotEqual(order, list(sentences))
        restored = " ".join(word for number in order for word in sentences[number])
        self.assertIn(restored.replace(" ", ""), self.documents_as_text())

    def documents_as_text(self) -> str:
        decode = tiny_tokenizer(sentence_tokens=True).decode
        return "".join(decode(row["input_ids"]).replace(" ", "") for row in documents(8))

    def test_a_prefix_lm_goes_on_with_the_text(self):
        usage = self.usage("t5", documents(8), "prefix_lm")
        self.assertNotIn("extra_id", usage.source + usage.target)
        self.assertIn((usage.source + usage.target).replace("</s>", "").replace(" ", ""), self.documents_as_text())

    def test_a_depth_prefix_lm_orders_its_sentences_and_goes_on(self):
        usage = self.usage("depth", documents(8), "prefix_lm")
        self.assertNotIn("extra_id", usage.source + usage.target)
        given = dict(re.findall(r"(<sent_\d+>)(.*?)<eosen>", usage.source))
        target = dict(re.findall(r"(<sent_\d+>)(.*?)<eosen>", usage.target))
        self.assertContainsSubset(given, target)
        text = "".join(given.get(mark, rest) for mark, rest in target.items()).replace(" ", "")
        self.assertIn(text, self.documents_as_text())
        self.assertLen(target, len(given) + 1)
        self.assertIn("goes on with the text", usage.notes)

    def test_the_input_of_a_mixture_of_denoisers_begins_with_a_mode_token(self):
        arguments = (tiny_model("t5"), tiny_tokenizer(), documents(8), "mixture_of_denoisers", 30)
        usage = pretrained_usage("./m", *arguments, prefix="[R]")
        self.assertIn("'[R] ", usage.without_package)
        self.assertIn("mode token", usage.notes)

    @parameterized.parameters(("dev", ", revision='dev')"), ("main", "(name)"), (None, "(name)"))
    def test_the_code_names_the_branch_that_the_model_is_on(self, revision, expected):
        arguments = (tiny_tokenizer(sentence_tokens=True), None, "span_corruption", 30)
        usage = pretrained_usage("me/m", tiny_model("t5"), *arguments, revision=revision)
        self.assertEqual(usage.without_package.count(expected), 2)
        self.assertEqual("name, tokenizer, revision='dev')" in usage.with_package, revision == "dev")


class NameTest(parameterized.TestCase):
    @parameterized.parameters(
        ("me/depth-rte", "runs/rte", "me/depth-rte"),
        (None, "runs/rte", "./rte"),
        (None, "/data/runs/rte", "./rte"),
        (None, "runs/rte/", "./rte"),
    )
    def test_a_model_has_its_name_on_the_hub_or_that_of_its_folder(self, hub_model_id, output_dir, name):
        self.assertEqual(name_in_code(hub_model_id, output_dir), name)
