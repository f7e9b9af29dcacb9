"""What users have today: a command in bubblewrap for each request, by FastAPI.

The words before the command are given as JSON in BWRAP.
"""

import asyncio
import json
import os

from fastapi import FastAPI
from pydantic import BaseModel

BWRAP = json.loads(os.environ["BWRAP"])

app = FastAPI()


class Run(BaseModel):
    command: list[str]
    timeout_ms: int = 30_000


@app.post("/v1/run")
async def run(request: Run):
    process = await asyncio.create_subprocess_exec(
        *BWRAP,
        *request.command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        waiting = process.communicate()
        stdout, stderr = await asyncio.wait_for(waiting, request.timeout_ms / 1000)
    except TimeoutError:
        process.kill()
        await process.wait()
        return {"exit_code": 124, "timed_out": True}
    return {
        "exit_code": process.returncode,
        "stdout": stdout.decode(errors="replace"),
        "stderr": stderr.decode(errors="replace"),
        "timed_out": False,
    }
