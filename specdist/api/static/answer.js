// One answer in the making: chunks of the stream -> pieces of text with the tokens they are
// made of, and figures. Plain data, so that an answer can be stored and shown again.
// Knows no page and no network. Used by run.js.

/** An answer before its first chunk. */
export function newAnswer(speculates, seed) {
  return {
    speculates,
    seed,
    state: "waiting", // writing, done, stopped, failed, skipped
    error: null,
    finishReason: null,
    pieces: [], // {text, step, tokens}: a character may need several tokens
    tokens: [], // {key, text, position, probability, origin, step}
    steps: [], // {number, drafted, accepted, size}
    startedAt: 0, // all in milliseconds
    firstAt: 0,
    lastAt: 0,
    usage: null,
  };
}

/** Takes chunks into an answer; `add` returns the pieces that a chunk completes. */
export class Reader {
  constructor(answer) {
    this.answer = answer;
    this.decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    this.waiting = []; // tokens whose text has not come yet
    this.carried = []; // tokens that are a part of a character
    this.unshown = ""; // text that has come, and whose tokens have not
  }

  add(chunk, now) {
    if (chunk.usage) this.answer.usage = chunk.usage;
    const choice = chunk.choices[0];
    if (!choice) return [];
    if (choice.speculation) this.addStep(choice, now);
    this.unshown += choice.delta.content ?? "";
    if (choice.finish_reason) {
      this.answer.finishReason = choice.finish_reason;
      this.answer.state = "done";
    }
    const pieces = this.align(Boolean(choice.finish_reason));
    this.answer.pieces.push(...pieces);
    return pieces;
  }

  addStep(choice, now) {
    const { answer } = this;
    const { step, num_draft_tokens: drafted, num_draft_tokens_accepted: accepted } = choice.speculation;
    const entries = choice.logprobs?.content ?? [];
    answer.state = "writing";
    answer.lastAt = now;
    if (!answer.steps.length) answer.firstAt = now;
    answer.steps.push({ number: step, drafted, accepted, size: entries.length });
    entries.forEach((entry, i) => {
      const token = {
        key: entry.bytes.join(" "),
        text: entry.token,
        position: answer.tokens.length + 1,
        probability: Math.exp(entry.logprob),
        origin: i < accepted ? "accepted" : drafted ? "next" : "plain",
        step,
      };
      answer.tokens.push(token);
      this.waiting.push({ token, bytes: new Uint8Array(entry.bytes) });
    });
  }

  /** Lays the tokens over the text: what the service shows is what counts. */
  align(isLast) {
    const pieces = [];
    while (this.waiting.length) {
      const head = this.waiting[0];
      head.own ??= this.decoder.decode(head.bytes, { stream: true });
      const own = head.own;
      const isPart = own.startsWith(this.unshown) && own !== this.unshown;
      if (own && isPart && !isLast) break; // the rest of its text is still to come
      this.waiting.shift();
      this.carried.push(head.token);
      if (!own) continue;
      const shown = [own, own.trimStart()].find((text) => text && this.unshown.startsWith(text));
      pieces.push(this.piece(shown ?? "")); // none: a token that ends the answer, say
    }
    if (isLast && (this.unshown || this.carried.length)) pieces.push(this.piece(this.unshown));
    return pieces;
  }

  piece(text) {
    this.unshown = this.unshown.slice(text.length);
    const tokens = this.carried.map((token) => token.position);
    this.carried = [];
    return { text, tokens };
  }
}

/** The figures of an answer so far, by the definitions of docs/terms.md. */
export function figures(answer) {
  const specSteps = answer.steps.filter((step) => step.drafted);
  const sum = (values) => values.reduce((a, b) => a + b, 0);
  const drafted = sum(specSteps.map((step) => step.drafted));
  const accepted = sum(specSteps.map((step) => step.accepted));
  const seconds = (answer.lastAt - answer.firstAt) / 1000;
  const later = answer.tokens.length - (answer.steps[0]?.size ?? 0);
  return {
    numTokens: answer.tokens.length,
    numSteps: answer.steps.length,
    numSpecSteps: specSteps.length,
    drafted,
    accepted,
    speed: seconds > 0 ? later / seconds : null, // after the first token
    firstToken: answer.steps.length ? (answer.firstAt - answer.startedAt) / 1000 : null,
    rate: drafted ? accepted / drafted : null,
    length: specSteps.length ? 1 + accepted / specSteps.length : null,
    candidates: specSteps.length ? drafted / specSteps.length : null,
    lastCandidates: answer.steps.at(-1)?.drafted ?? null,
  };
}

/** What the conversation goes on with. */
export function textOf(answer) {
  return answer.pieces.map((piece) => piece.text).join("");
}
