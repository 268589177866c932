import contextlib
import gzip
import io
import json
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch
from absl.testing import absltest, parameterized
from datasets import Dataset
from huggingface_hub import HfApi
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, T5Config
from transformers import T5ForConditionalGeneration as StockT5

from helpers import (
    ROOT,
    SENTENCES,
    flags_of_options,
    load_script,
    process_environment,
    run_example,
    run_in_two_processes,
    tiny_tokenizer,
)
from hf_depth import DepthForConditionalGeneration, T5ForConditionalGeneration
from hf_depth.evaluation.plots import plot_losses

SCRIPT = ROOT / "examples" / "pretrain_t5.py"

TINY = {
    "vocab_size": 350,
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 32,
    "num_layers": 1,
    "num_heads": 2,
    "max_source_length": 64,
    "do_train": True,
    "do_eval": True,
    "max_steps": 2,
    "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 4,
    "logging_steps": 1,
    "save_strategy": "no",
    "disable_tqdm": True,
    "use_cpu": True,
}


LAUNCH_TWO = "-m accelerate.commands.launch --multi_gpu --num_processes 2 --num_machines 1".split()
LAUNCH_TWO += "--mixed_precision no --dynamo_backend no --main_process_port 0".split()


def documents(number: int = 40) -> list[str]:
    return [" ".join(SENTENCES[(3 * i + j) % len(SENTENCES)] for j in range(4)) for i in range(number)]


class PretrainTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.output_dir = self.folder / "run"
        self.train_file = self.folder / "texts.jsonl"
        self.train_file.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents()))
        self.script = load_script("examples/pretrain_t5.py")
        # It takes longer than all else that these runs do.
        self.plot_losses = self.enterContext(mock.patch("hf_depth.training.runs.plot_losses"))

    def flags(self, **changes) -> list[str]:
        values = self.named(TINY | {"train_file": self.train_file, "output_dir": self.output_dir} | changes)
        return [part for name, value in values.items() if value is not None for part in (f"--{name}", str(value))]

    def named(self, values) -> dict:
        """Values by the names of their flags."""
        flags = flags_of_options("examples/pretrain_t5.py")
        return {flags.get(name, name): value for name, value in values.items()}

    def results(self) -> dict:
        return json.loads((self.output_dir / "all_results.json").read_text())

    @parameterized.named_parameters(
        ("depth", {"model_type": "depth", "predict_with_generate": True}, DepthForConditionalGeneration),
        ("span_corruption", {"model_type": "t5"}, StockT5),
        ("packed", {"model_type": "t5", "pack_examples": True, "pad_to_max_length": True}, StockT5),
        ("prefix_lm", {"model_type": "t5", "objective": "prefix_lm"}, StockT5),
        (
            "depth_prefix_lm",
            {"model_type": "depth", "objective": "prefix_lm", "predict_with_generate": True}
            # So that some examples are cut behind the second sentence: one has no order.
            | {"max_source_length": 512, "validation_split_percentage": 30, "generation_max_length": 32},
            DepthForConditionalGeneration,
        ),
        ("mixture_of_denoisers", {"model_type": "t5", "objective": "mixture_of_denoisers"}, StockT5),
    )
    def test_each_objective_trains_saves_and_reloads(self, changes, model_class):
        self.plot_losses.side_effect = plot_losses
        trainer = self.script.main(self.flags(**changes))
        files = {path.name for path in self.output_dir.iterdir()}
        expected = (
            "config.json model.safetensors tokenizer.json all_results.json trainer_state.json losses.png README.md"
        )
        self.assertContainsSubset(expected.split(), files)
        self.assertEqual((self.output_dir / "losses.png").read_bytes()[:4], b"\x89PNG")
        model = AutoModelForSeq2SeqLM.from_pretrained(self.output_dir)
        self.assertIsInstance(model, model_class)
        tokenizer = AutoTokenizer.from_pretrained(self.output_dir)
        self.assertLessEqual(len(tokenizer), model.config.vocab_size)
        batch = tokenizer(SENTENCES[:2], padding=True, return_tensors="pt")
        labels = batch["input_ids"]
        torch.testing.assert_close(
            model(**batch, labels=labels).logits, trainer.model.eval()(**batch, labels=labels).logits
        )
        results = self.results()
        self.assertGreater(results["eval_reconstruction_loss"], 0)
        self.assertEqual("eval_order_exact" in results, changes["model_type"] == "depth")
        card = (self.output_dir / "README.md").read_text()
        for part in ("texts.jsonl", "objective", "max_source_length", "learning_rate", "| loss |"):
            self.assertIn(part, card)

    def test_a_mixture_is_trained_evaluated_and_tested_by_source(self):
        config = {
            "dataset_mixture": [
                {"name": "novels", "weight": 0.75, "train_file": str(self.train_file)},
                {
                    "name": "news",
                    "weight": 0.25,
                    "train_file": [str(self.train_file)],
                    "test_file": str(self.train_file),
                },
            ]
        }
        (self.folder / "mixture.json").write_text(json.dumps(config))
        flags = self.flags(train_file=None, do_predict=True, max_predict_samples=4, eval_on_start=True)
        self.script.main([str(self.folder / "mixture.json"), *flags])
        results = self.results()
        self.assertEqual(results["novels/examples"] + results["news/examples"], 8)
        for name in ("eval_loss", "eval_novels_loss", "eval_news_loss", "predict_news_loss"):
            self.assertGreater(results[name], 0)
        card = (self.output_dir / "README.md").read_text()
        for part in ("| source | novels, news |", "| novels, seen in training |", "| news_loss |", "| news train |"):
            self.assertIn(part, card)

    def test_training_lowers_both_losses(self):
        changes = {"max_steps": 60, "learning_rate": 0.03, "eval_on_start": True, "lr_scheduler_type": "constant"}
        trainer = self.script.main(self.flags(**changes))
        before, after = (log for log in trainer.state.log_history if "eval_loss" in log)
        self.assertLess(after["eval_sentence_loss"], 0.8 * before["eval_sentence_loss"])
        self.assertLess(after["eval_reconstruction_loss"], 0.8 * before["eval_reconstruction_loss"])

    def test_config_file_is_overridden_by_flags(self):
        config = TINY | {"train_file": str(self.train_file), "output_dir": str(self.output_dir), "max_steps": 7}
        del config["do_eval"]
        (self.folder / "config.json").write_text(json.dumps(self.named(config)))
        trainer = self.script.main([str(self.folder / "config.json"), "--max_steps", "3", "--learning_rate", "1e-3"])
        self.assertEqual(trainer.state.global_step, 3)
        self.assertEqual(trainer.args.learning_rate, 1e-3)

    @parameterized.parameters("depth", "t5")
    def test_second_run_resumes_from_the_last_checkpoint_in_output_dir(self, kind):
        saving = {"model_type": kind, "save_strategy": "steps", "save_steps": 2, "do_eval": None}
        self.script.main(self.flags(**saving, max_steps=4, lr_scheduler_type="constant"))
        whole = AutoModelForSeq2SeqLM.from_pretrained(self.output_dir).state_dict()
        other = self.folder / "other"
        self.script.main(self.flags(**saving, max_steps=2, lr_scheduler_type="constant", output_dir=other))
        trainer = self.script.main(self.flags(**saving, max_steps=4, lr_scheduler_type="constant", output_dir=other))
        self.assertEqual(trainer.state.global_step, 4)
        for name, value in AutoModelForSeq2SeqLM.from_pretrained(other).state_dict().items():
            self.assertTrue(torch.equal(value, whole[name]), name)

    def test_a_finished_run_is_not_trained_any_further(self):
        flags = self.flags(save_strategy="steps", save_steps=2, max_steps=2)
        self.script.main(flags)
        weights = (self.output_dir / "model.safetensors").read_bytes()
        results = self.results()
        trainer = self.script.main(flags)
        self.assertEqual((self.output_dir / "model.safetensors").read_bytes(), weights)
        self.assertEqual(self.results()["train_loss"], results["train_loss"])
        self.assertAlmostEqual(self.results()["eval_loss"], results["eval_loss"], delta=1e-6)
        self.assertEqual(trainer.state.global_step, 2)
        self.assertIsNone(self.script.main(self.flags(save_strategy="steps", save_steps=2, max_steps=2, do_eval=None)))

    def test_a_run_passes_over_a_checkpoint_that_was_not_written_to_its_end(self):
        flags = {"save_strategy": "steps", "save_steps": 1, "max_steps": 3, "do_eval": None}
        self.script.main(self.flags(**flags))
        (self.output_dir / "checkpoint-3" / "trainer_state.json").unlink()
        with self.assertLogs("hf_depth.training.checkpoints.resuming", "INFO") as logs:
            trainer = self.script.main(self.flags(**flags))
        self.assertIn("Skipping", logs.output[0])
        self.assertIn("checkpoint-2", logs.output[1])
        self.assertEqual(trainer.state.global_step, 3)

    def test_a_stream_of_the_hub_is_resumed_at_the_commit_that_it_began_with(self):
        began, newer, latest, read = "a" * 40, "b" * 40, [], []

        def builder(name, config, cache_dir, revision=None):
            files = {"train": [f"hf://datasets/{name}@{revision or latest[-1]}/train.jsonl"]}
            return SimpleNamespace(config=SimpleNamespace(data_files=files))

        def load(name, config, revision, **options):
            read.append(revision)
            return {"train": Dataset.from_dict({"text": documents()}).to_iterable_dataset()}

        saving = {"save_strategy": "steps", "save_steps": 2, "lr_scheduler_type": "constant"}
        saving |= {"train_file": None, "dataset_name": "some/data", "streaming": True, "max_eval_samples": 4}
        self.enter_context(mock.patch("hf_depth.data.corpus.load_dataset_builder", builder))
        self.enter_context(mock.patch("hf_depth.data.corpus.load_dataset", load))
        for commit, steps in ((began, 2), (newer, 4)):
            latest.append(commit)
            self.script.main(self.flags(**saving, max_steps=steps))
            saved = json.loads((self.output_dir / f"checkpoint-{steps}" / "run.json").read_text())
            self.assertEqual(saved["dataset_content"], [f"hf://datasets/some/data@{began}"])
        self.assertEqual(read, [began, began])

    def test_another_model_does_not_resume_a_run(self):
        flags = {"save_strategy": "steps", "save_steps": 1, "max_steps": 1, "do_eval": None}
        self.script.main(self.flags(**flags))
        flags["max_steps"] = 2
        for changes in ({"d_model": 32}, {"model_type": "t5"}, {"objective": "prefix_lm", "model_type": "t5"}):
            message = f"another (model|run) than .*checkpoint-1.*{next(iter(changes))}"
            with self.subTest(str(changes)), self.assertRaisesRegex(ValueError, message):
                self.script.main(self.flags(**flags | changes))
        self.assertEqual(self.script.main(self.flags(**flags)).state.global_step, 2)  # the same model does

    def test_a_saved_model_is_evaluated_by_itself(self):
        self.script.main(self.flags(model_type="depth", num_sentence_tokens=6, do_eval=None))
        size = dict.fromkeys(("vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_heads"))
        flags = size | {"do_train": None, "train_file": None, "validation_file": self.train_file}
        flags |= {"do_predict": True, "test_file": self.train_file, "max_predict_samples": 3}
        flags |= {"model_name_or_path": self.output_dir, "output_dir": self.folder / "evaluation"}
        self.script.main(self.flags(**flags))
        results = json.loads((self.folder / "evaluation" / "all_results.json").read_text())
        self.assertContainsSubset(["eval_sentence_accuracy", "predict_sentence_accuracy"], results)

    def test_a_t5_without_a_spare_row_grows_into_depth(self):
        tokenizer = tiny_tokenizer()
        tokenizer.save_pretrained(self.folder / "t5")
        config = T5Config(
            vocab_size=len(tokenizer), d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=0
        )
        StockT5(config).save_pretrained(self.folder / "t5")
        size = dict.fromkeys(("vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_heads"))
        trainer = self.script.main(self.flags(model_name_or_path=self.folder / "t5", do_eval=None, **size))
        config = AutoModelForSeq2SeqLM.from_pretrained(self.output_dir).config
        self.assertEqual(config.first_sentence_token_id, len(tokenizer))
        self.assertEqual(config.vocab_size % 128, 0)
        self.assertEqual(trainer.model.encoder.config.first_sentence_token_id, len(tokenizer))

    def test_a_t5_checkpoint_is_continued_as_depth(self):
        self.script.main(self.flags(model_type="t5", do_eval=None))
        checkpoint = str(self.output_dir)
        size = dict.fromkeys(("vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_heads"))
        changes = size | {"model_name_or_path": checkpoint, "output_dir": self.folder / "depth", "learning_rate": 0.0}
        trainer = self.script.main(self.flags(model_type="depth", do_eval=None, **changes))
        old = T5ForConditionalGeneration.from_pretrained(checkpoint).state_dict()
        for name, value in trainer.model.state_dict().items():
            torch.testing.assert_close(value[: len(old[name])], old[name])

    def test_streaming_and_test_data(self):
        test_file = self.folder / "test.txt"
        test_file.write_text("\n\n".join(documents(3)))
        changes = {"streaming": True, "validation_file": self.train_file, "max_eval_samples": 5}
        changes |= {
            "do_predict": True,
            "test_file": test_file,
            "predict_with_generate": True,
            "max_predict_samples": 3,
            "generation_max_length": 16,
        }
        self.script.main(self.flags(**changes))
        self.assertIn("predict_loss", self.results())
        lines = (self.output_dir / "predictions.jsonl").read_text().splitlines()
        self.assertLen(lines, 3)
        self.assertEqual(set(json.loads(lines[0])), {"prediction", "target"})

    def test_metadata_are_read_evaluated_and_told_by_the_card(self):
        records = [{"text": text, "title": f"Page {i}", "year": 1800 + i} for i, text in enumerate(documents())]
        self.train_file.write_text("\n".join(map(json.dumps, records)))
        changes = {"max_metadata_length": 32, "metadata_probability": 0.25, "eval_on_start": True}
        changes |= {"save_strategy": "steps"}
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            self.script.main([*self.flags(**changes), "--metadata_columns", "title", "year"])
        self.assertRegex(printed.getvalue(), r"\nmetadata: title: Page \d+ \| year: 18\d\d \|\|\|\n")
        self.assertRegex(printed.getvalue(), "evaluation: loss .*with metadata loss.*\n(.*\n)*eval_with_metadata_loss")
        with self.assertRaisesRegex(ValueError, r"metadata_columns \['title', 'year'\] \(now \['year'\]\)"):
            self.script.main([*self.flags(**changes), "--metadata_columns", "year"])
        results = self.results()
        self.assertContainsSubset(["eval_loss", "eval_with_metadata_loss", "train_metadata_tokens"], results)
        card = (self.output_dir / "README.md").read_text()
        self.assertIn("before 25% of the inputs of documents that had some: `title: … | year: … |||`", card)
        for row in ("| metadata_columns | title, year |", "| with_metadata_loss |"):
            self.assertIn(row, card)

    def test_every_kind_of_file_gives_the_same_examples(self):
        data = Dataset.from_dict({"text": documents(20)})
        path = str(self.folder / "data")
        data.to_json(f"{path}.json", lines=False)
        Path(f"{path}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in data["text"]))
        data.to_csv(f"{path}.csv", index=False)
        data.to_parquet(f"{path}.parquet")
        Path(f"{path}.txt").write_text("\n\n".join(data["text"]))
        for extension in ("txt", "jsonl", "csv"):
            Path(f"{path}.{extension}.gz").write_bytes(gzip.compress(Path(f"{path}.{extension}").read_bytes()))
        options = {"max_steps": 1, "do_eval": False, "validation_split_percentage": 0}
        expected = None
        for extension in ("jsonl", "txt", "json", "csv", "parquet", "txt.gz", "jsonl.gz", "csv.gz"):
            flags = self.flags(**options, train_file=f"{path}.{extension}", output_dir=self.folder / extension)
            rows = [row["input_ids"].tolist() for row in self.script.main(flags).train_dataset]
            expected = expected or rows
            with self.subTest(extension):
                self.assertNotEmpty(rows)
                self.assertEqual(rows, expected)

    @parameterized.named_parameters(
        ("nothing to do", {"do_train": None, "do_eval": None}, "Nothing to do"),
        ("missing file", {"train_file": "nowhere.jsonl"}, "nowhere.jsonl"),
        ("missing column", {"text_column": "body"}, "body.*text"),
        ("size of a checkpoint", {"model_name_or_path": "t5-small"}, "vocab_size.*model_name_or_path"),
        (
            "no such model",
            {"model_name_or_path": "./nowhere", "vocab_size": None},
            "model_name_or_path ./nowhere.*folder",
        ),
        ("denoisers for depth", {"objective": "mixture_of_denoisers"}, "mixture_of_denoisers.*model_type t5"),
        ("endless stream", {"streaming": True, "max_steps": None}, "max_steps"),
        ("no test data", {"do_predict": True}, "test_file"),
        ("nothing to resume", {"resume_from_checkpoint": True}, "no checkpoint"),
        ("missing checkpoint", {"resume_from_checkpoint": "gone"}, "gone"),
        ("token on the command line", {"hub_token": "hf_x"}, "hub_token.*hf auth login"),
        ("no model to evaluate", {"do_train": None}, "model_name_or_path"),
        ("no evaluation data", {"validation_split_percentage": 0}, "validation_file"),
        ("stream to evaluate on", {"streaming": True}, "max_eval_samples"),
        ("too many sentences", {"max_sentences": 21}, "max_sentences.*2 and 20"),
        ("more spans than sentinels", {"max_source_length": 1024}, "masked spans.*100 sentinels"),
        ("flex attention", {"attn_implementation": "flex_attention"}, "takes one of .*'flex_attention'"),
        ("everything masked", {"mlm_probability": 1.0}, "mlm_probability"),
        ("no width", {"d_model": 0}, "d_model.*at least 1"),
        ("too few samples", {"max_train_samples": 0}, "max_train_samples.*at least 1"),
        ("vocabulary larger than the text", {"vocab_size": 30_000}, "vocab_size"),
    )
    def test_errors_name_the_thing(self, changes, message):
        # Arguments that are wrong by themselves end the program with one line; what the data show is an exception.
        with contextlib.redirect_stderr(io.StringIO()) as stderr:
            with self.assertRaises((ValueError, OSError, SystemExit)) as error:
                self.script.main(self.flags(**changes))
        self.assertRegex(f"{error.exception} {stderr.getvalue()}", f"(?s){message}")

    def test_text_to_evaluate_alone_trains_no_tokenizer(self):
        with self.assertRaisesRegex(ValueError, "no train data: `--do_train` needs `--train_file`"):
            self.script.main(self.flags(train_file=None, validation_file=self.train_file))

    def test_push_to_hub_uploads_model_code_tokenizer_and_card(self):
        repository = mock.Mock(repo_id="me/tiny-depth")
        with (
            mock.patch.object(HfApi, "create_repo", return_value=repository),
            mock.patch.object(HfApi, "upload_folder") as upload,
        ):
            self.script.main(self.flags(push_to_hub=True, hub_model_id="me/tiny-depth"))
        self.assertEqual(upload.call_args.kwargs["repo_id"], "me/tiny-depth")
        files = {path.name for path in Path(upload.call_args.kwargs["folder_path"]).iterdir()}
        self.assertContainsSubset(["model.safetensors", "modeling_depth.py", "tokenizer.json", "README.md"], files)
        self.assertNotIn("training_args.bin", files)
        card = (self.output_dir / "README.md").read_text()
        self.assertIn("name = 'me/tiny-depth'\n", card)
        self.assertIn("| sentence_accuracy |", card)

    def test_shards_train_the_weights_of_their_text(self):
        folder, common = str(self.folder / "shards"), {"save_strategy": "no", "predict_with_generate": None}
        self.assertIsNone(self.script.main(self.flags(tokenized_dataset_dir=folder, preprocessing_only=True)))
        self.assertFalse(self.output_dir.exists())
        from_shards = common | {"train_file": None, "tokenized_dataset_dir": folder}
        weights = {}
        for name, changes in {"text": common, "shards": from_shards | {"streaming": True}}.items():
            trainer = self.script.main(self.flags(**changes, output_dir=self.folder / f"from_{name}"))
            weights[name] = trainer.model.state_dict()
            self.assertEqual(
                trainer.processing_class.get_vocab(), AutoTokenizer.from_pretrained(f"{folder}/tokenizer").get_vocab()
            )
        for name, tensor in weights["text"].items():
            torch.testing.assert_close(weights["shards"][name], tensor, rtol=0, atol=0)
        self.assertIn("texts.jsonl", (self.folder / "from_shards" / "README.md").read_text())
        with self.assertRaisesRegex(ValueError, r"were prepared with max_source_length 64 \(now 48\)"):
            self.script.main(self.flags(**from_shards, max_source_length=48, output_dir=self.folder / "other"))

    def test_one_sentence_corpus_is_no_corpus_for_depth(self):
        self.train_file.write_text("".join(json.dumps({"text": text}) + "\n" for text in SENTENCES[:8] * 3))
        with self.assertRaisesRegex(ValueError, "nothing to un-shuffle.*model_type.*t5"):
            self.script.main(self.flags(vocab_size=290))

    def test_unknown_flag_suggests_the_right_one(self):
        command = [str(SCRIPT), "--lerning_rate", "1", "--output_dir", "x"]
        with mock.patch.object(sys, "argv", command), contextlib.redirect_stderr(io.StringIO()) as stderr:
            with self.assertRaises(SystemExit) as end:
                runpy.run_path(command[0], run_name="__main__")
        self.assertEqual(end.exception.code, 2)
        self.assertIn("learning_rate", stderr.getvalue())
        self.assertNotIn("Traceback", stderr.getvalue())

    def test_two_launched_processes_train_as_one_and_log_to_wandb_offline_without_secrets(self):
        # One test, as nothing here takes longer than the start of a launcher and of its processes.
        alone = self.folder / "alone"
        # Plain gradient descent: the update shows the scale of the gradient.
        same = {"max_steps": 3, "lr_scheduler_type": "constant", "optim": "sgd", "max_grad_norm": 0}
        same |= {"learning_rate": 0.1, "predict_with_generate": True, "sentence_loss_coefficient": 3.0}
        self.script.main(self.flags(**same, output_dir=alone, per_device_train_batch_size=4))
        environment = {"WANDB_DIR": str(self.folder), "WANDB_API_KEY": "s3cret" * 8, "WANDB_SILENT": "true"}
        environment["HF_TOKEN"] = "hf_secrettoken"
        result = subprocess.run(
            [sys.executable, *LAUNCH_TWO, str(SCRIPT)]
            + self.flags(**same, per_device_train_batch_size=2, report_to="wandb"),
            env=process_environment(**environment),
            capture_output=True,
            text=True,
            timeout=900,
        )
        self.assertEqual(result.returncode, 0, result.stderr[-3000:])
        expected = AutoModelForSeq2SeqLM.from_pretrained(alone).state_dict()
        for name, value in AutoModelForSeq2SeqLM.from_pretrained(self.output_dir).state_dict().items():
            torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-5)
        self.assertLen(list(self.folder.glob("wandb/offline-run-*/*.wandb")), 1)
        written = [path for path in self.folder.rglob("*") if path.is_file() and path != self.train_file]
        text = (result.stdout + result.stderr).encode() + b"".join(path.read_bytes() for path in written)
        self.assertNotIn(b"secrettoken", text)
        self.assertNotIn(b"s3cret", text)

    def test_two_processes_read_streams_of_unequal_shards(self):
        files = []
        for name, number in (("a", 30), ("b", 4)):
            files.append(str(self.folder / f"{name}.jsonl"))
            Path(files[-1]).write_text("".join(json.dumps({"text": text}) + "\n" for text in documents(number)))
        flags = self.flags(streaming=True, max_steps=6, max_eval_samples=5, train_file=None, learning_rate=0.0)
        flags += ["--train_file", *files, "--validation_file", *files, "--per_device_train_batch_size", "2"]
        run_in_two_processes(run_example, "examples/pretrain_t5.py", *flags)
        together = self.results()["eval_loss"]
        other = self.folder / "alone"
        self.script.main([*flags, "--per_device_train_batch_size", "4", "--output_dir", str(other)])
        # No update was made, so both evaluate the same weights: an example that is counted twice would show.
        expected = json.loads((other / "all_results.json").read_text())["eval_loss"]
        self.assertAlmostEqual(together, expected, delta=1e-5)


if __name__ == "__main__":
    absltest.main()
