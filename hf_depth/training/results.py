"""Results of a run in its folder, as `Trainer` writes them, but each file as a whole."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path

from transformers import Trainer

from ..disk import replace_text

logger = logging.getLogger(__name__)

ALL_RESULTS_FILE = "all_results.json"


def save_metrics(trainer: Trainer, split: str, metrics: Mapping[str, float]) -> None:
    """
    As `Trainer.save_metrics`; each file is replaced as a whole, and an `all_results.json` that cannot be read, as
    after a full disk, is made anew.

    Args:
        trainer (`Trainer`): of which only the first process writes.
        split (`str`): `train`, `eval` or `predict`: the file is `{split}_results.json`.
        metrics (`Mapping[str, float]`): what to write.
    """
    if not trainer.is_world_process_zero():
        return
    folder = Path(trainer.args.output_dir)
    replace_text(folder / f"{split}_results.json", json.dumps(metrics, indent=4, sort_keys=True))
    path = folder / ALL_RESULTS_FILE
    replace_text(path, json.dumps({**_read_results(path), **metrics}, indent=4, sort_keys=True))


def _read_results(path: Path) -> dict[str, float]:
    """What `all_results.json` holds so far."""
    if not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        logger.warning(f"{path} cannot be read ({error}) and is replaced: it was not written to its end.")
        return {}
