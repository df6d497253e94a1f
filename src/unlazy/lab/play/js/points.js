// Points in a picture by hand: pointer and touch place, drag and remove them; so do the keys.

/** @typedef {{x: number, y: number}} Point */

const NEAR = 16, FINGER = 26, MOST = 40;

/**
 * Let the user edit `points` in place inside the box |x| ≤ reach.x, |y| ≤ reach.y. Pointer: an empty place adds, a point
 * is dragged, a double click or a drag out of the picture removes. Keys: arrows move the cross, Enter adds or takes a
 * point up and puts it down, Delete removes the nearest.
 * @param {import("./picture.js").Picture} picture @param {Point[]} points @param {Point} reach
 * @param {() => void} changed
 */
export function pointEditor(picture, points, reach, changed) {
  const { canvas } = picture;
  /** @type {Point | null} */
  let held = null;
  const cross = { x: 0, y: 0, shown: false };

  /** @param {Point} at @param {number} near */
  const nearest = (at, near) => {
    const far = (/** @type {Point} */ p) => Math.hypot(picture.left(p.x) - picture.left(at.x), picture.top(p.y) - picture.top(at.y));
    const best = [...points].sort((a, b) => far(a) - far(b))[0];
    return best && far(best) <= near ? best : null;
  };
  /** @param {Point} p */
  const kept = (p) => ({ x: Math.max(-reach.x, Math.min(reach.x, p.x)), y: Math.max(-reach.y, Math.min(reach.y, p.y)) });
  /** @param {Point} p */
  const remove = (p) => {
    points.splice(points.indexOf(p), 1);
    if (held === p) held = null;
    changed();
  };
  /** @param {Point} at */
  const add = (at) => {
    if (points.length >= MOST) return null;
    const fresh = kept(at);
    points.push(fresh);
    changed();
    return fresh;
  };

  canvas.addEventListener("pointerdown", (event) => {
    cross.shown = false;
    const at = picture.at(event);
    held = nearest(at, event.pointerType === "mouse" ? NEAR : FINGER) ?? add(at);
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!held || !event.buttons) return;
    Object.assign(held, kept(picture.at(event)));
    changed();
  });
  canvas.addEventListener("pointerup", (event) => {
    const at = picture.at(event);
    if (held && (Math.abs(at.x) > reach.x * 1.12 || Math.abs(at.y) > reach.y * 1.12)) remove(held);
    held = null;
  });
  canvas.addEventListener("pointercancel", () => (held = null));
  canvas.addEventListener("dblclick", (event) => {
    const found = nearest(picture.at(event), NEAR);
    if (found) remove(found);
  });
  canvas.addEventListener("blur", () => {
    cross.shown = false;
    held = null;
    changed();
  });
  canvas.addEventListener("keydown", (event) => {
    const size = event.shiftKey ? 0.25 : 0.05;
    const moves = /** @type {Record<string, [number, number]>} */ ({
      ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1],
    });
    if (event.key in moves) {
      const [dx, dy] = moves[event.key];
      Object.assign(cross, kept({ x: cross.x + dx * size * reach.x, y: cross.y + dy * size * reach.y }));
      if (held) Object.assign(held, { x: cross.x, y: cross.y });
    } else if (event.key === "Enter" || event.key === " ") {
      if (held) held = null;
      else if (nearest(cross, NEAR)) held = nearest(cross, NEAR);
      else add(cross);
    } else if (event.key === "Delete" || event.key === "Backspace") {
      const found = nearest(cross, FINGER);
      if (found) remove(found);
    } else return;
    cross.shown = true;
    event.preventDefault();
    changed();
  });

  return {
    /** Draw the points, and the cross while keys move it. */
    draw() {
      for (const p of points) {
        picture.mark(p.x, p.y, 6, "page");
        picture.mark(p.x, p.y, 4.5, "ink");
      }
      if (!cross.shown) return;
      const [dx, dy] = [reach.x / 30, reach.y / 20];
      picture.line([cross.x - dx, cross.x + dx], [cross.y, cross.y], { color: "network", width: 2 });
      picture.line([cross.x, cross.x], [cross.y - dy, cross.y + dy], { color: "network", width: 2 });
      if (held) picture.mark(cross.x, cross.y, 9, "network", "ring");
    },
  };
}
