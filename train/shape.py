"""The shape of a decoder-only transformer, from the config.json of Hugging Face: what its parameters are and how many.

In: the values of a config (`model.read_model`). Out: Shape, all counts exact. Families: llama, qwen2, qwen3,
mistral. Costs nothing: no weights, no torch. Leaves to others: building the model (`model.py`), memory (`estimate.py`),
time and money (`cost.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from taojin.core.errors import InputError

# What a config means when it says nothing: the defaults of the transformers library, which differ between families.
# bias: of q, k, v; output_bias: of the attention's output. None: the config's attention_bias decides.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"heads_kv": None, "head_dim": None, "bias": None, "output_bias": None, "mlp_bias": None},
    "qwen2": {"heads_kv": 32, "head_dim": None, "bias": True, "output_bias": False, "mlp_bias": False},
    "qwen3": {"heads_kv": 32, "head_dim": 128, "bias": None, "output_bias": None, "mlp_bias": False},
    "mistral": {"heads_kv": 8, "head_dim": None, "bias": False, "output_bias": False, "mlp_bias": False},
}
NEEDED = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Numbers of a model. Everything below is counted in parameters (elements), never in bytes."""

    family: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    heads_kv: int
    head_dim: int
    vocabulary: int
    tied: bool
    """The output matrix is the embedding."""
    bias: bool
    output_bias: bool
    mlp_bias: bool
    head_norms: bool
    """Queries and keys are normalised, head by head (qwen3)."""
    max_positions: int | None
    window: int | None
    """A token attends to this many before it, where the config sets a sliding window for all layers."""

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def key_width(self) -> int:
        return self.heads_kv * self.head_dim

    @property
    def layer_matrices(self) -> int:
        """Weights and biases of a layer's linear parts: what tensor parallelism cuts."""
        attention = self.hidden * (2 * self.query_width + 2 * self.key_width)
        attention += self.bias * (self.query_width + 2 * self.key_width) + self.output_bias * self.hidden
        mlp = 3 * self.hidden * self.intermediate + self.mlp_bias * (2 * self.intermediate + self.hidden)
        return attention + mlp

    @property
    def layer_norms(self) -> int:
        return 2 * self.hidden + self.head_norms * 2 * self.head_dim

    @property
    def layer(self) -> int:
        return self.layer_matrices + self.layer_norms

    @property
    def embedding(self) -> int:
        return self.vocabulary * self.hidden

    @property
    def embeddings(self) -> int:
        """Embedding and output matrix, one and the same where they are tied."""
        return self.embedding if self.tied else 2 * self.embedding

    @property
    def parameters(self) -> int:
        return self.embeddings + self.layers * self.layer + self.hidden

    @property
    def multiplied(self) -> int:
        """Parameters that a token is multiplied with: not the embedding, which is looked up, nor norms and biases."""
        attention = self.hidden * (2 * self.query_width + 2 * self.key_width)
        return self.layers * (attention + 3 * self.hidden * self.intermediate) + self.embedding

    @property
    def largest_module(self) -> int:
        """The largest module that ZeRO-3 gathers at once: `largest_layer_params` of DeepSpeed's estimators."""
        return max(
            self.embedding,
            self.hidden * self.query_width + max(self.bias * self.query_width, self.output_bias * self.hidden),
            self.hidden * self.intermediate + self.mlp_bias * max(self.intermediate, self.hidden),
        )


def shape_of(values: Mapping[str, Any], where: str) -> Shape:
    """Shape from the values of a config.json. Raises InputError: another family, a missing or impossible number."""
    family = values.get("model_type")
    if family not in FAMILIES:
        raise InputError(f"{where}: model_type {family!r} is not known; expected one of {', '.join(FAMILIES)}")
    defaults = FAMILIES[family]
    missing = [name for name in NEEDED if values.get(name) is None]
    if missing:
        raise InputError(f"{where}: {', '.join(missing)} missing; a {family} config has {', '.join(NEEDED)}")
    number = {name: whole(values[name], name, where) for name in NEEDED}
    hidden, heads = number["hidden_size"], number["num_attention_heads"]

    def chosen(name: str, default: int | None, otherwise: int) -> int:
        # Null means what follows from the other numbers; a name that is absent means the family's default.
        value = values.get(name, default)
        return otherwise if value is None else whole(value, name, where)

    heads_kv = chosen("num_key_value_heads", defaults["heads_kv"], heads)
    if heads % heads_kv:
        raise InputError(f"{where}: num_attention_heads {heads} is not a multiple of num_key_value_heads {heads_kv}")
    if values.get("head_dim", defaults["head_dim"]) is None and hidden % heads:
        raise InputError(
            f"{where}: hidden_size {hidden} is not a multiple of num_attention_heads {heads}, and there is no head_dim"
        )
    has_bias = bool(values.get("attention_bias", False))
    maximum = values.get("max_position_embeddings")
    # Qwen lists a window and switches it off; a list of layer types with full attention among them does the same.
    window = values.get("sliding_window") if values.get("use_sliding_window", family == "mistral") else None
    if "full_attention" in (values.get("layer_types") or ()):
        window = None
    return Shape(
        family=family,
        hidden=hidden,
        intermediate=number["intermediate_size"],
        layers=number["num_hidden_layers"],
        heads=heads,
        heads_kv=heads_kv,
        head_dim=chosen("head_dim", defaults["head_dim"], hidden // heads),
        vocabulary=number["vocab_size"],
        tied=bool(values.get("tie_word_embeddings", False)),
        bias=has_bias if defaults["bias"] is None else defaults["bias"],
        output_bias=has_bias if defaults["output_bias"] is None else defaults["output_bias"],
        mlp_bias=bool(values.get("mlp_bias", False)) if defaults["mlp_bias"] is None else defaults["mlp_bias"],
        head_norms=family == "qwen3",
        max_positions=None if maximum is None else whole(maximum, "max_position_embeddings", where),
        window=None if window is None else whole(window, "sliding_window", where),
    )


def whole(value: Any, name: str, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{where}: expected {name} to be a whole number above 0, found {value!r}")
    return value
