"""Memory of a training run by part: per device, per host and on NVMe, for ZeRO 0 to 3 as DeepSpeed 0.19 holds it.

In: a Shape and a Setup. Out: Memory, bytes of each part, and of the three moments of a step that can be its peak. What
is held was read in DeepSpeed's source and measured: tests compare with its own estimators and with live tensors.
Costs nothing. Leaves to others: parameters (`shape.py`), time and money (`cost.py`), the table (`plan.py`).

Held per parameter, with e = 2 bytes in bf16 and fp16, 4 in fp32: e of weights, e of gradients, 12 of optimizer (fp32
weights, momentum, variance; 8 in fp32 without ZeRO, where the weights are their own masters), and 4 of fp32 gradients
while the optimizer steps. Stage 1 divides the optimizer among the devices, stage 2 gradients too, stage 3 weights too.
"""

from dataclasses import dataclass, field

from taojin.core.errors import ConfigError
from taojin.train.shape import Shape

ELEMENT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
OFFLOADS = ("none", "cpu", "nvme")
# Margin on host memory of DeepSpeed's estimators (additional_buffer_factor): pinned buffers are rounded up generously.
HOST_FACTOR = 1.5
# Of a logit, while its gradient is made: its softmax and the gradients of softmax and logit, all in fp32. Logits in
# 16 bits and their fp32 copy are gone by then, if the loop keeps no output of the model.
LOGIT_BYTES = 12
# torch's AdamW: the root of the variance and its quotient, in fp32.
UNFUSED_BYTES = 8
# DeepSpeed's defaults of offload_param and offload_optimizer on NVMe: staging buffers in host memory.
PARAMETER_BUFFERS, PARAMETER_BUFFER_SIZE, OPTIMIZER_BUFFERS = 5, 100_000_000, 4


@dataclass(frozen=True, kw_only=True)
class ZeroSizes:
    """Sizes in DeepSpeed's `zero_optimization`, under its own names and with its defaults, in elements."""

    reduce_bucket_size: int = 500_000_000
    prefetch_bucket_size: int = 50_000_000
    max_live_parameters: int = 1_000_000_000
    max_reuse_distance: int = 1_000_000_000
    sub_group_size: int = 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How a model is trained, as far as memory and time depend on it. Raises ConfigError where it cannot be."""

    devices: int
    devices_per_node: int = 8
    stage: int = 3
    offload_optimizer: str = "none"
    offload_parameters: str = "none"
    partition_within: int = 1
    """hpZ of ZeRO++: a second copy of the weights, divided among this many devices; 1: none."""
    tensor: int = 1
    sequence: int = 1
    precision: str = "bf16"
    micro_batch: int = 1
    """Sequences that a device (or its tensor and sequence group) sees at once."""
    sequence_length: int = 4096
    checkpointing: bool = False
    accumulation: int = 1
    """Micro batches of a step. More than one means gradients that stand while the next ones are computed."""
    fused: bool = True
    """A fused optimizer kernel, DeepSpeed's on accelerators; torch's own (`torch_adam`) makes temporaries."""
    sizes: ZeroSizes = field(default_factory=ZeroSizes)

    def __post_init__(self) -> None:
        for name in (
            "devices",
            "devices_per_node",
            "tensor",
            "sequence",
            "micro_batch",
            "sequence_length",
            "accumulation",
        ):
            value = getattr(self, name)
            if value < 1:
                raise ConfigError(f"expected {name} of at least 1, found {value}")
        if self.precision not in ELEMENT_BYTES:
            raise ConfigError(f"expected precision {', '.join(ELEMENT_BYTES)}, found {self.precision!r}")
        if self.stage not in (0, 1, 2, 3):
            raise ConfigError(f"expected ZeRO stage 0, 1, 2 or 3, found {self.stage!r}")
        for name in ("offload_optimizer", "offload_parameters"):
            if getattr(self, name) not in OFFLOADS:
                raise ConfigError(f"expected {name} {', '.join(OFFLOADS)}, found {getattr(self, name)!r}")
        if self.offload_parameters != "none" and self.stage != 3:
            raise ConfigError(f"offload_parameters needs ZeRO stage 3, found stage {self.stage}")
        if self.offload_optimizer != "none" and self.stage == 0:
            raise ConfigError("offload_optimizer needs ZeRO stage 1, 2 or 3, found stage 0")
        if self.offload_optimizer == "nvme" and self.stage != 3:
            raise ConfigError(f"offload_optimizer nvme needs ZeRO stage 3, found stage {self.stage}")
        if self.devices % (self.tensor * self.sequence):
            raise ConfigError(
                f"expected devices to be a multiple of tensor x sequence, found {self.devices} and "
                f"{self.tensor} x {self.sequence}"
            )
        if self.sequence_length % self.sequence:
            raise ConfigError(
                f"expected sequence_length to be a multiple of sequence {self.sequence}, found {self.sequence_length}"
            )

    @property
    def element_bytes(self) -> int:
        return ELEMENT_BYTES[self.precision]

    @property
    def zero_world(self) -> int:
        """Devices that ZeRO divides states among: all that hold the same cut of the model, sequence groups included."""
        return self.devices // self.tensor

    @property
    def nodes(self) -> int:
        return -(-self.devices // self.devices_per_node)

    @property
    def micro_tokens(self) -> int:
        """Tokens whose activations one device holds."""
        return self.micro_batch * self.sequence_length // self.sequence


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes. The first eight are parts of one device's memory; not all of them are alive at the same moment."""

    parameters: int
    gradients: int
    optimizer: int
    step: int
    """fp32 gradients, made for the optimizer's step only."""
    gathered: int
    """Whole parameters that stage 3 has fetched from the other devices."""
    buffers: int
    """Buckets in which gradients are reduced."""
    activations: int
    logits: int
    """What the loss needs of every logit."""
    host: int
    """Host memory of a node."""
    nvme: int
    """NVMe of a node."""
    moments: dict[str, int]
    """Bytes of one device at the loss, in the backward of a layer and in the optimizer's step."""

    @property
    def states(self) -> int:
        """Everything but activations and logits: what DeepSpeed's estimators estimate."""
        parts = (self.parameters, self.gradients, self.optimizer, self.step, self.gathered, self.buffers)
        return sum(parts)

    @property
    def peak(self) -> int:
        return max(self.moments.values())


def memory(shape: Shape, setup: Setup) -> Memory:
    """Memory of one device, of a node's host and of its NVMe.

    Raises ConfigError if the heads or the MLP cannot be divided among `tensor` devices.
    """
    for name, width in (
        ("num_attention_heads", shape.heads),
        ("num_key_value_heads", shape.heads_kv),
        ("intermediate_size", shape.intermediate),
    ):
        if width % setup.tensor:
            raise ConfigError(f"expected {name} to be a multiple of tensor {setup.tensor}, found {width}")
    each, sizes, world = setup.element_bytes, setup.sizes, setup.zero_world
    # AutoTP cuts the layers' matrices; embedding and norms are whole everywhere. An untied output matrix may be cut
    # too, so this is an upper bound.
    held = shape.parameters - shape.layers * (shape.layer_matrices - shape.layer_matrices // setup.tensor)
    share = -(-held // world)
    weights = share if setup.stage == 3 else held
    if setup.partition_within > 1:
        weights += held // setup.partition_within
    gradients = share if setup.stage >= 2 else held
    masters = share if setup.stage >= 1 else held
    # Without ZeRO, fp32 weights are updated in place and their gradients are fp32 already.
    optimizer = masters * (8 if setup.stage == 0 and each == 4 else 12)
    stepped = min(masters, sizes.sub_group_size) if setup.stage == 3 else masters
    step = 0 if setup.stage == 0 and each == 4 else 4 * stepped
    largest = largest_module(shape, setup.tensor)
    gathered = each * live_parameters(held, largest, sizes) if setup.stage == 3 and world > 1 else 0
    bucket = each * sizes.reduce_bucket_size if setup.stage >= 2 else 0
    # What a bucket holds is copied once more to be reduced; a parameter larger than the bucket is reduced alone.
    reduced = each * max(min(sizes.reduce_bucket_size, held), largest) if world > 1 else 0

    host = nvme = 0
    on_node = min(setup.devices_per_node, setup.devices)
    if setup.offload_optimizer != "none":
        # Gradients follow the optimizer, and are stepped in fp32 there.
        if setup.offload_optimizer == "cpu":
            host += on_node * share * (12 + 4 + each)
        else:
            nvme += on_node * share * 12
            host += on_node * (share * each + OPTIMIZER_BUFFERS * 4 * min(share, sizes.sub_group_size))
        gradients = gradients if setup.stage == 1 else 0
        optimizer = step = 0
    if setup.offload_parameters == "cpu":
        host += on_node * share * each
    elif setup.offload_parameters == "nvme":
        nvme += on_node * share * each
        host += on_node * PARAMETER_BUFFERS * PARAMETER_BUFFER_SIZE * each
    if setup.offload_parameters != "none":
        weights = 0
        gathered = max(gathered, each * live_parameters(held, largest, sizes))

    kept, layer, working = activations(shape, setup)
    logits = setup.micro_tokens * shape.vocabulary * LOGIT_BYTES
    temporary = 0 if setup.fused or not optimizer else UNFUSED_BYTES * (stepped if setup.stage else largest)
    # Stage 3 has buffers for gradients and buckets for good; the others make both anew in every step.
    made = each * gradients + bucket
    standing = each * weights + optimizer + (made if setup.stage == 3 else 0)
    made = 0 if setup.stage == 3 else made
    before = made if setup.accumulation > 1 else 0
    return Memory(
        parameters=each * weights,
        gradients=each * gradients,
        optimizer=optimizer,
        step=step,
        gathered=gathered,
        buffers=bucket + reduced,
        activations=kept + layer,
        logits=logits,
        host=round(host * HOST_FACTOR),
        nvme=nvme,
        moments={
            "loss": standing + before + gathered + kept + logits,
            "backward": standing + gathered + reduced + max(before + kept + layer + working, made + layer),
            # Flat partitions are stepped after the gradients were copied into them; without ZeRO gradients stay.
            "step": standing + step + (max(made, temporary) if setup.stage else made + temporary),
        },
    )


def largest_module(shape: Shape, tensor: int) -> int:
    return max(shape.embedding, shape.largest_module // tensor)


def live_parameters(held: int, largest: int, sizes: ZeroSizes) -> int:
    """Elements that stage 3 holds gathered at most.

    A parameter is kept if it is used again within max_reuse_distance: around the turn from forward to backward that is
    half the distance, the same parameters lying on both sides. On top come the module in use and what is fetched ahead.
    """
    ahead = largest + sizes.prefetch_bucket_size
    return min(held, max(largest, min(sizes.max_live_parameters, sizes.max_reuse_distance // 2 + ahead)))


def activations(shape: Shape, setup: Setup) -> tuple[int, int, int]:
    """Bytes kept from forward to backward, of a layer that is computed again, and of the gradients inside a layer.

    What autograd saves of a layer of the transformers library with scaled-dot-product attention, tensor by tensor: of a
    norm its input in fp32, the normalised values and the output; queries, keys, values, the attention's output and the
    logarithm of its denominators (4 bytes a head); of the MLP gate, its activation, up and their product. Tests find
    the same bytes. With checkpointing the layers' inputs alone are kept, and one layer at a time is computed again.
    """
    each, tensor = setup.element_bytes, setup.tensor
    norm = 4 * shape.hidden + 2 * each * shape.hidden + 4
    attention = each * 2 * (shape.query_width + shape.key_width) + 4 * shape.heads
    if shape.head_norms:
        attention += (4 + each) * (shape.query_width + shape.key_width) + 4 * (shape.heads + shape.heads_kv)
    layer = 2 * norm + (attention + 4 * each * shape.intermediate) // tensor
    working = each * (2 * shape.hidden + shape.intermediate // tensor)
    # Token ids and labels, 8 bytes each, and the last norm.
    once = norm + 16
    tokens = setup.micro_tokens
    if setup.checkpointing:
        return tokens * (shape.layers * each * shape.hidden + once), tokens * layer, tokens * working
    return tokens * (shape.layers * layer + once), 0, tokens * working
