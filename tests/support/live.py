"""A server in this process: the real application, engine thread and sockets, over any step model."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import HTTPConnection
from types import SimpleNamespace
from typing import Any

import uvicorn
from openai import OpenAI

from specdecode.core.engine.engine import Engine
from specdecode.core.engine.request import Request
from specdecode.core.engine.step import StepModel
from specdecode.core.server.answering import Server
from specdecode.core.server.app import make_app
from specdecode.core.server.connection import Connection
from specdecode.core.server.metrics import Metrics
from specdecode.core.server.runner import Runner
from specdecode.core.server.serve import bind
from specdecode.core.server.state import Loaded, State
from specdecode.core.server.translate import Translator
from specdecode.core.server.usage import UsageReport
from specdecode.core.text.tokenizer import TextTokenizer


@dataclass(kw_only=True)
class Live:
    """Use as a context manager; `url` says where it listens.

    Attributes:
        log: what the engine's failures were.
    """

    model: StepModel
    tokenizer: TextTokenizer
    batch: int = 8
    waiting: int = 64
    max_body: int = 1 << 20
    api_key: str | None = None
    measured: Callable[[StepModel], Any] = lambda model: None
    engine: Engine = field(init=False)
    log: list[str] = field(default_factory=list)

    def __enter__(self) -> Live:
        # As `Life` has it; pytest would keep a record of every warning, which looks like a leak of the server's.
        logging.getLogger("asyncio").setLevel(logging.ERROR)
        self.metrics = Metrics("demo", self.model.block_size)
        self.runner = Runner(batch=self.batch, waiting=self.waiting, metrics=self.metrics, log=self._log)
        server = Server(
            runner=self.runner,
            translator=Translator(
                model="demo",
                tokenizer=self.tokenizer,
                max_length=self.model.max_length,
                drafts=self.model.block_size,
                most=self.runner.capacity,
            ),
            report=UsageReport(tokenizer=self.tokenizer, method="dspark", drafts=self.model.block_size),
            max_body=self.max_body,
            api_key=self.api_key,
        )
        self._socket = bind("127.0.0.1", 0)
        self.port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        config = uvicorn.Config(
            make_app(server), http=Connection, log_config=None, access_log=False, lifespan="off", timeout_keep_alive=65
        )
        self._http = uvicorn.Server(config)
        self._threads = [
            threading.Thread(target=self._http.run, kwargs={"sockets": [self._socket]}),
            threading.Thread(target=self._run),
        ]
        for thread in self._threads:
            thread.start()
        self.wait(lambda: self.runner.state is not State.LOADING and self._http.started)
        return self

    def __exit__(self, *_: object) -> None:
        self.runner.leave()
        self.runner.stop()
        self._http.should_exit = self._http.force_exit = True
        for thread in self._threads:
            thread.join(10)
        self._socket.close()

    @property
    def client(self) -> OpenAI:
        """The official client."""
        return OpenAI(base_url=f"{self.url}/v1", api_key=self.api_key or "none", max_retries=0, timeout=60)

    def request(self, method: str, path: str, body: bytes | None = None, **headers: str) -> SimpleNamespace:
        """One raw request: `status`, `headers`, `body`."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, body, {"Content-Type": "application/json", **headers})
        response = connection.getresponse()
        made = SimpleNamespace(status=response.status, headers=response.headers, body=response.read())
        connection.close()
        return made

    def wait(self, condition: Callable[[], bool], seconds: float = 20.0) -> None:
        """Until something holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "it never came to hold"
            time.sleep(0.005)

    def idle(self) -> bool:
        """Whether nothing runs and every page is free."""
        load = self.engine.load
        return not self.runner.in_flight and not self.engine.busy and load.free_pages == load.pages

    def quiet(self) -> bool:
        """Whether there is no connection either."""
        state = self._http.server_state
        return self.idle() and not state.connections and not state.tasks

    def _run(self) -> None:
        def load() -> Loaded:
            costs = self.measured(self.model)
            self.engine = Engine(
                self.model,
                max_batch=self.batch,
                tokenizer=self.tokenizer,
                observer=self.runner.observe,
                failures=self.runner.failed,
            )
            warm_up = Request(prompt=(self.tokenizer.bos,), max_tokens=1, draft_tokens=0)
            return Loaded(engine=self.engine, costs=costs, warm_up=warm_up)

        try:
            self.runner.run(load)
        except Exception as error:
            self.log.append(f"ended: {error}")

    def _log(self, message: str, error: Exception) -> None:
        self.log.append(f"{message}: {error}")
