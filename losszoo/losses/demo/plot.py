"""The demo's picture: loss curves and found boxes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from losszoo.losses.demo.classify import Classifier
from losszoo.losses.demo.data import CANVAS
from losszoo.losses.demo.locate import Localiser

INK, BLUE, ORANGE, GREEN = "#303030", "#1f6fb4", "#e07b20", "#2a9d4a"
SHOWN = 12  # canvases


def draw(path: Path, ours: Classifier, torchs: Classifier, localisers: dict[str, Localiser]) -> None:
    """Write the PNG."""
    figure = Figure(figsize=(13, 9), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    parts: Any = figure.subfigures(2, 1, height_ratios=(1, 1.15))
    curves, gallery = parts
    agreement, difference, boxes = curves.subplots(1, 3)

    agreement.plot(
        torchs.curve, color=ORANGE, linewidth=3.5, alpha=0.55, label=f"torch ({torchs.accuracy:.1%} held out)"
    )
    agreement.plot(ours.curve, color=BLUE, linewidth=0.9, label=f"losszoo ({ours.accuracy:.1%} held out)")
    _label(agreement, "Digits: label-smoothed cross-entropy", "loss")
    agreement.legend(frameon=False)

    difference.plot([abs(a - b) for a, b in zip(ours.curve, torchs.curve)], color=INK, linewidth=0.9)
    difference.axhline(1e-3, color=ORANGE, linestyle="--", linewidth=1)
    difference.set_yscale("symlog", linthresh=1e-7)
    difference.set_ylim(0, 1e-2)
    _label(difference, "Difference of the two curves (dashed: 1e-3)", "|losszoo - torch|")

    for (name, run), color in zip(localisers.items(), (GREEN, BLUE)):
        boxes.plot(_smooth(run.curve), color=color, label=f"{name} (mean IoU {run.iou.mean():.3f} held out)")
    _label(boxes, "Finding a digit: box losses", "loss, mean of 10 steps")
    boxes.legend(frameon=False)

    handles = [Rectangle((0, 0), 1, 1, fill=False, edgecolor=ORANGE, linestyle="--", label="truth")]
    handles += [
        Rectangle((0, 0), 1, 1, fill=False, edgecolor=color, label=name)
        for name, color in zip(localisers, (GREEN, BLUE))
    ]
    gallery.legend(handles=handles, loc="outside upper center", ncols=len(handles), frameon=False)
    for index, axes in enumerate(gallery.subplots(2, SHOWN // 2).flat):
        _canvas(axes, index, localisers)
    figure.savefig(path)


def _label(axes: Any, title: str, y: str) -> None:
    axes.set(title=title, xlabel="step", ylabel=y)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _smooth(curve: list[float], width: int = 10) -> list[float]:
    """The mean of the last `width` values (fewer at the beginning)."""
    return [
        sum(window) / len(window) for end in range(1, len(curve) + 1) if (window := curve[max(0, end - width) : end])
    ]


def _canvas(axes: Any, index: int, localisers: dict[str, Localiser]) -> None:
    """One held-out canvas with the true box and each localiser's."""
    first = next(iter(localisers.values()))
    axes.imshow(first.canvases[index, 0].numpy(), cmap="gray_r", extent=(0, CANVAS, CANVAS, 0))
    _box(axes, first.boxes[index].tolist(), ORANGE, "--")
    for run, color in zip(localisers.values(), (GREEN, BLUE)):
        _box(axes, run.found[index].tolist(), color, "-")
    axes.set(xticks=[], yticks=[], xlim=(0, CANVAS), ylim=(CANVAS, 0))
    axes.set_title("IoU " + " / ".join(f"{run.iou[index]:.2f}" for run in localisers.values()), fontsize=9)


def _box(axes: Any, corners: list[float], color: str, style: str) -> None:
    left, top, right, bottom = corners
    axes.add_patch(
        Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor=color, linestyle=style, linewidth=1.6)
    )
