"""Direct forwards of a model in tests: batches by hand, and what its routers chose."""

from pathlib import Path

import torch

from moeinspect.runtime.forward_batch import ForwardBatch, ForwardMode
from moeinspect.runtime.memory.kv_cache import KVCache, KVShape
from moeinspect.runtime.models.loader import load_model

torch.set_num_threads(1)

ORACLE = Path(__file__).parent / "data" / "oracle"


def load(name="builtin:random", dtype=torch.float32, deterministic=True, backend="torch"):
    model = load_model(str(name), dtype=dtype, deterministic=deterministic)
    model.init_topk_backend(backend)
    return model


def make_kv(model, num_slots=1024, fill=None):
    config = model.config
    shape = KVShape(
        config.num_hidden_layers, num_slots, config.num_key_value_heads, config.head_dim, model.dtype
    )
    kv = KVCache(shape)
    if fill is not None:
        kv.data.fill_(fill)
        kv.data[:, :, 0] = 0
    return kv


def make_batch(parts, mode=ForwardMode.PREFILL, table_width=None):
    """A batch of `parts`: (tokens to feed, position of the first, KV slots of all positions so far)."""
    width = table_width or max(len(slots) for _, _, slots in parts)
    table = torch.zeros(len(parts), width, dtype=torch.int64)
    tokens, positions, out_slots, owner = [], [], [], []
    for i, (ids, start, slots) in enumerate(parts):
        tokens += ids
        positions += range(start, start + len(ids))
        out_slots += slots[start : start + len(ids)]
        owner += [i] * len(ids)
        table[i, : len(slots)] = torch.tensor(slots)
    return ForwardBatch(
        mode=mode,
        input_ids=torch.tensor(tokens),
        positions=torch.tensor(positions),
        out_slots=torch.tensor(out_slots),
        row_request=torch.tensor(owner),
        extend_lens=tuple(len(ids) for ids, _, _ in parts),
        slot_table=table,
        logit_rows=torch.arange(len(tokens)),
    )


class RoutingProbe:
    """Notes what the MoE layers of a model chose in its last forward."""

    def __init__(self, model):
        self._last = {}
        for layer in model.layers_with_topk():
            self._watch(layer)

    def _watch(self, layer):
        select = layer._topk.select

        def probed(router_logits, *token_ids):
            chosen = select(router_logits, *token_ids)
            self._last[layer.layer_id] = (chosen.ids, chosen.weights, router_logits.float())
            return chosen

        layer._topk.select = probed

    def rows(self):
        """Ids [N, L, K], weights [N, L, K] and router logits [N, L, E] of the last forward."""
        layers = [self._last[i] for i in sorted(self._last)]
        return tuple(torch.stack(values, dim=1) for values in zip(*layers, strict=True))


def run_alone(model, probe, tokens, num_slots=1024):
    """Logits and routing of one request, computed in one chunk."""
    kv = make_kv(model, num_slots)
    logits = model.forward(make_batch([(list(tokens), 0, list(range(1, 1 + len(tokens))))]), kv)
    return logits, *probe.rows()


def bits(tensor):
    """The bit patterns of float values, so that comparing them knows no tolerance, and NaN equals NaN."""
    return tensor.contiguous().view(torch.int32) if tensor.is_floating_point() else tensor
