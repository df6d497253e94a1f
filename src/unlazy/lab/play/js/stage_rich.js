// Stage 2: from lazy to rich. One slider decides whether the network stays with its kernel or leaves it [K10, L1, M1].
import { canvasOf, chosen, number, say, short, write } from "./controls.js";
import { Picture } from "./picture.js";
import { drawDrift, drawFunctions, drawKernels, drawLosses, drawNeurons } from "./rich_pictures.js";
import { Lesson, Training } from "./training.js";

/** @typedef {import("./training.js").Setting} Setting */

const GROWTH = 0.02, BUDGET = 7, OFTEN = 4, SELDOM = 8, MUCH = 1e6;

/** What the controls say. @returns {Setting} */
function settingOf() {
  return {
    task: chosen("task"), richness: 10 ** number("richness"), width: 2 ** number("width"), pace: 10 ** number("pace"),
    seed: number("seed"),
  };
}

export class RichStage {
  constructor() {
    this.pictures = {
      functions: new Picture(canvasOf("rich-functions")), neurons: new Picture(canvasOf("rich-neurons")),
      kernels: new Picture(canvasOf("rich-kernels")), drift: new Picture(canvasOf("rich-drift")),
      losses: new Picture(canvasOf("rich-losses")),
    };
    this.running = false;
    this.goal = 0;
    this.frames = 0;
    this.stale = true;
    /** @type {Lesson | null} */
    this.lesson = null;
    /** @type {Training | null} */
    this.training = null;
  }

  /** A control was moved: train the new network as far as the old one had come. */
  touched() {
    this.stale = true;
  }

  toggle() {
    if (!this.running && this.training?.over) this.restart();
    this.running = !this.running;
  }

  restart() {
    this.goal = 0;
    this.stale = true;
  }

  prepare() {
    const setting = settingOf();
    if (this.lesson?.name !== setting.task) {
      if (this.lesson) this.goal = 0;
      this.lesson = new Lesson(setting.task);
    }
    this.training = new Training(this.lesson, setting);
    this.stale = false;
  }

  /** @param {number} _now @returns {boolean} Whether another frame is wanted. */
  draw(_now) {
    if (this.stale || !this.training) this.prepare();
    const training = /** @type {Training} */ (this.training);
    const late = training.steps < this.goal;
    if (this.running && !late) this.goal = training.steps + Math.max(1, Math.ceil(GROWTH * training.steps));
    training.advance(this.goal, BUDGET);
    if (training.over) {
      this.running = false;
      this.goal = training.steps;
    }
    const busy = this.running || training.steps < this.goal;
    const { network, kernel } = training.functions();
    const cost = training.lesson.order.length ** 2 * training.setting.width;
    if (this.frames++ % (cost > MUCH ? SELDOM : OFTEN) === 0 || !busy) {
      training.measure();
      training.record(network, kernel);
    }
    drawFunctions(this.pictures.functions, training, network, kernel);
    drawNeurons(this.pictures.neurons, training);
    drawKernels(this.pictures.kernels, training);
    drawDrift(this.pictures.drift, training);
    drawLosses(this.pictures.losses, training);
    this.say(training);
    return busy;
  }

  /** @param {Training} training */
  say(training) {
    const { setting, drift, history } = training;
    say("richness", `γ₀ = ${short(setting.richness)}`);
    say("width", `${setting.width} neurons`);
    say("pace", `${short(setting.pace)} of the largest stable`);
    say("seed", `no. ${setting.seed}`);
    write("rich-say", this.sentence(training));
    write("rich-about", training.task.about);
    const last = history.at(-1);
    write("rich-numbers", last
      ? `Its tangent kernel has moved by ${Math.round(100 * drift)}%. Error on new points: network ${short(last.test)}, kernel ${short(last.kernelTest)}.`
      : "Both start at zero.");
  }

  /** @param {Training} training */
  sentence(training) {
    if (training.diverged) return "It blew up: the step is too large for a kernel that grows. Make it smaller.";
    if (training.steps === 0) return "Press Play: the same points are learned by a network and by its kernel.";
    if (training.drift < 0.1) return "Lazy so far: the network follows its kernel.";
    if (training.parted < 0.15) return "Its neurons have begun to move; the two functions still agree.";
    return "Rich: the network has left its kernel.";
  }
}
