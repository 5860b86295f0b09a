"""Errors that are meant for people, each kind with its exit code.

A message says what happened, why, and what to do, with the offending value and where it came from. The
command line prints it as it stands; a library user catches the kind. Whatever else escapes is a defect.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What a command returns to the shell."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    MODEL = 3
    DEVICE = 4
    MISMATCH = 5
    INTERRUPTED = 130


class SpecdecodeError(Exception):
    """A problem to report as one message; exit code 1."""

    exit_code = ExitCode.FAILURE


class UsageError(SpecdecodeError):
    """The request itself is wrong: an option, a prompt, a number out of range; exit code 2."""

    exit_code = ExitCode.USAGE


class ModelError(SpecdecodeError):
    """The checkpoint, its configuration or its tokenizer cannot be used; exit code 3."""

    exit_code = ExitCode.MODEL


class ConfigError(ModelError):
    """A configuration value is missing, mistyped or not supported."""


class CheckpointError(ModelError):
    """Files or tensors of a checkpoint are missing, damaged or not what the configuration asks for."""


class TokenizerError(ModelError):
    """The tokenizer is missing or does not belong to the checkpoint."""


class StorageError(SpecdecodeError):
    """A disk is full, read-only or otherwise refuses to be written; exit code 1."""


class DeviceError(SpecdecodeError):
    """The device is absent, unsuitable or lacks memory; exit code 4."""

    exit_code = ExitCode.DEVICE


class MismatchError(SpecdecodeError):
    """A verification found a difference; exit code 5."""

    exit_code = ExitCode.MISMATCH
