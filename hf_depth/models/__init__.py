"""
DEPTH and T5: configuration and modeling, which go to the Hub as they are, and loading.

The import, which is part of `import hf_depth`, registers DEPTH models with the Auto classes of transformers.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

from .configuration_depth import DEPTH_CONFIGS, DepthConfig


class _StandIn(type):
    """Stands for a model in the tables of transformers until one is made: the import takes seconds."""

    def __getattr__(cls, name: str) -> Any:
        from . import modeling_depth

        importlib.import_module("hf_depth.kernels")
        return getattr(getattr(modeling_depth, cls.__name__), name)


class _EncoderStandIn(_StandIn):
    """Stands for the encoder of a model, which keeps its sentence masks."""

    def __getattr__(cls, name: str) -> Any:
        value = super().__getattr__(name)
        if name == "_from_config":
            return lambda *args, **kwargs: value(*args, **kwargs).get_encoder()
        return functools.partial(_load_encoder, value) if name == "from_pretrained" else value


def _load_encoder(load: Callable[..., Any], name: Any, *args: Any, output_loading_info: bool = False, **kwargs: Any):
    model, info = load(name, *args, output_loading_info=True, **kwargs)
    if any(".encoder." in key and ".layers." in key for key in info["missing_keys"]):
        raise ValueError(
            f"{name} lacks weights of the encoder in a whole {type(model).__name__}, of which AutoModel takes it. "
            "Save the whole model: no class loads an encoder of this family that was saved alone."
        )
    return (model.get_encoder(), info) if output_loading_info else model.get_encoder()


# `AutoModelForSeq2SeqLM.from_pretrained(folder)` finds the classes once this package is imported; where it is not
# installed, `save_pretrained` has put their files into the folder, for `trust_remote_code=True`.
for _config in {*DEPTH_CONFIGS.values()}:
    AutoConfig.register(_config.model_type, _config)
    _config.register_for_auto_class()
    _name = _config.__name__.replace("Config", "ForConditionalGeneration")
    AutoModelForSeq2SeqLM.register(_config, _StandIn(_name, (), {"config_class": _config}))
    if _config is not DepthConfig:
        AutoModel.register(_config, _EncoderStandIn(_name, (), {"config_class": _config}))
AutoModel.register(DepthConfig, _StandIn("DepthEncoderModel", (), {"config_class": DepthConfig}))
