"""The page at ``/``: names the endpoints and lets a visitor chat with the model.

One self-contained document without outside resources, so that it works offline.
"""

from __future__ import annotations

import html
import json

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>specdist: $NAME</title>
<style>
  :root { color-scheme: light dark; }
  body { font: 16px/1.5 system-ui, sans-serif; max-width: 44rem; margin: 2rem auto; }
  body { padding: 0 1rem; }
  #log { display: flex; flex-direction: column; gap: .75rem; margin: 1rem 0; }
  .turn { white-space: pre-wrap; padding: .5rem .75rem; border-radius: .5rem; }
  .user { align-self: flex-end; background: #3b6fd622; }
  .assistant { background: #8882; }
  .error { color: #c33; }
  form { display: flex; gap: .5rem; }
  textarea { flex: 1; font: inherit; }
  small, dd { opacity: .8; }
</style>
</head>
<body>
<h1>specdist</h1>
<p>Serving <b>$NAME</b> with speculative decoding.</p>
<div id="log" aria-live="polite"></div>
<form id="form">
  <textarea id="text" rows="2" placeholder="Say something" aria-label="Message" required></textarea>
  <button id="send">Send</button>
</form>
<p><small id="stats"></small></p>
<h2>Endpoints</h2>
<dl>
  <dt><code>POST /v1/chat/completions</code></dt><dd>OpenAI-compatible chat, streamed or whole</dd>
  <dt><code>POST /v1/completions</code></dt><dd>OpenAI-compatible text completion</dd>
  <dt><code>GET /v1/models</code></dt><dd>the served model</dd>
  <dt><code>GET /health</code></dt><dd>200 when a request would be served</dd>
  <dt><code>GET /metrics</code></dt><dd>Prometheus text of the whole application</dd>
  <dt><code>gRPC specdist.v1.Generation</code></dt><dd>see proto/specdist.proto</dd>
</dl>
<script>
const model = $MODEL, messages = [];
const $ = id => document.getElementById(id);
function turn(kind, text) {
  const div = document.createElement("div");
  div.className = "turn " + kind;
  div.textContent = text;
  $("log").append(div);
  return div;
}
function show(chunk, div) {
  if (chunk.error) throw new Error(chunk.error.message);
  div.textContent += chunk.choices[0]?.delta?.content ?? "";
  const s = chunk.speculation;
  if (s) $("stats").textContent = s.num_accepted_tokens + " of " + s.num_draft_tokens +
    " drafted tokens accepted, " + s.mean_acceptance_length.toFixed(2) + " tokens per draft";
}
async function answer(div) {
  const reply = await fetch("/v1/chat/completions", {
    method: "POST", headers: {"Content-Type": "application/json"},
    body: JSON.stringify({model, messages, stream: true, max_tokens: 512}),
  });
  if (!reply.ok) throw new Error((await reply.json()).error.message);
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (let part; !(part = await reader.read()).done;) {
    const events = (rest + part.value).split("\\n\\n");
    rest = events.pop();
    for (const e of events) if (e !== "data: [DONE]") show(JSON.parse(e.slice(6)), div);
  }
}
$("form").onsubmit = async submit => {
  submit.preventDefault();
  const content = $("text").value;
  messages.push({role: "user", content});
  turn("user", content);
  const div = turn("assistant", "");
  $("text").value = ""; $("send").disabled = true;
  try {
    await answer(div);
    messages.push({role: "assistant", content: div.textContent});
  } catch (error) {
    messages.pop();
    turn("error", error.message);
  } finally { $("send").disabled = false; $("text").focus(); }
};
$("text").onkeydown = key => {
  if (key.key === "Enter" && !key.shiftKey) { key.preventDefault(); $("form").requestSubmit(); }
};
</script>
</body>
</html>
"""


def page(model_name: str) -> str:
    """The document for one served model."""
    in_script = json.dumps(model_name).replace("<", "\\u003c")
    return _PAGE.replace("$NAME", html.escape(model_name)).replace("$MODEL", in_script)
