// One turn of the conversation: what was asked, one answer or two beside each other, and
// for two of them whether they are the same. Used by main.js.

import { AnswerView } from "./answer_view.js";
import { compare, speedUp } from "./compare.js";
import { count, h, visible } from "./dom.js";

export class TurnView {
  constructor(turn, num, onAgain) {
    this.turn = turn;
    this.views = turn.answers.map((answer) => new AnswerView(answer));
    this.again = h("button", { type: "button", class: "quiet", hidden: true }, "Try again");
    this.again.addEventListener("click", onAgain);
    const isPair = this.views.length === 2;
    this.verdict = isPair ? this.buildVerdict() : null;
    const { seed, settings } = turn;
    this.root = h(
      "article",
      { class: "turn", "aria-label": `Turn ${num}` },
      h("div", { class: "asked" }, h("h2", { class: "unseen" }, "You"), h("p", {}, turn.prompt)),
      this.verdict,
      h("div", { class: isPair ? "answers two" : "answers" }, ...this.views.map((v) => v.root)),
      h(
        "p",
        { class: "made" },
        `seed ${seed}, temperature ${settings.temperature}, top p ${settings.topP}, rule ${settings.rule}`,
      ),
      this.again,
    );
    this.update();
  }

  buildVerdict() {
    this.same = h("strong", { class: "same" });
    this.detail = h("span", { class: "detail" });
    this.goTo = h("button", { type: "button", class: "quiet", hidden: true }, "Go to it");
    this.goTo.addEventListener("click", () => this.goToDifference());
    this.faster = h("strong", { class: "faster" });
    const words = h("p", {}, this.same, " ", this.detail);
    return h("div", { class: "verdict", role: "group", "aria-label": "Comparison" }, words, this.goTo, this.faster);
  }

  /** Called whenever an answer has changed. */
  update() {
    this.again.hidden = !this.turn.answers.some((answer) => answer.state === "failed");
    if (this.verdict) this.updateVerdict();
  }

  updateVerdict() {
    const [one, other] = this.turn.answers;
    const result = compare(one, other);
    this.verdict.dataset.kind = result.kind;
    const [same, detail] = this.words(result);
    if (this.same.textContent !== same) this.same.textContent = same;
    this.detail.textContent = detail;
    this.at = result.at;
    this.goTo.hidden = result.at === null;
    for (const view of this.views) view.markDifference(result.at);
    const ratio = result.num > 1 ? speedUp(one, other) : null;
    this.faster.hidden = ratio === null;
    if (ratio !== null) this.faster.textContent = speedWords(ratio);
  }

  words({ kind, at, num }) {
    if (kind === "same") return ["Identical: yes", `all ${count(num, "token")} are the same`];
    if (kind === "sofar") return ["Identical so far", `the first ${count(num, "token")}`];
    if (kind === "none") return this.unknown();
    const [a, b] = this.turn.answers.map((answer) => answer.tokens[at - 1]);
    const name = (token) => (token ? `“${visible(token.text)}”` : "the end");
    return ["Identical: no", `first difference at token ${at}: ${name(a)} with speculation, ${name(b)} without`];
  }

  unknown() {
    const isOver = this.turn.answers.some(({ state }) => state === "skipped" || state === "failed");
    if (isOver) return ["Identical: not known", "there are not two answers to compare"];
    return ["Identical: not known yet", "one side runs after the other, so that each has the machine to itself"];
  }

  goToDifference() {
    const view = this.views.find((v) => v.elements[this.at]);
    view.slider.value = String(this.at);
    view.slider.focus();
    view.choose(this.at, true);
  }

  /** What a screen reader hears at the end. */
  summary() {
    const parts = this.views.filter((v) => v.answer.tokens.length).map((v) => v.summary());
    if (this.verdict) parts.push(`${this.same.textContent}, ${this.detail.textContent}.`);
    if (this.verdict && !this.faster.hidden) parts.push(`${this.faster.textContent}.`);
    return parts.join(" ");
  }
}

function speedWords(ratio) {
  const times = `${ratio.toFixed(2)}×`;
  if (ratio >= 1.005) return `${times} as fast with speculation`;
  return ratio > 0.995 ? "as fast with as without" : `${times}: slower with speculation here`;
}
