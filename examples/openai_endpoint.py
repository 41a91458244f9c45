"""An OpenAI-compatible endpoint over `LLM.submit`: an example, not a server for production.

`pip install fastapi uvicorn`, then `python examples/openai_endpoint.py`: http://localhost:8000/v1.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial

import uvicorn
from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse

import bass

llm, app = bass.load(max_batch_size=8), FastAPI()  # the embedded pair: give your own
FIELDS = ("temperature", "top_p", "seed", "stop", "presence_penalty", "frequency_penalty")


def body(chat: bool, part: str, text: str, reason: str | None) -> dict:
    """A reply, or a chunk of one. part: the field of a chat's text."""
    said = {part: {"role": "assistant", "content": text}} if chat else {"text": text}
    kind = "chat.completion" + ".chunk" * (part == "delta") if chat else "text_completion"
    choice = {"index": 0, "finish_reason": "stop" if reason == "eos" else reason, **said}
    return {"id": "bass", "created": 0, "model": "bass", "object": kind, "choices": [choice]}


@app.post("/v1/completions")
@app.post("/v1/chat/completions")
async def complete(request: dict):
    """Answer a prompt, or the messages of a chat, whole or with `"stream": true` in chunks."""
    options = {name: request[name] for name in FIELDS if request.get(name) is not None}
    options["max_new_tokens"] = request.get("max_tokens") or 256
    chat, events = "messages" in request, asyncio.Queue[bass.StreamEvent | None]()
    put = partial(asyncio.get_running_loop().call_soon_threadsafe, events.put_nowait)
    try:
        prompt = llm.apply_chat_template(request["messages"]) if chat else request["prompt"]
        future = llm.submit(prompt, on_event=put, **options)
    except bass.BassError as error:
        raise HTTPException(400, str(error)) from error
    if not request.get("stream"):
        done = await asyncio.wrap_future(future)
        return body(chat, "message", done.text or "", done.finish_reason)
    future.add_done_callback(lambda _: put(None))

    async def chunks() -> AsyncIterator[str]:
        try:
            while (event := await events.get()) is not None:
                reply = body(chat, "delta", event.text, event.finish_reason)
                yield f"data: {json.dumps(reply)}\n\n"
            yield "data: [DONE]\n\n"
        finally:
            future.cancel()  # if the client has gone

    return StreamingResponse(chunks(), media_type="text/event-stream")


if __name__ == "__main__":
    uvicorn.run(app, port=8000)
