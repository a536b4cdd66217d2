import torch
from hypothesis import given
from hypothesis import strategies as st

from moeinspect.runtime.spec.verify import accept_matching


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 2), min_size=4, max_size=4),
            st.lists(st.integers(0, 2), min_size=5, max_size=5),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_accepted_is_the_longest_prefix_that_equals_the_targets_own_tokens(cases):
    drafts = torch.tensor([draft for draft, _ in cases])
    sampled = torch.tensor([tokens for _, tokens in cases])
    expected = []
    for draft, tokens in cases:
        n = 0
        while n < 4 and draft[n] == tokens[n]:
            n += 1
        expected.append(n)
    assert accept_matching(drafts, sampled).tolist() == expected
