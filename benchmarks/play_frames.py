"""Frame rate of the interactive page in headless Chromium. Targets: 60 per second, and no frame longer than 100 ms.

    python benchmarks/play_frames.py [--seconds 5] [--record]

For each case: the time between frames (median, 95th percentile, longest), and the CPU time of the page per frame, which
does not depend on other programs on the machine. Below 16.7 ms, 60 frames per second are possible.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
from record import add_option, recorder

from unlazy.lab.play.page import write_play

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from chromium import browser

MANY = ";".join(f"{-2.9 + 5.8 * i / 39:.2f},{(-1) ** i * (i % 7) / 4:.2f}" for i in range(40))
CASES = {
    "kernel, default": ("#stage=kernel&time=-1.9", "play"),
    "kernel, largest: 40 points dragged, NTK of depth 8":
        (f"#stage=kernel&kernel=ntk&depth=8&time=1&points={MANY}", "drag"),
    "rich, default": ("#stage=rich&seed=4", "play"),
    "rich, largest: patterns, 512 neurons": ("#stage=rich&task=patterns&width=9", "play"),
}  # fmt: skip
# Frame times as seen by the page.
WATCH = """(() => { const frames = window.frames_ = [];
  const tick = now => { frames.push(now); requestAnimationFrame(tick) }; requestAnimationFrame(tick); })()"""
MOVES = {
    "play": "document.querySelector('section:not([hidden]) .go').click()",
    "drag": """(() => { const stage = unlazy.stages.kernel; let t = 0; setInterval(() => { t++;
      stage.points[t % 40].y = Math.sin(t / 9); stage.touched();
      document.getElementById('ridge').dispatchEvent(new Event('input', {bubbles: true})); }, 8) })()""",
}


def measure(tab, page, address: str, move: str, seconds: float) -> dict[str, float]:
    """Milliseconds between frames, and CPU milliseconds per frame."""
    tab.open(page, address=address)
    tab.run(MOVES[move])
    tab.frames(20)  # JavaScript is compiled by then
    tab.run("frames_.length = 0")
    before = _processor_seconds(tab)
    tab.run(f"new Promise(done => setTimeout(done, {1000 * seconds}))")
    between = np.diff(tab.run("frames_"))
    spent = 1000 * (_processor_seconds(tab) - before) / len(between)
    return {
        "median": float(np.median(between)), "95th percentile": float(np.quantile(between, 0.95)),
        "longest": float(between.max()), "processor per frame": spent, "processor, worst frame": _worst(tab, 150),
    }  # fmt: skip


def _worst(tab, looks: int) -> float:
    """Largest CPU time of one frame; the mean if several frames were seen at once."""
    found, frames, before = [], tab.run("frames_.length"), _processor_seconds(tab)
    for _ in range(looks):
        tab.frames(1)
        count, now = tab.run("frames_.length"), _processor_seconds(tab)
        if count > frames:
            found.append((now - before) / (count - frames))
        frames, before = count, now
    return 1000 * max(found)


def _processor_seconds(tab) -> float:
    metrics = tab("Performance.getMetrics")["metrics"]
    return next(m["value"] for m in metrics if m["name"] == "TaskDuration")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    add_option(parser)
    options = parser.parse_args()
    note = recorder(__file__, options.record)
    with tempfile.TemporaryDirectory() as folder, browser(Path(folder) / "profile") as tab:
        page = write_play(Path(folder) / "page.html")
        note("size of the page", page.stat().st_size / 1000, "kB")
        tab("Performance.enable", timeDomain="threadTicks")
        tab("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
        for name, (address, move) in CASES.items():
            found = measure(tab, page, address, move, options.seconds)
            print(f"{name}: " + ", ".join(f"{what} {value:.1f} ms" for what, value in found.items()))
            for what, value in found.items():
                note(f"{name}: {what}", value, "ms")


if __name__ == "__main__":
    main()
