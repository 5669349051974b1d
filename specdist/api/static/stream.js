// One streamed answer over HTTP: the request, and its server-sent events as they come.
// Knows nothing of the page. Used by run.js.

/** What the service refused, or what broke an answer: the message is for people. */
export class ServiceError extends Error {}

/** Yields the chunks of one answer; throws ServiceError, or AbortError when stopped. */
export async function* streamChat(body, signal) {
  const reply = await post(body, signal);
  if (!reply.ok) throw await refusal(reply);
  let isDone = false;
  for await (const data of events(reply.body, signal)) {
    if (data === "[DONE]") {
      isDone = true;
      continue;
    }
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ServiceError(chunk.error.message);
    yield chunk;
  }
  if (!isDone) throw new ServiceError("the connection ended before the answer did");
}

async function post(body, signal) {
  try {
    return await fetch("v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
      signal,
    });
  } catch (error) {
    throw signal.aborted ? error : new ServiceError("the service cannot be reached");
  }
}

async function refusal(reply) {
  const text = await reply.text();
  try {
    return new ServiceError(JSON.parse(text).error.message);
  } catch {
    return new ServiceError(`the service answered ${reply.status} ${reply.statusText}`);
  }
}

/** The data of each event; an event may come in pieces, a piece may hold several events. */
async function* events(stream, signal) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await read(reader, signal);
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        if (part.startsWith("data: ")) yield part.slice("data: ".length);
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // broken already, then
  }
}

async function read(reader, signal) {
  try {
    return await reader.read();
  } catch (error) {
    throw signal.aborted ? error : new ServiceError("the connection broke off");
  }
}
