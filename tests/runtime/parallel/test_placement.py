"""Redundant experts over ranks: one placement everywhere, agreed on without a word; weights follow it."""

import torch
from rank_harness import Serving, draw_steps, give_threads_capturers, on_ranks, run_rank

from moeinspect.runtime.layers.placement import ExpertOptions, LayerPlacement
from moeinspect.runtime.models.builtin import open_builtin
from moeinspect.runtime.parallel.layout import RankLayout

NAME = "builtin:random-shared"


class Kept(Serving):
    """Remembers the model of each rank."""

    def load(self, ranks=None):
        runner, capturer = super().load(ranks)
        self.models[ranks.rank] = runner.model
        return runner, capturer


def test_all_ranks_place_alike_and_weights_cross_between_them(tmp_path, monkeypatch):
    give_threads_capturers(monkeypatch)
    layout = RankLayout(dp=3, tp=1, pp=2)
    serving = Kept(NAME, experts=ExpertOptions(redundant=6, rebalance_interval=3, fuse_shared=True))
    serving.models = [None] * layout.size
    steps = draw_steps(256, layout.dp, seed=1)
    assert len(steps) >= 3
    on_ranks(layout, tmp_path, lambda ranks: run_rank(serving, ranks, steps))
    _, weights = open_builtin(NAME)
    first, crossed = LayerPlacement(32, [13, 13, 13], 1).expert_of_slot.tolist(), 0
    for stage in range(layout.pp):
        ranks = [serving.models[rank] for rank in range(layout.size) if layout.place(rank).pp == stage]
        layer_ids = [layer.layer_id for layer in ranks[0].layers_with_topk()]
        for i, layer in enumerate(layer_ids):
            placed = [model.placement._layers[i] for model in ranks]
            experts = placed[0].placement.expert_of_slot.tolist()
            assert len(experts) == 32 + 6 + 1
            assert all(one.placement.expert_of_slot.tolist() == experts for one in placed)
            held = torch.cat([one._slots.held.down for one in placed])
            names = ["shared_experts" if e == 32 else f"experts.{e}" for e in experts]
            for slot, name in enumerate(names):
                want = weights.tensor(f"model.layers.{layer}.mlp.{name}.down_proj.weight").float()
                assert torch.equal(held[slot], want), (layer, slot)
            crossed += set(experts[:13]) != set(first[:13])
    assert crossed == 5
