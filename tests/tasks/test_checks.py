"""A mistake in a task is found before any data is read, and named."""

from dataclasses import fields, replace

from absl.testing import parameterized

from hf_depth.tasks.registry import DATASET_VALS, get_task, register_task
from hf_depth.tasks.spec import EVALUATION_MODES, TaskSpec, check_prediction_mode
from tiny_tasks import ENTRY, RegistryTestCase


class FieldsTest(RegistryTestCase):
    @parameterized.parameters(
        ({"metric_name": "f1"}, "field `metric_name`: there is no such field. Did you mean 'metric_names'"),
        ({"labels": [True, False]}, "field `labels`: class 0 must be text, .* got True. YAML reads yes"),
        ({"labels": {"sad": 0}}, "field `labels`: must be the texts of two or more classes.* got {'sad': 0}"),
        ({"labels": ["sad", "sad"]}, "field `labels`: several classes have the text 'sad'"),
        ({"labels": ["-1", "1"]}, "field `labels`: '-1' marks an unlabeled example"),
        ({"prefix": ["a", "b"]}, "field `prefix`: there must be one for each of the 1 text columns"),
        ({"prefix": "Review: {review} Tone:"}, "field `prefix`: '{review}' would stay in the prompt as it is"),
        ({"label_column_name": "review"}, "field `label_column_name`: must name another column"),
        ({"metric_names": ["acuracy"]}, "field `metric_names`: there is no metric 'acuracy'. Did you mean 'accuracy'"),
        ({"metric_names": ["pearson"]}, "field `metric_names`: 'pearson' does not suit predictions that are a class"),
        (
            {"metric_names": ["f1"], "metric_to_optimize": "accuracy"},
            "`metric_to_optimize`: must be one of `metric_names`, 'f1'",
        ),
        ({"label_step": 0.5, "labels": None}, "field `labels`: must be the numbers to predict, in steps of 0.5"),
        ({"label_step": 0.5}, "field `labels`: with a `label_step`, they must be numbers"),
        ({"label_step": 0.5, "labels": ["0", "1"]}, "field `label_step`: the labels must be numbers in steps of 0.5"),
        ({"train_split": ""}, "field `train_on`: a task without `train_split` needs another"),
        ({"validation_splits": ["test"]}, "field `train_split`: the splits must have different names"),
        ({"name": "my task"}, "field `name`: must be letters"),
        ({"probe_features": "diference"}, "field `probe_features`: got 'diference'. Did you mean 'difference'"),
        ({"probe_features": "product"}, "field `probe_features`: 'product' is for 2 text columns, there are 1"),
    )
    def test_a_wrong_field_is_an_error_that_names_it(self, values, message):
        with self.assertRaisesRegex(ValueError, message):
            register_task({"name": "tone", "benchmark": "mine"} | ENTRY | values)
        self.assertNotIn("mine", [b for b, entries in DATASET_VALS.items() if "tone" in entries])

    @parameterized.parameters(
        *(item.name for item in fields(TaskSpec) if item.type in (str, bool, int, str | None, tuple[str, ...]))
    )
    def test_a_field_has_the_type_of_its_annotation(self, name):
        with self.assertRaisesRegex(ValueError, f"field `{name}`: must"):
            replace(get_task("glue/rte"), **{name: 0.5})

    @parameterized.parameters("prefix", "name")
    def test_a_missing_field_is_an_error_that_names_it(self, field):
        entry = {"name": "tone", "benchmark": "mine"} | ENTRY
        del entry[field]
        with self.assertRaisesRegex(ValueError, f"field `{field}`: it is missing"):
            register_task(entry)


class PredictionModeTest(parameterized.TestCase):
    def test_labels_are_scored_only_where_there_are_labels(self):
        tasks = [get_task("rte"), get_task("natural_instructions")]
        check_prediction_mode(tasks, "generate")
        check_prediction_mode(tasks[:1], "score_labels")
        with self.assertRaisesRegex(
            ValueError, "score_labels is for .* 'natural_instructions' is free-form.* generate"
        ):
            check_prediction_mode(tasks, "score_labels")

    def test_a_probe_predicts_classes_where_there_are_probes(self):
        check_prediction_mode([get_task("glue/rte")], "probe", EVALUATION_MODES)
        with self.assertRaisesRegex(ValueError, "must be one of generate, score_labels, got 'probe'"):
            check_prediction_mode([get_task("glue/rte")], "probe")
        with self.assertRaisesRegex(ValueError, "'stsb' predicts numbers"):
            check_prediction_mode([get_task("glue/stsb")], "probe", EVALUATION_MODES)
        with self.assertRaisesRegex(ValueError, "probe is for tasks with labels"):
            check_prediction_mode([get_task("natural_instructions")], "probe", EVALUATION_MODES)
