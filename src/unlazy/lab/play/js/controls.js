// Controls and the address: what is set on the page is what a link says.

/** @typedef {HTMLInputElement} Control */

/** Every input whose value belongs to the state. @returns {Control[]} */
function controls() {
  return /** @type {Control[]} */ ([...document.querySelectorAll("input[data-state]")]);
}

/** @param {string} id @returns {HTMLElement} */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no ${id}`);
  return found;
}

/** @param {string} id @returns {HTMLCanvasElement} */
export function canvasOf(id) {
  return /** @type {HTMLCanvasElement} */ (byId(id));
}

/** The number of a slider. @param {string} id */
export function number(id) {
  return Number(/** @type {Control} */ (byId(id)).value);
}

/** Whether a box is ticked. @param {string} id */
export function ticked(id) {
  return /** @type {Control} */ (byId(id)).checked;
}

/** The chosen one of a group of radio buttons. @param {string} name */
export function chosen(name) {
  const found = document.querySelector(`input[name="${name}"]:checked`);
  return found ? /** @type {Control} */ (found).value : "";
}

/** Say a slider's value in words. @param {string} id @param {string} text */
export function say(id, text) {
  const output = byId(`${id}-shown`);
  if (output.textContent !== text) {
    output.textContent = text;
    byId(id).setAttribute("aria-valuetext", text);
  }
}

/** Text that changes only when it is another. @param {string} id @param {string} text */
export function write(id, text) {
  const at = byId(id);
  if (at.textContent !== text) at.textContent = text;
}

/** Set a slider, as the page does when time goes on by itself. @param {string} id @param {number} value */
export function move(id, value) {
  /** @type {Control} */ (byId(id)).value = String(value);
}

/** A number as people read it. @param {number} value @param {number} [digits] */
export function short(value, digits = 2) {
  if (value === Infinity) return "∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) {
    const p = Math.floor(Math.log10(size) + 1e-9);
    const superscript = [...String(Math.abs(p))].map((c) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[+c]).join("");
    const front = +(value / 10 ** p).toPrecision(digits);
    return `${front === 1 ? "" : `${front}·`}10${p < 0 ? "⁻" : ""}${superscript}`;
  }
  return String(+value.toPrecision(Math.max(digits, Math.ceil(Math.log10(size + 1)))));
}

/**
 * What the address says, as pairs; wrong numbers are left out by the inputs themselves.
 * @returns {Map<string, string>}
 */
export function readAddress() {
  return new Map(new URLSearchParams(location.hash.replace(/^#/, "")));
}

/** Set the controls as the address says, the others to their defaults. @param {Map<string, string>} said */
export function restore(said) {
  for (const input of controls()) {
    if (input.type === "radio") input.checked = said.has(input.name) ? said.get(input.name) === input.value : input.defaultChecked;
    else if (input.type === "checkbox") input.checked = said.has(input.id) ? said.get(input.id) === "1" : input.defaultChecked;
    else input.value = said.get(input.id) ?? input.defaultValue;
  }
  for (const group of new Set(controls().filter((c) => c.type === "radio").map((c) => c.name)))
    if (!chosen(group)) for (const input of controls()) if (input.name === group) input.checked = input.defaultChecked;
}

/** The address of this setting: what is not at its default. @param {Record<string, string>} rest */
export function writeAddress(rest) {
  const said = new URLSearchParams();
  for (const [key, value] of Object.entries(rest)) if (value) said.set(key, value);
  for (const input of controls()) {
    if (input.type === "radio") {
      if (input.checked && !input.defaultChecked) said.set(input.name, input.value);
    } else if (input.type === "checkbox") {
      if (input.checked !== input.defaultChecked) said.set(input.id, input.checked ? "1" : "0");
    } else if (Number(input.value) !== Number(input.defaultValue)) said.set(input.id, input.value);
  }
  const text = said.toString().replaceAll("%2C", ",").replaceAll("%3B", ";");
  history.replaceState(null, "", text ? `#${text}` : location.pathname + location.search);
}
