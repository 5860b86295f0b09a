"""DeepSeek-V4.1 with its drafter as an architecture of MAX's own server.

    max serve --model CHECKPOINT --custom-architectures specdecode.max_arch

MAX brings the HTTP server, the scheduler, its workers and metrics; the step is this project's.
"""

from __future__ import annotations

from specdecode.max_arch.architecture import ARCHITECTURES

__all__ = ["ARCHITECTURES"]
