"""The nearest known names that error messages offer for a mistyped one."""

from absl.testing import parameterized

from hf_depth.errors import suggestion

TASKS = ("cola", "rte", "mnli", "qnli", "wnli")


class SuggestionTest(parameterized.TestCase):
    @parameterized.parameters(
        ("cla", "tasks", " Did you mean 'cola'?"),
        ("COLA", "tasks", " Did you mean 'cola'?"),
        ("wnlii", "tasks", " Did you mean 'wnli' or 'qnli' or 'mnli'?"),
        ("squad", "tasks", " The tasks are: 'cola', 'rte', 'mnli', 'qnli', 'wnli'."),
        ("squad", None, ""),
        (3, None, ""),
    )
    def test_near_names_come_before_a_list_of_all(self, name, kind, expected):
        self.assertEqual(suggestion(name, iter(TASKS), kind), expected)
