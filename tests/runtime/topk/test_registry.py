"""Backends of installed distributions are found by entry point; a broken one is named by its distribution."""

import subprocess
import sys

import pytest

from moeinspect.errors import EngineError, UsageError
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.engine import LocalRuntime
from moeinspect.runtime.records import PromptRequest
from moeinspect.runtime.topk.config import TopKConfig
from moeinspect.runtime.topk.conformance import ConformanceError, check_backend
from moeinspect.runtime.topk.names import check_backend_name, known_backends
from moeinspect.runtime.topk.registry import create_backend

GOOD = """
from moeinspect.runtime.topk.torch_backend import TorchTopK

class Mine(TorchTopK):
    name = "mine"
"""

FORGETFUL = """
from moeinspect.runtime.topk.config import TopKConfig
from moeinspect.runtime.topk.torch_backend import TorchTopK

class Mine(TorchTopK):
    def __init__(self, config, layer_id):
        super().__init__(TopKConfig(config.top_k, config.renormalize), layer_id)
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Puts a distribution with one top-k backend on the path, as `pip install` would."""
    monkeypatch.syspath_prepend(tmp_path)

    def put(code, *, name="mine", module="outside_backend", dist="outside", value="Mine"):
        (tmp_path / f"{module}.py").write_text(code)
        info = tmp_path / f"{dist}-2.1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: 2.1\n")
        (info / "entry_points.txt").write_text(f"[moeinspect.topk_backends]\n{name} = {module}:{value}\n")
        monkeypatch.delitem(sys.modules, module, raising=False)

    yield put
    for module in ("outside_backend", "other_backend"):
        sys.modules.pop(module, None)


def test_an_outside_backend_runs_under_its_name_and_conforms(install):
    install(GOOD)
    check_backend_name("mine")
    assert "mine" in known_backends()
    check_backend("mine")
    prompt = PromptRequest("r", (5, 6, 7), 4)
    seen = []
    for backend in ("mine", "torch"):
        with LocalRuntime(RunConfig(backend=backend)) as runtime:
            seen.append(next(iter(runtime.generate([prompt]))).expert_ids.tolist())
    assert seen[0] == seen[1]


def test_an_installed_backend_that_forgets_the_opt_out_fails_the_check(install):
    install(FORGETFUL)
    with pytest.raises(ConformanceError, match=r"top-k backend mine: 1 of .*\n- honours-the-opt-out"):
        check_backend("mine")


@pytest.mark.parametrize(
    ("code", "value", "problem"),
    [
        ("import no_such_module", "Mine", "cannot be imported: ModuleNotFoundError: No module named"),
        ("1 / 0", "Mine", "cannot be imported: ZeroDivisionError"),
        ("", "Mine", "cannot be imported: AttributeError"),
        ("class Mine: pass", "Mine", "is not a top-k backend"),
        ("def Mine(): pass", "Mine", "is not a top-k backend"),
    ],
)
def test_a_broken_entry_point_is_named_with_its_distribution(install, code, value, problem):
    install(code, value=value)
    with pytest.raises(UsageError) as caught:
        create_backend("mine", TopKConfig(4), 0)
    assert str(caught.value).startswith("--backend mine: outside_backend:Mine of outside 2.1 " + problem)


@pytest.mark.parametrize(
    "code",
    [
        GOOD + "    def __init__(self, *_):\n        raise OSError('no device')\n",
        GOOD.replace("TorchTopK):", "MoEBackend):").replace(
            "torch_backend import TorchTopK", "backend import MoEBackend"
        ),
    ],
    ids=["raises", "abstract"],
)
def test_a_backend_that_cannot_be_initialised_is_named_with_its_distribution(install, code):
    install(code)
    with pytest.raises(EngineError, match=r"mine: .*:Mine of outside 2\.1 cannot be initialised"):
        create_backend("mine", TopKConfig(4), 0)


def test_a_name_that_is_taken_is_refused_with_both_owners(install):
    install(GOOD, name="torch")
    with pytest.raises(UsageError, match=r"moeinspect and outside 2\.1 both have a top-k backend"):
        check_backend_name("torch")
    check_backend_name("triton")


def test_two_distributions_with_one_name_are_refused(install):
    install(GOOD)
    install(GOOD, module="other_backend", dist="rival")
    with pytest.raises(UsageError, match=r"outside 2\.1 and rival 2\.1 both have"):
        create_backend("mine", TopKConfig(4), 0)


def test_an_unknown_backend_is_refused_with_the_known_ones(install):
    install(GOOD)
    with pytest.raises(UsageError, match=r"--backend cutlass: no such top-k backend; known: .*bypass, mine"):
        create_backend("cutlass", TopKConfig(4), 0)


def test_names_are_checked_without_torch_and_without_importing_the_backend(install, tmp_path):
    install("raise SystemExit(3)")
    code = (
        "import sys; from moeinspect.runtime.topk.names import check_backend_name\n"
        "check_backend_name('mine'); sys.exit('torch' in sys.modules)"
    )
    env = {"PYTHONPATH": f"{tmp_path}:{':'.join(sys.path)}"}
    assert subprocess.run([sys.executable, "-c", code], env=env).returncode == 0
