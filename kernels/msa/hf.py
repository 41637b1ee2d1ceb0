"""MSA in transformers: a loaded MiniMax-M3 reads, decodes and trains with this attention instead of its own.

Owns the way in and out of transformers: its attention interface, hooks, masks and cache. Owns no attention:
sparse layers call `msa_attention` and `msa_decode`, dense ones torch's. This file alone imports transformers,
and no other of this package imports it. Letters as in documents.py, with E for the index's width.
"""

import functools
import inspect
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from kernels.msa import msa_attention, msa_decode
from kernels.msa.documents import Documents, find_documents

NAME = "omniloom_msa"
"""Of this attention among transformers'."""
OLDEST = (5, 23)
"""Older versions attend across the images of a batch, or choose the same blocks for all heads."""
CHUNK_QUERIES = 256
"""Queries of a dense layer that are masked at once where a prefill continues a cache."""
_HANDLE = "_omniloom_msa"


@dataclass
class _Pass:
    """One pass through the model, which takes the mask's place on its way through the layers.

    It is closed at the end, so that a layer computed again in the backward pass leaves no KL, nor its graph.
    """

    documents: Documents
    records_gradients: bool
    index_kls: list[Tensor] = field(default_factory=list)
    is_open: bool = True


class SparseAttention:
    """What `enable` returns: holds what it changed, and the last pass's KL."""

    index_kl: Tensor | None = None
    """KL of the main attention from the index, in nats: mean over tokens and KV heads, summed over the sparse
    layers; with its graph where the pass recorded gradients. None before a pass and without `kl_weight`."""

    def __init__(self, model: Any, text_model: Any, kl_weight: float | None) -> None:
        self.kl_weight = kl_weight
        self._model, self._text_model = model, text_model
        self._own_implementation = text_model.config._attn_implementation
        self._own_loss = model.loss_function
        self._own_forwards: list[tuple[Any, str, Any]] = []
        self._hooks: list[RemovableHandle] = []
        self._open_pass: _Pass | None = None

    def install(self) -> None:
        """Take the model over; `enable` does this."""
        transformers.AttentionInterface.register(NAME, _attend)
        self._text_model.set_attn_implementation(NAME)
        for layer in self._text_model.layers:
            indexer = layer.self_attn.indexer
            if indexer is None:
                continue
            # accelerate keeps the forward that its own calls under this name.
            slot = "_old_forward" if "_old_forward" in vars(indexer) else "forward"
            self._own_forwards.append((indexer, slot, vars(indexer).get(slot)))
            setattr(indexer, slot, functools.partial(self._project, indexer))
        self._hooks = [
            self._text_model.register_forward_pre_hook(self._before, with_kwargs=True),
            self._text_model.register_forward_hook(self._after),
        ]
        if self.kl_weight:
            self._model.loss_function = self._loss
        setattr(self._text_model, _HANDLE, self)

    def remove(self) -> None:
        """Give the model back its own attention; `disable` does this."""
        for hook in self._hooks:
            hook.remove()
        for indexer, slot, forward in self._own_forwards:
            if forward is None:
                delattr(indexer, slot)
            else:
                setattr(indexer, slot, forward)
        if self.kl_weight:
            self._model.loss_function = self._own_loss
        self._text_model.set_attn_implementation(self._own_implementation)
        delattr(self._text_model, _HANDLE)

    def _before(
        self, text_model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Put the batch's documents where the text model takes ready masks, so that it makes none."""
        if args:
            kwargs = dict(zip(inspect.signature(text_model.forward).parameters, args, strict=False)) | kwargs
        config = text_model.config
        _check_options(config, kwargs)
        inputs = kwargs.get("input_ids") if kwargs.get("inputs_embeds") is None else kwargs["inputs_embeds"]
        if inputs is None:
            return (), kwargs  # transformers says so itself
        cache = kwargs.get("cache")
        if cache is None:
            cache = kwargs.get("past_key_values")  # its name before 5.24
        num_cached = 0
        if cache is not None:
            _check_cache(cache, config)
            num_cached = cache.get_seq_length()
        documents = find_documents(
            kwargs.get("attention_mask"), kwargs.get("position_ids"), inputs, num_cached
        )
        if documents.is_packed:
            if cache is not None or kwargs.get("use_cache"):
                raise ValueError(
                    f"position_ids: {len(documents.spans)} documents in {len(inputs)} rows, must be one in "
                    "each row with a cache; pack without one (use_cache=False)"
                )
            kwargs["use_cache"] = False
        self._open_pass = _Pass(documents, records_gradients=torch.is_grad_enabled())
        kwargs["attention_mask"] = {NAME: self._open_pass}
        return (), kwargs

    def _after(self, text_model: Any, args: tuple[Any, ...], output: Any) -> None:
        """Sum up the pass's KL."""
        of_pass, self._open_pass = self._open_pass, None
        assert of_pass is not None
        of_pass.is_open = False
        if self.kl_weight is not None and of_pass.index_kls:
            first = of_pass.index_kls[0]
            self.index_kl = torch.stack([kl.to(first.device) for kl in of_pass.index_kls]).sum()
        of_pass.index_kls = []

    def _project(
        self,
        indexer: Any,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        cache: Any,
        position_ids: Tensor,
    ) -> tuple[Tensor, Tensor, bool]:
        """Stand in for the indexer's forward, with index queries and keys where that returns blocks.

        The third value says whether the index is trained. Its input is cut off, as the paper has it (eq. 11).
        """
        from transformers.models.minimax_m3_vl.modeling_minimax_m3_vl import apply_rotary_pos_emb

        is_trained = self.kl_weight is not None
        with torch.set_grad_enabled(torch.is_grad_enabled() and is_trained):
            hidden_BQM, width = hidden_states.detach(), indexer.head_dim
            q_BQRE = indexer.q_norm(indexer.q_proj(hidden_BQM).unflatten(-1, (-1, width)))
            k_BQ1E = indexer.k_norm(indexer.k_proj(hidden_BQM).unflatten(-1, (1, width)))
            cos, sin = (x[..., :width] for x in position_embeddings)
            q_BRQE, k_B1QE = apply_rotary_pos_emb(q_BQRE.transpose(1, 2), k_BQ1E.transpose(1, 2), cos, sin)
        if cache is not None:
            k_B1QE = cache.layers[indexer.layer_idx].update_index(k_B1QE)
        return q_BRQE, k_B1QE, is_trained

    def _loss(
        self, logits: Tensor, labels: Tensor, vocab_size: int, num_items_in_batch: Any = None, **kwargs: Any
    ) -> Tensor:
        """Stand in for the model's loss function: adds the KL where it carries gradient.

        Under gradient accumulation transformers gives the number of targets of the whole step; the KL then
        counts by this call's share of them, as the language loss does.
        """
        loss = self._own_loss(
            logits=logits,
            labels=labels,
            vocab_size=vocab_size,
            num_items_in_batch=num_items_in_batch,
            **kwargs,
        )
        if self.index_kl is None or not self.index_kl.requires_grad:
            return loss
        share: Any = 1.0
        if num_items_in_batch is not None:
            targets = labels[..., 1:] if kwargs.get("shift_labels") is None else kwargs["shift_labels"]
            share = (targets != kwargs.get("ignore_index", -100)).sum() / num_items_in_batch
        assert self.kl_weight is not None
        return loss + (self.kl_weight * share * self.index_kl).to(loss.device, loss.dtype)


def enable(model: nn.Module, *, kl_weight: float | None = None) -> SparseAttention:
    """Give a loaded MiniMax-M3 this attention, in place, until `disable`.

    With `kl_weight` the index is trained: where the model computes a loss (it is given labels) and records
    gradients, `kl_weight` times `SparseAttention.index_kl` is in that loss. With `kl_weight=0` it is not, for
    a caller who adds `index_kl` to a loss of his own. With None the index gets no gradient, as in
    transformers.

    A row of a batch is one document; where `position_ids` restart in a row, a new one begins. Slots that
    `attention_mask` leaves out, on either side, belong to none.

    Raises:
        ValueError: for another model, an older transformers, a geometry or options that MSA does not have; a
            pass does for masks, positions and caches that do not fit.

    Example:
        >>> msa = enable(model, kl_weight=0.1)
        >>> model(input_ids=ids, labels=ids).loss.backward()
        >>> float(msa.index_kl)
    """
    text_model = _find_text_model(model)
    if hasattr(text_model, _HANDLE):
        raise ValueError("model: has this attention already; call disable(model) before enabling it anew")
    if kl_weight is not None and not 0 <= kl_weight < float("inf"):
        raise ValueError(f"kl_weight: {kl_weight}, must be None or finite and at least 0")
    config = text_model.config
    if config.index_n_heads != config.num_key_value_heads:
        raise ValueError(
            f"config.index_n_heads: {config.index_n_heads}, must be the number of KV heads, "
            f"{config.num_key_value_heads}"
        )
    if config.index_local_blocks != 1:
        raise ValueError(
            f"config.index_local_blocks: {config.index_local_blocks}, must be 1: MSA forces the own block"
        )
    indexers = [layer.self_attn.indexer for layer in text_model.layers if layer.self_attn.indexer is not None]
    if kl_weight is not None and not any(
        x.requires_grad for indexer in indexers for x in indexer.parameters()
    ):
        raise ValueError(
            f"kl_weight: {kl_weight}, must be None: no parameter of {len(indexers)} indexers requires a "
            "gradient"
        )
    attention = SparseAttention(model, text_model, kl_weight)
    attention.install()
    return attention


def disable(model: nn.Module) -> None:
    """Give the model back the attention that it had before `enable`.

    Raises:
        ValueError: for a model that was not enabled.
    """
    attention = getattr(_find_text_model(model), _HANDLE, None)
    if attention is None:
        raise ValueError("model: does not have this attention; call enable(model) first")
    attention.remove()


def _find_text_model(model: nn.Module) -> Any:
    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    if version < OLDEST:
        raise ValueError(
            f"transformers: version {transformers.__version__}, must be at least {'.'.join(map(str, OLDEST))}"
        )
    from transformers.models.minimax_m3_vl import modeling_minimax_m3_vl as m3

    if isinstance(model, m3.MiniMaxM3SparseForConditionalGeneration):
        return model.model.language_model
    if isinstance(model, m3.MiniMaxM3VLForCausalLM):
        return model.model
    raise ValueError(
        f"model: {type(model).__name__}, must be a MiniMaxM3SparseForConditionalGeneration or a "
        "MiniMaxM3VLForCausalLM"
    )


def _check_options(config: Any, kwargs: dict[str, Any]) -> None:
    """Refuse what a pass asks for and would not get."""
    if config._attn_implementation != NAME:
        raise ValueError(
            f"attn_implementation: {config._attn_implementation!r}, set since enable(model); call "
            "disable(model) before setting another"
        )
    asked = kwargs.get("output_attentions")
    if config.output_attentions if asked is None else asked:
        raise ValueError(
            "output_attentions: True, must be False: the probabilities of sparse attention are never held"
        )
    if not kwargs.get("is_causal", getattr(config, "is_causal", True)):
        raise ValueError("is_causal: False, must be True: the blocks of MSA are chosen among earlier ones")


def _check_cache(cache: Any, config: Any) -> None:
    """Accept the cache that transformers makes by default: it grows, in memory, and has the index's keys."""
    from transformers.cache_utils import DynamicCache, DynamicLayer
    from transformers.models.minimax_m3_vl.modeling_minimax_m3_vl import MiniMaxM3VLSparseCacheLayer

    if type(cache) is not DynamicCache:
        raise ValueError(f"cache: {type(cache).__name__}, must be a DynamicCache (or None)")
    if cache.offloading:
        raise ValueError("cache: a DynamicCache with offloading=True, must be one without")
    sparse, dense = MiniMaxM3VLSparseCacheLayer, DynamicLayer
    wanted = [sparse if kind == "minimax_m3_sparse" else dense for kind in config.layer_types]
    found = [type(layer) for layer in cache.layers]
    if found != wanted[: config.num_hidden_layers]:
        names = sorted({kind.__name__ for kind in found}) or "none"
        raise ValueError(
            f"cache: a DynamicCache of {len(found)} layers ({names}), must be made for this model, with its "
            "index keys: DynamicCache(config=model.config)"
        )


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    dropout: float = 0.0,
    block_indices: tuple[Tensor, Tensor, bool] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Be transformers' attention interface: [B, H, Q, D] and [B, R, S, D] to [B, Q, H, D]."""
    if not isinstance(attention_mask, _Pass):
        raise ValueError(
            f"attention_mask: a {type(attention_mask).__name__}; call the model, not its layers: it finds "
            "the documents"
        )
    if dropout:
        raise ValueError(f"config.attention_dropout: {dropout}, must be 0 in training")
    of_pass, documents = attention_mask, attention_mask.documents
    query, key = query.to(value.dtype), key.to(value.dtype)  # wider under autocast: rotation is not autocast
    records_gradients = torch.is_grad_enabled() and query.requires_grad
    if block_indices is None:
        q_THD, k_LRD, v_LRD = documents.pack(query, key, value)
        return documents.unpack(_attend_dense(q_THD, k_LRD, v_LRD, documents.spans), len(query)), None
    index_q, index_k, is_trained = block_indices
    index_q, index_k = index_q.to(value.dtype), index_k.to(value.dtype)
    sizes: dict[str, Any] = {"block_size": module.indexer.block_size, "top_k": module.indexer.topk_blocks}
    if documents.is_decoding and not records_gradients:
        return _decode(documents, query, key, value, index_q, index_k, sizes), None
    if is_trained and of_pass.records_gradients and not torch.is_grad_enabled():
        raise ValueError(
            "use_reentrant: True, under which checkpointing loses the gradients of the index; call "
            "model.activation_checkpointing_enable({'use_reentrant': False})"
        )
    q_THD, k_LRD, v_LRD = documents.pack(query, key, value)
    if not len(q_THD):
        return documents.unpack(q_THD, len(query)), None
    index_q_TRE, index_k_L1E = documents.pack(index_q, index_k)
    cu_seqlens, cu_seqlens_k = (
        torch.tensor([0, *(span[end] for span in documents.spans)], dtype=torch.int32, device=query.device)
        for end in (1, 3)
    )
    result = msa_attention(
        q_THD, k_LRD, v_LRD, index_q_TRE, index_k_L1E[:, 0], cu_seqlens, cu_seqlens_k=cu_seqlens_k, **sizes
    )
    if is_trained and of_pass.is_open:
        of_pass.index_kls.append(result.index_kl)
    return documents.unpack(result.out, len(query)), None


def _attend_dense(
    q_THD: Tensor, k_LRD: Tensor, v_LRD: Tensor, spans: list[tuple[int, int, int, int]]
) -> Tensor:
    """Attend causally within each document, in memory linear in its length."""
    attend = functools.partial(F.scaled_dot_product_attention, enable_gqa=True)
    parts = [q_THD[:0]]
    for start, end, start_k, end_k in spans:
        q_1HnD, k_1RnD, v_1RnD = (
            x.transpose(0, 1)[None] for x in (q_THD[start:end], k_LRD[start_k:end_k], v_LRD[start_k:end_k])
        )
        num_before = end_k - start_k - (end - start)
        if not num_before:
            parts.append(attend(q_1HnD, k_1RnD, v_1RnD, is_causal=True)[0].transpose(0, 1))
            continue
        for first in range(0, end - start, CHUNK_QUERIES):
            chunk_1HCD = q_1HnD[:, :, first : first + CHUNK_QUERIES]
            num_queries, seen = chunk_1HCD.shape[2], num_before + first + chunk_1HCD.shape[2]
            mask = q_THD.new_ones(num_queries, seen, dtype=torch.bool).tril(seen - num_queries)
            out_1HCD = attend(chunk_1HCD, k_1RnD[:, :, :seen], v_1RnD[:, :, :seen], attn_mask=mask)
            parts.append(out_1HCD[0].transpose(0, 1))
    return torch.cat(parts)


def _decode(
    documents: Documents,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    index_q: Tensor,
    index_k: Tensor,
    sizes: dict[str, Any],
) -> Tensor:
    """Attend from the one new token of each row [B, 1, H, D]; what is left out becomes pages not read."""
    num_rows, num_slots, device = len(query), key.shape[2], query.device
    q_BHD, index_q_BRE = query[:, :, 0], index_q[:, :, 0]
    caches = key.transpose(1, 2), value.transpose(1, 2), index_k[:, 0]
    if documents.key_slots_L is None:
        lengths = torch.full((num_rows,), num_slots, dtype=torch.int32, device=device)
        return msa_decode(q_BHD, *caches[:2], index_q_BRE, caches[2], lengths, **sizes).out[:, None]
    outs = []
    for row, (_, _, start, end) in enumerate(documents.spans):
        table = (documents.key_slots_L[start:end].to(device) - row * num_slots).int()[None]
        k_pages, v_pages, index_k_pages = (x[row, :, None] for x in caches)
        lengths = torch.tensor([end - start], dtype=torch.int32, device=device)
        result = msa_decode(
            q_BHD[row, None],
            k_pages,
            v_pages,
            index_q_BRE[row, None],
            index_k_pages,
            lengths,
            block_table=table,
            **sizes,
        )
        outs.append(result.out)
    return torch.cat(outs)[:, None]
