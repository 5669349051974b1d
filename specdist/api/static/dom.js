// Small helpers for making elements and writing numbers. Used by everything that shows.

/** An element with attributes (true: present, false or null: absent) and children. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  setAll(element, attributes);
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** The same for SVG. */
export function svg(tag, attributes = {}) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  setAll(element, attributes);
  return element;
}

function setAll(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null) element.setAttribute(name, String(value));
  }
}

export const NONE = "–";

/** A number with so many decimals, or a dash. */
export function number(value, decimals) {
  return value === null ? NONE : value.toFixed(decimals);
}

/** A share as percent. */
export function percent(value, decimals = 0) {
  if (value === null) return NONE;
  return value > 0 && value < 0.001 ? "below 0.1 %" : `${(100 * value).toFixed(decimals)} %`;
}

/** "1 token", "2 tokens". */
export function count(num, thing) {
  return `${num} ${thing}${num === 1 ? "" : "s"}`;
}

/** A token's text with its blanks and line ends visible. */
export function visible(text) {
  return text.replaceAll(" ", "␣").replaceAll("\n", "↵").replaceAll("\t", "⇥");
}
