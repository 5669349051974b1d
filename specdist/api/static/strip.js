// The strip under an answer: for each step a bar of candidates, its accepted part filled.
// Used by answer_view.js.

import { count, svg } from "./dom.js";

const PITCH = 7; // pixels a bar takes while there is room

/** One strip; `update` draws the steps that have come since. */
export class Strip {
  constructor() {
    this.bars = svg("g", { transform: "scale(1,-1)" });
    this.root = svg("svg", { role: "img", class: "strip", preserveAspectRatio: "none" });
    this.root.append(this.bars);
    this.num = 0;
    this.highest = 3;
  }

  update(answer) {
    for (const step of answer.steps.slice(this.num)) {
      const { drafted } = step;
      this.highest = Math.max(this.highest, drafted);
      if (drafted) this.bar("guessed", drafted);
      if (step.accepted) this.bar("kept", step.accepted);
      this.num += 1;
    }
    const width = Math.max(this.num, 1);
    this.root.setAttribute("viewBox", `0 ${-this.highest} ${width} ${this.highest}`);
    this.root.style.width = `${width * PITCH}px`;
    this.root.setAttribute("aria-label", words(answer));
  }

  bar(kind, height) {
    this.bars.append(svg("rect", { class: kind, x: this.num + 0.1, y: 0, width: 0.8, height }));
  }
}

function words(answer) {
  const specSteps = answer.steps.filter((step) => step.drafted);
  const most = Math.max(0, ...specSteps.map((step) => step.accepted));
  return `${count(answer.steps.length, "step")}, ${specSteps.length} with candidates, at most ${most} accepted in one`;
}
