"""What training needs where DeepSpeed ZeRO or FSDP2 divides parameters among processes, and what it refuses there."""

from typing import TYPE_CHECKING, Any

from accelerate.utils import FullyShardedDataParallelPlugin, parse_flag_from_env
from transformers import TrainingArguments
from transformers.training_args import OptimizerNames

from ..errors import UserError
from .optimizers import OptimizerName, ScheduleName

if TYPE_CHECKING:  # the arguments import this module: `--help` does not wait for models
    from accelerate import Accelerator
    from transformers import PreTrainedModel

# Their updates are relative to the size of a matrix, have factors for its rows and columns, or make it orthogonal.
NEED_WHOLE_MATRICES = (*OptimizerName, OptimizerNames.ADAFACTOR)


def dividing_engine(args: TrainingArguments) -> str | None:
    """`"DeepSpeed"` or `"FSDP"` if that will divide the parameters, by the arguments or by `accelerate launch`."""
    if args.deepspeed or parse_flag_from_env("ACCELERATE_USE_DEEPSPEED"):
        return "DeepSpeed"
    return "FSDP" if args.fsdp or parse_flag_from_env("ACCELERATE_USE_FSDP") else None


def check_whole_matrices(args: TrainingArguments, engine: str | None) -> None:
    """`UserError` if the optimizer needs whole matrices, which an engine divides, see [`dividing_engine`]."""
    if engine is not None and args.optim in NEED_WHOLE_MATRICES:
        name = getattr(args.optim, "value", args.optim)
        raise UserError(
            f"`optim` {name} needs whole matrices, of which each process has only a part under {engine}. Use `--optim "
            "adamw_torch`, or data parallelism without sharding (`accelerate launch --multi_gpu`)."
        )


def check_sharding(
    args: TrainingArguments,
    deepspeed_config: dict[str, Any] | None,
    fsdp_plugin: FullyShardedDataParallelPlugin | None,
) -> None:
    """`UserError` if another schedule would train than was asked for, or no whole model would be saved."""
    if fsdp_plugin is not None and fsdp_plugin.state_dict_type.name != "FULL_STATE_DICT":
        raise UserError(
            f"`fsdp_state_dict_type` {fsdp_plugin.state_dict_type.name}: the Trainer would save no model. Set it to "
            "FULL_STATE_DICT in the configuration of accelerate, as in `examples/accelerate/fsdp2.yaml`."
        )
    config = deepspeed_config or {}
    if "scheduler" in config and isinstance(args.lr_scheduler_type, ScheduleName):
        raise UserError(
            f"`lr_scheduler_type` {args.lr_scheduler_type.value} would have no effect: the settings of DeepSpeed have "
            "their own `scheduler`. Remove it there, as in the files of examples/deepspeed."
        )
    zero = config.get("zero_optimization", {})
    # accelerate takes "auto" for false.
    if zero.get("stage") == 3 and zero.get("stage3_gather_16bit_weights_on_model_save") is not True:
        raise UserError(
            "ZeRO-3 without `stage3_gather_16bit_weights_on_model_save`: no model that can be loaded would be saved. "
            "Set it to true (in a configuration of accelerate, `zero3_save_16bit_model`), as in the files of "
            "`examples/deepspeed` and `examples/accelerate`."
        )


def share_embedding(model: "PreTrainedModel") -> None:
    """Make one module of the three of a T5 that share a weight, which accelerate (1.15) would put into two groups."""
    model.set_input_embeddings(model.get_input_embeddings())


def leave_precision_to_autocast(plugin: FullyShardedDataParallelPlugin) -> None:
    """
    Let FSDP gather weights, and add gradients up, in float32; to be called before sharding. For `bf16` accelerate
    (1.15) has FSDP2 cast all to bfloat16, the residual stream and the loss too, and autocasts nothing.
    """
    plugin.mixed_precision_policy = None


def prepare_evaluation(accelerator: "Accelerator", model: "PreTrainedModel") -> None:
    """Shard a model that is not trained here: under FSDP2, accelerate (1.15) shards none without its optimizer."""
    if accelerator.is_fsdp2 and not accelerator._models:
        accelerator.prepare_model(model, device_placement=True, evaluation_mode=True)


def gather_in_generation(model: "PreTrainedModel") -> None:
    """Let `generate()`, which calls the encoder by itself, gather sharded parameters as `forward()` does."""
    from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method

    if isinstance(model, FSDPModule) and "generate" not in vars(model):
        register_fsdp_forward_method(model, "generate")
