"""
Mixtures of denoisers (UL2): each example draws how much of it is masked, in spans of which length, and where. A mode
token at the beginning of the input tells the model what was drawn.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import UserError
from ..ranges import NOISE, Range, check_ranges
from ..yaml_files import load_yaml
from .noise import Bounds, Count, Draw, ExampleRandom, noise_counts, t5_bounds

MAX_MEAN_LENGTH = 10_000  # of masked spans: a longer one is a single span, which has no mean length

_RANGES = {
    "density": NOISE["mlm_probability"],
    "mean_length": Range(least=1, most=MAX_MEAN_LENGTH),
    "weight": Range(least=0),
}


@dataclass(frozen=True)
class Denoiser:
    """
    One way to mask tokens.

    Args:
        density (`float`): share of the tokens to mask, from 0.001 to 0.999. Without `mean_length` it is the mean of a
            share that is drawn anew for each example. All lengths of the span are equally likely, from none to twice
            this share (above a half: from twice this share less one, to all).
        mean_length (`float`, *optional*): mean length of a masked span in tokens, 1 to 10,000. Without it there is one
            span, which reaches to the end of the text (the "S-denoiser", a prefix language model).
        mode (`str`, *optional*): the token that the input begins with, see [`add_mode_tokens`].
        weight (`float`, defaults to 1.0): how often it is drawn, in proportion to the other denoisers of a mixture.

    >>> str(Denoiser(0.5, mean_length=64.0, mode="[X]"))
    '[X] density 0.5, mean length 64, weight 1'
    """

    density: float
    mean_length: float | None = None
    mode: str | None = None
    weight: float = 1.0

    def __post_init__(self):
        check_ranges(self, _RANGES)
        if self.mode is not None and not (isinstance(self.mode, str) and self.mode.strip()):
            raise UserError(f"`mode` of a denoiser must be a token such as `[R]`, or null, got {self.mode!r}.")

    def __str__(self) -> str:
        mode = "" if self.mode is None else f"{self.mode} "
        length = "one span at the end" if self.mean_length is None else f"mean length {self.mean_length:g}"
        return f"{mode}density {self.density:g}, {length}, weight {self.weight:g}"

    def suffix_lengths(self, num_tokens: Count) -> tuple[np.ndarray, np.ndarray]:
        """
        The least and the most tokens of a span at the end of an example of `num_tokens`, from 1 to `num_tokens - 1`.
        """
        num_tokens = np.asarray(num_tokens)
        spread = min(self.density, 1 - self.density)
        least = np.maximum(np.ceil((self.density - spread) * num_tokens).astype(np.int64), 1)
        most = np.minimum(np.floor((self.density + spread) * num_tokens).astype(np.int64), num_tokens - 1)
        return np.minimum(least, num_tokens - 1), np.maximum(most, 1)


# The seven denoisers of UL2 (Tay et al. 2022, arXiv 2205.05131, section 3.1.2 and its table of the configuration), all
# drawn equally often. For the S-denoiser, L/4 in one span is a quarter of the text at its end.
UL2_DENOISERS = (
    Denoiser(0.15, 3.0, "[R]"),
    Denoiser(0.15, 8.0, "[R]"),
    Denoiser(0.25, None, "[S]"),
    Denoiser(0.5, 3.0, "[X]"),
    Denoiser(0.5, 8.0, "[X]"),
    Denoiser(0.15, 64.0, "[X]"),
    Denoiser(0.5, 64.0, "[X]"),
)


def parse_denoisers(values: Iterable[Denoiser | Mapping[str, Any] | str]) -> tuple[Denoiser, ...]:
    """
    The denoisers of a mixture. Each is given as a [`Denoiser`], a mapping of its arguments, or such a mapping as YAML
    or JSON text. `ValueError` if one of them is none, or if no weight is above 0.
    """
    values = [values] if isinstance(values, str | Mapping | Denoiser) else values
    denoisers = []
    for value in values:
        try:
            parsed = load_yaml(value, "`denoisers`") if isinstance(value, str) else value
            denoisers.append(parsed if isinstance(parsed, Denoiser) else Denoiser(**parsed))
        except TypeError:  # no mapping, an unknown name, no density
            raise UserError(
                "A denoiser of `denoisers` is a mapping such as {density: 0.15, mean_length: 3, mode: '[R]', "
                f"weight: 1}}, got {value!r:.80}."
            ) from None
    if not any(denoiser.weight > 0 for denoiser in denoisers):
        raise UserError(f"`denoisers` must hold a denoiser with a `weight` above 0, got {denoisers!r:.80}.")
    return tuple(denoisers)


def denoiser_counts(
    lengths: np.ndarray, denoisers: Sequence[Denoiser], random: ExampleRandom
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """
    Draw a denoiser for every example, which has at least two tokens. Returns its index and the numbers of masked
    tokens and of masked spans, `(batch_size,)` each, int64. The noise of [`random_spans`] ends in a masked span: a
    single one is at the end.
    """
    ends = np.cumsum([denoiser.weight for denoiser in denoisers])  # (num_denoisers,)
    chosen = np.searchsorted(ends, random.uniform(Draw.DENOISER) * ends[-1], side="right")  # (batch_size,)
    densities = np.array([denoiser.density for denoiser in denoisers])  # (num_denoisers,)
    means = np.array([denoiser.mean_length or math.inf for denoiser in denoisers])  # likewise; inf: a single span
    num_noise, num_spans = noise_counts(lengths, densities[chosen], means[chosen])
    draws = random.uniform(Draw.SUFFIX)  # (batch_size,)
    for index, denoiser in enumerate(denoisers):
        if denoiser.mean_length is None:
            least, most = denoiser.suffix_lengths(lengths)
            suffix = least + (draws * (most - least + 1)).astype(np.int64)
            num_noise = np.where(chosen == index, suffix, num_noise)
    return chosen, num_noise, num_spans


def denoiser_bounds(num_tokens: Count, denoisers: Sequence[Denoiser], mode_tokens: bool = True) -> Bounds:
    """The [`Bounds`] of examples of so many tokens, whatever denoiser of a mixture is drawn."""
    num_tokens, found = np.asarray(num_tokens), []
    for denoiser in denoisers:
        if denoiser.weight == 0:
            continue
        if denoiser.mean_length is None:
            least, most = denoiser.suffix_lengths(num_tokens)
            source, target, spans = num_tokens - least + 2, most + 2, np.ones_like(num_tokens)
        else:
            source, target, spans = t5_bounds(num_tokens, denoiser.density, denoiser.mean_length)
        found.append((source + (mode_tokens and denoiser.mode is not None), target, spans))
    return tuple(np.max(bounds, axis=0) for bounds in zip(*found, strict=True))
