"""README.md and docs/: the snippets run as they stand, and what the pages name exists."""

import ast
import json
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import fields
from pathlib import Path

from absl.testing import parameterized
from accelerate.commands.launch import launch_command_parser

import hf_depth
from helpers import ROOT, load_script, process_environment, script_arguments
from hf_depth import get_task
from hf_depth.arguments.compare_args import CompareArguments
from hf_depth.arguments.parser import parse_arguments

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FULL_NAME = r"DEPTH\b[\w\s*]{0,10}\(Discourse\s+Education\s+through\s+Pre-Training\s+Hierarchically\b"
# Snippets of the README: the most statements that each may have. Those of docs/python.md run after them.
MAX_STATEMENTS = {"pretraining": 20, "fine_tuning": 15, "predictions": 6}
# Flags of other programs: sbatch, wandb, hf, tensorboard.
OTHER_FLAGS = {"array", "count", "help", "logdir", "nodes", "nproc-per-node", "repo-type"}
SCRIPTS = ("examples/pretrain_t5.py", "examples/fine_tune_t5.py")

# Runs snippets one after the other, each with its own names, and prints the predictions of the last.
RUNNER = """
import json, runpy, sys
for path in sys.argv[1:]:
    names = runpy.run_path(path)
    if "predictions" in names:
        print(json.dumps(names["predictions"]))
"""


def pages():
    """The pages by their names, for `named_parameters`."""
    return [(path.relative_to(ROOT).as_posix(), path) for path in PAGES]


def blocks(path, language):
    """The fenced blocks of a page in a language, by the marker before them; others by their number."""
    text = path.read_text(encoding="utf-8")
    found = re.findall(rf"(?:^<!-- test: (\w+) -->\n)?^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return {marker or number: code for number, (marker, code) in enumerate(found)}


def snippets(path):
    """The Python blocks of a page that are marked as runnable."""
    return {name: code for name, code in blocks(path, "python").items() if isinstance(name, str)}


def statements(code):
    """All statements of a piece of code, also those inside others."""
    return [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.stmt)]


def anchors(path):
    """The anchors that GitHub gives the headings of a page."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands_of_scripts():
    """Each training script with the arguments that a page gives it."""
    for path in PAGES:
        for block in blocks(path, "bash").values():
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                for script in set(words).intersection(SCRIPTS):
                    yield script, words[words.index(script) + 1 :]


class SnippetsTest(parameterized.TestCase):
    @parameterized.parameters(*MAX_STATEMENTS)
    def test_a_snippet_of_the_readme_is_short_and_imports_from_hf_depth_alone(self, name):
        code = snippets(ROOT / "README.md")[name]
        self.assertLessEqual(len(statements(code)), MAX_STATEMENTS[name])
        imports = [node for node in statements(code) if isinstance(node, ast.Import | ast.ImportFrom)]
        self.assertLen(imports, 1)
        self.assertEqual(imports[0].module, "hf_depth")

    def test_the_snippets_stand_right_after_the_quickstart(self):
        text = (ROOT / "README.md").read_text(encoding="utf-8")
        self.assertEqual(re.findall(r"^## (.+)$", text, re.MULTILINE)[:2], ["Quickstart", "In Python"])
        section = text.split("## In Python\n")[1].split("\n## ")[0]
        self.assertEqual(re.findall(r"<!-- test: (\w+) -->", section), list(MAX_STATEMENTS))

    @parameterized.named_parameters(pages())
    def test_what_python_blocks_import_from_hf_depth_is_public(self, path):
        for code in blocks(path, "python").values():
            for node in statements(code):
                if isinstance(node, ast.ImportFrom) and node.module == "hf_depth":
                    self.assertContainsSubset([alias.name for alias in node.names], hf_depth.__all__)

    def test_the_snippets_run_in_sequence_in_an_empty_folder_without_a_network(self):
        folder = Path(self.enter_context(tempfile.TemporaryDirectory()))
        readme, guide = snippets(ROOT / "README.md"), snippets(ROOT / "docs/python.md")
        self.assertEqual(list(readme), list(MAX_STATEMENTS))
        (folder / "run.py").write_text(RUNNER, encoding="utf-8")
        for name, code in (readme | guide).items():
            (folder / f"{name}.py").write_text(code, encoding="utf-8")
        files = [f"{name}.py" for name in (*readme, *guide)]
        offline = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HOME": str(folder / "cache")}
        result = subprocess.run(
            [sys.executable, "run.py", *files],
            cwd=folder,
            env=process_environment(**offline),
            capture_output=True,
            text=True,
            timeout=300,
        )
        self.assertEqual(result.returncode, 0, result.stderr[-5000:])

        for run in ("python", "ordering", "resumable"):
            for name in ("config.json", "model.safetensors", "tokenizer.json"):
                self.assertTrue((folder / "runs" / run / name).is_file(), f"runs/{run}/{name}")
        for name in ("all_results.json", "trainer_state.json", "losses.png", "README.md"):
            self.assertTrue((folder / "runs/resumable" / name).is_file(), name)
        (line,) = [line for line in result.stdout.splitlines() if line.startswith('[{"text"')]
        labels = list(get_task("discourse/sentence_ordering").labels.values())
        for prediction in json.loads(line):
            self.assertIn(prediction["label"], [*labels, None])
            self.assertEqual(list(prediction["scores"]), labels)
            self.assertLess(max(prediction["scores"].values()), 0)  # log-probabilities


class PagesTest(parameterized.TestCase):
    @parameterized.named_parameters(pages())
    def test_relative_links_lead_to_files_and_headings(self, path):
        text = path.read_text(encoding="utf-8")
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"[a-z]+:", link):
                continue
            with self.subTest(link):
                name, _, anchor = link.partition("#")
                target = (path.parent / name) if name else path
                self.assertTrue(target.exists())
                if anchor:
                    self.assertIn(anchor, anchors(target))

    @parameterized.named_parameters(pages())
    def test_depth_is_spelled_out_at_first_mention(self, path):
        text = path.read_text(encoding="utf-8")
        first = re.search(r"\bDEPTH\b", text)
        if first is not None:
            self.assertRegex(text[first.start() :], rf"\A{FULL_NAME}")

    def test_the_pages_are_listed_in_the_index(self):
        index = (ROOT / "docs/README.md").read_text(encoding="utf-8")
        for path in PAGES[1:]:
            if path != ROOT / "docs/README.md":
                self.assertIn(f"]({path.relative_to(ROOT / 'docs').as_posix()})", index)

    def test_every_folder_of_the_package_is_in_the_map(self):
        text = (ROOT / "README.md").read_text(encoding="utf-8")
        rows = re.findall(r"^\| \[`(hf_depth/\w+)`\]\(\1\) \| \S.* \|$", text, re.MULTILINE)
        folders = [path.parent.relative_to(ROOT).as_posix() for path in (ROOT / "hf_depth").glob("*/__init__.py")]
        self.assertCountEqual(rows, folders)

    @parameterized.named_parameters(pages())
    def test_every_module_that_is_named_exists(self, path):
        for dotted in re.findall(r"`(hf_depth(?:\.\w+)+)`", path.read_text(encoding="utf-8")):
            with self.subTest(dotted):
                *parts, last = dotted.split(".")
                module = ROOT.joinpath(*parts)
                as_module = (module / f"{last}.py").is_file() or (module / last).is_dir()
                source = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
                self.assertTrue(as_module or re.search(rf"\b{last}\b", source.read_text(encoding="utf-8")))


class FlagsTest(parameterized.TestCase):
    @parameterized.named_parameters(pages())
    def test_every_flag_that_is_named_exists(self, path):
        generator = load_script("sweeps/generate.py").GenerateArguments
        kinds = [CompareArguments, generator, *(kind for script in SCRIPTS for kind in script_arguments(script))]
        known = {item.name for kind in kinds for item in fields(kind)}
        known |= set(vars(launch_command_parser().parse_args(["script.py"]))) | OTHER_FLAGS
        for source in (ROOT / "benchmarks").glob("*.py"):
            known |= set(re.findall(r'add_argument\(\s*"--([\w-]+)"', source.read_text(encoding="utf-8")))
        text = path.read_text(encoding="utf-8")
        named = set(re.findall(r"(?<![\w-])--([a-z][\w-]*)", text))
        self.assertEmpty(named - known)

    def test_every_command_of_a_training_script_parses(self):
        parsed = dict.fromkeys(SCRIPTS, 0)
        for script, arguments in commands_of_scripts():
            with self.subTest(f"{script} {arguments}"):
                if arguments[0].endswith(".yaml"):
                    arguments[0] = str(ROOT / arguments[0])
                parse_arguments(script_arguments(script), [*arguments, "--bf16", "false", "--use_cpu", "true"])
                parsed[script] += 1
        self.assertGreater(min(parsed.values()), 2)  # otherwise the commands were not found
