// One canvas with axes: a sharp drawing at every size, in the page's colors, light or dark.

/**
 * @typedef {{x: [number, number], y: [number, number], logX?: boolean, logY?: boolean, xLabel?: string,
 *   yLabel?: string, square?: boolean, bare?: boolean}} Frame
 * @typedef {{color?: string, width?: number, dash?: number[], alpha?: number}} Stroke
 */

const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";
const LEFT = 46, RIGHT = 10, TOP = 10, BOTTOM = 36;

/** A color of the page by its name in the style sheet. @type {Map<string, string>} */
const known = new Map();

/** @param {string} name */
export function color(name) {
  let found = known.get(name);
  if (!found) {
    found = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim() || "#888";
    known.set(name, found);
  }
  return found;
}

/** Forget the colors: the page turned light or dark. */
export function repaint() {
  known.clear();
}

export class Picture {
  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this.canvas = canvas;
    this.pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    /** @type {Frame} */
    this.frame = { x: [0, 1], y: [0, 1] };
    this.box = { left: LEFT, top: TOP, width: 1, height: 1 };
  }

  /** Clear, and draw the axes. @param {Frame} frame */
  begin(frame) {
    const { canvas, pen } = this;
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    this.frame = frame;
    this.box = frame.bare
      ? { left: 4, top: TOP, width: width - 8, height: height - TOP - 4 }
      : { left: LEFT, top: TOP, width: width - LEFT - RIGHT, height: height - TOP - BOTTOM };
    if (frame.square) this.#square();
    if (!frame.bare) this.#axes();
    pen.font = "12px system-ui, sans-serif";
  }

  /** Widen one range so that a unit is as long across as up. */
  #square() {
    const { box, frame } = this;
    const [wide, high] = [frame.x[1] - frame.x[0], frame.y[1] - frame.y[0]];
    const unit = Math.min(box.width / wide, box.height / high);
    const middle = (/** @type {[number, number]} */ r, /** @type {number} */ half) =>
      /** @type {[number, number]} */ ([(r[0] + r[1]) / 2 - half, (r[0] + r[1]) / 2 + half]);
    this.frame = {
      ...frame, x: middle(frame.x, box.width / unit / 2), y: middle(frame.y, box.height / unit / 2),
    };
  }

  #axes() {
    const { pen, box, frame } = this;
    pen.font = "11px system-ui, sans-serif";
    pen.lineWidth = 1;
    pen.strokeStyle = color("line");
    pen.fillStyle = color("quiet");
    pen.textAlign = "center";
    pen.textBaseline = "top";
    for (const [value, text] of ticks(frame.x, frame.logX, box.width / 60)) {
      const x = this.left(value);
      this.#rule(x, box.top, x, box.top + box.height);
      pen.fillText(text, x, box.top + box.height + 4);
    }
    pen.fillText(frame.xLabel || "", box.left + box.width / 2, box.top + box.height + 20);
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const [value, text] of ticks(frame.y, frame.logY, box.height / 34)) {
      const y = this.top(value);
      this.#rule(box.left, y, box.left + box.width, y);
      pen.fillText(text, box.left - 4, y);
    }
    pen.save();
    pen.translate(9, box.top + box.height / 2);
    pen.rotate(-Math.PI / 2);
    pen.textAlign = "center";
    pen.fillText(frame.yLabel || "", 0, 0);
    pen.restore();
  }

  /** @param {number} a @param {number} b @param {number} c @param {number} d */
  #rule(a, b, c, d) {
    this.pen.beginPath();
    this.pen.moveTo(Math.round(a) + 0.5, Math.round(b) + 0.5);
    this.pen.lineTo(Math.round(c) + 0.5, Math.round(d) + 0.5);
    this.pen.stroke();
  }

  /** Pixels from the left. @param {number} x */
  left(x) {
    return this.box.left + this.box.width * share(x, this.frame.x, this.frame.logX);
  }

  /** Pixels from the top. @param {number} y */
  top(y) {
    return this.box.top + this.box.height * (1 - share(y, this.frame.y, this.frame.logY));
  }

  /** Where a pointer stands, in the picture's units. @param {PointerEvent | MouseEvent} event */
  at(event) {
    const bounds = this.canvas.getBoundingClientRect();
    const { box, frame } = this;
    const across = (event.clientX - bounds.left - box.left) / box.width;
    const up = 1 - (event.clientY - bounds.top - box.top) / box.height;
    return { x: frame.x[0] + across * (frame.x[1] - frame.x[0]), y: frame.y[0] + up * (frame.y[1] - frame.y[0]) };
  }

  /** @param {() => void} draw Drawn inside the axes only. */
  inside(draw) {
    const { pen, box } = this;
    pen.save();
    pen.beginPath();
    pen.rect(box.left - 1, box.top - 1, box.width + 2, box.height + 2);
    pen.clip();
    draw();
    pen.restore();
  }

  /** @param {ArrayLike<number>} xs @param {ArrayLike<number>} ys @param {Stroke} [stroke] */
  line(xs, ys, stroke = {}) {
    const { pen } = this;
    pen.beginPath();
    for (let i = 0; i < xs.length; i++) pen.lineTo(this.left(xs[i]), this.top(ys[i]));
    pen.globalAlpha = stroke.alpha ?? 1;
    pen.lineWidth = stroke.width ?? 2;
    pen.lineJoin = "round";
    pen.setLineDash(stroke.dash ?? []);
    pen.strokeStyle = color(stroke.color ?? "ink");
    pen.stroke();
    pen.setLineDash([]);
    pen.globalAlpha = 1;
  }

  /**
   * @param {ArrayLike<number>} xs @param {ArrayLike<number>} low @param {ArrayLike<number>} high
   * @param {string} name @param {number} alpha
   */
  band(xs, low, high, name, alpha) {
    const { pen } = this;
    pen.beginPath();
    for (let i = 0; i < xs.length; i++) pen.lineTo(this.left(xs[i]), this.top(high[i]));
    for (let i = xs.length - 1; i >= 0; i--) pen.lineTo(this.left(xs[i]), this.top(low[i]));
    pen.closePath();
    pen.globalAlpha = alpha;
    pen.fillStyle = color(name);
    pen.fill();
    pen.globalAlpha = 1;
  }

  /**
   * A mark: a disc, a square or a ring.
   * @param {number} x @param {number} y @param {number} radius @param {string} name
   * @param {"disc" | "square" | "ring"} [shape] @param {number} [alpha]
   */
  mark(x, y, radius, name, shape = "disc", alpha = 1) {
    const { pen } = this;
    const [a, b] = [this.left(x), this.top(y)];
    pen.globalAlpha = alpha;
    pen.beginPath();
    if (shape === "square") pen.rect(a - radius, b - radius, 2 * radius, 2 * radius);
    else pen.arc(a, b, radius, 0, 2 * Math.PI);
    if (shape === "ring") {
      pen.lineWidth = 1.5;
      pen.strokeStyle = color(name);
      pen.stroke();
    } else {
      pen.fillStyle = color(name);
      pen.fill();
    }
    pen.globalAlpha = 1;
  }

  /** @param {string} text @param {number} x @param {number} y @param {CanvasTextAlign} [align] @param {string} [name] */
  word(text, x, y, align = "left", name = "quiet") {
    const { pen } = this;
    pen.fillStyle = color(name);
    pen.textAlign = align;
    pen.textBaseline = "middle";
    pen.fillText(text, this.left(x), this.top(y));
  }
}

/** @param {number} value @param {[number, number]} range @param {boolean} [log] */
function share(value, range, log) {
  if (!log) return (value - range[0]) / (range[1] - range[0]);
  const floor = Math.log10(range[0]);
  return (Math.log10(Math.max(value, range[0] * 1e-3)) - floor) / (Math.log10(range[1]) - floor);
}

/**
 * Round numbers inside a range, with their names.
 * @param {[number, number]} range @param {boolean | undefined} log @param {number} most
 * @returns {[number, string][]}
 */
export function ticks(range, log, most) {
  const fits = (/** @type {number} */ v) => v >= range[0] * (1 - 1e-9) - 1e-12 && v <= range[1] * (1 + 1e-9) + 1e-12;
  if (log) {
    const [low, high] = [Math.ceil(Math.log10(range[0]) - 1e-9), Math.floor(Math.log10(range[1]) + 1e-9)];
    const every = Math.max(1, Math.ceil((high - low + 1) / Math.max(most, 2)));
    const powers = [];
    for (let p = low; p <= high; p++) if (p % every === 0) powers.push(p);
    return powers.map((p) => [10 ** p, power(p)]);
  }
  const rough = (range[1] - range[0]) / Math.max(most, 2);
  const unit = 10 ** Math.floor(Math.log10(rough));
  const size = [1, 2, 5, 10].map((f) => f * unit).find((f) => f >= rough * 0.999) ?? 10 * unit;
  /** @type {[number, string][]} */
  const found = [];
  for (let k = Math.ceil(range[0] / size - 1e-9); k * size <= range[1] + 1e-9 * size; k++)
    if (fits(k * size)) found.push([k * size, String(+(k * size).toPrecision(6)).replace("-", "−")]);
  return found;
}

/** 10ᵖ as people write it. @param {number} p */
function power(p) {
  if (p === 0) return "1";
  if (p === 1) return "10";
  const digits = [...String(Math.abs(p))].map((c) => SUPERSCRIPTS[+c]).join("");
  return `10${p < 0 ? "⁻" : ""}${digits}`;
}
