"""uvicorn's connection, without what it leaves behind."""

from __future__ import annotations

from uvicorn.protocols.http.h11_impl import H11Protocol


class Connection(H11Protocol):
    """Forgets a connection that the client has reset.

    uvicorn (0.54) stops the timer of an idle connection only where it was closed in order. After a reset the timer
    keeps the connection, its last request and their buffers until it runs out, 65 s later.
    """

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone, however it went."""
        super().connection_lost(exc)
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None
