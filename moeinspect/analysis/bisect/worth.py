"""Whether a bisection would tell more of a difference than its report does."""

from __future__ import annotations

from moeinspect.analysis.diagnose.evidence import SURE
from moeinspect.analysis.findings import Report
from moeinspect.analysis.requests import is_imported
from moeinspect.trace.schema import Trace


def worth_bisecting(trace: Trace, report: Report) -> bool:
    """Whether `trace`, the first input of `report`, is one that can run again, with its cause in doubt.

    In doubt: no cause, `unknown`, names that these data cannot tell apart, or a low confidence.
    """
    if not report.differs or is_imported(trace) or trace.run.run_config.get("target_only") is not False:
        return False
    if not any(one.severity != "note" and one.input != 1 for one in report.findings):
        return False
    best = report.diagnoses[0] if report.diagnoses else None
    return best is None or best.cause == "unknown" or "|" in best.cause or best.confidence < SURE
