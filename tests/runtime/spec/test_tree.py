import itertools
import random

import pytest
import torch

from moeinspect.runtime.spec.tree import TreeShape, best_children
from moeinspect.runtime.spec.verify import accept_path

SHAPES = [(1, 2), (4, 2), (5, 2), (8, 3), (3, 8), (6, 6), (7, 1)]


def random_parents(shape, rng):
    return [rng.choice(shape.level(shape.node_depths[node] - 1)) for node in range(1, shape.num_nodes + 1)]


def path_by_hand(node, parents):
    path = [node]
    while path[0]:
        path.insert(0, parents[path[0] - 1])
    return path


@pytest.mark.parametrize("num_nodes, width", SHAPES)
def test_a_tree_has_all_its_nodes_in_as_few_levels_as_its_width_allows(num_nodes, width):
    shape = TreeShape(num_nodes, width)
    assert shape.depth == -(-num_nodes // width)
    nodes = [node for depth in range(shape.depth + 1) for node in shape.level(depth)]
    assert nodes == list(range(num_nodes + 1))
    assert all(node in shape.level(depth) for node, depth in enumerate(shape.node_depths))
    assert max(len(shape.level(depth)) for depth in range(shape.depth + 1)) <= width


@pytest.mark.parametrize("num_nodes, width", SHAPES)
def test_paths_lead_from_the_root_over_parents_and_end_in_the_node(num_nodes, width):
    shape, rng = TreeShape(num_nodes, width), random.Random(num_nodes)
    parents = [random_parents(shape, rng) for _ in range(5)]
    for request, paths in enumerate(shape.paths(torch.tensor(parents)).tolist()):
        for node, path in enumerate(paths):
            want = path_by_hand(node, parents[request])
            assert path == want + [node] * (shape.depth + 1 - len(want))


@pytest.mark.parametrize("num_nodes, width", SHAPES)
def test_the_deepest_node_whose_path_the_target_samples_is_accepted(num_nodes, width):
    shape, rng = TreeShape(num_nodes, width), random.Random(num_nodes)
    B = 200
    parents = [random_parents(shape, rng) for _ in range(B)]
    tokens = [[rng.randrange(2) for _ in range(num_nodes)] for _ in range(B)]
    sampled = [[rng.randrange(2) for _ in range(num_nodes + 1)] for _ in range(B)]
    best, depths = accept_path(torch.tensor(tokens), torch.tensor(parents), shape, torch.tensor(sampled))
    for b in range(B):
        accepted = [0]
        for node in range(1, num_nodes + 1):
            path = path_by_hand(node, parents[b])
            if all(tokens[b][n - 1] == sampled[b][p] for p, n in itertools.pairwise(path)):
                accepted.append(node)
        deepest = max(shape.node_depths[node] for node in accepted)
        assert depths[b] == deepest
        assert best[b] == next(node for node in accepted if shape.node_depths[node] == deepest)


def test_the_best_children_are_those_of_the_likeliest_paths():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(3, 2, generator=generator, dtype=torch.float64)
    values = torch.randn(3, 2, 7, generator=generator, dtype=torch.float64)
    chosen = best_children(scores, values, 4)
    for b in range(3):
        paths = [
            (float(scores[b, parent] + torch.log_softmax(values[b, parent], 0)[token]), parent, token)
            for parent in range(2)
            for token in range(7)
        ]
        want = sorted(paths, reverse=True)[:4]
        assert chosen.parents[b].tolist() == [parent for _, parent, _ in want]
        assert chosen.tokens[b].tolist() == [token for _, _, token in want]
        assert chosen.scores[b].tolist() == pytest.approx([score for score, _, _ in want])
