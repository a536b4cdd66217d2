"""While workers start, the user may press Ctrl-C or the main process may go away."""

import subprocess
import sys


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


def test_interrupts_stay_held_though_the_resource_tracker_lets_them_in_when_it_starts():
    done = python(
        "import signal\n"
        "from multiprocessing import resource_tracker\n"
        "from moeinspect.runtime.processes.forked import _interrupts_held\n"
        "with _interrupts_held():\n"
        "    resource_tracker.ensure_running()\n"
        "    print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))\n"
    )
    assert done.stdout == "True\n", done.stderr


def test_a_worker_that_waits_for_others_ends_when_its_main_process_is_gone():
    done = python(
        "import time\n"
        "from multiprocessing import Pipe\n"
        "from moeinspect.runtime.processes import heartbeat\n"
        "heartbeat.ORPHAN_GRACE_S = 0.1\n"
        "theirs, ours = Pipe(duplex=False)\n"
        "theirs.close()\n"
        "with heartbeat.beating(ours):\n"
        "    time.sleep(50)\n"
        "print('waited')\n"
    )
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
