from moeinspect.runtime.spec.draft_length import AdaptiveLength, DraftLength


def test_a_fixed_length_never_changes():
    length = DraftLength(4)
    for _ in range(50):
        length.observe([0, 0])
    assert length.current == 4


def test_an_adaptive_length_follows_what_is_accepted_down_and_up_within_its_bounds():
    length = AdaptiveLength(7)
    assert length.current == 7
    for _ in range(60):
        length.observe([0, 0, 0])
    assert length.current == 1
    for _ in range(60):
        length.observe([3, 1])
    assert length.current == 3
    for _ in range(200):
        length.observe([9])
    assert length.current == 7


def test_an_adaptive_length_holds_still_while_it_warms_up_and_between_updates():
    length = AdaptiveLength(7, update_interval=5, warmup=10)
    lengths = []
    for _ in range(30):
        length.observe([0])
        lengths.append(length.current)
    assert set(lengths[:14]) == {7}
    changes = [i + 1 for i in range(1, 30) if lengths[i] != lengths[i - 1]]
    assert changes and all(step % 5 == 0 for step in changes)


def test_a_step_without_requests_is_not_an_observation():
    length = AdaptiveLength(2, update_interval=1, warmup=0)
    for _ in range(20):
        length.observe([])
    assert length.current == 2
