"""While workers start, the user may press Ctrl-C or the main process may go away."""

import subprocess
import sys


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


def test_interrupts_stay_held_though_the_resource_tracker_lets_them_in_when_it_starts():
    done = python(
        "import signal\n"
        "from multiprocessing import resource_tracker\n"
        "from moeinspect.runtime.disagg.worker_group import _interrupts_held\n"
        "with _interrupts_held():\n"
        "    resource_tracker.ensure_running()\n"
        "    print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))\n"
    )
    assert done.stdout == "True\n", done.stderr


def test_a_worker_that_gets_ready_ends_when_the_balancer_is_gone():
    done = python(
        "import time\n"
        "from multiprocessing import Pipe\n"
        "from moeinspect.runtime.disagg.worker_process import _ends_with\n"
        "ours, theirs = Pipe()\n"
        "ours.close()\n"
        "with _ends_with(theirs):\n"
        "    time.sleep(50)\n"
        "print('waited')\n"
    )
    assert (done.returncode, done.stdout) == (1, ""), done.stderr


def test_a_worker_that_is_ready_lives_on():
    done = python(
        "import time\n"
        "from multiprocessing import Pipe\n"
        "from moeinspect.runtime.disagg.worker_process import _ends_with\n"
        "ours, theirs = Pipe()\n"
        "with _ends_with(theirs):\n"
        "    pass\n"
        "ours.send('work')\n"
        "time.sleep(0.5)\n"
        "print(theirs.recv())\n"
    )
    assert done.stdout == "work\n", done.stderr
