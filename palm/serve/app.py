"""The HTTP interface of saved models, and the process that serves it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import sys
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from hmac import compare_digest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import uvicorn
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import FileResponse, JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from palm.core.component import count_problems, raise_any
from palm.core.errors import PalmError
from palm.core.logging import logger, show_on_console
from palm.core.version import __version__
from palm.serve import metrics
from palm.serve.batcher import place_of
from palm.serve.service import ClientGoneError, Service, Settings, described

SETTINGS = "PALM_SERVE"
API_KEY = "PALM_API_KEY"
"""Environment variables: the settings of worker processes, and the key that requests must have."""

HUNG_UP = 499
"""The status in log and metrics if nobody waited for the answer."""

KEEP_ALIVE = 75
"""Seconds until an idle connection is closed; longer than clients and proxies keep it, because a request
that is sent at the moment when it is closed gets no answer."""

BYTES_PER_CHARACTER = 12
"""The most bytes of a character in JSON: two escapes such as `\\ud83d`."""

access = logging.getLogger("palm.access")
access.propagate = False


class PredictRequest(BaseModel):
    """Texts, and the tasks that predict them."""

    model_config = ConfigDict(extra="forbid", strict=True)
    texts: list[Any] = Field(description="a text, a pair, a list of words, or what the task's predict takes")
    tasks: list[str] | None = Field(None, min_length=1, description="names of tasks; all if left out")


class PredictResponse(BaseModel):
    """For each text the records of its tasks; a text that was cut has `"truncated": true` in its record."""

    results: list[dict[str, dict[str, Any]]]


# Dependencies are coroutines, because FastAPI calls functions in another thread.
async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


Served = Annotated[Service, Depends(_service)]
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]


async def _check_key(request: Request, given: Credentials = None) -> None:
    """Let only requests with the key in, if there is one."""
    key = request.app.state.api_key
    if key and not compare_digest(given.credentials.encode() if given else b"", key.encode()):
        message = "a key is needed: Authorization: Bearer KEY"
        raise HTTPException(401, message, {"WWW-Authenticate": "Bearer"})


open_routes = APIRouter()
routes = APIRouter(dependencies=[Depends(_check_key)])


@open_routes.get("/", include_in_schema=False)
async def page() -> FileResponse:
    """The page for people."""
    return FileResponse(Path(__file__).with_name("page.html"))


@open_routes.get("/health/live")
@open_routes.get("/health/ready")
async def healthy(service: Served) -> JSONResponse:
    """200 as long as the process can compute; it listens when its models are loaded, and until SIGTERM."""
    return JSONResponse({"healthy": service.is_alive}, 200 if service.is_alive else 503)


@routes.post("/predict", response_model=PredictResponse)
async def predict(request: Request, service: Served) -> Response:
    """Predict texts; tasks that read the same tokens share a pass of the encoder."""
    service.check()  # refusing costs least before the body is read
    asked = _parsed(await _body(request, service.settings))
    service.check(asked.texts)
    line = request.scope["palm"]
    line["texts"] = len(asked.texts)
    if service.settings.log_texts:
        line["content"] = asked.texts
    results, line["tokens"] = await service.results(asked.texts, asked.tasks, _hangs_up(request))
    return JSONResponse({"results": results})


@routes.get("/models")
async def models(service: Served) -> dict[str, Any]:
    """The tasks with their labels and an example of a text each."""
    return {"tasks": {name: described(model) for name, model in service.model.tasks.items()}}


@routes.get("/metrics")
async def counted() -> Response:
    """Metrics in the text format of Prometheus."""
    return Response(metrics.metrics_text(), media_type=CONTENT_TYPE_LATEST)


@routes.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request, service: Served) -> dict[str, Any]:
    """The description of this interface, with an example of each task."""
    tasks = service.model.tasks.items()
    examples = {name: {"texts": [described(model)["example"]], "tasks": [name]} for name, model in tasks}
    body = {
        "schema": PredictRequest.model_json_schema(),
        "examples": {name: {"value": example} for name, example in examples.items()},
    }
    document: dict[str, Any] = request.app.openapi()
    document["paths"]["/predict"]["post"]["requestBody"] = {"content": {"application/json": body}}
    return document


async def _body(request: Request, settings: Settings) -> bytes:
    """Read the body of a request within the bounds."""
    most = settings.characters * BYTES_PER_CHARACTER
    body = bytearray()

    async def read() -> int:
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
            if size <= most:  # what is too much is read, so that the client reads the reason
                body.extend(chunk)
        return size

    try:
        size = await asyncio.wait_for(read(), settings.seconds)
    except asyncio.TimeoutError:
        message = f"the body did not arrive within {settings.seconds:g} seconds"
        raise HTTPException(408, message, {"Connection": "close"}) from None
    except ClientDisconnect:
        raise ClientGoneError from None
    if size > most:
        raise HTTPException(413, f"{size} bytes; a request may have {settings.characters} characters")
    return bytes(body)


def _parsed(body: bytes) -> PredictRequest:
    try:
        return PredictRequest.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "body"
        status = 400 if first["type"] == "json_invalid" else 422
        expected = 'expected {"texts": [...], "tasks": [...]}'
        raise HTTPException(status, f"{place}: {first['msg']}; {expected}") from None


async def _hangs_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class AccessLog:
    """ASGI middleware that counts and logs every request, and answers if an error was not expected."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        begin = time.perf_counter()
        name = uuid.uuid4().hex
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        scope["palm"] = line = {"time": now, "request": name, "method": scope["method"]}

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                line["status"] = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", name.encode())]
            await send(message)

        try:
            await self.app(scope, receive, sending)
        except ClientGoneError:
            line["status"] = HUNG_UP
        except Exception as error:
            logger.error("request %s failed: %s", name, place_of(error))
            if "status" not in line:
                message = {"detail": f"an error in the server; its log has request {name}"}
                await JSONResponse(message, 500)(scope, receive, sending)
        seconds = time.perf_counter() - begin
        # A path that is not ours may be anybody's text.
        path = getattr(scope.get("route"), "path", "")
        metrics.REQUESTS.labels(path, line["status"]).inc()
        metrics.SECONDS.labels(path).observe(seconds)
        access.info(json.dumps(line | {"path": path, "seconds": round(seconds, 6)}))
        return None


def create_app(settings: Settings, api_key: str | None = None) -> FastAPI:
    """Load the models and return the ASGI application that serves them.

    Args:
        settings: models and bounds.
        api_key: what requests must have as `Authorization: Bearer KEY`; None to let everybody in.

    Raises:
        PalmError: a model cannot be loaded.
    """
    service = Service(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        watching = asyncio.ensure_future(service.watch()) if settings.watch else None
        yield
        if watching is not None:
            watching.cancel()
        service.close()

    app = FastAPI(title="palm", version=__version__, openapi_url=None, lifespan=lifespan)
    app.state.service = service
    app.state.api_key = api_key
    app.include_router(open_routes)
    app.include_router(routes)
    app.add_middleware(AccessLog)
    return app


def app_of_environment() -> FastAPI:
    """Return the application of `palm serve` in its process, with the settings in `PALM_SERVE`."""
    show_on_console()
    access.addHandler(logging.StreamHandler(sys.stdout))
    access.setLevel(logging.INFO)
    return create_app(Settings(**json.loads(os.environ[SETTINGS])), os.environ.get(API_KEY))


def serve(settings: Settings, host: str, port: int, workers: int) -> None:
    """Serve until SIGTERM or Ctrl-C; every accepted request is answered first.

    Args:
        settings: models and bounds.
        host: the address to listen at.
        port: the port to listen at.
        workers: processes; each has its own copy of the models.

    Raises:
        PalmError: a number is below 1, a model cannot be loaded, or the address cannot be used.
    """
    bounds = {name: getattr(settings, name) for name in ("queue", "texts", "characters")}
    problems = count_problems(workers=workers, **bounds)
    raise_any(problems + count_problems(least=0, batch_tokens=settings.batch_tokens))
    _check_address(host, port)
    address = f"[{host}]" if ":" in host else host
    logger.info("http://%s:%d answers when the models are loaded; Ctrl-C ends it", address, port)
    os.environ[SETTINGS] = json.dumps(vars(settings))
    with ExitStack() as files:
        if workers > 1:
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = files.enter_context(TemporaryDirectory())
            os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))
        uvicorn.run(
            "palm.serve.app:app_of_environment",
            factory=True,
            host=host,
            port=port,
            workers=workers,
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=int(settings.seconds) + 5,
        )


def _check_address(host: str, port: int) -> None:
    """Refuse an address before the models are loaded, which may take a minute."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except (OSError, OverflowError) as error:
        raise PalmError(f"cannot listen at {host}:{port} ({error}); choose --host and --port") from None
