"""The noise floor: how much two runs of one configuration differ, and what exceeds that."""

from moeinspect.analysis.compare.floor.judge import FloorVerdict, judge
from moeinspect.analysis.compare.floor.measure import NoiseFloor, measure_floor

__all__ = ["FloorVerdict", "NoiseFloor", "judge", "measure_floor"]
