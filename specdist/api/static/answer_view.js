// One answer on the page: its text in coloured tokens, its strip, its figures, its slider.
// Used by turn.js.

import { figures } from "./answer.js";
import { count, h, NONE, number, percent } from "./dom.js";
import { describe, hideTip, showTip } from "./inspect.js";
import { Strip } from "./strip.js";

let numViews = 0;

const ENDS = { stop: "finished", length: "cut at max tokens" };
const STATES = { waiting: "waiting", writing: "writing", stopped: "stopped", failed: "failed", skipped: "not run" };

const FIGURES = [
  ["speed", "Tokens per second", (f) => number(f.speed, 1)],
  ["first", "First token", (f) => (f.firstToken === null ? NONE : `${number(f.firstToken, 2)} s`)],
  ["tokens", "Tokens in steps", (f) => `${f.numTokens} in ${f.numSteps}`],
  ["rate", "Acceptance rate", (f) => percent(f.rate)],
  ["length", "Acceptance length", (f) => number(f.length, 2)],
  ["tree", "Tree size", (f) => (f.candidates === null ? NONE : `${number(f.candidates, 1)} per step`)],
];

export class AnswerView {
  constructor(answer) {
    this.answer = answer;
    this.elements = []; // by position of the token
    this.step = null; // the element of the last step
    this.active = null;
    this.build();
    this.add(answer.pieces);
  }

  build() {
    const name = this.answer.speculates ? "Speculation on" : "Speculation off";
    const id = `answer-${++numViews}`;
    this.state = h("span", { class: "state" });
    this.text = h("div", { class: "text" });
    this.error = h("p", { class: "error", role: "alert", hidden: true });
    this.strip = new Strip();
    this.caption = h("p", { class: "caption" });
    this.slider = h("input", { type: "range", id: `${id}-at`, min: 1, value: 1, disabled: true });
    this.figures = Object.fromEntries(FIGURES.map(([key]) => [key, h("dd", { class: key })]));
    this.root = h(
      "div",
      { class: "answer", role: "group", "aria-labelledby": id },
      h("header", {}, h("h3", { id }, name), this.state),
      h("div", { class: "body" }, this.text, this.error),
      h("div", { class: "steps" }, this.strip.root, this.caption),
      h("div", { class: "inspect" }, h("label", { for: `${id}-at` }, "Inspect token"), this.slider),
      h(
        "dl",
        { class: "figures" },
        ...FIGURES.map(([key, label]) => h("div", {}, h("dt", {}, label), this.figures[key])),
      ),
    );
    this.listen();
  }

  listen() {
    this.slider.addEventListener("input", () => this.choose(Number(this.slider.value), true));
    this.slider.addEventListener("focus", () => this.choose(Number(this.slider.value), true));
    this.slider.addEventListener("blur", () => this.leave());
    this.text.addEventListener("pointerover", (event) => {
      const at = event.target.closest(".tok")?.dataset.at;
      if (at) this.choose(Number(at), false);
    });
    this.text.addEventListener("pointerleave", () => this.leave());
  }

  /** Appends pieces and brings everything else up to date. */
  add(pieces) {
    for (const piece of pieces) this.append(piece);
    const { answer } = this;
    this.root.dataset.state = answer.state;
    this.state.textContent = answer.state === "done" ? ENDS[answer.finishReason] : STATES[answer.state];
    this.error.hidden = answer.error === null;
    if (answer.error !== this.error.textContent) this.error.textContent = answer.error ?? "";
    const values = figures(answer);
    for (const [key, , show] of FIGURES) this.figures[key].textContent = show(values);
    this.strip.update(answer);
    this.caption.textContent = values.drafted ? "Candidates of each step, the accepted ones filled" : "No candidates";
    this.updateSlider();
  }

  append(piece) {
    const tokens = piece.tokens.map((position) => this.answer.tokens[position - 1]);
    const last = tokens.at(-1);
    const isEnd = !piece.text;
    const element = h(
      "span",
      {
        class: `tok ${last?.origin ?? ""}${isEnd ? " end" : ""}`,
        "data-at": last?.position ?? null,
        "data-name": isEnd ? tokens.map((token) => token.text).join("") : null,
      },
      piece.text,
    );
    for (const token of tokens) this.elements[token.position] = { element, tokens };
    this.stepOf(last).append(element);
  }

  stepOf(token) {
    if (!this.step || (token && this.step.dataset.step !== String(token.step))) {
      this.step = h("span", { class: "step", "data-step": token?.step ?? null });
      this.text.append(this.step);
    }
    return this.step;
  }

  updateSlider() {
    const num = this.answer.tokens.length;
    this.slider.disabled = !num;
    if (!num) return;
    this.slider.max = String(num);
    this.tell(Number(this.slider.value));
  }

  tell(position) {
    const words = describe(this.answer, this.answer.tokens[position - 1]);
    this.slider.setAttribute("aria-valuetext", words);
  }

  /** Puts the inspector on a token; `scrolls` brings it into view. */
  choose(position, scrolls) {
    const found = this.elements[position];
    if (!found) return; // it is part of a character that is not complete
    this.leave();
    this.active = found.element;
    this.active.classList.add("at");
    this.active.parentElement.classList.add("at");
    this.slider.value = String(position);
    this.tell(position);
    if (scrolls) this.active.scrollIntoView({ block: "nearest" });
    // Scrolling hides a tip, and its event comes with the next frame.
    const show = () => found.element === this.active && showTip(this.answer, found.tokens, found.element);
    if (scrolls) requestAnimationFrame(() => requestAnimationFrame(show));
    else show();
  }

  leave() {
    hideTip();
    this.active?.classList.remove("at");
    this.active?.parentElement.classList.remove("at");
    this.active = null;
  }

  /** Marks the token where two answers part; null: none. */
  markDifference(position) {
    this.text.querySelector(".differs")?.classList.remove("differs");
    this.elements[position]?.element.classList.add("differs");
  }

  /** A sentence for a screen reader. */
  summary() {
    const { answer } = this;
    const { speed, numTokens } = figures(answer);
    const name = answer.speculates ? "with speculation" : "without speculation";
    const fast = speed === null ? "" : `, ${speed.toFixed(1)} per second`;
    return `Answer ${name}: ${count(numTokens, "token")}${fast}.`;
  }
}
