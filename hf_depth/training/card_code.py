"""
The code of model cards: whole blocks that load a model and use it, one with hf_depth and one without it.

A block runs as it stands where the folder of the model is (or anywhere, for a model on the Hub), without a question
about custom code. Both blocks read and predict the same, which the tests of this module hold them to. The rule for
lines that are wrapped at the width of a page is too long for a card, which says so instead.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from string import Template
from typing import Any

import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.sentences import CLOSED_LINE, LINES, WIDE_LINE_BREAK, WIDE_SPACE_BEFORE_STOP
from ..data.tokenization import EOSEN_TOKEN, SENTENCE_TOKENS
from ..evaluation.prediction import generation_length
from ..models.modeling_depth import has_sentence_tokens
from ..tasks.config import TaskConfig, prompt_format
from ..tasks.dataset import TaskDataset
from ..tasks.preprocessing import INSTANCE_COLUMN, encode_labels
from ..tasks.spec import TaskSpec
from .previews import first_examples

NUM_CANDIDATES = 100  # among which the examples of a card are chosen
NUM_EXAMPLES = 2
MAX_PIECES, WORDS_OF_A_PIECE = 4, 12  # sentences of an example of pre-training; without sentences, words for each span

PLAIN_SENTENCES = (
    "The bell of the school rang early in the morning.",
    "Then the children ran across the wet yard to the door.",
    "Their teacher was already waiting for them in the hall.",
)

# ---- Loading --------------------------------------------------------------------------------------------------------

# `AutoTokenizer` would ask whether to run the code of the model, of which the tokenizer has no need.
LOAD_DEPTH = Template("""\
name = $name
tokenizer = $tokenizer_class.from_pretrained(name$revision)
model = AutoModelForSeq2SeqLM.from_pretrained(name$revision, trust_remote_code=True)
""")

LOAD_T5 = Template("""\
name = $name
tokenizer = AutoTokenizer.from_pretrained(name$revision)
model = AutoModelForSeq2SeqLM.from_pretrained(name$revision)
""")

LOAD_WITH_PACKAGE = Template("""\
from hf_depth import load_model, load_tokenizer

name = $name
tokenizer = load_tokenizer(name$revision)
model = load_model(name, tokenizer$revision).eval()
""")

# ---- Pre-trained models ---------------------------------------------------------------------------------------------

USE_PRETRAINED_DEPTH = Template("""\

# In any order; <extra_id_0>, <extra_id_1>, … stand for masked spans.
sentences = [
$sentences
]
input_ids = model.encode_sentences(tokenizer, sentences)
output_ids = model.generate(input_ids, max_length=$max_length)[0, 1:].tolist()
prediction = tokenizer.decode(output_ids)
print(prediction)

# The sentence tokens of the output put the sentences in order.
numbers = [token - model.config.first_sentence_token_id for token in output_ids]
order = [number for number in dict.fromkeys(numbers) if number in range(len(sentences))]
print([sentences[number] for number in order])
""")

USE_PRETRAINED_T5 = Template("""\

text = $text
input_ids = tokenizer(text, return_tensors="pt").input_ids
output_ids = model.generate(input_ids, max_length=$max_length)[0, 1:]
prediction = tokenizer.decode(output_ids)
print(prediction)
""")

# ---- Fine-tuned models ----------------------------------------------------------------------------------------------

PREDICT_WITH_PACKAGE = Template("""\
from hf_depth import TaskPredictor

predictor = TaskPredictor.from_pretrained($arguments)
examples = [
$examples
]
predictions = predictor(examples)
print(predictions)
""")

ENCODE_DEPTH = Template("""\


def encode(example):
    parts = [(prefix, example[column]) for column, prefix in prefixes.items()]
${instance}    texts = []
    for prefix, text in parts:
        first, *others = split(text) or [""]
        sentences = [f"{prefix} {first}".strip(), *others]
        texts.append([sentence for sentence in sentences if tokenizer.tokenize(sentence)])
    return model.encode_sentences(tokenizer, *texts, max_length=$max_source_length)
""")

ENCODE_T5 = Template("""\


def encode(example):
    parts = [(prefix, example[column]) for column, prefix in prefixes.items()]
${instance}    texts = [f"{prefix} {text.strip()}".strip() for prefix, text in parts]
    token_ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    shortest_first = sorted(token_ids, key=len)
    while sum(map(len, token_ids)) >= $max_source_length:  # the longest text loses its end
        max(shortest_first, key=len).pop()
    return torch.tensor([[*sum(token_ids, []), tokenizer.eos_token_id]])
""")

# The end of the last text, which is a text of its own.
INSTANCE = """\
    prefix, text = parts.pop()
    parts += [(prefix, text.removesuffix(example["instance"])), ("", example["instance"])]
"""

SPLIT_ENGLISH = """\


def split(text):
    return nupunkt.load("default").texts(text, paragraph_breaks=True, line_breaks=True)
"""

SPLIT_LINES = """\


def split(text):
    return [line.strip() for line in text.split("\\n") if line.strip()]
"""

SPLIT_OTHERS = Template("""\


def split(text):
    blocks = [text[start:end] for start, end in iter_blocks(text, paragraph_breaks=True, line_breaks=True)]
    lines = [line for block in blocks for line in re.split($closed_line, block)]
    lines = [re.sub($wide_space, " ", line) for line in lines]
    sentences = [sentence.strip() for line in lines for sentence in sentencex.segment($language, line)]
    return [re.sub($wide_line_break, "", sentence) for sentence in sentences if sentence]
""")

GENERATE = Template("""\


def predict(example):
    output_ids = model.generate(encode(example), $arguments)[0, 1:]
    return tokenizer.decode(output_ids).split(tokenizer.eos_token)[0].strip()
""")

SCORE_LABELS = Template("""\


@torch.no_grad()
def predict(example):
    losses = {}
    for label in $labels:
        label_ids = tokenizer(label, return_tensors="pt").input_ids
        losses[label] = model(input_ids=encode(example), labels=label_ids).loss.item()$times_length
    return min(losses, key=losses.get)
""")

PREDICT_EXAMPLES = Template("""\


examples = [
$examples
]
predictions = [predict(example) for example in examples]
print(predictions)
""")


@dataclass(frozen=True)
class Usage:
    """
    How to use a model, as its card shows it.

    Args:
        with_package, without_package (`str`): Python code; one block, the second one, does for both if there is no
            first one.
        packages (`Sequence[str]`): what the second block imports, as `pip install` takes it.
        source, target (`str`): an example as the model reads it, special tokens included, and what it should write.
        notes (`str`): what else there is to say about inputs.
    """

    with_package: str
    without_package: str
    packages: Sequence[str]
    source: str
    target: str
    notes: str


def name_in_code(hub_model_id: str | None, output_dir: str) -> str:
    """
    How the code names a model: as on the Hub, or its folder from the folder that it is in. A folder that is not there
    is then no name on the Hub, under which somebody else's code might be found.

    >>> name_in_code("me/rte", "/runs/rte"), name_in_code(None, "/runs/rte")
    ('me/rte', './rte')
    """
    return hub_model_id or f"./{Path(output_dir).resolve().name}"


def pretrained_usage(
    name: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: Iterable[Mapping[str, Any]] | None,
    objective: str,
    max_length: int,
    prefix: str = "",
    revision: str | None = None,
) -> Usage:
    """
    How to use a pre-trained model: the code lets it restore a short example.

    Whole words are masked in it. The spans of tokens that a collator masks begin and end within words, which nobody
    could write down so that a tokenizer gives the same ids again.

    Args:
        name: see [`name_in_code`].
        examples: prepared ones, not seen in training; without any, three plain sentences are taken.
        objective: that of the training; of a `"prefix_lm"` nothing is masked, and the text goes on.
        max_length: of the generated ids.
        prefix: what the input of a T5 begins with, such as a mode token.
        revision: on the Hub, if it is not the main branch.
    """
    is_depth = has_sentence_tokens(model.config)
    candidates = [] if examples is None else first_examples(examples, NUM_CANDIDATES)
    needed = {"input_ids", "sentence_lengths"} if is_depth else {"input_ids"}
    if not candidates or not needed <= candidates[0].keys():  # those of a user's own collator may be anything
        candidates = [_plain_example(tokenizer)]
    example = min(candidates, key=lambda example: _length(example, is_depth))
    token_ids = [int(token) for token in example["input_ids"]]
    if is_depth:
        lengths = [int(length) for length in example["sentence_lengths"]][:MAX_PIECES]
        ends = list(accumulate(lengths))
        pieces = [token_ids[end - length : end] for end, length in zip(ends, lengths, strict=True)]
        arrange = _continued if objective == "prefix_lm" else _shuffled
        sentences = [tokenizer.decode(piece).strip() for piece in pieces]
        sentences = [sentence for sentence in sentences if tokenizer.tokenize(sentence)]
        sentences, target = arrange(sentences or list(PLAIN_SENTENCES))
        source = model.encode_sentences(tokenizer, sentences)[0]
        use = USE_PRETRAINED_DEPTH.substitute(sentences=_items(sentences), max_length=max_length)
    else:
        corrupt = _prefix if objective == "prefix_lm" else _spans
        text, target = corrupt(tokenizer.decode(token_ids).split()[: MAX_PIECES * WORDS_OF_A_PIECE])
        text = f"{prefix} {text}".strip()
        source = tokenizer(text)["input_ids"]
        use = USE_PRETRAINED_T5.substitute(text=repr(text), max_length=max_length)
    return Usage(
        LOAD_WITH_PACKAGE.substitute(name=repr(name), revision=_argument(revision)) + use,
        _loading(name, model, tokenizer, revision) + use,
        _packages(),
        tokenizer.decode(source),
        target + tokenizer.eos_token,
        PRETRAINED_NOTES[f"depth {objective}" if is_depth else objective],
    )


def _plain_example(tokenizer: PreTrainedTokenizerBase) -> dict[str, list[int]]:
    encoded = tokenizer(list(PLAIN_SENTENCES), add_special_tokens=False)["input_ids"]
    return {"input_ids": sum(encoded, []), "sentence_lengths": [len(ids) for ids in encoded]}


def _length(example: Mapping[str, Any], is_depth: bool) -> tuple[bool, int]:
    """Short examples come first, of DEPTH those of three sentences or more; very short ones say nothing."""
    length = len(example["input_ids"])
    has_few = len(example["sentence_lengths"]) < 3 if is_depth else length < 2 * WORDS_OF_A_PIECE
    return has_few, length


def _shuffled(sentences: list[str]) -> tuple[list[str], str]:
    """Sentences with masked words, the last one in front, and the target that restores them."""
    last = len(sentences) - 1
    given, targets = [], []
    for place, sentence in enumerate([sentences[last], *sentences[:last]]):
        text, masked = _masked(sentence.split(), f"<extra_id_{place}>")
        given.append(text)
        targets.append(f"{SENTENCE_TOKENS[place]}{masked}{EOSEN_TOKEN}")
    return given, "".join([*targets[1:], targets[0]])


def _continued(sentences: list[str]) -> tuple[list[str], str]:
    """All sentences but the last one, the one before it in front, and the target that orders and continues them."""
    *given, rest = sentences if len(sentences) > 1 else [*sentences, ""]
    marks = SENTENCE_TOKENS[1 : len(given)] + SENTENCE_TOKENS[:1]
    target = "".join(f"{mark}{EOSEN_TOKEN}" for mark in marks)
    target += f"{SENTENCE_TOKENS[len(given)]}{rest}{EOSEN_TOKEN}" if rest else ""
    return [given[-1], *given[:-1]], target


def _spans(words: list[str]) -> tuple[str, str]:
    """Text with a masked span every few words, and the target."""
    pieces = [words[start : start + WORDS_OF_A_PIECE] for start in range(0, len(words), WORDS_OF_A_PIECE)]
    masked = [_masked(piece, f"<extra_id_{number}>") for number, piece in enumerate(pieces)]
    return " ".join(text for text, _ in masked), "".join(target for _, target in masked)


def _prefix(words: list[str]) -> tuple[str, str]:
    middle = (len(words) + 1) // 2
    return " ".join(words[:middle]), " ".join(words[middle:])


def _masked(words: list[str], sentinel: str) -> tuple[str, str]:
    """A text with the two words in its middle masked, and its part of the target; very short ones stay whole."""
    middle = len(words) // 2
    if middle < 2:
        return " ".join(words), ""
    masked = " ".join(words[middle - 1 : middle + 1])
    return " ".join([*words[: middle - 1], sentinel, *words[middle + 1 :]]), f"{sentinel} {masked}"


PRETRAINED_NOTES = {
    "depth span_corruption": (
        "Each sentence stands behind `<eosen>` and a sentence token `<sent_i>`, and the input ends in `<eosen></s>`; "
        "`encode_sentences` writes them. Sentinels `<extra_id_i>` stand for masked spans, here of whole words. The "
        "target names the sentences in their order, each with its sentinels and what they stand for."
    ),
    "depth prefix_lm": (
        "Each sentence stands behind `<eosen>` and a sentence token `<sent_i>`, and the input ends in `<eosen></s>`; "
        "`encode_sentences` writes them. The target names the sentences in their order, then goes on with the text: "
        "each further sentence stands behind the first sentence token that is not used yet."
    ),
    "span_corruption": (
        "Sentinels `<extra_id_i>` stand for masked spans, here of whole words; the target says what they stand for. "
        "Both end in `</s>`."
    ),
    "prefix_lm": "The input is the beginning of a text and `</s>`, the target is its rest.",
    "mixture_of_denoisers": (
        "Sentinels `<extra_id_i>` stand for masked spans, here of whole words; the target says what they stand for. "
        "Both end in `</s>`. With mode tokens, the input begins with that of a denoiser: the settings list them. A "
        "single span at the end stands for the rest of a text."
    ),
}


def task_usage(
    name: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task_config: TaskConfig,
    dataset: TaskDataset,
    revision: str | None = None,
) -> Usage:
    """
    How to use a fine-tuned model: the code predicts two examples.

    Args:
        name: see [`name_in_code`].
        task_config: how inputs are prepared and predictions made.
        dataset: of one of the tasks; two short ones of its examples are chosen.
        revision: on the Hub, if it is not the main branch.
    """
    spec, is_depth = dataset.spec, task_config.sentence_tokens
    places = range(min(NUM_CANDIDATES, len(dataset.rows)))
    places = sorted(places, key=lambda place: len(spec.prompt(dataset.rows[place])))[:NUM_EXAMPLES]
    columns = list(spec.text_column_name)
    has_instance = INSTANCE_COLUMN in dataset.rows.column_names and INSTANCE_COLUMN not in columns
    columns += [INSTANCE_COLUMN] if has_instance else []
    examples = [{column: dataset.rows[place][column] for column in columns} for place in places]
    prepared = dataset.prepared[places[0]]
    arguments = repr(name) if len(task_config.tasks) == 1 else f"{name!r}, task={spec.full_name!r}"
    return Usage(
        PREDICT_WITH_PACKAGE.substitute(arguments=arguments + _argument(revision), examples=_items(examples)),
        _task_code(name, model, tokenizer, task_config, spec, examples, has_instance, revision),
        _packages(task_config.sentence_language if is_depth else None),
        tokenizer.decode(prepared["input_ids"]),
        tokenizer.decode([token for token in prepared["labels"] if token >= 0]),
        _task_notes(task_config, spec, has_instance),
    )


def _task_code(
    name: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task_config: TaskConfig,
    spec: TaskSpec,
    examples: Sequence[Mapping[str, Any]],
    has_instance: bool,
    revision: str | None,
) -> str:
    """The code without the package: load, split, encode, predict."""
    is_depth, scores_labels = task_config.sentence_tokens, task_config.prediction_mode == "score_labels"
    splitter, imports = _splitter(task_config.sentence_language) if is_depth else ("", ["import torch"])
    if scores_labels and "import torch" not in imports:
        imports = [*imports, "import torch"]
    prefixes = dict(zip(spec.text_column_name, (prefix.strip() for prefix in spec.prefix), strict=True))
    encode = (ENCODE_DEPTH if is_depth else ENCODE_T5).substitute(
        instance=INSTANCE if has_instance else "", max_source_length=spec.max_source_length
    )
    if scores_labels:
        predict = SCORE_LABELS.substitute(
            labels=repr(list(spec.labels.values())),
            times_length="" if task_config.length_normalize_scores else " * label_ids.shape[1]",
        )
    else:
        predict = GENERATE.substitute(arguments=_generation_arguments(task_config, spec, tokenizer))
    return "".join(
        [
            _loading(name, model, tokenizer, revision, imports),
            f"prefixes = {prefixes!r}  # of the columns\n",
            splitter,
            encode,
            predict,
            PREDICT_EXAMPLES.substitute(examples=_items(examples)),
        ]
    )


def _loading(
    name: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    revision: str | None,
    imports: Sequence[str] = (),
) -> str:
    """Imports, tokenizer and model."""
    is_depth = has_sentence_tokens(model.config)
    tokenizer_class = type(tokenizer).__name__ if is_depth else "AutoTokenizer"
    if not hasattr(transformers, tokenizer_class):
        tokenizer_class = "AutoTokenizer"
    imports = [*imports, f"from transformers import AutoModelForSeq2SeqLM, {tokenizer_class}"]
    template = LOAD_DEPTH if is_depth else LOAD_T5
    loading = template.substitute(name=repr(name), tokenizer_class=tokenizer_class, revision=_argument(revision))
    return "\n".join(imports) + "\n\n" + loading


def _argument(revision: str | None) -> str:
    """The branch of a model on the Hub, behind other arguments."""
    return "" if revision in (None, "main") else f", revision={revision!r}"


def _splitter(language: str) -> tuple[str, list[str]]:
    """The function that splits text into sentences, and what it imports."""
    if language == "en":
        return SPLIT_ENGLISH, ["import nupunkt"]
    if language == LINES:
        return SPLIT_LINES, []
    patterns = {"closed_line": CLOSED_LINE, "wide_space": WIDE_SPACE_BEFORE_STOP, "wide_line_break": WIDE_LINE_BREAK}
    patterns = {name: repr(pattern.pattern) for name, pattern in patterns.items()}
    code = SPLIT_OTHERS.substitute(patterns, language=repr(language))
    return code, ["import re", "", "import sentencex", "from nupunkt.layout import iter_blocks"]


def _packages(language: str | None = None) -> list[str]:
    """What the code without hf_depth needs; with the version of the rules by which text was split."""
    packages = ["torch", f'"transformers>={transformers.__version__}"']
    if language not in (None, LINES):
        packages += [f"nupunkt=={version('nupunkt')}"]
    if language not in (None, "en", LINES):
        packages += [f"sentencex=={version('sentencex')}"]
    return packages


def _generation_arguments(task_config: TaskConfig, spec: TaskSpec, tokenizer: PreTrainedTokenizerBase) -> str:
    """The arguments of `generate()` with which a run predicts."""
    label_ids = None if spec.labels is None else encode_labels(tokenizer, list(spec.labels.values()))
    max_length = task_config.generation_max_length or generation_length(spec, label_ids)
    num_beams = task_config.generation_num_beams
    return f"max_length={max_length}" + (f", num_beams={num_beams}" if num_beams else "")


def _task_notes(task_config: TaskConfig, spec: TaskSpec, has_instance: bool) -> str:
    notes = f"The prompt is `{prompt_format(spec)}`, with the columns in braces."
    if task_config.sentence_tokens:
        notes += (
            " The text of each column is split into sentences by itself, and its prefix belongs to the first of them. "
            "Each sentence stands behind `<eosen>` and a sentence token, which count up from `<sent_0>`; the input "
            "ends in `<eosen></s>`. Do not leave them out: the model was trained with them. Of lines that are cut at "
            "the width of a page, hf_depth takes none for a heading; for the code without it, join them first."
        )
    else:
        notes += " It ends in `</s>`."
    notes += f" Inputs have {spec.max_source_length} tokens at most: of a longer one the longest text loses its end."
    if has_instance:
        notes += f" (With hf_depth, the end of the prompt that is also in `{INSTANCE_COLUMN}` is cut last.)"
    if spec.labels is not None:
        labels = list(spec.labels.values())
        shown = ", ".join(f"`{label}`" for label in labels[:30]) + (", …" if labels[30:] else "")
        notes += f" The model writes one of: {shown}."
    others = [task for task in task_config.tasks if task.full_name != spec.full_name]
    if others:
        prompts = "; ".join(f"{task.full_name}: `{prompt_format(task)}`" for task in others)
        notes += f" Its other tasks have prompts of their own: {prompts}."
    return notes


def _items(values: Sequence[Any]) -> str:
    """The lines of a list."""
    return "\n".join(f"    {value!r}," for value in values)
