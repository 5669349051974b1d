// The settings form: reading it, filling it, and keeping it and the conversation for this tab.
// Used by main.js.

const KEY = "specdist.page";

const RULES = {
  coupled: "With the same seed the words are those of plain decoding.",
  rejection: "Keeps the target’s law; drawn words may differ from plain decoding’s.",
  traversal: "Keeps the target’s law; drawn words may differ from plain decoding’s.",
  typical: "Lossy: takes guesses that are likely enough, so words may differ.",
};

const form = document.getElementById("settings");
const composer = document.getElementById("composer");
const field = (name) => form.elements.namedItem(name);
const maybe = (name) => (field(name).value === "" ? null : Number(field(name).value));

/** The settings as they stand; null, and the browser's own message, when one is not valid. */
export function readSettings() {
  if (!form.checkValidity()) {
    document.getElementById("panel").open = true;
    form.reportValidity();
    return null;
  }
  return {
    temperature: Number(field("temperature").value),
    topP: Number(field("top_p").value),
    maxTokens: Number(field("max_tokens").value),
    seed: maybe("seed"),
    rule: field("rule").value,
    specTokens: maybe("spec_tokens"),
    mode: composer.elements.namedItem("mode").value,
  };
}

/** A seed for a run that names none: both sides of a comparison need the same. */
export function randomSeed() {
  return crypto.getRandomValues(new Uint32Array(1))[0] >>> 1;
}

function explainRule() {
  document.getElementById("rule-help").textContent = RULES[field("rule").value] ?? "";
}

function fill(values) {
  for (const [name, value] of Object.entries(values)) {
    const target = name === "mode" ? composer.elements.namedItem(name) : field(name);
    if (target) target.value = value;
  }
}

function asFields() {
  const names = [...form.elements].map((element) => element.name);
  const values = Object.fromEntries(names.map((name) => [name, field(name).value]));
  return { ...values, mode: composer.elements.namedItem("mode").value };
}

/** What this tab has kept: {fields, turns}; empty in a new tab. */
export function restore() {
  const kept = JSON.parse(sessionStorage.getItem(KEY) ?? "{}");
  fill(kept.fields ?? {});
  explainRule();
  return kept.turns ?? [];
}

/** Keeps settings and conversation; a conversation too long for the browser is not kept. */
export function keep(turns) {
  try {
    sessionStorage.setItem(KEY, JSON.stringify({ fields: asFields(), turns }));
  } catch (error) {
    if (error.name !== "QuotaExceededError") throw error;
    sessionStorage.removeItem(KEY);
  }
}

/** Calls back whenever a setting changes. */
export function onSettings(listener) {
  form.addEventListener("submit", (event) => event.preventDefault());
  for (const place of [form, composer]) {
    place.addEventListener("change", () => {
      explainRule();
      listener();
    });
  }
}

// On a narrow screen the settings stand above the conversation: closed at first.
if (matchMedia("(max-width: 56rem)").matches) document.getElementById("panel").open = false;
