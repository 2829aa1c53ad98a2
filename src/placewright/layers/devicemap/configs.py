"""A Hugging Face configuration becomes a `LanguageModel` by formulas, without PyTorch.

Each architecture is a row of `FAMILIES`: what its blocks have beside products of known sizes, and
how its modules are called. Keys that a configuration leaves out have the defaults of transformers'
classes (`USUAL`). Tests compare the parameters of every module with those of real models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from placewright.errors import InputError
from placewright.layers.devicemap.model import LanguageModel, Layer

HIDDEN = ("hidden_size", "n_embd", "d_model")
DEPTH = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = (
    *("num_attention_heads", "n_head", "n_heads", "num_heads"),
    *("decoder_attention_heads", "num_decoder_attention_heads", "attention_heads"),
)
POSITIONS = ("max_position_embeddings", "n_positions", "max_sequence_length")
LARGEST = 2**31
MOST_BLOCKS = 1024


@dataclass(frozen=True, slots=True)
class Config:
    """A configuration and where it stands, for messages.

    `usual`: what its architecture has where the configuration leaves a key out; ``null`` in it says
    that there is none.
    """

    data: Mapping[str, Any]
    where: str
    usual: Mapping[str, Any] = field(default_factory=dict)

    def size(self, *keys: str, default: int | None = None, least: int = 1) -> int:
        """A whole number of `least` or more, under the first of these keys that is there.

        Raises `InputError`: none is and there is no default, or it is something else.
        """
        for key in keys:
            if (value := self.data.get(key)) is None:
                continue
            whole = isinstance(value, int) and not isinstance(value, bool)
            if not (whole and least <= value < LARGEST):
                raise InputError(
                    f"must be a whole number {'above zero' if least else 'of zero or more'}",
                    where=f"{self.where}: {key}",
                    by=f"got {str(value)[:60]}",
                    hint="give the config.json of the model as it was published",
                )
            return int(value)
        if not any(key in self.data for key in keys):
            default = next((self.usual[key] for key in keys if key in self.usual), default)
        if default is None:
            raise InputError(
                "the configuration does not state this size",
                where=f"{self.where}: {' or '.join(keys)}",
                by=f"it has {len(self.data)} other keys",
                hint="give the config.json of the model as it was published",
            )
        return default

    def depth(self, *keys: str) -> int:
        """How many blocks there are.

        Raises `InputError`: it is not stated, or more than `MOST_BLOCKS`.
        """
        found = self.size(*(keys or DEPTH), default=len(self.kinds) or None)
        if found > MOST_BLOCKS:
            raise InputError(
                "has more blocks than any model that is known",
                where=f"{self.where}: {' or '.join(keys or DEPTH)}",
                by=f"{found}, at most {MOST_BLOCKS}",
                hint="give the config.json of the model as it was published",
            )
        return found

    @property
    def kinds(self) -> Sequence[str]:
        """Of its blocks where it lists them: some list them and do not state how many."""
        found = (self.data.get(key) for key in ("layer_types", "layers_block_type"))
        return next((tuple(map(str, each)) for each in found if isinstance(each, list | tuple)), ())

    def flag(self, written: bool | str, default: bool = False) -> bool:
        """A constant, or what stands under this key."""
        if isinstance(written, bool):
            return written
        value = self.data.get(written, self.usual.get(written))
        return default if value is None else bool(value)

    def part(self, key: str) -> Config:
        """A nested configuration, empty where there is none."""
        inner = self.data.get(key)
        return Config(inner if isinstance(inner, Mapping) else {}, f"{self.where}: {key}")

    def of(self, architecture: str, *, part: bool = False) -> Config:
        """With what is usual in an architecture; its width, depth and words where it is a `part`.

        Parts are published without them, but a whole model that does not state them is none.
        """
        usual = USUAL.get(architecture, {})
        if not (part and self.data):
            usual = {key: value for key, value in usual.items() if key not in WHOLE}
        return replace(self, usual=usual)


@dataclass(frozen=True, slots=True)
class Family:
    """What the blocks of an architecture are made of, and what its modules are called.

    Attributes
    ----------
    base, embed, blocks, norm, head, rotary
        Qualified names, those after `base` below it; `rotary` holds buffers only.
    gated
        Whether the MLP has a third matrix.
    qkv_bias, out_bias, mlp_bias, head_bias
        Whether products have biases, or the key that says so.
    norm_bias
        Whether norms have biases beside weights; `norms` of them are in a block.
    qk_norm
        Norms of queries and keys: none, one of a head's size each, or of full width.
    window
        Which blocks keep a window only, where ``layer_types`` does not say: none, ``all``, every
        second (``2``), all but every sixth (``6``), and so on.
    """

    base: str = "model"
    embed: tuple[str, ...] = ("embed_tokens",)
    blocks: str = "layers"
    norm: str = "norm"
    head: str = "lm_head"
    rotary: str = "rotary_emb"
    gated: bool = True
    qkv_bias: bool | str = "attention_bias"
    out_bias: bool | str = "attention_bias"
    mlp_bias: bool | str = False
    head_bias: bool = False
    norm_bias: bool = False
    norms: int = 2
    qk_norm: Literal["", "head", "full"] = ""
    embedding_norm: bool = False
    positions: int = -1
    tied: bool = False
    window: str = ""


_GPT2 = Family(
    base="transformer",
    embed=("wte", "wpe"),
    blocks="h",
    norm="ln_f",
    rotary="",
    gated=False,
    qkv_bias=True,
    out_bias=True,
    mlp_bias=True,
    norm_bias=True,
    positions=0,
    tied=True,
)
_LLAMA = Family(mlp_bias="mlp_bias")
_COHERE = Family(norms=1, tied=True)
_GEMMA2 = Family(norms=4, tied=True, window="2")
_GEMMA3 = replace(_GEMMA2, qk_norm="head", window="6")
_QWEN3 = Family(qk_norm="head", window="qwen")
_MISTRAL = Family(qkv_bias=False, out_bias=False, window="all")
_PLAIN = Family(qkv_bias=False, out_bias=False)

FAMILIES: dict[str, Family] = {
    "bloom": replace(
        _GPT2,
        embed=("word_embeddings", "word_embeddings_layernorm"),
        embedding_norm=True,
        positions=-1,
    ),
    "cohere": _COHERE,
    "cohere2": Family(norms=1, tied=True, window="4"),
    "deepseek_v2": _PLAIN,
    "deepseek_v3": _PLAIN,
    "falcon": replace(
        _GPT2,
        embed=("word_embeddings",),
        rotary="rotary_emb",
        qkv_bias="bias",
        out_bias="bias",
        mlp_bias="bias",
        positions=-1,
    ),
    "gemma": Family(tied=True),
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA3,
    "gpt2": _GPT2,
    "gpt_neox": Family(
        base="gpt_neox",
        embed=("embed_in",),
        norm="final_layer_norm",
        gated=False,
        mlp_bias=True,
        norm_bias=True,
    ),
    "gpt_oss": Family(window="2"),
    "gptj": Family(
        base="transformer",
        embed=("wte",),
        blocks="h",
        norm="ln_f",
        gated=False,
        qkv_bias=False,
        out_bias=False,
        mlp_bias=True,
        head_bias=True,
        norm_bias=True,
        norms=1,
    ),
    "granite": _LLAMA,
    "llama": _LLAMA,
    "mistral": _MISTRAL,
    "mixtral": Family(qkv_bias=False, out_bias=False, window="all"),
    "olmo2": Family(qk_norm="full"),
    "olmoe": Family(qk_norm="full"),
    "opt": replace(
        _GPT2,
        base="model.decoder",
        embed=("embed_tokens", "embed_positions"),
        blocks="layers",
        norm="final_layer_norm",
        positions=2,
    ),
    "phi": Family(
        gated=False,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        norm="final_layernorm",
        norms=1,
        norm_bias=True,
        head_bias=True,
    ),
    "phi3": Family(qkv_bias=False, out_bias=False, window="all"),
    "qwen2": Family(qkv_bias=True, out_bias=False, window="qwen"),
    "qwen2_moe": Family(qkv_bias=True, out_bias=False),
    "qwen3": _QWEN3,
    "qwen3_moe": Family(qk_norm="head"),
    "smollm3": Family(tied=True, mlp_bias="mlp_bias", window="qwen"),
    "stablelm": Family(qkv_bias="use_qkv_bias", out_bias=False, norm_bias=True),
    "starcoder2": Family(
        gated=False,
        qkv_bias="use_bias",
        out_bias="use_bias",
        mlp_bias="use_bias",
        norm_bias=True,
        tied=True,
        window="all",
    ),
}
"""By ``model_type``."""

WHOLE = ("hidden_size", "num_hidden_layers", "vocab_size")
"""Without these a configuration is no model, whatever is usual."""

_COLUMNS = (*WHOLE, "num_attention_heads", "max_position_embeddings", "intermediate_size")
_OTHERS = {"keys": "num_key_value_heads", "width": "head_dim", "window": "sliding_window"}
_OTHERS |= {"count": "num_experts", "chosen": "num_experts_per_tok"}
_OTHERS |= {"inner": "moe_intermediate_size"}


def _usual(*columns: int, **others: int) -> dict[str, int]:
    """`_COLUMNS` and `_OTHERS` by key."""
    found = dict(zip(_COLUMNS, columns, strict=False))
    return found | {_OTHERS.get(key, key): value for key, value in others.items()}


_LATENT = {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64}
_LATENT |= {"qk_nope_head_dim": 128, "v_head_dim": 128}

USUAL: dict[str, dict[str, int]] = {
    "bloom": _usual(64, 2, 250880, 8),
    "cohere": _usual(8192, 40, 256000, 64, 8192, 22528),
    "cohere2": _usual(8192, 40, 256000, 64, 8192, 22528, window=4096),
    "deepseek_v2": _usual(4096, 32, 102400, 32, 2048, 11008, inner=1407)
    | {"n_routed_experts": 64, "n_shared_experts": 2, "first_k_dense_replace": 0, **_LATENT},
    "deepseek_v3": _usual(7168, 61, 129280, 128, 4096, 18432, chosen=8, inner=2048)
    | {"n_routed_experts": 256, "n_shared_experts": 1, "first_k_dense_replace": 3, **_LATENT},
    "falcon": _usual(4544, 32, 65024, 71, 2048),
    "gemma": _usual(3072, 28, 256000, 16, 8192, 24576, keys=16, width=256),
    "gemma2": _usual(2304, 26, 256000, 8, 8192, 9216, keys=4, width=256, window=4096),
    "gemma3_text": _usual(2304, 26, 262208, 8, 131072, 9216, keys=4, width=256, window=4096),
    "gpt2": _usual(768, 12, 50257, 12, 1024),
    "gpt_neox": _usual(6144, 44, 50432, 64, 2048, 24576, attention_bias=1),
    "gpt_oss": _usual(2880, 36, 201088, 64, 131072, 2880, keys=8, width=64, window=128, chosen=4)
    | {"num_local_experts": 128, "attention_bias": 1},
    "gptj": _usual(4096, 28, 50400, 16, 2048),
    "granite": _usual(4096, 32, 32000, 32, 2048, 11008),
    "llama": _usual(4096, 32, 32000, 32, 2048, 11008),
    "mistral": _usual(4096, 32, 32000, 32, 131072, 14336, keys=8, window=4096),
    "mixtral": _usual(4096, 32, 32000, 32, 131072, 14336, keys=8, num_local_experts=8, chosen=2),
    "olmo2": _usual(4096, 32, 50304, 32, 2048, 11008),
    "olmoe": _usual(2048, 16, 50304, 16, 4096, 2048, count=64, chosen=8),
    "opt": _usual(768, 12, 50272, 12, 2048, 3072),
    "phi": _usual(2048, 24, 51200, 32, 2048, 8192),
    "phi3": _usual(3072, 32, 32064, 32, 4096, 8192),
    "qwen2": _usual(4096, 32, 151936, 32, 32768, 22016, keys=32, window=4096),
    "qwen2_moe": _usual(2048, 24, 151936, 16, 32768, 5632, keys=16, count=60, chosen=4, inner=1408)
    | {"shared_expert_intermediate_size": 5632},
    "qwen3": _usual(4096, 32, 151936, 32, 32768, 22016, keys=32, width=128, window=4096),
    "qwen3_moe": _usual(2048, 24, 151936, 32, 32768, 6144, keys=4, count=128, chosen=8, inner=768),
    "smollm3": _usual(2048, 36, 128256, 16, 32768, 11008, keys=4),
    "stablelm": _usual(2560, 32, 50304, 32, 4096, 6912, keys=32),
    "starcoder2": _usual(3072, 30, 49152, 24, 4096, 12288, keys=2, use_bias=1),
    "t5": {"num_heads": 8, "d_kv": 64, "d_ff": 2048},
}
"""By ``model_type``: what transformers' classes have where a configuration leaves a key out."""

ODD: dict[str, dict[str, bool]] = {
    "deepseek_v2": {"mlp_bias": False},
    "opt": dict.fromkeys(
        ("do_layer_norm_before", "enable_bias", "layer_norm_elementwise_affine"), True
    ),
    "qwen2_moe": {"use_sliding_window": False, "qkv_bias": True},
    "qwen3_moe": {"use_sliding_window": False},
    "stablelm": {"qk_layernorm": False, "use_parallel_residual": False},
}
"""Keys for whose other value there are no formulas: OPT-350m, StableLM 2 12B."""

EXPERTS = {
    "mixtral": "num_local_experts",
    "qwen2_moe": "num_experts",
    "qwen3_moe": "num_experts",
    "olmoe": "num_experts",
    "gpt_oss": "num_local_experts",
    "deepseek_v2": "n_routed_experts",
    "deepseek_v3": "n_routed_experts",
}
"""The key that says how many experts a block has."""


def decoder(config: Config, family: Family, architecture: str, base: str = "") -> list[Layer]:
    """Layers of a decoder: embedding, blocks, norm, head; modules lie below `base` if given."""
    d, depth = config.size(*HIDDEN), config.depth()
    words, root = config.size("vocab_size"), base or family.base
    tied = config.flag("tie_word_embeddings", family.tied)
    embedded, positions = words * d, 0
    if family.positions >= 0:
        positions = (config.size(*POSITIONS) + family.positions) * d
    norm = d * (2 if family.norm_bias else 1)
    embedding = embedded + positions + (norm if family.embedding_norm else 0)
    names = [f"{root}.{name}" for name in family.embed]
    names += [f"{root}.{family.rotary}"] if family.rotary else []
    windows = _windows(config, family, depth)
    return [
        Layer("embed", tuple(names), embedding, workspace=2 * d),
        *(
            _block(config, family, architecture, k, f"{root}.{family.blocks}.{k}", windows[k])
            for k in range(depth)
        ),
        Layer("norm", (f"{root}.{family.norm}",), norm, multiplied=norm, workspace=2 * d),
        Layer(
            "head",
            (family.head,),
            embedded + (words if family.head_bias else 0),
            multiplied=embedded,
            workspace=2 * words,
            prompt_share=0.0,
            tied="embed" if tied else "",
        ),
    ]


def _block(
    config: Config, family: Family, architecture: str, k: int, name: str, window: int
) -> Layer:
    """One block of a decoder."""
    d = config.size(*HIDDEN)
    attention = _attention(config, family, architecture, d)
    mlp = _mlp(config, family, architecture, d, k)
    norms = _norms(config, family, architecture) * d * (2 if family.norm_bias else 1)
    biases = attention.biases + mlp.biases + norms
    return Layer(
        f"block {k}",
        (name,),
        attention.matrices + mlp.matrices + mlp.experts + biases,
        matrices=attention.matrices + mlp.matrices + mlp.experts,
        multiplied=attention.matrices + mlp.matrices + biases - mlp.expert_biases,
        experts=mlp.experts + mlp.expert_biases,
        expert_count=mlp.count,
        experts_chosen=mlp.chosen,
        cache_width=attention.cache,
        window=window,
        attention_width=attention.width,
        workspace=2 * d + attention.alive + mlp.alive,
    )


def _norms(config: Config, family: Family, architecture: str) -> int:
    if architecture != "falcon":
        return family.norms
    usual = 2 if config.flag("new_decoder_architecture") else 1
    several = config.size("num_ln_in_parallel_attn", default=usual) == 2
    return 2 if several or not config.flag("parallel_attn", True) else 1


@dataclass(frozen=True, slots=True)
class _Attention:
    """Parameters of matrices and of biases and norms; elements cached and alive per token."""

    matrices: int
    biases: int
    cache: int
    width: int
    alive: int


def _attention(config: Config, family: Family, architecture: str, d: int) -> _Attention:
    if architecture.startswith("deepseek"):
        return _latent_attention(config, d)
    heads = config.size(*HEADS)
    shared = _key_heads(config, architecture, heads)
    width = config.size("head_dim", default=d // heads)
    queries, keys = heads * width, shared * width
    biases = (queries + 2 * keys) if config.flag(family.qkv_bias) else 0
    biases += d if config.flag(family.out_bias) else 0
    biases += {"": 0, "head": 2 * width, "full": queries + keys}[family.qk_norm]
    biases += heads if architecture == "gpt_oss" else 0  # a learned logit per head
    if architecture == "cohere" and config.flag("use_qk_norm"):
        biases += queries + keys
    if architecture == "phi" and config.flag("qk_layernorm"):
        biases += 4 * width
    # Transformers repeats keys and values of Falcon's groups for each head before it keeps them.
    kept = queries if architecture == "falcon" and shared > 1 else keys
    return _Attention(
        d * (queries + 2 * keys) + queries * d,
        biases,
        2 * kept,
        2 * queries,
        2 * queries + 2 * kept,
    )


def _key_heads(config: Config, architecture: str, heads: int) -> int:
    """Heads of keys and values, which several heads of queries share."""
    if architecture == "gpt_neox":
        return heads
    if architecture == "falcon":
        if config.flag("new_decoder_architecture"):
            return config.size("num_kv_heads", default=heads)
        return 1 if config.flag("multi_query", True) else heads
    return config.size("num_key_value_heads", default=heads)


def _latent_attention(config: Config, d: int) -> _Attention:
    """Multi-head latent attention (arXiv:2405.04434), whose latent vectors alone are cached."""
    heads = config.size(*HEADS)
    nope, rope = config.size("qk_nope_head_dim"), config.size("qk_rope_head_dim")
    value, latent = config.size("v_head_dim"), config.size("kv_lora_rank")
    inner = config.size("q_lora_rank", default=0)
    queries = heads * (nope + rope)
    matrices = d * inner + inner * queries if inner else d * queries
    matrices += d * (latent + rope) + latent * heads * (nope + value) + heads * value * d
    biases = inner + latent
    if config.flag("attention_bias"):
        biases += inner + latent + rope + d
    width = heads * (nope + rope + value)
    return _Attention(matrices, biases, latent + rope, width, queries + width)


@dataclass(frozen=True, slots=True)
class _Mlp:
    matrices: int
    biases: int
    experts: int = 0
    expert_biases: int = 0
    count: int = 0
    chosen: int = 0
    alive: int = 0


def _mlp(config: Config, family: Family, architecture: str, d: int, k: int) -> _Mlp:
    if architecture in EXPERTS and _is_sparse(config, architecture, k):
        return _experts(config, architecture, d)
    inner = config.size("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", default=4 * d)
    products = 3 if family.gated else 2
    biases = inner * (products - 1) + d if config.flag(family.mlp_bias) else 0
    return _Mlp(products * d * inner, biases, alive=products * inner)


def _is_sparse(config: Config, architecture: str, k: int) -> bool:
    """Whether block k has experts."""
    if architecture.startswith("deepseek"):
        return k >= config.size("first_k_dense_replace", default=0, least=0)
    if architecture.startswith("qwen"):
        step = config.size("decoder_sparse_step", default=1)
        return k not in (config.data.get("mlp_only_layers") or ()) and (k + 1) % step == 0
    return True


def _experts(config: Config, architecture: str, d: int) -> _Mlp:
    count = config.size(EXPERTS[architecture], "num_local_experts", "num_experts")
    chosen = config.size("num_experts_per_tok", default=2)
    if chosen > count:
        raise InputError(
            "a token takes more experts than there are",
            where=f"{config.where}: num_experts_per_tok",
            by=f"{chosen} of {count}",
            hint="give the config.json of the model as it was published",
        )
    own = architecture in ("mixtral", "olmoe", "gpt_oss")
    inner = config.size("intermediate_size" if own else "moe_intermediate_size")
    router, shared, biases, expert_biases = count * d, 0, 0, 0
    if architecture == "qwen2_moe":
        shared = 3 * d * config.size("shared_expert_intermediate_size") + d
    if architecture.startswith("deepseek"):
        shared = 3 * d * inner * config.size("n_shared_experts", default=1)
    if architecture == "gpt_oss":
        expert_biases = count * (2 * inner + d)
        biases = count + expert_biases
    return _Mlp(
        router + shared,
        biases,
        count * 3 * d * inner,
        expert_biases,
        count,
        chosen,
        3 * inner * chosen + shared // d,
    )


def _windows(config: Config, family: Family, depth: int) -> list[int]:
    """Tokens that each block keeps at most, 0 for all."""
    tokens = config.data.get("sliding_window", config.usual.get("sliding_window"))
    if family.window == "qwen" and not config.flag("use_sliding_window"):
        return [0] * depth
    if not family.window or not tokens:
        return [0] * depth
    tokens = Config({"sliding_window": tokens}, config.where).size("sliding_window")
    kinds = config.data.get("layer_types")
    if kinds is not None:
        if not isinstance(kinds, list | tuple) or len(kinds) != depth:
            number = len(kinds) if isinstance(kinds, list | tuple) else "no list"
            raise InputError(
                "must name the kind of every block",
                where=f"{config.where}: layer_types",
                by=f"{number} for {depth} blocks",
                hint="give the config.json of the model as it was published",
            )
        return [tokens if kind == "sliding_attention" else 0 for kind in kinds]
    if family.window == "all":
        return [tokens] * depth
    if family.window == "qwen":
        first = config.size("max_window_layers", default=28)
        return [tokens if k >= first else 0 for k in range(depth)]
    every = config.size("sliding_window_pattern", default=int(family.window))
    return [tokens if (k + 1) % every else 0 for k in range(depth)]


def encoder_decoder(config: Config) -> list[Layer]:
    """T5: encoder blocks see the prompt, decoder blocks the new tokens; one embedding for all."""
    d, heads, width = config.size("d_model"), config.size("num_heads"), config.size("d_kv")
    inner, words = config.size("d_ff"), config.size("vocab_size")
    first = config.depth("num_layers")
    depth = min(config.size("num_decoder_layers", default=first), MOST_BLOCKS)
    wide = heads * width
    gated = "gated" in str(config.data.get("feed_forward_proj", "relu"))
    attention, mlp = 4 * d * wide, (3 if gated else 2) * d * inner
    buckets = config.size("relative_attention_num_buckets", default=32) * heads
    alive = 2 * d + 4 * wide + 3 * inner

    def block(k: int, stack: str, products: int, norms: int) -> dict[str, Any]:
        more = norms * d + (buckets if k == 0 else 0)
        return {
            "modules": (f"{stack}.block.{k}",),
            "parameters": products + more,
            "matrices": products,
            "multiplied": products + more,
            "attention_width": 2 * wide,
            "workspace": alive,
        }

    encoder = [
        Layer(f"encoder {k}", **block(k, "encoder", attention + mlp, 2), decodes=False)
        for k in range(first)
    ]
    # Keys and values of the prompt are computed in the decoder's blocks, the rest for new tokens.
    share = 2 * d * wide / (2 * attention + mlp)
    blocks = [
        Layer(
            f"block {k}",
            **block(k, "decoder", 2 * attention + mlp, 3),
            cache_width=4 * wide,
            prompt_share=share,
        )
        for k in range(depth)
    ]
    tied = "embed" if config.flag("tie_word_embeddings", True) else ""
    shared = ("shared", "encoder.embed_tokens", "decoder.embed_tokens")
    return [
        Layer("embed", shared, words * d, workspace=2 * d),
        *encoder,
        Layer("encoder norm", ("encoder.final_layer_norm",), d, multiplied=d, decodes=False),
        *blocks,
        Layer("norm", ("decoder.final_layer_norm",), d, multiplied=d, prompt_share=0.0),
        Layer(
            "head",
            ("lm_head",),
            words * d,
            multiplied=words * d,
            workspace=2 * words,
            prompt_share=0.0,
            tied=tied,
        ),
    ]


TOWERS = {
    "llava": ("llama", "clip_vision_model"),
    "gemma3": ("gemma3_text", "siglip_vision_model"),
}
"""Multimodal architectures with the default kinds of their text and vision parts."""


def multimodal(config: Config, architecture: str) -> tuple[list[Layer], Config, str] | None:
    """Layers with a vision tower placed whole before the text; ``None`` where a part is unknown."""
    text_kind, vision_kind = TOWERS[architecture]
    text, vision = config.part("text_config"), config.part("vision_config")
    text_kind = str(text.data.get("model_type", text_kind))
    vision_kind = str(vision.data.get("model_type", vision_kind))
    known = text_kind in FAMILIES and vision_kind in ("clip_vision_model", "siglip_vision_model")
    if not known or _has_odd_parts(text, text_kind):
        return None
    if "tie_word_embeddings" in config.data:
        tied = config.data["tie_word_embeddings"]
        text = Config({"tie_word_embeddings": tied, **text.data}, text.where)
    text = text.of(text_kind, part=True)
    layers = decoder(text, FAMILIES[text_kind], text_kind, "model.language_model")
    tower = _tower(vision, vision_kind)
    d, wide = text.size(*HIDDEN), vision.size("hidden_size", default=768)
    projector = wide * d + wide if architecture == "gemma3" else (wide + 1) * d + (d + 1) * d
    names = ("model.vision_tower", "model.multi_modal_projector")
    whole = Layer(
        "vision tower",
        names,
        tower + projector,
        matrices=0,
        multiplied=tower + projector,
        prompt_share=0.0,
        decodes=False,
    )
    return [whole, *layers], text, text_kind


def _tower(config: Config, kind: str) -> int:
    """Parameters of a vision transformer of CLIP or SigLIP."""
    d, depth = config.size("hidden_size", default=768), config.size("num_hidden_layers", default=12)
    inner = config.size("intermediate_size", default=3072)
    patch = config.size("patch_size", default=32 if kind == "clip_vision_model" else 16)
    image = config.size("image_size", default=224)
    channels = config.size("num_channels", default=3)
    patches = (image // patch) ** 2
    block = 4 * d * d + 4 * d + 2 * d * inner + inner + d + 4 * d
    embedding = channels * patch * patch * d
    if kind == "clip_vision_model":  # a class token, and norms before and after
        return depth * block + embedding + d + (patches + 1) * d + 4 * d
    head = 0
    if config.flag("vision_use_head", True):  # attention pooling
        head = d + 4 * d * d + 4 * d + 2 * d * inner + inner + d + 2 * d
    return depth * block + embedding + d + patches * d + 2 * d + head


def known_architectures() -> tuple[str, ...]:
    """Every ``model_type`` with formulas."""
    return tuple(sorted((*FAMILIES, *TOWERS, "t5")))


def model_from_config(config: Config, name: str) -> LanguageModel | None:
    """The layers of a configuration, ``None`` where its architecture has no formulas.

    Raises `InputError`: a size is missing or none.
    """
    architecture = str(config.data.get("model_type", ""))
    text = config = config.of(architecture)
    base = ""
    if architecture == "t5":
        layers = encoder_decoder(config)
        base = "decoder.block"
    elif architecture in TOWERS:
        found = multimodal(config, architecture)
        if found is None:
            return None
        layers, text, kind = found
        base = f"model.language_model.{FAMILIES[kind].blocks}"
    elif architecture in FAMILIES and not (
        _has_other_layers(config) or _has_odd_parts(config, architecture)
    ):
        family = FAMILIES[architecture]
        layers, base = decoder(config, family, architecture), f"{family.base}.{family.blocks}"
    else:
        return None
    longest = text.size(*POSITIONS, default=LARGEST)
    return LanguageModel(
        name,
        architecture,
        tuple(layers),
        text.size(*HIDDEN),
        published_form(config.data),
        0 if longest == LARGEST else longest,
        base,
    )


def _has_other_layers(config: Config) -> bool:
    """Whether blocks are of a kind that no formula is for."""
    kinds = config.data.get("layer_types")
    known = {"full_attention", "sliding_attention"}
    return isinstance(kinds, list | tuple) and not known.issuperset(map(str, kinds))


def _has_odd_parts(config: Config, architecture: str) -> bool:
    """Whether it is one of the few models with parts that others of their architecture lack."""
    width = config.data.get("word_embed_proj_dim") if architecture == "opt" else None
    narrow = width is not None and width != config.data.get("hidden_size")
    odd = ODD.get(architecture, {})
    return narrow or any(config.flag(key, usual) is not usual for key, usual in odd.items())


def published_form(data: Mapping[str, Any]) -> str:
    """Number format of the weights that the configuration states, ``bf16`` where it does not."""
    text = data.get("text_config")
    stated = data.get("dtype") or data.get("torch_dtype")
    if stated is None and isinstance(text, Mapping):
        stated = text.get("dtype") or text.get("torch_dtype")
    words = {"float32": "f32", "float16": "f16"}
    return words.get(str(stated).removeprefix("torch."), "bf16")
