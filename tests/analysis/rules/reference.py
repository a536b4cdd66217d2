"""The exact rules once more, as plain loops over a trace: slow, and written from the rule table alone."""

from __future__ import annotations

from collections.abc import Iterator

from moeinspect.trace.schema import Trace, Validity

Cell = tuple[int, int]
"""Row of the file and absolute layer."""
Found = tuple[str, str, tuple[int, int], tuple[int, ...], int]
"""Rule, request, rows, layers, count."""


def expected_findings(trace: Trace) -> set[Found]:
    """What the rules on presence, range, zeros and duplicates must find."""
    found = set(presence(trace))
    rule_of = cell_rules(trace)
    for request in range(len(trace.requests)):
        rows = trace.row_range(request)
        for rule in ("id-out-of-range", "partial-sentinel", "zero-layers", "zero-rows", "duplicate-experts"):
            layers_of = [
                tuple(layer for layer in trace.model.moe_layers if rule_of.get((row, layer)) == rule)
                for row in range(rows.start, rows.stop)
            ]
            for first, last in runs(layers_of):
                layers = layers_of[first]
                name = str(trace.requests.id[request])
                found.add((rule, name, (first, last), layers, (last - first) * len(layers)))
    return found


def runs(values: list[tuple[int, ...]]) -> Iterator[tuple[int, int]]:
    first = 0
    for i in range(1, len(values) + 1):
        if i == len(values) or values[i] != values[first]:
            if values[first]:
                yield first, i
            first = i


def presence(trace: Trace) -> Iterator[Found]:
    requests = trace.requests
    for i in range(len(requests)):
        name, have = str(requests.id[i]), int(requests.num_rows[i])
        fed = int(requests.prompt_len[i]) + int(requests.output_len[i]) - 1 - int(requests.start_pos[i])
        rows = trace.row_range(i)
        missing = all(v == Validity.MISSING for v in trace.rows.validity[rows])
        if fed > 0 and missing:
            yield "missing-request", name, (0, fed), (), fed
        elif have < fed:
            yield "missing-rows", name, (have, fed), (), fed - have
        elif have > fed:
            yield "surplus-rows", name, (fed, have), (), have - fed


def cell_rules(trace: Trace) -> dict[Cell, str]:
    """The first rule that fits each cell."""
    rule_of: dict[Cell, str] = {}
    K, E, model = trace.model.top_k, trace.model.num_experts, trace.model
    places = {int(layer): place for place, layer in enumerate(trace.axis_layers())}
    judged = [layer for layer in model.moe_layers if layer not in model.capture_exempt_layers]
    for i in range(len(trace.requests)):
        checked = list(checked_rows(trace, i))
        for row in checked:
            ids = {layer: original_ids(trace, row, layer, places[layer]) for layer in model.moe_layers}
            sentinels = {layer: [is_sentinel(trace, v) for v in ids[layer]] for layer in ids}
            wrong = {
                layer: [not s and not 0 <= v < E for v, s in zip(ids[layer], sentinels[layer], strict=True)]
                for layer in ids
            }
            real = any(not s and not w for x in judged for s, w in zip(sentinels[x], wrong[x], strict=True))
            odd = any(any(sentinels[x]) or any(wrong[x]) for x in ids)
            for layer in ids:
                absent = any(sentinels[layer]) and layer in judged
                bad = any(wrong[layer]) or (absent and not real)
                bad |= trace.rows.validity[row] == Validity.INVALID and not odd
                if bad:
                    rule_of[row, layer] = "id-out-of-range"
                elif absent:
                    rule_of[row, layer] = "partial-sentinel"
        if K < 2:
            continue
        for layer in judged:
            cells = {row: original_ids(trace, row, layer, places[layer]) for row in checked}
            zero = [row for row in checked if not any(cells[row])]
            for row in zero:
                rule_of.setdefault((row, layer), "zero-layers" if zero == checked else "zero-rows")
            for row in checked:
                if (row, layer) not in rule_of and len(set(cells[row])) < K:
                    rule_of[row, layer] = "duplicate-experts"
    return rule_of


def checked_rows(trace: Trace, request: int) -> Iterator[int]:
    requests = trace.requests
    fed = int(requests.prompt_len[request]) + int(requests.output_len[request]) - 1
    for index in range(int(requests.num_rows[request])):
        row = int(requests.row_start[request]) + index
        if trace.rows.validity[row] in (Validity.MISSING, Validity.FILLER):
            continue
        if int(requests.start_pos[request]) + index < fed:
            yield row


def original_ids(trace: Trace, row: int, layer: int, place: int) -> list[int]:
    ids = [int(v) for v in trace.rows.expert_ids[row, place]]
    cells = trace.rows.invalid_cells
    for i in range(len(cells.row)):
        if cells.row[i] == row and cells.layer[i] == layer:
            ids[int(cells.slot[i])] = int(cells.value[i])
    return ids


def is_sentinel(trace: Trace, value: int) -> bool:
    return value == -1 or (value == trace.model.sentinel and value >= trace.model.num_experts)
