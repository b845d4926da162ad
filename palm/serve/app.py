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
from collections.abc import AsyncIterator, MutableMapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from hmac import compare_digest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from palm.core.errors import PalmError
from palm.core.logging import logger, show_on_console
from palm.core.version import __version__
from palm.serve.batcher import place_of
from palm.serve.metrics import Metrics
from palm.serve.models import ModelSource, described
from palm.serve.service import Bounds, ClientGoneError, Service

SETTINGS = "PALM_SERVE"
API_KEY = "PALM_API_KEY"
"""Environment variables: the settings of worker processes, and the key that requests must have."""

HUNG_UP = 499
"""The status in log and metrics if nobody waited for the answer."""

BYTES_PER_CHARACTER = 12
"""The most bytes of a character in JSON: two escapes such as `\\ud83d`."""

CLOSE = {"Connection": "close"}
"""Sent with an answer before the end of a body, which would be read to its end, if it has one."""

HEADERS = {
    # The page makes requests to its own server only.
    "Content-Security-Policy": "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}

Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]

access = logging.getLogger("palm.access")
access.propagate = False


@dataclass(frozen=True)
class Settings:
    """What `palm serve` was called with.

    Args:
        folders: saved models, or runs.
        options: those of `palm.load_model`.
        bounds: the fields of `Bounds`.
        watch: replace a model when its directory is replaced.
        log_texts: write the texts of requests into the access log.
    """

    folders: list[str]
    options: dict[str, Any] = field(default_factory=dict)
    bounds: dict[str, Any] = field(default_factory=dict)
    watch: bool = False
    log_texts: bool = False


class PredictRequest(BaseModel):
    """Texts, and the tasks that predict them."""

    model_config = ConfigDict(extra="forbid", strict=True)
    texts: list[Any] = Field(description="a text, a pair, a list of words, or what the task's predict takes")
    tasks: list[str] | None = Field(None, min_length=1, description="names of tasks; all if left out")


class PredictResponse(BaseModel):
    """For each text the records of its tasks; a text that was cut has `"truncated": true` in its record."""

    results: list[dict[str, dict[str, Any]]]


def create_app(settings: Settings, api_key: str | None = None) -> FastAPI:
    """Load the models and return the ASGI application that serves them.

    Args:
        settings: models and bounds.
        api_key: what requests must have as `Authorization: Bearer KEY`; None to let everybody in.

    Raises:
        PalmError: a model cannot be loaded.
    """
    metrics = Metrics()
    service = Service(ModelSource(settings.folders, **settings.options), Bounds(**settings.bounds), metrics)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        watching = asyncio.ensure_future(service.watch()) if settings.watch else None
        yield
        if watching is not None:
            watching.cancel()
        service.close()

    app = FastAPI(
        title="palm", version=__version__, openapi_url=None, docs_url=None, redoc_url=None, lifespan=lifespan
    )
    app.state.service = service
    app.include_router(_open_routes(service))
    app.include_router(_routes(app, service, metrics), dependencies=[Depends(_key_check(api_key))])
    app.add_middleware(AccessLog, metrics=metrics, log_texts=settings.log_texts)
    return app


def _key_check(api_key: str | None) -> Any:
    """Return the dependency that lets only requests with the key in."""

    def check(given: Credentials = None) -> None:
        sent = "" if given is None else given.credentials
        if api_key is not None and not compare_digest(sent.encode(), api_key.encode()):
            message = "a key is needed: Authorization: Bearer KEY"
            raise HTTPException(401, message, {"WWW-Authenticate": "Bearer"})

    return check


def _open_routes(service: Service) -> APIRouter:
    """The page, and the probes of an orchestrator."""
    routes = APIRouter()
    page = Path(__file__).with_name("page.html").read_text(encoding="utf-8")

    @routes.get("/", include_in_schema=False)
    async def index() -> HTMLResponse:
        return HTMLResponse(page, headers=HEADERS)

    @routes.get("/health/live")
    async def live() -> JSONResponse:
        """200 as long as the process can compute."""
        return JSONResponse({"live": service.is_alive}, 200 if service.is_alive else 503)

    @routes.get("/health/ready")
    async def ready() -> JSONResponse:
        """200 as long as requests are accepted: there is room in the queue."""
        is_ready = service.is_alive and service.num_waiting < service.bounds.queue
        return JSONResponse({"ready": is_ready}, 200 if is_ready else 503)

    return routes


def _routes(app: FastAPI, service: Service, metrics: Metrics) -> APIRouter:
    routes = APIRouter()

    @routes.post(
        "/predict",
        response_model=PredictResponse,
        responses={status: {"description": text} for status, text in REFUSALS.items()},
    )
    async def predict(request: Request) -> Response:
        """Predict texts with one pass of the encoder."""
        asked = _parsed(await _body(request, service.bounds))
        facts = request.scope["palm"]
        facts |= {"texts": len(asked.texts), "content": asked.texts}
        results, facts["tokens"] = await service.results(
            asked.texts, asked.tasks, partial(_hangs_up, request)
        )
        return JSONResponse({"results": results})

    @routes.get("/models")
    async def models() -> dict[str, Any]:
        """The tasks with their labels, an example of a text each, and the bounds of a request."""
        tasks = {name: described(model) for name, model in service.source.model.tasks.items()}
        return {"tasks": tasks, "bounds": vars(service.bounds)}

    @routes.get("/metrics", response_class=Response)
    async def counted() -> Response:
        """Metrics in the text format of Prometheus."""
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @routes.get("/openapi.json", include_in_schema=False)
    async def openapi() -> JSONResponse:
        tasks = service.source.model.tasks.items()
        examples = {
            name: {"value": {"texts": [described(model)["example"]], "tasks": [name]}}
            for name, model in tasks
        }
        body = {"schema": PredictRequest.model_json_schema(), "examples": examples}
        document = dict(app.openapi())
        content = {"required": True, "content": {"application/json": body}}
        operation = document["paths"]["/predict"]["post"] | {"requestBody": content}
        return JSONResponse(document | {"paths": document["paths"] | {"/predict": {"post": operation}}})

    return routes


REFUSALS = {
    400: "the body is not JSON",
    401: "the key is missing or wrong",
    408: "the body took too long",
    413: "too many texts or characters",
    422: "a text or a task cannot be used; the message says which",
    429: "the queue is full; Retry-After has the seconds to wait",
    504: "no answer in time",
}


async def _body(request: Request, bounds: Bounds) -> bytes:
    """Read the body of a request within the bounds."""
    most = bounds.characters * BYTES_PER_CHARACTER
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length[:20]) > most:
        raise HTTPException(413, f"{length[:20]} bytes; a request may have {bounds.characters} characters")

    async def read() -> bytes:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > most:
                raise HTTPException(413, f"a request may have {bounds.characters} characters", CLOSE)
        return bytes(body)

    try:
        return await asyncio.wait_for(read(), bounds.seconds)
    except asyncio.TimeoutError:
        raise HTTPException(
            408, f"the body did not arrive within {bounds.seconds:g} seconds", CLOSE
        ) from None
    except ClientDisconnect:
        raise ClientGoneError from None


def _parsed(body: bytes) -> PredictRequest:
    try:
        return PredictRequest.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        status = 400 if first["type"] == "json_invalid" else 422
        expected = 'expected {"texts": [...], "tasks": [...]}'
        raise HTTPException(status, f"{place or 'body'}: {first['msg']}; {expected}") from None


async def _hangs_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class AccessLog:
    """ASGI middleware that counts and logs every request, and answers what nobody expected.

    Args:
        app: the application.
        metrics: counts requests.
        log_texts: whether texts are logged.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, log_texts: bool) -> None:
        self.app = app
        self._metrics = metrics
        self._log_texts = log_texts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        name = uuid.uuid4().hex[:16]
        facts: dict[str, Any] = {}
        scope["palm"] = facts
        status = 0
        begin = time.perf_counter()

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", name.encode())]
            await send(message)

        try:
            await self.app(scope, receive, sending)
        except ClientGoneError:
            status = HUNG_UP
        except Exception as error:
            logger.error("request %s failed: %s", name, place_of(error))
            if not status:
                message = {"detail": f"an error in the server; its log has request {name}"}
                await JSONResponse(message, 500)(scope, receive, sending)
        self._write(scope, name, status, time.perf_counter() - begin, facts)

    def _write(
        self, scope: Scope, name: str, status: int, seconds: float, facts: MutableMapping[str, Any]
    ) -> None:
        # A path that is not ours may be anybody's text.
        path = getattr(scope.get("route"), "path", "")
        self._metrics.requests.labels(path, status).inc()
        self._metrics.seconds.labels(path).observe(seconds)
        content = facts.pop("content", None)
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "request": name,
            "method": scope["method"],
            "path": path,
            "status": status,
            "seconds": round(seconds, 6),
            **facts,
        }
        access.info(json.dumps(line | ({"content": content} if self._log_texts else {})))


def app_of_environment() -> FastAPI:
    """Return the application of `palm serve` in its process, with the settings in `PALM_SERVE`."""
    show_on_console()
    if not access.handlers:
        access.addHandler(logging.StreamHandler(sys.stdout))
        access.setLevel(logging.INFO)
    return create_app(Settings(**json.loads(os.environ[SETTINGS])), os.environ.get(API_KEY) or None)


def serve(settings: Settings, host: str, port: int, workers: int) -> None:
    """Serve until SIGTERM or Ctrl-C; every accepted request is answered first.

    Args:
        settings: models and bounds.
        host: the address to listen at.
        port: the port to listen at.
        workers: processes; each has its own copy of the models.

    Raises:
        PalmError: a model cannot be loaded, or the address cannot be used.
    """
    import uvicorn

    _check_address(host, port)
    with ExitStack() as files:
        if workers > 1:
            ModelSource(settings.folders, **settings.options)  # an error is one message, not one per process
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = files.enter_context(TemporaryDirectory())
            os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))
        os.environ[SETTINGS] = json.dumps(vars(settings))
        uvicorn.run(
            "palm.serve.app:app_of_environment",
            factory=True,
            host=host,
            port=port,
            workers=workers,
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_graceful_shutdown=int(Bounds(**settings.bounds).seconds) + 5,
        )


def _check_address(host: str, port: int) -> None:
    """Refuse an address before the models are loaded, which may take a minute."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise PalmError(f"cannot listen at {host}:{port}: {reason}; choose with --host and --port") from None
