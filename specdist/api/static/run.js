// Runs one answer: the request, the stream, and what becomes of it when it ends badly.
// Knows no page. Used by main.js.

import { Reader } from "./answer.js";
import { ServiceError, streamChat } from "./stream.js";

/** The body of the request; logprobs bring every token with its bytes and probability. */
export function requestBody(model, messages, settings, answer) {
  const speculation = { enabled: answer.speculates };
  if (answer.speculates) {
    speculation.rule = settings.rule;
    if (settings.specTokens) speculation.max_tokens = settings.specTokens;
  }
  return {
    model,
    messages,
    stream: true,
    stream_options: { include_usage: true },
    logprobs: true,
    temperature: settings.temperature,
    top_p: settings.topP,
    max_tokens: settings.maxTokens,
    seed: answer.seed,
    speculation,
  };
}

/** Fills `answer` until it ends; `onPieces` gets what each chunk adds. Never throws. */
export async function run(body, answer, signal, onPieces) {
  const reader = new Reader(answer);
  answer.startedAt = performance.now();
  try {
    for await (const chunk of streamChat(body, signal)) {
      onPieces(reader.add(chunk, performance.now()));
    }
  } catch (error) {
    if (signal.aborted) {
      answer.state = "stopped";
      return;
    }
    const isOurs = !(error instanceof ServiceError);
    answer.state = "failed";
    answer.error = isOurs ? `this page made a mistake: ${error.message}` : error.message;
    if (isOurs) console.error(error);
  } finally {
    onPieces([]);
  }
}
