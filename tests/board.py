"""Pages that show what a dashboard of Grafana's and the alerts show, drawn from what Prometheus answers."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

Series = Sequence[Mapping[str, Any]]
"""What Prometheus calls a matrix: `metric`, and `values`, pairs of a time and a number's text."""
_CELL = 46
"""Pixels of one of the 24 columns of a dashboard; a row has 26."""
_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf")
_STYLE = (
    "body{font:12px sans-serif;margin:8px;background:#f4f5f5;color:#222}"
    ".panel{position:absolute;background:#fff;border:1px solid #ddd;box-sizing:border-box;padding:6px}"
    "b{font-size:13px}td,th{padding:4px 10px;text-align:left;border-bottom:1px solid #ddd;vertical-align:top}"
    "table{border-collapse:collapse;background:#fff;width:100%}.firing{color:#c00;font-weight:bold}.pending{color:#a60}"
)


def page(body: str) -> str:
    """A page with this in it."""
    return f'<!doctype html><meta charset="utf-8"><style>{_STYLE}</style><body>{body}'


def dashboard(board: Mapping[str, Any], found: Mapping[int, Sequence[Series]]) -> str:
    """The page of a dashboard. `found`: what each query of a panel gave, by the panel's id."""
    return page("".join(_panel(panel, found[panel["id"]]) for panel in board["panels"]))


def alerts(groups: Sequence[Mapping[str, Any]]) -> str:
    """The page of what Prometheus says of its rules: those that fire first."""
    order = {"firing": 0, "pending": 1, "inactive": 2}
    rules = sorted((rule for group in groups for rule in group["rules"]), key=lambda rule: order[rule["state"]])
    lines = [
        f'<tr><td class="{rule["state"]}">{rule["state"]}<td>{html.escape(rule["name"])}<td><code>'
        f"{html.escape(rule['query'])}</code><td>"
        + "<br>".join(html.escape(alert["annotations"]["summary"]) for alert in rule["alerts"])
        for rule in rules
    ]
    return page(f"<table><tr><th>State<th>Alert<th>When<th>What it says{''.join(lines)}</table>")


def _panel(panel: Mapping[str, Any], found: Sequence[Series]) -> str:
    at = panel["gridPos"]
    width, height = at["w"] * _CELL - 8, at["h"] * 26 - 8
    where = f"left:{at['x'] * _CELL + 8}px;top:{at['y'] * 26 + 8}px;width:{width}px;height:{height}px"
    series = [one for answer in found for one in answer]
    unit = panel["fieldConfig"]["defaults"].get("unit", "short")
    if panel["type"] == "timeseries":
        body = _chart(series, unit, width - 14, height - 50)
    else:
        now = max((one["values"][-1][0] for one in series if one["values"]), default=0)
        last = [(_label(one), one["values"][-1][1]) for one in series if one["values"] and one["values"][-1][0] == now]
        body = "".join(f"<p>{html.escape(name)} {value}" for name, value in last)
    return f'<div class="panel" style="{where}"><b>{html.escape(panel["title"])}</b>{body}</div>'


def _chart(series: Series, unit: str, width: int, height: int) -> str:
    points = [[(float(at), float(value)) for at, value in one["values"]] for one in series]
    points = [[(at, value) for at, value in line if math.isfinite(value)] for line in points]
    times = [at for line in points for at, _ in line]
    if not times:
        return "<p>no data"
    start, length = min(times), max(max(times) - min(times), 1.0)
    top = max(value for line in points for _, value in line) or 1.0
    drawn = "".join(
        f'<polyline fill="none" stroke="{_COLOURS[n % len(_COLOURS)]}" stroke-width="1.5" points="'
        + " ".join(f"{(at - start) / length * width:.0f},{height - value / top * height:.0f}" for at, value in line)
        + '"/>'
        for n, line in enumerate(points)
    )
    names = " ".join(
        f'<span style="color:{_COLOURS[n % len(_COLOURS)]}">{html.escape(_label(one))}</span>'
        for n, one in enumerate(series)
    )
    box = f'<svg width="{width}" height="{height}" style="overflow:visible">{drawn}</svg>'
    return f"<div>up to {top:,.4g} {unit}</div>{box}<div>{names}</div>"


def _label(one: Mapping[str, Any]) -> str:
    metric = one["metric"]
    name = str(metric.get("__name__", "")).removeprefix("headrace_")
    return " ".join(str(word) for word in (metric.get("destination", ""), metric.get("state", ""), name) if word)
