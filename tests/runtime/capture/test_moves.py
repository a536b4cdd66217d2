import torch

from moeinspect.runtime.capture.capturer import CaptureShape, RoutedExpertsCapturer

SHAPE = CaptureShape((0,), 2, 16, 8, 16, with_weights=True, with_margins=True)


def forward(capturer, slots):
    """A captured forward whose row i has i + 1 everywhere."""
    n = len(slots)
    for tensor in capturer.device_buffer.tensors():
        tensor[:n] = torch.arange(1, n + 1).view(n, *[1] * (tensor.dim() - 1)).expand_as(tensor[:n])
    return capturer.on_forward_end(torch.tensor(slots))


def stored(capturer, slots):
    return [tensor.flatten(1)[:, 0].tolist() for tensor in capturer.rows_of(torch.tensor(slots))]


def test_rows_move_with_their_kv_after_they_are_stored():
    capturer = RoutedExpertsCapturer(SHAPE)
    output = forward(capturer, [3, 4, 5, 6])
    output.move(torch.tensor([3, 6]), torch.tensor([3, 4]))
    assert stored(capturer, [3, 4]) == [[0, 0]] * 3
    output.copy_to_host()
    output.finalize()
    assert stored(capturer, [3, 4, 5, 6]) == [[1, 4, 3, 4]] * 3


def test_rows_that_are_stored_already_move_at_once():
    capturer = RoutedExpertsCapturer(SHAPE)
    output = forward(capturer, [3, 4, 5])
    output.copy_to_host()
    output.finalize()
    output.move(torch.tensor([4, 5]), torch.tensor([3, 4]))
    assert stored(capturer, [3, 4, 5]) == [[2, 3, 3]] * 3
