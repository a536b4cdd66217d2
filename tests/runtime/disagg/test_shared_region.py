import multiprocessing

from moeinspect.runtime.disagg.shared_region import SharedRegion


def fill(region, done):
    region.tensor()[3:5] = 7
    done.send(True)


def test_two_processes_see_the_same_bytes():
    context = multiprocessing.get_context("forkserver")
    region = SharedRegion(16)
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=fill, args=(region, writer))
    process.start()
    assert reader.poll(30)
    assert region.tensor().tolist() == [0, 0, 0, 7, 7] + [0] * 11
    process.join()


def test_tensors_outlive_the_handle():
    region = SharedRegion(8)
    view = region.tensor()
    region.close()
    view[0] = 1
    assert region.tensor()[0] == 1
