import torch
from absl.testing import parameterized
from datasets import Dataset, IterableDataset

from helpers import DOCUMENTS, SENTENCES, tiny_tokenizer
from hf_depth import (
    DepthObjective,
    DepthTrainer,
    DepthTrainingArguments,
    SpanCorruptionObjective,
    T5ForConditionalGeneration,
)
from hf_depth.data.streams import ExampleStream
from tiny_training import TrainingTestCase, parameters, tiny_model

TEXTS = [*DOCUMENTS, " ".join(SENTENCES)]


def as_stream(texts):
    """Whose columns are not known before one row is read."""
    return IterableDataset.from_generator(lambda: ({"text": text} for text in texts))


KINDS = {"list": list, "data set": lambda texts: Dataset.from_dict({"text": texts}), "stream": as_stream}


class RawTextTest(TrainingTestCase):
    def arguments(self, **more):
        quiet = {"use_cpu": True, "disable_tqdm": True, "report_to": "none", "save_strategy": "no"}
        return DepthTrainingArguments(f"{self.folder}/run", max_steps=2, **quiet, **more)

    def saved(self, kind="t5", tokenizer=None):
        """A folder with a model and a tokenizer."""
        (tokenizer or tiny_tokenizer(sentence_tokens=kind == "depth")).save_pretrained(f"{self.folder}/model")
        tiny_model(kind).save_pretrained(f"{self.folder}/model")
        return f"{self.folder}/model"

    @parameterized.parameters(*KINDS)
    def test_text_trains_as_what_the_objective_prepares_of_it(self, kind):
        objective = DepthObjective(tiny_tokenizer(sentence_tokens=True), max_source_length=96)
        text = KINDS[kind](TEXTS)
        run = DepthTrainer(
            model=tiny_model("depth"),
            args=self.arguments(),
            train_dataset=text,
            eval_dataset={"novels": text, "one": TEXTS[:1]},
            objective=objective,
        )
        if kind == "stream":
            self.assertIsInstance(run.train_dataset, ExampleStream)
        data, _ = objective.prepare_splits({"train": Dataset.from_dict({"text": TEXTS}) if kind == "list" else text})
        plain = DepthTrainer(
            model=tiny_model("depth"),
            args=self.arguments(),
            data_collator=objective.collator(),
            train_dataset=data["train"],
        )
        run.train()
        plain.train()
        self.assert_close(parameters(run.model), parameters(plain.model), tolerance=1e-8)
        self.assertIn("eval_novels_loss", run.evaluate())
        self.assertIs(run.processing_class, objective.tokenizer)

    def test_new_rows_are_those_of_the_seed(self):
        folder = self.saved()
        tokenizer = tiny_tokenizer()
        tokenizer.add_tokens([f"<new_{number}>" for number in range(100)])
        models = []
        for state in range(2):
            torch.manual_seed(state)
            objective = SpanCorruptionObjective(tokenizer)
            models.append(DepthTrainer(folder, self.arguments(), train_dataset=TEXTS, objective=objective).model)
        self.assertIsInstance(models[0], T5ForConditionalGeneration)
        self.assert_close(parameters(models[0]), parameters(models[1]), tolerance=1e-12)

    def test_a_name_goes_with_prepared_data(self):
        objective = SpanCorruptionObjective(tiny_tokenizer())
        examples = objective.prepare(Dataset.from_dict({"text": TEXTS}))
        run = DepthTrainer(self.saved(), self.arguments(), objective.collator(), examples)
        self.assertIsInstance(run.model, T5ForConditionalGeneration)

    @parameterized.parameters(
        ([], "`train_dataset` is no list of texts"),
        (["One text.", None], "`train_dataset` is no list of texts"),
        (Dataset.from_dict({"body": TEXTS}), "`train_dataset` has no column `text`, but: body"),
    )
    def test_what_is_neither_text_nor_prepared_is_refused(self, data, message):
        objective = DepthObjective(tiny_tokenizer(sentence_tokens=True))
        with self.assertRaisesRegex(ValueError, message):
            DepthTrainer(tiny_model("depth"), self.arguments(), train_dataset=data, objective=objective)

    def test_an_objective_is_missing_or_is_none(self):
        with self.assertRaisesRegex(ValueError, "`data_collator` is missing: give `objective`"):
            DepthTrainer(tiny_model("t5"), self.arguments(), train_dataset=TEXTS)
        with self.assertRaisesRegex(TypeError, "`objective` must be an objective .* got str"):
            DepthTrainer(tiny_model("t5"), self.arguments(), train_dataset=TEXTS, objective="depth")
        with self.assertRaisesRegex(ValueError, r"give `DepthObjective\(tokenizer\)`"):
            DepthTrainer(tiny_model("t5"), self.arguments(), train_dataset=TEXTS, objective=DepthObjective)
