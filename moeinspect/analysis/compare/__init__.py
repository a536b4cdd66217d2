"""Comparison of two traces, cell by cell."""

from moeinspect.analysis.compare.comparison import Comparison, compare
from moeinspect.analysis.compare.diff import diff_report

__all__ = ["Comparison", "compare", "diff_report"]
