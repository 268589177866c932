"""On the flat partitions of DeepSpeed, updates are those of whole parameters."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from unittest import mock

import torch
from absl.testing import parameterized

from hf_depth.training.optimizers import Adafactor, AdamWScale
from hf_depth.training.partitions import Fragment, Partition, deepspeed_partitions

SHAPES = [torch.Size(shape) for shape in ((7, 5), (11,), (3, 4), (1, 6), (2,))]
NUM_PROCESSES = 3


class AllReduce:
    """The sum over threads, each of which stands for a process."""

    def __init__(self):
        self.parts: dict[int, torch.Tensor] = {}
        self.barrier = threading.Barrier(NUM_PROCESSES, timeout=600)

    def of(self, rank: int):
        def all_reduce(tensor: torch.Tensor) -> None:
            self.parts[rank] = tensor.clone()
            self.barrier.wait()
            tensor.copy_(sum(self.parts[each] for each in range(NUM_PROCESSES)))
            self.barrier.wait()

        return all_reduce


def in_stages_1_and_2(rank: int) -> tuple[list[Fragment], int]:
    """All parameters one after the other, cut into equal parts; the last one is padded."""
    total = sum(shape.numel() for shape in SHAPES)
    size = -(-total // NUM_PROCESSES)
    fragments, begin = [], 0
    for index, shape in enumerate(SHAPES):
        first, last = max(begin, rank * size), min(begin + shape.numel(), (rank + 1) * size)
        if first < last:
            fragments.append(Fragment(index, first - begin, first - rank * size, last - first))
        begin += shape.numel()
    return fragments, size


def in_stage_3(rank: int) -> tuple[list[Fragment], int]:
    """Each parameter cut into equal parts; the last one of each is padded."""
    fragments, offset = [], 0
    for index, shape in enumerate(SHAPES):
        size = -(-shape.numel() // NUM_PROCESSES)
        length = min(size, shape.numel() - rank * size)
        if length > 0:
            fragments.append(Fragment(index, rank * size, offset, length))
        offset += size
    return fragments, offset


def tensors(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) * 10.0 ** (1 - i) for i, shape in enumerate(SHAPES)]


def flat_part(whole: list[torch.Tensor], fragments: list[Fragment], size: int) -> torch.Tensor:
    flat = torch.zeros(size)
    for part in fragments:
        values = whole[part.parameter].flatten()[part.start : part.start + part.length]
        flat[part.offset : part.offset + part.length] = values
    return flat


class PartitionedUpdateTest(parameterized.TestCase):
    @parameterized.product(
        make=(
            lambda params: AdamWScale(params, lr=2e-2, weight_decay=0.1),
            lambda params: Adafactor(params, scale_parameter=True, warmup_init=True),
            lambda params: Adafactor(params, lr=1e-2, relative_step=False, scale_parameter=False, weight_decay=0.1),
            lambda params: Adafactor(params, lr=1e-2, relative_step=False, beta1=0.9, weight_decay=0.1),
        ),
        divided=(in_stages_1_and_2, in_stage_3),
    )
    def test_it_is_that_of_one_process(self, make, divided):
        whole = [torch.nn.Parameter(tensor) for tensor in tensors(0)]
        optimizer = make(whole)
        for step in range(5):
            for p, gradient in zip(whole, tensors(1 + step), strict=True):
                p.grad = gradient
            optimizer.step()

        all_reduce = AllReduce()

        def process(rank: int) -> torch.Tensor:
            fragments, size = divided(rank)
            flat = torch.nn.Parameter(flat_part(tensors(0), fragments, size))
            partitions = {flat: Partition(SHAPES, fragments, all_reduce.of(rank))}
            optimizer = make([flat])
            optimizer.set_partitions(partitions)
            for step in range(5):
                if step == 2:  # as a checkpoint has it
                    saved = optimizer.state_dict()
                    optimizer = make([flat])
                    optimizer.set_partitions(partitions)
                    optimizer.load_state_dict(saved)
                flat.grad = flat_part(tensors(1 + step), fragments, size)
                optimizer.step()
            return flat.detach()

        with ThreadPoolExecutor(NUM_PROCESSES) as pool:
            parts = list(pool.map(process, range(NUM_PROCESSES)))
        for rank, part in enumerate(parts):
            expected = flat_part(whole, *divided(rank)).detach()
            torch.testing.assert_close(part, expected, rtol=2e-5, atol=1e-6)

    def test_adafactor_refuses_tensors_of_three_dimensions(self):
        flat = torch.nn.Parameter(torch.zeros(8))
        partition = Partition([torch.Size((2, 2, 2))], [Fragment(0, 0, 0, 8)], lambda tensor: None)
        with self.assertRaisesRegex(ValueError, "takes vectors and matrices"):
            Adafactor([flat]).set_partitions({flat: partition})


class PartitionsOfDeepSpeedTest(parameterized.TestCase):
    """With stand-ins for the optimizers of DeepSpeed, which have more attributes."""

    def test_of_stages_1_and_2(self):
        def mapping(start: int, offset: int, length: int):
            address = SimpleNamespace
            return SimpleNamespace(
                lp_fragment_address=address(start=start, numel=length),
                hp_fragment_address=address(start=offset, numel=length),
            )

        parameters = [
            SimpleNamespace(shape=torch.Size((2, 3)), _hp_mapping=None),
            SimpleNamespace(shape=torch.Size((4,)), _hp_mapping=mapping(1, 0, 3)),
            SimpleNamespace(shape=torch.Size((2,)), _hp_mapping=mapping(0, 3, 2)),
        ]
        flat = torch.zeros(6)
        optimizer = SimpleNamespace(
            single_partition_of_fp32_groups=[flat], bit16_groups=[parameters], real_dp_process_group=[None]
        )
        partition = deepspeed_partitions(optimizer)[flat]
        self.assertEqual(partition.fragments, [Fragment(1, 1, 0, 3), Fragment(2, 0, 3, 2)])
        self.assertEqual(partition.shapes, [parameter.shape for parameter in parameters])

    def test_of_stage_3(self):
        parameters = [
            SimpleNamespace(ds_shape=torch.Size((3, 3)), ds_numel=9, partition_numel=lambda: 5),
            SimpleNamespace(ds_shape=torch.Size((1,)), ds_numel=1, partition_numel=lambda: 1),
            SimpleNamespace(ds_shape=torch.Size((4,)), ds_numel=4, partition_numel=lambda: 2),
        ]
        flat = torch.zeros(8)
        optimizer = SimpleNamespace(
            fp32_partitioned_groups_flat=[flat], fp16_groups=[parameters], dp_process_group=None
        )
        with mock.patch("torch.distributed.get_rank", return_value=1):
            partition = deepspeed_partitions(optimizer)[flat]
        self.assertEqual(partition.fragments, [Fragment(0, 5, 0, 4), Fragment(2, 2, 6, 2)])

    @parameterized.parameters(
        (SimpleNamespace(cpu_offload=True), "`offload_optimizer`.*`--optim adamw_torch`"),
        (SimpleNamespace(), "is a SimpleNamespace, of which it is not known"),
    )
    def test_others_are_refused(self, optimizer, message):
        with self.assertRaisesRegex(ValueError, message):
            deepspeed_partitions(optimizer)
