// What one token is: shown beside it on hover, and for the token that a slider stands on.
// Used by answer_view.js.

import { count, h, percent, visible } from "./dom.js";

const ORIGINS = {
  accepted: "accepted draft token",
  next: "the target’s own token after a guess",
  plain: "plain decoding",
};

const tip = document.getElementById("tip");

/** One sentence about a token, for a screen reader. */
export function describe(answer, token) {
  return [
    `token ${token.position} of ${answer.tokens.length}`,
    `“${token.text}”`,
    ORIGINS[token.origin],
    `probability ${percent(token.probability, 1)}`,
    stepWords(answer, token),
  ].join(", ");
}

function stepWords(answer, token) {
  const step = answer.steps.find((s) => s.number === token.step);
  if (!step.drafted) return `step ${step.number}: no candidates`;
  return `step ${step.number}: ${step.accepted} of ${count(step.drafted, "candidate")} accepted`;
}

/** Shows the tip at an element, and leaves the answer beside it in view. */
export function showTip(answer, tokens, element) {
  tip.replaceChildren(...tokens.map((token) => card(answer, token)));
  tip.hidden = false;
  const at = element.getClientRects()[0] ?? element.getBoundingClientRect();
  const room = tip.getBoundingClientRect();
  const end = Math.min(element.closest(".answer").getBoundingClientRect().right, innerWidth) - 8;
  const left = Math.max(8, Math.min(at.left, end - room.width));
  const isAbove = at.top > room.height + 12;
  tip.style.left = `${left}px`;
  tip.style.top = `${isAbove ? at.top - room.height - 6 : at.bottom + 6}px`;
}

export function hideTip() {
  tip.hidden = true;
}

function card(answer, token) {
  const fact = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));
  return h(
    "div",
    { class: `card ${token.origin}` },
    h("p", {}, h("code", {}, visible(token.text)), h("span", {}, ORIGINS[token.origin])),
    h(
      "dl",
      {},
      fact("position", `${token.position} of ${answer.tokens.length}`),
      fact("probability", percent(token.probability, 1)),
      fact("step", stepWords(answer, token).slice("step ".length)),
    ),
  );
}

document.addEventListener("keydown", (key) => {
  if (key.key === "Escape") hideTip();
});
document.addEventListener("scroll", hideTip, { capture: true, passive: true });
