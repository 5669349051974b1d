// Are two answers the same, token by token, and which was faster? Pure.
// Used by turn.js.

import { figures } from "./answer.js";

/** Position (from 1) of the first token that differs; null while there is none. */
export function firstDifference(one, other) {
  const isOver = (answer) => answer.state === "done";
  const [a, b] = [one.tokens, other.tokens];
  const shared = Math.min(a.length, b.length);
  for (let i = 0; i < shared; i++) {
    if (a[i].key !== b[i].key) return i + 1;
  }
  // The shorter one has ended, the longer one has gone on.
  const [short, long] = a.length < b.length ? [one, b] : [other, a];
  return isOver(short) && long.length > shared ? shared + 1 : null;
}

/** What can be said of a pair: {kind: same | differ | sofar | none, at, num}. */
export function compare(one, other) {
  const at = firstDifference(one, other);
  const num = Math.min(one.tokens.length, other.tokens.length);
  if (at !== null) return { kind: "differ", at, num: at - 1 };
  if (!num) return { kind: "none", at: null, num };
  const isWhole = one.state === "done" && other.state === "done";
  return { kind: isWhole ? "same" : "sofar", at: null, num };
}

/** How many times as fast the first is; null when one of them has no speed. */
export function speedUp(one, other) {
  const [a, b] = [figures(one).speed, figures(other).speed];
  return a && b ? a / b : null;
}
